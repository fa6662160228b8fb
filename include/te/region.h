/*
 * te/region.h - the memory that a run modifies, as a list of named regions.
 *
 * A caller that runs a step as a trial, as the warm-up of graph capture does, saves the regions
 * before and restores them afterwards, so that the trial has no lasting effect.
 */
#ifndef TE_REGION_H
#define TE_REGION_H

#include <stddef.h>
#include <stdint.h>
#include <te/export.h>

TE_BEGIN_DECLS

enum te_region_kind {
	TE_REGION_DEVICE = 0, /* device memory of the context: copied by te_copy */
	TE_REGION_HOST = 1    /* host state of the library: copied by memcpy */
};

struct te_region {
	const char *name; /* "gradients"; valid as long as the object */
	enum te_region_kind kind;
	void *ptr;
	size_t nbytes;
};

/* called for each region: a value other than 0 ends the iteration and is returned from it */
typedef int (*te_region_fn)(void *arg, const struct te_region *region);

TE_END_DECLS

#endif
