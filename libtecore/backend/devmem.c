/* devmem.c - counts device memory, enforces its limit, and calls allocators of the program. */
#define TE_LOG_CATEGORY "core/backend"
#include "config.h"

#include <errno.h>

#include "libtecore/backend/devmem.h"
#include "libtecore/base/base.h"

void te__devmem_init(struct te__devmem *m, uint64_t limit_nbytes,
		     const struct te_alloc_ops *alloc)
{
	m->alloc = alloc ? *alloc : (struct te_alloc_ops)TE_ALLOC_OPS_INIT;
	m->limit_nbytes = limit_nbytes ? limit_nbytes : UINT64_MAX;
	m->limit_name = "the limit of the context";
}

int te__devmem_take(struct te__devmem *m, size_t nbytes)
{
	uint64_t used = atomic_load(&m->used_nbytes);
	uint64_t peak = atomic_load(&m->peak_nbytes);

	do {
		if (nbytes > m->limit_nbytes - used)
			return 0;
	} while (!atomic_compare_exchange_weak(&m->used_nbytes, &used, used + nbytes));
	used += nbytes;
	while (peak < used && !atomic_compare_exchange_weak(&m->peak_nbytes, &peak, used))
		;
	return 1;
}

void te__devmem_give(struct te__devmem *m, size_t nbytes)
{
	atomic_fetch_sub(&m->used_nbytes, nbytes);
}

int te__devmem_full(const struct te__devmem *m, size_t nbytes)
{
	return te__fail(-ENOMEM, "no %zu bytes of device memory: %llu bytes are in use, %s is %llu",
			nbytes, (unsigned long long)atomic_load(&m->used_nbytes), m->limit_name,
			(unsigned long long)m->limit_nbytes);
}

void te__devmem_clamp(const struct te__devmem *m, uint64_t *nfree, uint64_t *total)
{
	const uint64_t left = m->limit_nbytes - atomic_load(&m->used_nbytes);

	*nfree = *nfree < left ? *nfree : left;
	*total = *total < m->limit_nbytes ? *total : m->limit_nbytes;
}

int te__devmem_device_alloc(struct te__devmem *m, size_t nbytes, void *native, void **ret_ptr)
{
	const struct te_alloc_ops *a = &m->alloc;
	void *ptr = te__fault_point() ? NULL : a->device_alloc(a->user, nbytes, native);

	if (!ptr)
		return te__fail(-ENOMEM, "te_alloc_ops.device_alloc returned NULL for %zu bytes, "
				"%llu bytes are in use", nbytes,
				(unsigned long long)atomic_load(&m->used_nbytes) - nbytes);
	if ((uintptr_t)ptr % 256) {
		a->device_free(a->user, ptr, nbytes, native);
		return te__fail(-EINVAL, "te_alloc_ops.device_alloc returned %p for %zu bytes, "
				"which is not aligned to 256 bytes", ptr, nbytes);
	}
	*ret_ptr = ptr;
	return 0;
}

int te__devmem_pinned_alloc(struct te__devmem *m, size_t nbytes, void **ret_ptr)
{
	void *ptr = te__fault_point() ? NULL : m->alloc.pinned_alloc(m->alloc.user, nbytes);

	if (!ptr)
		return te__fail(-ENOMEM, "te_alloc_ops.pinned_alloc returned NULL for %zu bytes",
				nbytes);
	*ret_ptr = ptr;
	return 0;
}
