/* fault.c - host memory, and faults injected into the nth allocation or driver call. */
#include "config.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "libtecore/base/base.h"

static _Atomic uint64_t fault_left; /* fault points until the fault; 0: none */
static atomic_int fault_fired;
static _Atomic int64_t alloc_live;

void te__fault_set(uint64_t nth)
{
	atomic_store(&fault_fired, 0);
	atomic_store(&fault_left, nth);
}

int te__fault_point(void)
{
	uint64_t left = atomic_load_explicit(&fault_left, memory_order_relaxed);

	while (left) {
		if (!atomic_compare_exchange_weak(&fault_left, &left, left - 1))
			continue;
		if (left > 1)
			return 0;
		atomic_store(&fault_fired, 1);
		return 1;
	}
	return 0;
}

int te__fault_fired(void)
{
	return atomic_load(&fault_fired);
}

static void *counted(void *p)
{
	if (p)
		atomic_fetch_add_explicit(&alloc_live, 1, memory_order_relaxed);
	return p;
}

void *te__malloc(size_t nbytes)
{
	return te__fault_point() ? NULL : counted(malloc(nbytes ? nbytes : 1));
}

void *te__calloc(size_t n, size_t nbytes)
{
	if (!n || !nbytes)
		n = nbytes = 1;
	return te__fault_point() ? NULL : counted(calloc(n, nbytes));
}

void *te__realloc(void *p, size_t nbytes)
{
	if (!p)
		return te__malloc(nbytes);
	return te__fault_point() ? NULL : realloc(p, nbytes ? nbytes : 1);
}

void *te__aligned_alloc(size_t align, size_t nbytes)
{
	void *p;

	if (align < sizeof(void *))
		align = sizeof(void *);
	if (te__fault_point() || posix_memalign(&p, align, nbytes ? nbytes : 1))
		return NULL;
	return counted(p);
}

char *te__strdup(const char *s)
{
	size_t n = strlen(s) + 1;
	char *p = te__malloc(n);

	return p ? memcpy(p, s, n) : NULL;
}

void te__free(void *p)
{
	if (!p)
		return;
	atomic_fetch_sub_explicit(&alloc_live, 1, memory_order_relaxed);
	free(p);
}

void *te__give(void *p)
{
	if (p)
		atomic_fetch_sub_explicit(&alloc_live, 1, memory_order_relaxed);
	return p;
}

int64_t te__alloc_live(void)
{
	return atomic_load_explicit(&alloc_live, memory_order_relaxed);
}

void te__free_libc(void *p)
{
	free(p);
}
