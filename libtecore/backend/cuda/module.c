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
 * The kernels of a CUcontext, which all te_ctx on it use. The first te_ctx unpacks them, which
 * takes 200 ms of a core, and loads them if they are machine code, which takes 75 ms on an H100. If
 * they are PTX, the driver compiles each one at its first use, because all of them take minutes. To
 * load one the driver waits until no kernel of the context runs, and launches by other threads wait
 * meanwhile: te__cuda_load_shared() is for ranks that wait for each other there. The last te_ctx
 * unloads them.
 */
struct te__cuda_kernels {
	struct te__cuda_kernels *next;
	void *ctx;
	int index; /* ordinal number of the GPU */
	unsigned refs; /* te_ctx that use them */
	unsigned nmodules, nfuncs;
	void **module;
	struct te__cuda_func *func; /* sorted by name */
	struct te__cuda_images *ptx; /* NULL: machine code */
	pthread_mutex_t compiles; /* if there is PTX, protects module, and func while it is NULL */
};

static struct te__cuda_kernels *loaded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the list and all refs */

static int by_name(const void *a, const void *b)
{
	const struct te__cuda_func *x = a, *y = b;

	return strcmp(x->name, y->name);
}

/* loads immediately: loading at the first launch would invalidate a capture */
static int func_load(void *func, int smem_max, unsigned *ret_smem)
{
	int used = 0;
	int r = TE__CU_CALL(cuFuncLoad, func);

	if (!r)
		r = TE__CU_CALL(cuFuncGetAttribute, &used, TE__CU_FUNC_SHARED_SIZE_BYTES, func);
	/* a limit only: each launch requests the size that it needs */
	if (!r)
		r = TE__CU_CALL(cuFuncSetAttribute, func,
				TE__CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem_max - used);
	*ret_smem = (unsigned)used;
	return r;
}

static int funcs_grow(struct te__cuda_kernels *k, size_t n)
{
	struct te__cuda_func *f = te__realloc(k->func, (k->nfuncs + n) * sizeof(*f));

	if (!f)
		return te__fail(-ENOMEM, "no memory for %zu device functions", n);
	k->func = f;
	return 0;
}

static int funcs_load(struct te__cuda_kernels *k, void *module, int smem_max)
{
	void **func;
	unsigned n;
	int r = TE__CU_CALL(cuModuleGetFunctionCount, &n, module);

	/* a file of kernels for later GPUs only has none */
	if (r || !n)
		return r;
	r = funcs_grow(k, n);
	if (r)
		return r;
	func = te__malloc(n * sizeof(*func));
	if (!func)
		return te__fail(-ENOMEM, "no memory for %u device functions", n);
	r = TE__CU_CALL(cuModuleEnumerateFunctions, func, n, module);
	for (unsigned i = 0; !r && i < n; i++) {
		struct te__cuda_func f = { .func = func[i] };

		r = TE__CU_CALL(cuFuncGetName, &f.name, func[i]);
		if (!r)
			r = func_load(func[i], smem_max, &f.smem);
		if (!r)
			k->func[k->nfuncs++] = f;
	}
	te__free(func);
	return r;
}

static int module_load(const struct te__cuda_dev *d, struct te__cuda_kernels *k,
		       const struct te__cuda_image *image)
{
	int r = TE__CU_RAW(cuModuleLoadData, &k->module[k->nmodules], image->data);

	if (r)
		return te__fail_cuda(r, "cannot load the kernels te_%s on GPU %d: %s", image->name,
				     d->index, te__cuda_error_name(r));
	return funcs_load(k, k->module[k->nmodules++], (int)d->target.smem_max);
}

static int damaged(const struct te__cuda_dev *d, const struct te__cuda_image *image, int r)
{
	return te__fail(r, "cannot unpack the kernels te_%s for GPU %d: %s", image->name, d->index,
			r == -ENOMEM ? "no memory" : "they are damaged");
}

/* the kernels that the driver is to compile */
static int ptx_list(const struct te__cuda_dev *d, struct te__cuda_kernels *k,
		    const struct te__cuda_image *image)
{
	const char *text = image->data;
	struct te__ptx_kernel p;
	int r;

	while ((r = te__ptx_kernel_next(text, &p)) > 0) {
		char *name = te__malloc(p.name_nbytes + 1);

		r = name ? funcs_grow(k, 1) : te__fail(-ENOMEM, "no memory for a kernel's name");
		if (r) {
			te__free(name);
			return r;
		}
		memcpy(name, p.name, p.name_nbytes);
		name[p.name_nbytes] = 0;
		k->func[k->nfuncs++] = (struct te__cuda_func){
			.name = name,
			.ptx = image,
			.text = p.start,
			.text_nbytes = (size_t)(p.end - p.start),
		};
		text = p.end;
	}
	return r ? damaged(d, image, r) : 0;
}

static void unload(struct te__cuda_kernels *k)
{
	for (unsigned i = 0; i < k->nmodules; i++)
		te__cu.cuModuleUnload(k->module[i]);
	for (unsigned i = 0; k->ptx && i < k->nfuncs; i++)
		te__free((void *)(uintptr_t)k->func[i].name);
	te__cuda_images_end(k->ptx);
	pthread_mutex_destroy(&k->compiles);
	te__free(k->module);
	te__free(k->func);
	te__free(k);
}

static int images_load(const struct te__cuda_dev *d, struct te__cuda_kernels *k,
		       struct te__cuda_images *images, size_t n)
{
	int r = 0;

	for (size_t i = 0; !r && i < n; i++) {
		const struct te__cuda_image *image = te__cuda_image(images, i);

		if (image->error)
			return damaged(d, image, image->error);
		r = d->ptx ? ptx_list(d, k, image) : module_load(d, k, image);
	}
	return r;
}

/* takes the images if they are PTX */
static int load(struct te__cuda_dev *d, struct te__cuda_kernels **ret)
{
	const size_t n = te__cuda_images_wait(d->images);
	struct te__cuda_images *images = d->images;
	struct te__cuda_kernels *k = te__calloc(1, sizeof(*k));
	int r = 0;

	if (!k)
		return te__fail(-ENOMEM, "no memory for the kernels of GPU %d", d->index);
	k->ctx = d->ctx;
	k->index = d->index;
	pthread_mutex_init(&k->compiles, NULL);
	if (d->ptx) {
		k->ptx = images;
		d->images = NULL;
		r = images_load(d, k, images, n);
	}
	/* a module for each file, or for each kernel of PTX */
	if (!r)
		k->module = te__calloc((d->ptx ? k->nfuncs : n) + 1, sizeof(*k->module));
	if (!r && !k->module)
		r = te__fail(-ENOMEM, "no memory for the kernel modules of GPU %d", d->index);
	if (!r && !d->ptx)
		r = images_load(d, k, images, n);
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
		r = d->images ? load(d, &k) :
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

/* with the context current */
static int compile(const struct te__cuda_dev *d, struct te__cuda_kernels *k,
		   struct te__cuda_func *f)
{
	const size_t rest = f->ptx->rest_nbytes;
	char *text = te__malloc(rest + 1 + f->text_nbytes + 1);
	void *module, *func;
	int r;

	if (!text)
		return te__fail(-ENOMEM, "no memory for the PTX of %s", f->name);
	memcpy(text, f->ptx->data, rest);
	text[rest] = '\n';
	memcpy(text + rest + 1, f->text, f->text_nbytes);
	text[rest + 1 + f->text_nbytes] = 0;
	te__log_debug("GPU %d: the driver compiles %s of te_%s", d->index, f->name, f->ptx->name);
	r = TE__CU_RAW(cuModuleLoadData, &module, text);
	te__free(text);
	if (r)
		return te__fail_cuda(r, "cannot compile the kernel %s of te_%s for GPU %d: %s",
				     f->name, f->ptx->name, d->index, te__cuda_error_name(r));
	r = TE__CU_CALL(cuModuleEnumerateFunctions, &func, 1, module);
	if (!r)
		r = func_load(func, (int)d->target.smem_max, &f->smem);
	if (r) {
		te__cu.cuModuleUnload(module);
		return r;
	}
	k->module[k->nmodules++] = module;
	f->func = func;
	return 0;
}

/* the function of this name, compiled; or *ret NULL */
static int find(struct te__cuda_dev *d, const char *name, struct te__cuda_func **ret)
{
	struct te__cuda_func *f = bsearch(&(struct te__cuda_func){ .name = name }, d->funcs,
					  d->nfuncs, sizeof(d->funcs[0]), by_name);
	int r = 0;

	if (f && !f->func) {
		pthread_mutex_lock(&d->kernels->compiles);
		if (!f->func)
			r = TE__CUDA_IN_RELAXED(d, compile(d, d->kernels, f));
		pthread_mutex_unlock(&d->kernels->compiles);
	}
	*ret = f;
	return r;
}

int te__cuda_func_named(struct te__cuda_dev *d, const char *name, void **ret_func)
{
	struct te__cuda_func *f;
	int r = find(d, name, &f);

	if (r)
		return r;
	if (!f)
		return te__fail(-TE_EKERNEL, "this build has no device function %s", name);
	*ret_func = f->func;
	return 0;
}

int te__cuda_load_shared(void *dev)
{
	struct te__cuda_dev *d = dev;
	unsigned refs = 0;
	void *func;
	int r = 0;

	if (d->ptx) {
		pthread_mutex_lock(&lock);
		refs = d->kernels->refs;
		pthread_mutex_unlock(&lock);
	}
	for (unsigned i = 0; !r && refs > 1 && i < d->nfuncs; i++)
		r = te__cuda_func_named(d, d->funcs[i].name, &func);
	return r;
}

int te__cuda_func_find(struct te__cuda_dev *d, const struct te__launch *l,
		       struct te__geometry *ret_kernel, void **ret_func)
{
	struct te__cuda_func *f;
	unsigned smem;
	int r = te__geometry_for(&d->target, l->id, l->args, ret_kernel);

	if (r || !ret_kernel->grid[0])
		return r;
	r = find(d, ret_kernel->func, &f);
	if (r)
		return r;
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
