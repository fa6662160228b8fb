/*
 * spill_file.c - the file of a spill: without a name, so that it is removed if the process is
 * killed; of a fixed size, reserved when created; opened for direct I/O if possible.
 */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "libtecore/base/base.h"
#include "libtecore/offload/spill_io.h"

#define FILL_NBYTES ((size_t)1 << 20)

/* open with flags and, if mode is "unlink", a name that is removed immediately */
static int open_named(const char *dir, int flags)
{
	char path[4096];
	int fd, n = snprintf(path, sizeof(path), "%s/te-spill-XXXXXX", dir);

	if (n >= (int)sizeof(path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	fd = mkostemp(path, flags & ~O_RDWR);
	if (fd >= 0 && unlink(path)) {
		close(fd);
		return -1;
	}
	return fd;
}

static int open_unnamed(const char *dir, int flags)
{
	int fd = te__fault_point() ? (errno = EMFILE, -1) :
				     open(dir, O_TMPFILE | O_RDWR | flags, 0600);

	/* EISDIR: a kernel without O_TMPFILE; EOPNOTSUPP: a file system without it */
	if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
		te__log_debug("spill: %s: no O_TMPFILE: a file is created and removed", dir);
		fd = open_named(dir, O_RDWR | flags);
	}
	return fd;
}

/* 0 if direct I/O needs more than the alignment of blocks; without information, 4096 */
static uint32_t direct_align(int fd)
{
#ifdef STATX_DIOALIGN
	struct statx s;

	if (!statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &s) && s.stx_mask & STATX_DIOALIGN) {
		if (!s.stx_dio_offset_align || s.stx_dio_offset_align > TE__SPILL_ALIGN ||
		    s.stx_dio_mem_align > TE__SPILL_ALIGN)
			return 0;
		return s.stx_dio_offset_align;
	}
#else
	(void)fd;
#endif
	return TE__SPILL_ALIGN;
}

static int open_file(const char *dir, struct te__spill_file *f)
{
	f->fd = open_unnamed(dir, O_CLOEXEC | O_DIRECT);
	f->direct = f->fd >= 0;
	f->align = f->direct ? direct_align(f->fd) : 1;
	if (f->direct && !f->align) {
		close(f->fd);
		f->fd = -1;
		errno = EINVAL;
	}
	if (f->fd < 0 && errno == EINVAL) {
		te__log_info("spill: %s: no direct I/O: the page cache is used", dir);
		f->fd = open_unnamed(dir, O_CLOEXEC);
		f->direct = 0;
		f->align = 1;
	}
	if (f->fd < 0)
		return te__fail(-errno, "spill: cannot create a file in %s: %s", dir,
				strerror(errno));
	return 0;
}

static int full(const char *dir, int code, uint64_t nbytes, int fd)
{
	struct statvfs s;

	if (fstatvfs(fd, &s))
		return te__fail(code, "spill: %s: cannot reserve %" PRIu64 " bytes: %s", dir,
				nbytes, strerror(-code));
	return te__fail(code, "spill: %s: cannot reserve %" PRIu64 " bytes: %s: %" PRIu64
			" are available", dir, nbytes, strerror(-code),
			(uint64_t)s.f_bavail * s.f_frsize);
}

/* if a file system cannot reserve, write all blocks once to allocate them */
static int fill(const char *dir, const struct te__spill_file *f)
{
	uint8_t *zeros = te__aligned_alloc(TE__SPILL_ALIGN, FILL_NBYTES);
	int code = 0;

	if (!zeros)
		return te__fail(-ENOMEM, "spill: no memory to fill the file in %s", dir);
	te__log_info("spill: %s: the file system cannot reserve: %" PRIu64 " bytes are written",
		     dir, f->nbytes);
	memset(zeros, 0, FILL_NBYTES);
	for (uint64_t at = 0; at < f->nbytes && !code;) {
		const uint64_t left = f->nbytes - at;
		const ssize_t n = pwrite(f->fd, zeros, left < FILL_NBYTES ? left : FILL_NBYTES,
					 (off_t)at);

		/* a short count is rounded down to an offset at which I/O can continue */
		if (n > 0)
			at += (uint64_t)n / f->align * f->align;
		if (n < 0 && errno != EINTR)
			code = -errno;
		if (n >= 0 && (uint64_t)n < f->align)
			code = -ENOSPC;
	}
	te__free(zeros);
	return code ? full(dir, code, f->nbytes, f->fd) : 0;
}

static int reserve(const char *dir, const struct te__spill_file *f)
{
	int r;

	if (f->nbytes > INT64_MAX)
		return full(dir, -EFBIG, f->nbytes, f->fd);
	/* not posix_fallocate: its emulation writes single bytes, which direct I/O refuses */
	do
		r = te__fault_point() ? (errno = ENOSPC, -1) :
					fallocate(f->fd, 0, 0, (off_t)f->nbytes);
	while (r && errno == EINTR);
	if (r && (errno == EOPNOTSUPP || errno == ENOSYS))
		return fill(dir, f);
	return r ? full(dir, -errno, f->nbytes, f->fd) : 0;
}

void te__spill_file_close(struct te__spill_file *f)
{
	te__spill_ted_close(f->ted);
	f->ted = NULL;
	if (f->fd >= 0)
		close(f->fd);
	f->fd = -1;
}

/* a file of ted(8), which has reserved it */
static int open_granted(const char *path, struct te__spill_file *ret)
{
	struct te__spill_file f = *ret;
	struct stat st;
	int r = te__spill_ted_open(path, f.nbytes, &f.fd, &f.ted);

	if (r)
		return r;
	/* else I/O would fail later, or a process that finds the name could read the data */
	if (fstat(f.fd, &st) || !S_ISREG(st.st_mode) || st.st_nlink ||
	    (uint64_t)st.st_size < f.nbytes || (fcntl(f.fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
		te__spill_file_close(&f);
		return te__fail(-EPROTO, "spill: ted at %s has sent a descriptor, but not of a "
				"file without a name of %" PRIu64 " bytes", path, f.nbytes);
	}
	f.direct = (fcntl(f.fd, F_GETFL) & O_DIRECT) != 0;
	f.align = f.direct ? direct_align(f.fd) : 1;
	if (!f.align) {
		te__log_info("spill: %s: no direct I/O: the page cache is used", path);
		(void)fcntl(f.fd, F_SETFL, fcntl(f.fd, F_GETFL) & ~O_DIRECT);
		f.direct = 0;
		f.align = 1;
	}
	*ret = f;
	return 0;
}

int te__spill_file_open(const char *dir, uint64_t nbytes, struct te__spill_file *ret)
{
	struct te__spill_file f = { .nbytes = nbytes };
	struct stat st;
	int r;

	if (!stat(dir, &st) && S_ISSOCK(st.st_mode)) {
		r = open_granted(dir, &f);
		if (!r)
			*ret = f;
		return r;
	}
	r = open_file(dir, &f);
	if (r)
		return r;
	r = reserve(dir, &f);
	if (r) {
		close(f.fd);
		return r;
	}
	*ret = f;
	return 0;
}
