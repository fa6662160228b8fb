/* lib.c - opens libibverbs and fills the table of its functions. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/verbs"

#include <errno.h>
#include <stddef.h>

#include "libtecomm/reach/link/verbs/verbs.h"

static const struct te__verbs_lib *replacement;

/* these call the driver by the table of the object */
static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *ret_wc)
{
	return ibv_poll_cq(cq, n, ret_wc);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return ibv_req_notify_cq(cq, solicited_only);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **ret_bad)
{
	return ibv_post_send(qp, wr, ret_bad);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **ret_bad)
{
	return ibv_post_recv(qp, wr, ret_bad);
}

static struct te__verbs_lib real = {
	.poll_cq = poll_cq,
	.req_notify_cq = req_notify_cq,
	.post_send = post_send,
	.post_recv = post_recv,
	.nearness = te__verbs_nearness,
};
static const struct te__dl_sym sym[] = {
#define TE__IBV(member, symbol, type, args) { symbol, offsetof(struct te__verbs_lib, member) },
#include "libtecomm/reach/link/verbs/syms.def"
#undef TE__IBV
};
static struct te__dl dl = TE__DL(sym, &real, "libibverbs.so.1");

int te__verbs_load(const struct te__verbs_lib **ret_lib)
{
	const char *missing;

	if (replacement) {
		*ret_lib = replacement;
		return 0;
	}
	missing = te__dl_open(&dl);
	if (missing)
		return te__fail(-ENODEV, "verbs: %s is not found", missing);
	*ret_lib = &real;
	return 0;
}

void te__verbs_replace(const struct te__verbs_lib *lib)
{
	replacement = lib;
}
