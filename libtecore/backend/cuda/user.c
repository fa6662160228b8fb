/*
 * user.c - user-defined work in captures, whose memory te_capture_access() declares.
 *
 * A declaration holds for the nodes that the stream queued from its beginning to its end: they are
 * found from the last one backwards. A kernel's parameters are copied when the capture ends, since
 * an executable that is updated in place keeps the nodes of an earlier graph.
 */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/graph.h"

#define NPARAMS_MAX 1024 /* parameters of kernels whose pointers can be replaced */

static int has_places(const struct te__declared *d)
{
	for (uint32_t k = 0; k < d->ranges.n; k++)
		if (d->at[k] >= 0)
			return 1;
	return 0;
}

/* number of the kernel's parameters, or 0 if there are too many; and the bytes that they take */
static size_t params_count(void *func, size_t *ret_nbytes)
{
	size_t n = 0, offset, nbytes;

	*ret_nbytes = 0;
	while (n <= NPARAMS_MAX && !te__cu.cuFuncGetParamInfo(func, n, &offset, &nbytes)) {
		*ret_nbytes = offset + nbytes;
		n++;
	}
	return n <= NPARAMS_MAX ? n : 0;
}

/* the declared pointers are in the parameters */
static int check_places(const struct te__cuda_user *u)
{
	const struct te__declared *d = &u->declared;

	for (uint32_t k = 0; k < d->ranges.n; k++) {
		const size_t at = (size_t)d->at[k];
		uintptr_t p = 0;

		if (d->at[k] < 0)
			continue;
		if (u->nbytes >= sizeof(p) && at <= u->nbytes - sizeof(p))
			memcpy(&p, u->param + at, sizeof(p));
		if (p != d->ranges.v[k].ptr)
			return te__fail(-EINVAL,
					"te_capture_access: range %" PRIu32 ": byte %zu of the "
					"kernel's %zu bytes of parameters does not have its "
					"pointer %p", k, at, u->nbytes, (void *)d->ranges.v[k].ptr);
	}
	return 0;
}

/* memory for a node's declaration, and for its parameters unless nparams is 0 */
static struct te__cuda_user *user_new(struct te__cuda_graph *g, const struct te__declared *d,
				      size_t nparams, size_t nbytes)
{
	const size_t pointers = nparams * sizeof(void *);
	struct te__cuda_user *u = te__calloc(1, sizeof(*u) + pointers + nbytes);

	if (!u)
		return NULL;
	u->declared = *d;
	if (nparams) {
		u->launch.params = (void **)(void *)(u + 1);
		u->param = (char *)(u + 1) + pointers;
		u->nbytes = nbytes;
	}
	u->next = g->capture->users;
	g->capture->users = u;
	return u;
}

/* copies a launch, so that its pointers can be replaced */
static void launch_copy(struct te__cuda_user *u, const struct te__cu_kernel_params *p,
			size_t nparams)
{
	void **own = u->launch.params;
	size_t offset, nbytes;

	u->launch = *p;
	u->launch.params = own;
	u->launch.extra = NULL;
	for (size_t i = 0; i < nparams; i++) {
		te__cu.cuFuncGetParamInfo(p->func, i, &offset, &nbytes);
		own[i] = u->param + offset;
		memcpy(own[i], p->params[i], nbytes);
	}
}

static int node_declare(struct te__cuda_graph *g, const struct te__declared *d,
			struct te__gnode *info)
{
	void *node = g->nodes->node[info - g->info];
	const int patches = info->kind == TE_NODE_KERNEL && has_places(d);
	struct te__cu_kernel_params p = { 0 };
	size_t nparams = 0, nbytes = 0;
	struct te__cuda_user *u;
	int r = patches ? TE__CU_CALL(cuGraphKernelNodeGetParams, node, &p) : 0;

	if (r)
		return r;
	if (p.func && p.params)
		nparams = params_count(p.func, &nbytes);
	u = user_new(g, d, nparams, nbytes);
	if (!u)
		return te__fail(-ENOMEM, "no memory for declared accesses");
	if (nparams) {
		launch_copy(u, &p, nparams);
		r = check_places(u);
	}
	info->declared = &u->declared;
	info->opaque = 0;
	info->fixed = !u->param;
	return r;
}

int te__cuda_user_declare(struct te__cuda_graph *g, const struct te__cuda_mark *m,
			  struct te__gnode *info)
{
	int r = 0;

	for (;;) {
		const int open = info->kind == TE_NODE_HOST || info->kind == TE_NODE_EVENT;

		if (info->opaque || (open && !info->declared))
			r = node_declare(g, m->what.declared, info);
		if (r || info->ndeps != 1 || g->nodes->node[info->dep[0]] == m->before)
			return r;
		info = &g->info[info->dep[0]];
	}
}

int te__cuda_user_set(void *exec, void *node, const struct te__gnode *n,
		      const struct te__declared *to)
{
	struct te__cuda_user *u =
		(struct te__cuda_user *)((uintptr_t)n->declared -
					 offsetof(struct te__cuda_user, declared));

	for (uint32_t k = 0; k < to->ranges.n; k++)
		if (to->at[k] >= 0)
			memcpy(u->param + to->at[k], &to->ranges.v[k].ptr, sizeof(uintptr_t));
	return te__cu.cuGraphExecKernelNodeSetParams(exec, node, &u->launch);
}
