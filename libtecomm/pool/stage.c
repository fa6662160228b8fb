/* stage.c - see stage.h. */
#define TE_LOG_CATEGORY "comm/memory"
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libtecomm/pool/stage.h"
#include "libtecore/base/private.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

int te__stage_create(size_t nbytes, int *ret_fd)
{
	int fd = te__fault_point() ? (errno = EMFILE, -1) :
				     memfd_create("te-stage", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int r;

	if (fd >= 0 && !ftruncate(fd, (off_t)nbytes) &&
	    !fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL)) {
		*ret_fd = fd;
		return 0;
	}
	r = te__fail(-errno, "staging memory: a memfd of %zu bytes: %s", nbytes, strerror(errno));
	if (fd >= 0)
		close(fd);
	return r;
}

int te__stage_map(int fd, size_t nbytes, void **ret)
{
	const int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;
	void *p;

	if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st) || st.st_size != (off_t)nbytes)
		return te__fail(-EINVAL, "staging memory: the file descriptor is not a sealed "
				"memfd of %zu bytes", nbytes);
	p = te__fault_point() ? (errno = ENOMEM, MAP_FAILED) :
				mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return te__fail(-errno, "staging memory: mmap: %s", strerror(errno));
	*ret = p;
	return 0;
}
