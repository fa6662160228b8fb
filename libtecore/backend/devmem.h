/*
 * devmem.h - the device memory that one open device may use and does use, and functions of the
 * program that allocate it.
 *
 * Bytes are counted as requested. A backend counts memory before it allocates it, also what it
 * allocates for itself, and stops counting it when it is freed.
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
	struct te_alloc_ops alloc; /* pairs that are NULL: the backend allocates */
};

/* limit_nbytes: of the context; 0: none. alloc: complete pairs, or NULL */
void te__devmem_init(struct te__devmem *m, uint64_t limit_nbytes, const struct te_alloc_ops *alloc);
/* 1, or 0 if the limit would be exceeded: nothing is counted */
int te__devmem_take(struct te__devmem *m, size_t nbytes);
void te__devmem_give(struct te__devmem *m, size_t nbytes);
/* -ENOMEM, with the sizes: te__devmem_take() returned 0 */
int te__devmem_full(const struct te__devmem *m, size_t nbytes);
/* lowers what the device has free and in all to what the limit leaves */
void te__devmem_clamp(const struct te__devmem *m, uint64_t *nfree, uint64_t *total);

/*
 * Memory of the program's functions, which exist. Device memory is counted by the caller. -ENOMEM
 * if there is none; -EINVAL if it is not aligned.
 */
int te__devmem_device_alloc(struct te__devmem *m, size_t nbytes, void *native, void **ret_ptr);
int te__devmem_pinned_alloc(struct te__devmem *m, size_t nbytes, void **ret_ptr);

#endif
