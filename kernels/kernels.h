/* kernels.h - the table of kernels: names, sizes, pointers and the memory of a launch. */
#ifndef TE__KERNELS_H
#define TE__KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/te_k.h"

/* as in kernels.def; reads may run concurrently, and so may the disjoint writes of two kernels */
enum te__access { TE__READ, TE__DISJOINT, TE__WRITE };
struct te__range {
	uintptr_t ptr;
	uint64_t nbytes;
	enum te__access access;
};
#define TE__RANGES_MAX 28
struct te__ranges {
	uint32_t n;
	struct te__range v[TE__RANGES_MAX];
};

/* lower-case name, and size of the argument struct */
const char *te__k_name(enum te_k_id id);
size_t te__k_nbytes(enum te_k_id id);
/* 1: the kernel communicates with other ranks: it is in kernels/comm */
int te__k_is_collective(enum te_k_id id);
/* offsets of the device pointers in the struct; returns their number */
uint32_t te__k_ptrs(enum te_k_id id, const uint16_t **ret_offset);
/* the memory that a launch with this struct accesses */
void te__k_ranges(enum te_k_id id, const void *args, struct te__ranges *ret);
/* bytes from the pointer at the offset to the memory that is accessed through it */
int64_t te__k_begin(enum te_k_id id, const void *args, uint32_t offset);

/* the reference function of an id; NULL if there is no such id */
typedef void te__k_fn(const void *args);
te__k_fn *te__k_reference(enum te_k_id id);

/*
 * Called by a reference function, or by a host function, that cannot do its work, on the worker
 * thread that runs it: the stream fails with this code and the thread's last te__fail() message. No
 * effect on other threads. Defined by the host backend.
 */
void te__k_fail(int code);

/* the reference functions */
#define TE_K(ID, name, args, family, ...) void te__h_##name(const struct te_k_##args *a);
#include "kernels/kernels.def"
#undef TE_K

/*
 * Device code of this build, machine code and PTX: an entry for each .cu and level; a NULL name
 * ends the array.
 */
struct te__kernel_image {
	const char *name;	    /* FAMILY_NAME_80 of kernels/FAMILY/NAME.cu */
	const unsigned char *start; /* a fatbin or texts of PTX, as .xz file if liblzma is there */
	const unsigned char *end;
	size_t level; /* compute capability that it is for: 80 is 8.0 */
	size_t ptx;   /* compute capability of the PTX; 0: machine code */
};
extern const struct te__kernel_image te__kernel_images[];

#endif
