/*
 * devmem.h - limit and use of an open device's memory, and the program's allocators.
 *
 * Bytes are counted as requested. A backend counts memory before it allocates it, also for internal
 * use, and stops counting it when it is freed.
 */
#ifndef TE__DEVMEM_H
#define TE__DEVMEM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <te/ctx.h>

struct te__devmem {
	uint64_t limit_nbytes;	/* UINT64_MAX: none */
	const char *limit_name; /* for error messages */
	_Atomic uint64_t used_nbytes, peak_nbytes;
	struct te_alloc_ops alloc; /* NULL pairs: the backend allocates */
};

/* limit_nbytes: the context's limit; 0: none. alloc: complete pairs, or NULL */
void te__devmem_init(struct te__devmem *m, uint64_t limit_nbytes, const struct te_alloc_ops *alloc);
/* count nbytes; returns 1, or 0 without counting if the limit would be exceeded */
int te__devmem_take(struct te__devmem *m, size_t nbytes);
void te__devmem_give(struct te__devmem *m, size_t nbytes);
/* -ENOMEM, with the sizes: te__devmem_take() returned 0 */
int te__devmem_full(const struct te__devmem *m, size_t nbytes);
/* lowers the device's free and total bytes to those that the limit leaves */
void te__devmem_clamp(const struct te__devmem *m, uint64_t *nfree, uint64_t *total);

/*
 * Allocate by the program's functions, which must exist. The caller counts device memory. -ENOMEM,
 * or -EINVAL if the program's memory is not aligned.
 */
int te__devmem_device_alloc(struct te__devmem *m, size_t nbytes, void *native, void **ret_ptr);
int te__devmem_pinned_alloc(struct te__devmem *m, size_t nbytes, void **ret_ptr);

#endif
