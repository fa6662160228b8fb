/* module.c - loads the embedded kernels and launches them. */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/cuda.h"
#include "libtecore/backend/cuda/images.h"

/*
 * The kernels of a CUcontext, which all te_ctx on it use: loading them takes 75 ms on an H100,
 * after they have been unpacked, which takes 200 ms of a core.
 * The last te_ctx unloads them.
 */
struct te__cuda_kernels {
	struct te__cuda_kernels *next;
	void *ctx;
	int index; /* ordinal number of the GPU */
	unsigned refs; /* te_ctx that use them */
	unsigned nmodules, nfuncs;
	void **module;
	struct te__cuda_func *func; /* sorted by name */
};

static struct te__cuda_kernels *loaded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the list and all refs */

static int by_name(const void *a, const void *b)
{
	const struct te__cuda_func *x = a, *y = b;

	return strcmp(x->name, y->name);
}

/* loads at once: loading at the first launch would invalidate a capture */
static int func_load(struct te__cuda_func *f, int smem_max)
{
	int used = 0;
	int r = TE__CU_CALL(cuFuncGetName, &f->name, f->func);

	if (!r)
		r = TE__CU_CALL(cuFuncLoad, f->func);
	if (!r)
		r = TE__CU_CALL(cuFuncGetAttribute, &used, TE__CU_FUNC_SHARED_SIZE_BYTES, f->func);
	/* a limit only: each launch requests the size that it needs */
	if (!r)
		r = TE__CU_CALL(cuFuncSetAttribute, f->func,
				TE__CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem_max - used);
	f->smem = (unsigned)used;
	return r;
}

static int funcs_load(struct te__cuda_kernels *k, void *module, int smem_max)
{
	struct te__cuda_func *f;
	void **func;
	unsigned n;
	int r = TE__CU_CALL(cuModuleGetFunctionCount, &n, module);

	/* a file of kernels for later GPUs only has none */
	if (r || !n)
		return r;
	func = te__malloc(n * sizeof(*func));
	f = te__realloc(k->func, (k->nfuncs + n) * sizeof(*f));
	if (f)
		k->func = f;
	if (!func || !f)
		r = te__fail(-ENOMEM, "no memory for %u device functions", n);
	if (!r)
		r = TE__CU_CALL(cuModuleEnumerateFunctions, func, n, module);
	for (unsigned i = 0; !r && i < n; i++) {
		f[k->nfuncs].func = func[i];
		r = func_load(&f[k->nfuncs], smem_max);
		if (!r)
			k->nfuncs++;
	}
	te__free(func);
	return r;
}

static int module_load(const struct te__cuda_dev *d, struct te__cuda_kernels *k,
		       const struct te__cuda_image *image, int smem_max)
{
	int r = image->error;

	if (r)
		return te__fail(r, "cannot unpack the kernels te_%s for GPU %d: %s", image->name,
				d->index, r == -ENOMEM ? "no memory" : "they are damaged");
	r = TE__CU_RAW(cuModuleLoadData, &k->module[k->nmodules], image->data);
	if (r)
		return te__fail_cuda(r, "cannot load the kernels te_%s on GPU %d: %s", image->name,
				     d->index, te__cuda_error_name(r));
	return funcs_load(k, k->module[k->nmodules++], smem_max);
}

static void unload(struct te__cuda_kernels *k)
{
	for (unsigned i = 0; i < k->nmodules; i++)
		te__cu.cuModuleUnload(k->module[i]);
	te__free(k->module);
	te__free(k->func);
	te__free(k);
}

static int load(const struct te__cuda_dev *d, struct te__cuda_images *images,
		struct te__cuda_kernels **ret)
{
	const size_t n = te__cuda_images_wait(images);
	struct te__cuda_kernels *k;
	int r = 0;

	k = te__calloc(1, sizeof(*k));
	if (k)
		k->module = te__calloc(n + 1, sizeof(*k->module));
	if (!k || !k->module) {
		te__free(k);
		return te__fail(-ENOMEM, "no memory for %zu kernel modules", n);
	}
	k->ctx = d->ctx;
	k->index = d->index;
	for (size_t i = 0; !r && i < n; i++)
		r = module_load(d, k, te__cuda_image(images, i), (int)d->target.smem_max);
	if (r) {
		unload(k);
		return r;
	}
	qsort(k->func, k->nfuncs, sizeof(*k->func), by_name);
	*ret = k;
	return 0;
}

/* with the lock */
static struct te__cuda_kernels *loaded_in(const void *ctx)
{
	struct te__cuda_kernels *k = loaded;

	while (k && k->ctx != ctx)
		k = k->next;
	return k;
}

int te__cuda_kernels_begin(struct te__cuda_dev *d)
{
	int loads = 1;

	pthread_mutex_lock(&lock);
	for (const struct te__cuda_kernels *k = loaded; k; k = k->next)
		if (d->borrowed ? k->ctx == d->ctx : k->index == d->index)
			loads = 0;
	pthread_mutex_unlock(&lock);
	if (!loads)
		return 0;
	d->images = te__cuda_images_begin(d->target.arch, d->ptx);
	return d->images ? 0 : te__fail(-ENOMEM, "no memory for the kernels of GPU %d", d->index);
}

int te__cuda_kernels_get(struct te__cuda_dev *d)
{
	struct te__cuda_kernels *k;
	int r = 0;

	pthread_mutex_lock(&lock);
	k = loaded_in(d->ctx);
	if (!k) {
		if (!d->images)
			d->images = te__cuda_images_begin(d->target.arch, d->ptx);
		r = d->images ? load(d, d->images, &k) :
				te__fail(-ENOMEM, "no memory for the kernels of GPU %d", d->index);
		if (!r) {
			k->next = loaded;
			loaded = k;
		}
	}
	if (!r) {
		k->refs++;
		d->kernels = k;
		d->funcs = k->func;
		d->nfuncs = k->nfuncs;
	}
	pthread_mutex_unlock(&lock);
	d->images = te__cuda_images_end(d->images);
	return r;
}

void te__cuda_kernels_put(struct te__cuda_dev *d)
{
	struct te__cuda_kernels *k = d->kernels, **at;

	if (!k)
		return;
	pthread_mutex_lock(&lock);
	if (!--k->refs) {
		for (at = &loaded; *at != k;)
			at = &(*at)->next;
		*at = k->next;
		unload(k);
	}
	pthread_mutex_unlock(&lock);
}

static const struct te__cuda_func *find(const struct te__cuda_dev *d, const char *name)
{
	return bsearch(&(struct te__cuda_func){ .name = name }, d->funcs, d->nfuncs,
		       sizeof(d->funcs[0]), by_name);
}

int te__cuda_func_named(struct te__cuda_dev *d, const char *name, void **ret_func)
{
	const struct te__cuda_func *f = find(d, name);

	if (!f)
		return te__fail(-TE_EKERNEL, "this build has no device function %s", name);
	*ret_func = f->func;
	return 0;
}

int te__cuda_func_find(struct te__cuda_dev *d, const struct te__launch *l,
		       struct te__geometry *ret_kernel, void **ret_func)
{
	const struct te__cuda_func *f;
	unsigned smem;
	int r = te__geometry_for(&d->target, l->id, l->args, ret_kernel);

	if (r || !ret_kernel->grid[0])
		return r;
	f = find(d, ret_kernel->func);
	smem = ret_kernel->smem + (f ? f->smem : 0);
	if (smem > d->target.smem_max)
		return te__fail(-TE_EKERNEL, "%s takes %u bytes of shared memory for these shapes, "
				"and GPU %d, %s, has %u", ret_kernel->func, smem, d->index, d->name,
				d->target.smem_max);
	return te__cuda_func_named(d, ret_kernel->func, ret_func);
}

int te__cuda_launch_func(struct te__cuda_stream *s, const struct te__geometry *k, void *func,
			 const void *args)
{
	struct te__cu_launch_config config = {
		.grid = { k->grid[0], k->grid[1], k->grid[2] },
		.block = { k->block[0], k->block[1], k->block[2] },
		.smem = k->smem,
		.stream = s->stream,
	};
	void *param = (void *)(uintptr_t)args; /* the driver copies the struct */
	int r = TE__CU_RAW(cuLaunchKernelEx, &config, func, &param, NULL);

	if (!r)
		return 0;
	return te__fail_cuda(r, "launch of %s, %u %u %u blocks of %u %u %u threads, %u bytes: %s",
			     k->func, k->grid[0], k->grid[1], k->grid[2], k->block[0], k->block[1],
			     k->block[2], k->smem, te__cuda_error_name(r));
}

int te__cuda_launch_as(struct te__cuda_stream *s, const struct te__launch *l,
		       const struct te__gnode *what)
{
	struct te__geometry k;
	void *func;
	int r = te__cuda_func_find(s->dev, l, &k, &func);

	if (r || !k.grid[0])
		return r;
	r = te__cuda_launch_func(s, &k, func, l->args);
	return r ? r : te__cuda_note(s, what, NULL);
}

int te__cuda_launch_now(struct te__cuda_stream *s, const struct te__launch *l)
{
	const struct te__gnode what = {
		.kind = TE_NODE_KERNEL, .id = (int32_t)l->id, .args = l->args, .nbytes = l->nbytes,
	};

	return TE__CUDA_IN(s->dev, te__cuda_launch_as(s, l, &what));
}
