/* extents.c - the extents of an offload file, one for each value that is in it. */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>

#include "libtecore/base/base.h"
#include "libtecore/base/private.h"
#include "libtecore/offload/offload.h"

int te__offload_take_file(struct te_offload *o, size_t nbytes, const char *name, uint32_t *ret_file)
{
	uint32_t i = o->nfiles;
	int r = 0;

	pthread_mutex_lock(&o->lock);
	/* find the smallest extent that has room */
	for (uint32_t k = 0; k < o->nfiles; k++)
		if (!o->file[k].name && o->file[k].nbytes >= nbytes &&
		    (i == o->nfiles || o->file[k].nbytes < o->file[i].nbytes))
			i = k;
	if (i == TE__OFFLOAD_FILES)
		r = te__fail(-ENOMEM, "te_offload: more than %d values in the file", i);
	else if (i == o->nfiles)
		r = te__spill_reserve(o->spill, i, nbytes);
	if (!r) {
		if (i == o->nfiles)
			o->file[o->nfiles++].nbytes = nbytes;
		o->file[i].name = name;
		*ret_file = i;
	}
	pthread_mutex_unlock(&o->lock);
	return r;
}

void te__offload_give_file(struct te_offload *o, uint32_t file)
{
	pthread_mutex_lock(&o->lock);
	o->file[file].name = NULL;
	pthread_mutex_unlock(&o->lock);
}
