/* control.c - the control page of a node's ranks, see control.h. */
#define TE_LOG_CATEGORY "comm/memory"
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libtecomm/reach/control.h"
#include "libtecore/base/private.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)
#define TELL_NS 100000 /* time between checks for an abort's reason; number of checks */
#define TELL_MOST 1000

_Static_assert(sizeof(struct te__control) <= TE__CONTROL_NBYTES, "the page holds it");

static int fill(int fd, int nlocal)
{
	struct te__control *c;
	int r;

	if (ftruncate(fd, TE__CONTROL_NBYTES) || fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL))
		return te__fail(-errno, "the control page: a memfd of %zu bytes: %s",
				TE__CONTROL_NBYTES, strerror(errno));
	/* its marks are written before any rank gets it */
	c = te__fault_point() ? (errno = ENOMEM, MAP_FAILED) :
				mmap(NULL, TE__CONTROL_NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
				     fd, 0);
	if (c == MAP_FAILED)
		return te__fail(-errno, "the control page: mmap: %s", strerror(errno));
	c->magic = TE__CONTROL_MAGIC;
	c->nlocal = (uint32_t)nlocal;
	r = munmap(c, TE__CONTROL_NBYTES);
	return r;
}

int te__control_create(int nlocal, int *ret_fd)
{
	int fd = te__fault_point() ? (errno = EMFILE, -1) :
				     memfd_create("te-control", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int r;

	if (fd < 0)
		return te__fail(-errno, "the control page: memfd_create: %s", strerror(errno));
	r = fill(fd, nlocal);
	if (r) {
		close(fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

/* the descriptor comes from another process: a file that shrinks would end this one by SIGBUS */
static int check_fd(int fd)
{
	const int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	if (seals < 0 || (seals & SEALS) != SEALS)
		return te__fail(-EINVAL, "the control page: the file descriptor is not a memfd "
				"that is sealed against changes of its size");
	if (fstat(fd, &st) || st.st_size != (off_t)TE__CONTROL_NBYTES)
		return te__fail(-EINVAL, "the control page: the memfd has %lld bytes, expected %zu",
				(long long)st.st_size, TE__CONTROL_NBYTES);
	return 0;
}

int te__control_map(int fd, int nlocal, struct te__control **ret)
{
	struct te__control *c;
	int r = check_fd(fd);

	if (r)
		return r;
	c = te__fault_point() ? (errno = ENOMEM, MAP_FAILED) :
				mmap(NULL, TE__CONTROL_NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
				     fd, 0);
	if (c == MAP_FAILED)
		return te__fail(-errno, "the control page: mmap: %s", strerror(errno));
	if (c->magic != TE__CONTROL_MAGIC || c->nlocal != (uint32_t)nlocal) {
		te__control_unmap(c);
		return te__fail(-TE_EMISMATCH, "the control page is not for %d ranks", nlocal);
	}
	*ret = c;
	return 0;
}

void te__control_unmap(struct te__control *c)
{
	if (c)
		munmap(c, TE__CONTROL_NBYTES);
}

void te__control_abort(struct te__control *c, int code, const char *reason)
{
	uint32_t none = 0;

	if (!atomic_compare_exchange_strong(&c->abort, &none, 1))
		return;
	c->code = code;
	snprintf(c->reason, sizeof(c->reason), "%s", reason);
	atomic_store_explicit(&c->told, 1, memory_order_release);
	te__log_warn("aborted: %s", reason);
}

/*
 * 1: the reason is written. The rank that aborts writes it at once, so that the others wait for it,
 * and have its code as well, but only for a limited time, because it may be killed in between.
 */
static int told(const struct te__control *c)
{
	const struct timespec pause = { .tv_nsec = TELL_NS };
	int n = 0;

	while (!atomic_load_explicit(&c->told, memory_order_acquire)) {
		if (n++ == TELL_MOST)
			return 0;
		nanosleep(&pause, NULL);
	}
	return 1;
}

const char *te__control_why(const struct te__control *c, int *ret_code)
{
	if (!atomic_load_explicit(&c->abort, memory_order_relaxed))
		return NULL;
	*ret_code = -TE_EABORT;
	if (!told(c))
		return "a rank has aborted the communicator";
	*ret_code = c->code < 0 ? c->code : -TE_EABORT;
	return c->reason;
}

int te__control_check(const struct te__control *c, const char *fn)
{
	int code;
	const char *why = te__control_why(c, &code);

	/* any process of the node may write to the page */
	return why ? te__fail(code, "%s: %.*s", fn, (int)sizeof(c->reason), why) : 0;
}
