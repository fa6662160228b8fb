/* module.c - loads the embedded kernels and launches them. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/cuda.h"
#include "kernels/launch.h"

static int by_name(const void *a, const void *b)
{
	const struct te__cuda_func *x = a, *y = b;

	return strcmp(x->name, y->name);
}

/* loads at once: loading at the first launch would invalidate a capture */
static int func_load(struct te__cuda_func *f, int smem_max)
{
	int used;
	int r = TE__CU_CALL(cuFuncGetName, &f->name, f->func);

	if (!r)
		r = TE__CU_CALL(cuFuncLoad, f->func);
	if (!r)
		r = TE__CU_CALL(cuFuncGetAttribute, &used, TE__CU_FUNC_SHARED_SIZE_BYTES, f->func);
	/* a limit only: each launch requests the size that it needs */
	if (!r)
		r = TE__CU_CALL(cuFuncSetAttribute, f->func,
				TE__CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem_max - used);
	return r;
}

static int funcs_load(struct te__cuda_dev *d, void *module, int smem_max)
{
	struct te__cuda_func *f;
	void **func;
	unsigned n;
	int r = TE__CU_CALL(cuModuleGetFunctionCount, &n, module);

	if (r)
		return r;
	func = te__malloc(n * sizeof(*func));
	f = te__realloc(d->funcs, (d->nfuncs + n) * sizeof(*f));
	if (f)
		d->funcs = f;
	if (!func || !f)
		r = te__fail(-ENOMEM, "no memory for %u device functions", n);
	if (!r)
		r = TE__CU_CALL(cuModuleEnumerateFunctions, func, n, module);
	for (unsigned i = 0; !r && i < n; i++) {
		f[d->nfuncs].func = func[i];
		r = func_load(&f[d->nfuncs], smem_max);
		if (!r)
			d->nfuncs++;
	}
	te__free(func);
	return r;
}

static int module_load(struct te__cuda_dev *d, const struct te__kernel_image *image, int smem_max)
{
	int r = TE__CU_RAW(cuModuleLoadData, &d->modules[d->nmodules], image->start);

	if (r)
		return te__fail_cuda(r, "cannot load the kernels te_%s on GPU %d: %s", image->name,
				     d->index, te__cuda_error_name(r));
	return funcs_load(d, d->modules[d->nmodules++], smem_max);
}

int te__cuda_modules_load(struct te__cuda_dev *d)
{
	int smem_max;
	size_t n = 0;
	int r = TE__CU_CALL(cuDeviceGetAttribute, &smem_max,
			    TE__CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, d->dev);

	if (r)
		return r;
	while (te__kernel_images[n].name)
		n++;
	d->modules = te__calloc(n, sizeof(*d->modules));
	if (!d->modules)
		return te__fail(-ENOMEM, "no memory for %zu kernel modules", n);
	for (size_t i = 0; !r && i < n; i++)
		r = module_load(d, &te__kernel_images[i], smem_max);
	if (!r)
		qsort(d->funcs, d->nfuncs, sizeof(*d->funcs), by_name);
	return r;
}

void te__cuda_modules_unload(struct te__cuda_dev *d)
{
	for (unsigned i = 0; i < d->nmodules; i++)
		te__cu.cuModuleUnload(d->modules[i]);
	te__free(d->modules);
	te__free(d->funcs);
}

int te__cuda_func_named(struct te__cuda_dev *d, const char *name, void **ret_func)
{
	const struct te__cuda_func *f = bsearch(&(struct te__cuda_func){ .name = name }, d->funcs,
						d->nfuncs, sizeof(*f), by_name);

	if (!f)
		return te__fail(-TE_EKERNEL, "this build has no device function %s", name);
	*ret_func = f->func;
	return 0;
}

int te__cuda_func_find(struct te__cuda_dev *d, const struct te__launch *l,
		       struct te__geometry *ret_kernel, void **ret_func)
{
	int r = te__geometry(l->id, l->args, ret_kernel);

	return r || !ret_kernel->grid[0] ? r :
					   te__cuda_func_named(d, ret_kernel->func, ret_func);
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
