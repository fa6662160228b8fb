/*
 * verbs.h - the transport over RDMA devices (InfiniBand, RoCE): lib.c opens libibverbs, device.c
 * chooses a port, verbs.c moves data.
 */
#ifndef TE__VERBS_H
#define TE__VERBS_H

#include <infiniband/verbs.h>

#include "libtecomm/transport/link.h"

/* libibverbs, or what a test has in its place */
struct te__verbs_lib {
#define TE__IBV(member, symbol, type, args) type(*member) args;
#include "libtecomm/transport/verbs/syms.def"
#undef TE__IBV
	int (*poll_cq)(struct ibv_cq *cq, int n, struct ibv_wc *ret_wc);
	int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **ret_bad);
	int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **ret_bad);
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

/*
 * TE_COMM_IB_DEVICE, or the fastest active port, the first of equals; its address is TE_COMM_IB_GID
 * or, for RoCE, an IPv4-mapped one of version 2 if there is one. -ENODEV, -EINVAL, errno values.
 */
int te__verbs_port_open(struct te__verbs_port *ret_port);
/* takes one that is half-built or zero */
void te__verbs_port_close(struct te__verbs_port *port);
/* the state now, for messages: "device mlx5_0 port 1, PORT_ACTIVE" */
const char *te__verbs_port_text(const struct te__verbs_port *port, char *ret_text, size_t nbytes);

#endif
