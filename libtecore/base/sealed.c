/* sealed.c - memory that processes of the host share. */
#define TE_LOG_CATEGORY "core"
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libtecore/base/private.h"

int te__sealed_create(const char *what, size_t nbytes, int *ret_fd)
{
	int fd = te__fault_point() ? (errno = EMFILE, -1) :
				     memfd_create("te-share", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int r;

	if (fd >= 0 && !ftruncate(fd, (off_t)nbytes) &&
	    !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
		*ret_fd = fd;
		return 0;
	}
	r = te__fail(-errno, "%s: a memfd of %zu bytes: %s", what, nbytes, strerror(errno));
	if (fd >= 0)
		close(fd);
	return r;
}

int te__sealed_check(const char *what, int fd, size_t nbytes)
{
	const int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return te__fail(-EINVAL, "%s: the file descriptor is no memfd that is sealed "
				"against shrinking", what);
	if (fstat(fd, &st) || st.st_size < (off_t)nbytes)
		return te__fail(-EINVAL, "%s: the memfd has %lld bytes, expected %zu", what,
				(long long)st.st_size, nbytes);
	return 0;
}

int te__sealed_map(const char *what, int fd, size_t nbytes, void **ret)
{
	int r = te__sealed_check(what, fd, nbytes);
	void *p;

	if (r)
		return r;
	p = te__fault_point() ? (errno = ENOMEM, MAP_FAILED) :
				mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return te__fail(-errno, "%s: mmap: %s", what, strerror(errno));
	*ret = p;
	return 0;
}
