/* fork.c - contexts in a forked child: it has no threads, and any lock may stay locked. */
#include "config.h"

#include <errno.h>

#include "libtecore/tensor/ctx.h"

static atomic_uint nforks;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static int fork_error;

static void count_fork(void)
{
	atomic_fetch_add(&nforks, 1);
}

static void watch_forks(void)
{
	fork_error = pthread_atfork(NULL, NULL, count_fork);
}

int te__ctx_watch_forks(struct te_ctx *ctx, const char *fn)
{
	pthread_once(&fork_once, watch_forks);
	ctx->nforks = atomic_load(&nforks);
	return fork_error ? te__fail(-fork_error, "%s: pthread_atfork failed", fn) : 0;
}

int te__ctx_forked(const struct te_ctx *ctx)
{
	return ctx->nforks != atomic_load_explicit(&nforks, memory_order_relaxed);
}

int te__ctx_check_fork(const struct te_ctx *ctx, const char *fn)
{
	if (!ctx)
		return te__fail(-EINVAL, "%s: ctx is NULL", fn);
	if (!te__ctx_forked(ctx))
		return 0;
	return te__fail(-TE_ESTATE, "%s: the context was created before this process was forked: "
			"create one in the child", fn);
}
