/*
 * verbs.h - the transport over RDMA devices (InfiniBand, RoCE): lib.c opens libibverbs, device.c
 * chooses ports, near.c finds near devices; vlink.h is the link.
 */
#ifndef TE__VERBS_H
#define TE__VERBS_H

#include <infiniband/verbs.h>

#include "libtecomm/reach/link/link.h"

/* functions of libibverbs, or of a test */
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

/* an open device, one of its ports, and the port's address */
struct te__verbs_port {
	const struct te__verbs_lib *lib;
	struct ibv_context *ctx;
	char name[64]; /* name of the device */
	uint8_t port;
	struct ibv_port_attr attr;
	struct ibv_gid_entry gid; /* not used on InfiniBand if gid_chosen is 0 */
	int gid_chosen;
};

#define TE__VERBS_PORTS_MOST 4

/* choice of ports: the GPU to be near to, and a number that selects among equal ports */
struct te__verbs_near {
	const char *pci;
	int turn;
};

/*
 * Opens the ports of TE_COMM_IB_DEVICE. Ports that it does not name, or one port if it is empty,
 * are the fastest active ones; of equal ones the nearest, and of these number turn. Their addresses
 * are TE_COMM_IB_GID or, for RoCE, an IPv4-mapped address of version 2 if there is one. Returns the
 * number of ports, at most TE__VERBS_PORTS_MOST; -ENODEV, -EINVAL, errno values.
 */
int te__verbs_ports_open(const struct te__verbs_near *near, struct te__verbs_port *ret_ports);
/* accepts a port that is half-built or zero */
void te__verbs_port_close(struct te__verbs_port *port);
/* the present state, for messages: "device mlx5_0 port 1, PORT_ACTIVE" */
const char *te__verbs_port_text(const struct te__verbs_port *port, char *ret_text, size_t nbytes);

/* number of folders that the sysfs paths of two devices have in common */
int te__verbs_common(const char *a, const char *b);
/* te__verbs_lib.nearness for real devices */
int te__verbs_nearness(struct ibv_device *dev, const char *pci);

#endif
