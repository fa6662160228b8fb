/*
 * verbs.h - the transport over RDMA devices (InfiniBand, RoCE): lib.c opens libibverbs, device.c
 * chooses ports, near.c tells which devices are near; vlink.h is the link.
 */
#ifndef TE__VERBS_H
#define TE__VERBS_H

#include <infiniband/verbs.h>

#include "libtecomm/reach/link/link.h"

/* libibverbs, or what a test has in its place */
struct te__verbs_lib {
#define TE__IBV(member, symbol, type, args) type(*member) args;
#include "libtecomm/reach/link/verbs/syms.def"
#undef TE__IBV
	int (*poll_cq)(struct ibv_cq *cq, int n, struct ibv_wc *ret_wc);
	int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **ret_bad);
	int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **ret_bad);
	/* higher is nearer to the GPU of this address or, if it is "", to the calling thread */
	int (*nearness)(struct ibv_device *dev, const char *pci);
};

/* -ENODEV: libibverbs is absent or lacks a function, with the reason in the error message */
int te__verbs_load(const struct te__verbs_lib **ret_lib);
/* for tests, before the first load and after the last use: NULL is libibverbs again */
void te__verbs_replace(const struct te__verbs_lib *lib);

/* an open device, one of its ports, and the address of that */
struct te__verbs_port {
	const struct te__verbs_lib *lib;
	struct ibv_context *ctx;
	char name[64]; /* of the device */
	uint8_t port;
	struct ibv_port_attr attr;
	struct ibv_gid_entry gid; /* not used on InfiniBand if gid_chosen is 0 */
	int gid_chosen;
};

#define TE__VERBS_PORTS_MOST 4

/* what ports are to be near to, and which of equal ones is taken */
struct te__verbs_near {
	const char *pci;
	int turn;
};

/*
 * The ports of TE_COMM_IB_DEVICE; those it leaves open, and one if it is empty, are the fastest
 * active ones, of equals the nearest, of these the turn-th. Their addresses are TE_COMM_IB_GID or,
 * for RoCE, an IPv4-mapped one of version 2 if there is one. Returns how many, at most
 * TE__VERBS_PORTS_MOST; -ENODEV, -EINVAL, errno values.
 */
int te__verbs_ports_open(const struct te__verbs_near *near, struct te__verbs_port *ret_ports);
/* takes one that is half-built or zero */
void te__verbs_port_close(struct te__verbs_port *port);
/* the state now, for messages: "device mlx5_0 port 1, PORT_ACTIVE" */
const char *te__verbs_port_text(const struct te__verbs_port *port, char *ret_text, size_t nbytes);

/* how many folders the paths of two devices in sysfs have in common */
int te__verbs_common(const char *a, const char *b);
/* the one of libibverbs */
int te__verbs_nearness(struct ibv_device *dev, const char *pci);

#endif
