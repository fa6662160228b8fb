/* ctx.c - contexts: backends and devices, references, copies. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/backend/numa.h"
#include "libtecore/tensor/ctx.h"

int te_backend_count(void)
{
	return te__backend_count();
}

static int backend_info(const struct te__backend_ops *ops, struct te_backend_info *ret)
{
	struct te_backend_info info = TE_BACKEND_INFO_INIT;
	int r;

	snprintf(info.name, sizeof(info.name), "%s", ops->name);
	r = ops->probe(&info);
	if (!r)
		te__sized_out(te_backend_info, &info, ret);
	return r;
}

int te_backend_info(int index, struct te_backend_info *ret_info)
{
	const struct te__backend_ops *ops = te__backend_at(index);
	int r = te__sized_check("te_backend_info", te_backend_info, ret_info);

	if (r)
		return r;
	if (!ops)
		return te__fail(-EINVAL, "te_backend_info: index %d of %d backends", index,
				te__backend_count());
	return backend_info(ops, ret_info);
}

/* without its free memory, for which a GPU may need a context */
static int device_info(const struct te__backend_ops *ops, int index, struct te_device_info *ret)
{
	struct te_device_info info = TE_DEVICE_INFO_INIT;
	int r;

	snprintf(info.backend, sizeof(info.backend), "%s", ops->name);
	info.index = index;
	r = ops->device_info(index, &info);
	if (r)
		return r;
	info.numa_node = te__pci_node(TE__PCI_ROOT, info.pci_address);
	*ret = info;
	return 0;
}

static int device_info_free(const struct te__backend_ops *ops, int index,
			    struct te_device_info *ret)
{
	struct te_device_info info;
	int r = device_info(ops, index, &info);

	if (!r)
		r = ops->free_nbytes(index, &info.mem_free_nbytes);
	if (!r)
		te__sized_out(te_device_info, &info, ret);
	return r;
}

int te_device_info(const char *backend, int index, struct te_device_info *ret_info)
{
	const struct te__backend_ops *ops = backend ? te__backend_by_name(backend) : NULL;
	int r = te__sized_check("te_device_info", te_device_info, ret_info);

	if (r)
		return r;
	if (!ops)
		return te__fail(-EINVAL, "te_device_info: no backend is named %s",
				backend ? backend : "NULL");
	return device_info_free(ops, index, ret_info);
}

/* contexts */

/* "auto": the first backend whose device can be used; host can always */
static const struct te__backend_ops *pick_auto(int32_t device)
{
	const struct te__backend_ops *ops = NULL;

	for (int i = 0; i < te__backend_count(); i++) {
		struct te_backend_info b = TE_BACKEND_INFO_INIT;
		struct te_device_info d = TE_DEVICE_INFO_INIT;

		ops = te__backend_at(i);
		if (i + 1 == te__backend_count())
			break;
		if (!backend_info(ops, &b) && b.ndevices > device &&
		    !device_info(ops, device, &d) && d.usable)
			break;
		te__log_info("backend %s is passed over: %s", ops->name,
			     b.reason[0] ? b.reason : d.reason);
	}
	return ops;
}

static int pick(const struct te_ctx_opts *o, const struct te__backend_ops **ret)
{
	static const char *const name[] = { "auto", "host", "cuda" };
	const char *want = o->backend ? o->backend : name[te__param_enum(TE_PARAM_BACKEND)];

	if (!strcmp(want, "auto")) {
		*ret = pick_auto(o->device);
		return 0;
	}
	*ret = te__backend_by_name(want);
	if (!*ret)
		return te__fail(-EINVAL, "te_ctx_create: no backend is named %s", want);
	return 0;
}

static uint32_t traits(const struct te__backend_ops *ops)
{
	switch (te__param_enum(TE_PARAM_PLAN_SEPARATE)) {
	case TE__SEPARATE_ON:
		return ops->traits | TE__BACKEND_SEPARATE_SMALL;
	case TE__SEPARATE_OFF:
		return ops->traits & ~TE__BACKEND_SEPARATE_SMALL;
	default:
		return ops->traits;
	}
}

/* the lower limit of device memory, of options and environment; 0: none */
static uint64_t mem_limit(const struct te_ctx_opts *o)
{
	const uint64_t env = te__param_size(TE_PARAM_DEVICE_MEM_LIMIT);

	return env && (!o->mem_limit_nbytes || env < o->mem_limit_nbytes) ? env :
									  o->mem_limit_nbytes;
}

/* the program's functions, each with its counterpart */
static int get_alloc(const struct te_ctx_opts *o, struct te_alloc_ops *ret)
{
	int r = o->alloc ? te__sized_in("te_ctx_create", te_alloc_ops, o->alloc, ret) : 0;

	if (r)
		return r;
	if (!ret->device_alloc != !ret->device_free)
		return te__fail(-EINVAL, "te_ctx_create: alloc: device_alloc and device_free are "
				"both given, or neither");
	if (!ret->pinned_alloc != !ret->pinned_free)
		return te__fail(-EINVAL, "te_ctx_create: alloc: pinned_alloc and pinned_free are "
				"both given, or neither");
	return 0;
}

static int open_device(struct te_ctx *ctx, const struct te_ctx_opts *o)
{
	struct te_alloc_ops alloc = TE_ALLOC_OPS_INIT;
	const struct te__open how = {
		.device = o->device,
		.limit_nbytes = mem_limit(o),
		.alloc = &alloc,
		.native = o->native,
	};
	struct te_backend_info b = TE_BACKEND_INFO_INIT;
	int r = backend_info(ctx->ops, &b);

	if (r)
		return r;
	if (b.ndevices == 0)
		return te__fail(-ENODEV, "te_ctx_create: backend %s: %s", ctx->ops->name, b.reason);
	if (o->device < 0 || o->device >= b.ndevices)
		return te__fail(-ENODEV, "te_ctx_create: backend %s has no device %d, only %d",
				ctx->ops->name, (int)o->device, (int)b.ndevices);
	r = get_alloc(o, &alloc);
	if (r)
		return r;
	ctx->device = o->device;
	return ctx->ops->open(&how, &ctx->dev);
}

#define PAGE ((size_t)4096)

static int open_outside(struct te_ctx *ctx)
{
	void *page = te__aligned_alloc(PAGE, PAGE), *seen;
	int r;

	if (!page)
		return te__fail(-ENOMEM, "te_ctx_create: no memory for a page");
	memset(page, 0, PAGE);
	r = ctx->ops->page_register(ctx->dev, page, PAGE, &seen);
	if (r) {
		te__free(page);
		return r;
	}
	ctx->outside = page;
	ctx->device_outside = seen;
	return 0;
}

struct te__outside te__outside_take(struct te_ctx *ctx)
{
	struct te__outside *o = ctx->outside;

	return (struct te__outside){ __atomic_exchange_n(&o->ntargets, 0, __ATOMIC_RELAXED),
				     __atomic_exchange_n(&o->ntokens, 0, __ATOMIC_RELAXED) };
}

static void ctx_destroy(struct te_ctx *ctx)
{
	if (te__ctx_forked(ctx)) {
		te__free(ctx->outside);
		te__free(ctx->stream);
		te__free(ctx);
		return;
	}
	if (ctx->helper)
		ctx->ops->stream_destroy(ctx->helper);
	if (ctx->stream) {
		te__stream_leave(ctx->stream);
		/* free memory that the program did not free */
		te__mem_put_all(ctx, 0);
		te__stream_delete(ctx->stream);
		te__mem_put_all(ctx, 1);
	}
	if (ctx->outside)
		ctx->ops->page_unregister(ctx->dev, ctx->outside);
	if (ctx->dev)
		ctx->ops->close(ctx->dev);
	te__free(ctx->outside);
	pthread_mutex_destroy(&ctx->helper_lock);
	pthread_mutex_destroy(&ctx->streams_lock);
	pthread_mutex_destroy(&ctx->lock);
	te__free(ctx);
}

int te_ctx_create(const struct te_ctx_opts *opts, struct te_ctx **ret_ctx)
{
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;
	const struct te__backend_ops *ops;
	struct te_ctx *ctx;
	int r;

	r = te__param_check("te_ctx_create");
	if (r)
		return r;
	if (!ret_ctx)
		return te__fail(-EINVAL, "te_ctx_create: ret_ctx is NULL");
	r = opts ? te__sized_in("te_ctx_create", te_ctx_opts, opts, &o) : 0;
	if (r)
		return r;
	if (o.flags)
		return te__fail(-EINVAL, "te_ctx_create: flags 0x%x are unknown",
				(unsigned int)o.flags);
	r = pick(&o, &ops);
	if (r)
		return r;
	ctx = te__calloc(1, sizeof(*ctx));
	if (!ctx)
		return te__fail(-ENOMEM, "te_ctx_create: no memory for a context");
	ctx->refs = 1;
	ctx->ops = ops;
	ctx->traits = traits(ops);
	pthread_mutex_init(&ctx->helper_lock, NULL);
	pthread_mutex_init(&ctx->streams_lock, NULL);
	pthread_mutex_init(&ctx->lock, NULL);
	r = te__ctx_watch_forks(ctx, "te_ctx_create");
	if (!r)
		r = open_device(ctx, &o);
	if (!r)
		r = open_outside(ctx);
	if (!r)
		r = te__stream_new(ctx, 0, NULL, &ctx->stream);
	if (!r)
		r = ops->stream_create(ctx->dev, &ctx->helper);
	if (r) {
		ctx_destroy(ctx);
		return r;
	}
	*ret_ctx = ctx;
	return 0;
}

struct te_ctx *te_ctx_ref(struct te_ctx *ctx)
{
	if (ctx)
		atomic_fetch_add(&ctx->refs, 1);
	return ctx;
}

struct te_ctx *te_ctx_unref(struct te_ctx *ctx)
{
	if (ctx && atomic_fetch_sub(&ctx->refs, 1) == 1)
		ctx_destroy(ctx);
	return NULL;
}

const char *te_ctx_backend(const struct te_ctx *ctx)
{
	return ctx ? ctx->ops->name : NULL;
}

/* what does not change: the backend is asked once, since a driver takes a millisecond */
static int kept_info(const struct te_ctx *ctx, struct te_device_info *ret)
{
	/* const does not cover what is kept */
	struct te_ctx *c = (struct te_ctx *)(uintptr_t)ctx;
	struct te_device_info info;

	if (!atomic_load_explicit(&c->has_info, memory_order_acquire)) {
		int r = device_info(c->ops, c->device, &info);

		if (r)
			return r;
		pthread_mutex_lock(&c->lock);
		if (!atomic_load_explicit(&c->has_info, memory_order_relaxed))
			c->info = info;
		atomic_store_explicit(&c->has_info, 1, memory_order_release);
		pthread_mutex_unlock(&c->lock);
	}
	*ret = c->info;
	return 0;
}

int te_ctx_device_info(const struct te_ctx *ctx, struct te_device_info *ret_info)
{
	struct te_device_info info;
	uint64_t total;
	int r = te__sized_check("te_ctx_device_info", te_device_info, ret_info);

	if (!r)
		r = te__ctx_check_fork(ctx, "te_ctx_device_info");
	if (!r)
		r = kept_info(ctx, &info);
	/* as the open device reports it: no second context of a GPU is made for that */
	if (!r)
		r = ctx->ops->dev_mem(ctx->dev, &info.mem_free_nbytes, &total);
	if (!r)
		te__sized_out(te_device_info, &info, ret_info);
	return r;
}

uint64_t te__ctx_block_smem(const struct te_ctx *ctx)
{
	struct te_device_info info;

	return kept_info(ctx, &info) ? 0 : info.block_smem_nbytes;
}

int te_ctx_mem_info(const struct te_ctx *ctx, struct te_mem_info *ret_info)
{
	/* const does not cover the lock */
	struct te_ctx *c = (struct te_ctx *)(uintptr_t)ctx;
	struct te_mem_info info = TE_MEM_INFO_INIT;
	struct te__mem_held held = { 0 };
	int r = te__sized_check("te_ctx_mem_info", te_mem_info, ret_info);

	if (!r)
		r = te__ctx_check_fork(ctx, "te_ctx_mem_info");
	if (r)
		return r;
	r = ctx->ops->dev_mem(ctx->dev, &info.device_free_nbytes, &info.device_total_nbytes);
	if (!r)
		r = ctx->ops->mem_held(ctx->dev, &held);
	if (r)
		return r;
	info.measured_nbytes = held.used_nbytes;
	info.measured_peak_nbytes = held.peak_nbytes;
	info.workspace_nbytes = held.workspace_nbytes;
	pthread_mutex_lock(&c->lock);
	info.used_nbytes = ctx->used_nbytes;
	info.peak_nbytes = ctx->peak_nbytes;
	info.nallocs = ctx->nallocs;
	info.pinned_nbytes = ctx->pinned_nbytes;
	pthread_mutex_unlock(&c->lock);
	te__sized_out(te_mem_info, &info, ret_info);
	return 0;
}

struct te_stream *te_ctx_stream(struct te_ctx *ctx)
{
	return ctx ? ctx->stream : NULL;
}

int te__ctx_copy(struct te_ctx *ctx, void *dst, const void *src, size_t nbytes)
{
	int r = te__ctx_check_fork(ctx, "copy");

	if (r || !nbytes)
		return r;
	pthread_mutex_lock(&ctx->helper_lock);
	r = ctx->ops->copy(ctx->helper, dst, src, nbytes);
	if (!r)
		r = ctx->ops->stream_sync(ctx->helper);
	pthread_mutex_unlock(&ctx->helper_lock);
	return r;
}

int te__ctx_enter(struct te_ctx *ctx)
{
	int r = te__ctx_check_fork(ctx, "use of the device");

	return r ? r : ctx->ops->enter(ctx->dev);
}

void te__ctx_leave(struct te_ctx *ctx)
{
	ctx->ops->leave(ctx->dev);
}

int te__ctx_load_shared(struct te_ctx *ctx)
{
	return ctx->ops->load_shared(ctx->dev);
}

int te__ctx_fill_u32(struct te_ctx *ctx, void *dst, uint32_t value, size_t nbytes)
{
	int r = te__ctx_check_fork(ctx, "fill");

	if (r || !nbytes)
		return r;
	pthread_mutex_lock(&ctx->helper_lock);
	r = ctx->ops->fill32(ctx->helper, dst, value, nbytes / 4);
	if (!r)
		r = ctx->ops->stream_sync(ctx->helper);
	pthread_mutex_unlock(&ctx->helper_lock);
	return r;
}
