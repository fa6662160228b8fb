/* images.h - the embedded device code of a level. */
#ifndef TE_LIBTECORE_BACKEND_CUDA_IMAGES_H
#define TE_LIBTECORE_BACKEND_CUDA_IMAGES_H

#include "kernels/kernels.h"
#include "libtecore/base/base.h"

/* the largest file, PTX of all levels, has 30 MB */
#define TE__CUDA_IMAGE_NBYTES_MAX ((size_t)1 << 30)

struct te__cuda_image {
	const char *name;
	const void *data; /* what cuModuleLoadData takes */
	void *memory; /* NULL: data is in the library itself */
	size_t rest_nbytes; /* PTX: the part before the first kernel, which every kernel needs */
	int error; /* 0, or why there is no data: -ENOMEM, -TE_EKERNEL */
};

/*
 * one image, unpacked if it is an .xz file, and PTX with its kernels last; -ENOMEM, or -TE_EKERNEL
 * if it is damaged
 */
int te__cuda_image_unpack(const struct te__kernel_image *image, struct te__cuda_image *ret);

/* a kernel in PTX: its name, which is followed by a parenthesis, and its text */
struct te__ptx_kernel {
	const char *name, *start, *end;
	size_t name_nbytes;
};
/* the first kernel of a text: 1; 0: there is none; -TE_EKERNEL: it has no end */
int te__ptx_kernel_next(const char *text, struct te__ptx_kernel *ret);

/* starts to unpack the machine code or the PTX of a level; NULL: no memory */
struct te__cuda_images *te__cuda_images_begin(int level, int ptx);
/* waits until all are unpacked; their number */
size_t te__cuda_images_wait(struct te__cuda_images *k);
/* after that; valid until te__cuda_images_end() */
const struct te__cuda_image *te__cuda_image(const struct te__cuda_images *k, size_t i);
/* frees it; NULL is allowed, and returned */
struct te__cuda_images *te__cuda_images_end(struct te__cuda_images *k);

/* tests: these in place of te__kernel_images; a NULL name ends the array */
void te__cuda_images_fake(const struct te__kernel_image *images);

#endif
