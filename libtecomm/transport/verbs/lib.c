/* lib.c - opens libibverbs and fills the table of its functions. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/verbs"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "libtecomm/transport/verbs/verbs.h"

static struct te__verbs_lib real;
static const struct te__verbs_lib *replacement;
static const char *missing; /* NULL: nothing is */
static pthread_once_t once = PTHREAD_ONCE_INIT;

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

static void load(void)
{
	static const struct {
		const char *name;
		size_t at;
	} sym[] = {
#define TE__IBV(member, symbol, type, args) { symbol, offsetof(struct te__verbs_lib, member) },
#include "libtecomm/transport/verbs/syms.def"
#undef TE__IBV
	};
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		missing = "libibverbs.so.1";
	for (size_t i = 0; lib && i < sizeof(sym) / sizeof(sym[0]); i++) {
		void *p = dlsym(lib, sym[i].name);

		memcpy((char *)&real + sym[i].at, &p, sizeof(p));
		if (!p)
			missing = sym[i].name;
	}
	real.poll_cq = poll_cq;
	real.req_notify_cq = req_notify_cq;
	real.post_send = post_send;
	real.post_recv = post_recv;
	real.nearness = te__verbs_nearness;
	/* never closed: providers register handlers */
}

int te__verbs_load(const struct te__verbs_lib **ret_lib)
{
	if (replacement) {
		*ret_lib = replacement;
		return 0;
	}
	pthread_once(&once, load);
	if (missing)
		return te__fail(-ENODEV, "verbs: %s is not found", missing);
	*ret_lib = &real;
	return 0;
}

void te__verbs_replace(const struct te__verbs_lib *lib)
{
	replacement = lib;
}
