/*
 * failalloc.c - a library for LD_PRELOAD that makes the nth allocation of a program fail, once.
 *
 * FAILALLOC_NTH is n, from 1; unset or 0, none fails. FAILALLOC_COUNT is a file that gets the
 * number of allocations when the program exits. Allocations by the dynamic linker and the C
 * library count.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <te/export.h>

/* the allocator of glibc, which does not call the functions below */
void *__libc_malloc(size_t nbytes);
void *__libc_calloc(size_t n, size_t nbytes);
void *__libc_realloc(void *p, size_t nbytes);
void *__libc_memalign(size_t align, size_t nbytes);

static _Atomic uint64_t count;
static uint64_t nth;

__attribute__((constructor)) static void begin(void)
{
	const char *text = getenv("FAILALLOC_NTH");

	nth = text ? strtoull(text, NULL, 10) : 0;
	atomic_store(&count, 0);
}

__attribute__((destructor)) static void end(void)
{
	const char *path = getenv("FAILALLOC_COUNT");
	char text[32];
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666) : -1;

	if (fd < 0)
		return;
	if (write(fd, text, (size_t)snprintf(text, sizeof(text), "%llu\n",
					     (unsigned long long)atomic_load(&count))) < 0)
		_exit(99);
	close(fd);
}

static int fails(void)
{
	if (atomic_fetch_add(&count, 1) + 1 != nth)
		return 0;
	errno = ENOMEM;
	return 1;
}

TE_EXPORT void *malloc(size_t nbytes)
{
	return fails() ? NULL : __libc_malloc(nbytes);
}

TE_EXPORT void *calloc(size_t n, size_t nbytes)
{
	return fails() ? NULL : __libc_calloc(n, nbytes);
}

TE_EXPORT void *realloc(void *p, size_t nbytes)
{
	return fails() ? NULL : __libc_realloc(p, nbytes);
}

TE_EXPORT void *aligned_alloc(size_t align, size_t nbytes)
{
	return fails() ? NULL : __libc_memalign(align, nbytes);
}

TE_EXPORT int posix_memalign(void **ret, size_t align, size_t nbytes)
{
	void *p = fails() ? NULL : __libc_memalign(align, nbytes);

	if (!p)
		return ENOMEM;
	*ret = p;
	return 0;
}
