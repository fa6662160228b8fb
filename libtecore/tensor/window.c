/* window.c - windows: device memory that several processes map, and host pages for a device. */
#define TE_LOG_CATEGORY "core/window"
#include "config.h"

#include <errno.h>
#include <string.h>

#include "libtecore/tensor/ctx.h"

struct te__window {
	struct te_ctx *ctx;
	char *base;
	size_t slot_nbytes;
	int nslots, own;
	void *share; /* memory of the own slot */
	void *multicast; /* share, or NULL */
	void *multicast_base;
	int multicast_mapped;
	unsigned char mapped[]; /* by slot: 1 or 0 */
};

int te__window_unit(struct te_ctx *ctx, size_t *ret_nbytes)
{
	int r = te__ctx_check_fork(ctx, "size of shared memory");

	return r ? r : ctx->ops->share_unit(ctx->dev, ret_nbytes);
}

static void count(struct te_ctx *ctx, size_t nbytes)
{
	pthread_mutex_lock(&ctx->lock);
	ctx->used_nbytes += nbytes;
	ctx->nallocs++;
	if (ctx->used_nbytes > ctx->peak_nbytes)
		ctx->peak_nbytes = ctx->used_nbytes;
	pthread_mutex_unlock(&ctx->lock);
}

static void uncount(struct te_ctx *ctx, size_t nbytes)
{
	pthread_mutex_lock(&ctx->lock);
	ctx->used_nbytes -= nbytes;
	pthread_mutex_unlock(&ctx->lock);
}

static size_t window_nbytes(const struct te__window *w)
{
	return (size_t)w->nslots * w->slot_nbytes;
}

static int map(struct te__window *w, int slot, void *share)
{
	int r = w->ctx->ops->share_map(share, te__window_slot(w, slot));

	if (!r)
		w->mapped[slot] = 1;
	return r;
}

typedef int create_fn(void *dev, size_t nbytes, void **ret_share);

static int fill(struct te__window *w, create_fn *create)
{
	const struct te__backend_ops *ops = w->ctx->ops;
	void *base;
	int r = ops->share_reserve(w->ctx->dev, window_nbytes(w), &base);

	if (r)
		return r;
	w->base = base;
	r = create(w->ctx->dev, w->slot_nbytes, &w->share);
	if (r)
		return r;
	count(w->ctx, w->slot_nbytes);
	return map(w, w->own, w->share);
}

static int window_create(struct te_ctx *ctx, int nslots, int own, size_t slot_nbytes,
			 create_fn *create, struct te__window **ret_window)
{
	struct te__window *w;
	size_t nbytes;
	int r = te__ctx_check_fork(ctx, "create shared memory");

	if (r)
		return r;
	if (__builtin_mul_overflow((size_t)nslots, slot_nbytes, &nbytes))
		return te__fail(-ENOMEM, "shared memory: %d times %zu bytes overflow", nslots,
				slot_nbytes);
	w = te__calloc(1, sizeof(*w) + (size_t)nslots);
	if (!w)
		return te__fail(-ENOMEM, "no memory for a window of %d slots", nslots);
	w->ctx = te_ctx_ref(ctx);
	w->slot_nbytes = slot_nbytes;
	w->nslots = nslots;
	w->own = own;
	r = fill(w, create);
	if (r) {
		te__window_destroy(w);
		return r;
	}
	*ret_window = w;
	return 0;
}

int te__window_create(struct te_ctx *ctx, int nslots, int own, size_t slot_nbytes,
		      struct te__window **ret_window)
{
	return window_create(ctx, nslots, own, slot_nbytes, ctx->ops->share_create, ret_window);
}

int te__window_fabric_create(struct te_ctx *ctx, int nslots, int own, size_t slot_nbytes,
			     struct te__window **ret_window)
{
	return window_create(ctx, nslots, own, slot_nbytes, ctx->ops->fabric_create, ret_window);
}

struct te__window *te__window_destroy(struct te__window *w)
{
	struct te_ctx *ctx = w ? w->ctx : NULL;

	if (!w)
		return NULL;
	/* a forked child has copies of the mappings, which end with it */
	if (!te__ctx_forked(ctx)) {
		if (w->share && te__ctx_drain(ctx, "free shared memory"))
			te__log_warn("shared memory is unmapped although: %s", te_error_detail());
		if (w->multicast)
			ctx->ops->share_release(w->multicast); /* and unbinds */
		if (w->multicast_mapped)
			ctx->ops->share_unmap(ctx->dev, w->multicast_base, w->slot_nbytes);
		if (w->multicast_base)
			ctx->ops->share_unreserve(ctx->dev, w->multicast_base, w->slot_nbytes);
		for (int i = 0; i < w->nslots; i++)
			if (w->mapped[i])
				ctx->ops->share_unmap(ctx->dev, te__window_slot(w, i),
						      w->slot_nbytes);
		if (w->share) {
			ctx->ops->share_release(w->share);
			uncount(ctx, w->slot_nbytes);
		}
		if (w->base)
			ctx->ops->share_unreserve(ctx->dev, w->base, window_nbytes(w));
	}
	te__free(w);
	te_ctx_unref(ctx);
	return NULL;
}

struct te__window *te__window_abandon(struct te__window *w)
{
	struct te_ctx *ctx = w->ctx;

	te__log_warn("%zu bytes of multicast memory are held until the process ends",
		     w->slot_nbytes);
	te__free(w);
	te_ctx_unref(ctx);
	return NULL;
}

int te__window_export(struct te__window *w, int *ret_fd)
{
	return w->ctx->ops->share_export(w->share, ret_fd);
}

/* the mapping keeps the memory */
static int map_imported(struct te__window *w, int slot, void *share)
{
	int r = map(w, slot, share);

	w->ctx->ops->share_release(share);
	return r;
}

int te__window_import(struct te__window *w, int slot, int fd)
{
	struct te_ctx *ctx = w->ctx;
	void *share;
	int r = te__ctx_check_fork(ctx, "map shared memory");

	if (!r)
		r = ctx->ops->share_import(ctx->dev, fd, w->slot_nbytes, &share);
	return r ? r : map_imported(w, slot, share);
}

int te__window_fabric_export(struct te__window *w, struct te__fabric_handle *ret_handle)
{
	return w->ctx->ops->fabric_export(w->share, ret_handle);
}

int te__window_fabric_import(struct te__window *w, int slot,
			     const struct te__fabric_handle *handle)
{
	struct te_ctx *ctx = w->ctx;
	void *share;
	int r = te__ctx_check_fork(ctx, "map memory of another node");

	if (!r)
		r = ctx->ops->fabric_import(ctx->dev, handle, w->slot_nbytes, &share);
	return r ? r : map_imported(w, slot, share);
}

void *te__window_slot(const struct te__window *w, int slot)
{
	return w->base + (size_t)slot * w->slot_nbytes;
}

int te__window_multicast_unit(struct te_ctx *ctx, int nslots, size_t slot_nbytes,
			      size_t *ret_nbytes)
{
	int r = te__ctx_check_fork(ctx, "size of multicast memory");

	return r ? r : ctx->ops->multicast_unit(ctx->dev, nslots, slot_nbytes, ret_nbytes);
}

int te__window_multicast_create(struct te__window *w, int *ret_fd)
{
	const struct te__backend_ops *ops = w->ctx->ops;
	int r = te__ctx_check_fork(w->ctx, "create multicast memory");

	if (!r)
		r = ops->multicast_create(w->ctx->dev, w->nslots, w->slot_nbytes, &w->multicast);
	return r ? r : ops->share_export(w->multicast, ret_fd);
}

int te__window_multicast_import(struct te__window *w, int fd)
{
	int r = te__ctx_check_fork(w->ctx, "import multicast memory");

	return r ? r : w->ctx->ops->multicast_import(w->ctx->dev, fd, w->slot_nbytes,
						     &w->multicast);
}

int te__window_multicast_bind(struct te__window *w)
{
	int r = te__ctx_check_fork(w->ctx, "bind multicast memory");

	return r ? r : w->ctx->ops->multicast_bind(w->multicast, w->share);
}

int te__window_multicast_map(struct te__window *w)
{
	const struct te__backend_ops *ops = w->ctx->ops;
	void *base;
	int r = te__ctx_check_fork(w->ctx, "map multicast memory");

	if (!r)
		r = ops->share_reserve(w->ctx->dev, w->slot_nbytes, &base);
	if (r)
		return r;
	w->multicast_base = base;
	r = ops->share_map(w->multicast, base);
	w->multicast_mapped = !r;
	return r;
}

void *te__window_multicast(const struct te__window *w)
{
	return w->multicast_mapped ? w->multicast_base : NULL;
}

int te__page_register(struct te_ctx *ctx, void *page, size_t nbytes, void **ret_ptr)
{
	int r = te__ctx_check_fork(ctx, "register a page");

	return r ? r : ctx->ops->page_register(ctx->dev, page, nbytes, ret_ptr);
}

void te__page_unregister(struct te_ctx *ctx, void *page)
{
	if (!te__ctx_forked(ctx))
		ctx->ops->page_unregister(ctx->dev, page);
}

int te__adapter_export(struct te_ctx *ctx, void *ptr, size_t nbytes, int *ret_fd)
{
	int r = te__ctx_check_fork(ctx, "export memory to network adapters");

	return r ? r : ctx->ops->adapter_export(ctx->dev, ptr, nbytes, ret_fd);
}

int te__fabric_probe(struct te_ctx *ctx, struct te__fabric_domain *ret_domain)
{
	int r = te__ctx_check_fork(ctx, "probe fabric handles");

	memset(ret_domain, 0, sizeof(*ret_domain));
	return r ? r : ctx->ops->fabric_probe(ctx->dev, ret_domain);
}
