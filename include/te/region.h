/*
 * te/region.h - the memory that running something changes, named piece by piece.
 *
 * Whoever tries a step out, as capturing a graph does, saves the regions before and puts them
 * back afterwards: nothing is then left of the trial.
 */
#ifndef TE_REGION_H
#define TE_REGION_H

#include <stddef.h>
#include <stdint.h>
#include <te/export.h>

TE_BEGIN_DECLS

enum te_region_kind {
	TE_REGION_DEVICE = 0, /* of the context's device: copied by te_copy */
	TE_REGION_HOST = 1    /* bookkeeping of the library: copied by memcpy */
};

struct te_region {
	const char *name; /* "gradients"; lives as long as the object */
	enum te_region_kind kind;
	void *ptr;
	size_t nbytes;
};

/* a visitor of regions: anything but 0 ends the visit and is returned by it */
typedef int (*te_region_fn)(void *arg, const struct te_region *region);

TE_END_DECLS

#endif
