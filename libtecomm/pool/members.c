/* members.c - choice of the ranks in the successor of a communicator, see members.h. */
#define TE_LOG_CATEGORY "comm/memory"
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/pool/members.h"
#include "libtecore/base/private.h"

#define LOOK_NS 1000000 /* time between checks of the words of the other ranks */

/* ---- whether a rank has ended ---- */

/* byte `rank` of the control page is locked, and never read, while the rank is there */
static struct flock sign_of(int rank)
{
	return (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank,
			       .l_len = 1 };
}

int te__members_sign(const struct te__node_info *info, int control_fd, int rank, int *ret_fd)
{
	struct flock lock = sign_of(rank);
	char path[40];
	int fd;

	/* descriptors that were passed have one lock: this one needs an open file for itself */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", control_fd);
	fd = te__fault_point() ? (errno = EMFILE, -1) : open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || fcntl(fd, F_OFD_SETLK, &lock)) {
		const int e = errno;

		if (fd >= 0)
			close(fd);
		return te__fail(-e, "lock of %s in the control page: %s", info->name[rank],
				strerror(e));
	}
	*ret_fd = fd;
	return 0;
}

/* 1: the rank has ended, or has released its communicator; 0: it has not, or it is unknown */
static int has_ended(int sign, int rank)
{
	struct flock lock = sign_of(rank);

	return !fcntl(sign, F_OFD_GETLK, &lock) && lock.l_type == F_UNLCK;
}

/* ---- the words ---- */

/* set an even word below the attempt's value to `to`; returns the word after that */
static uint32_t advance(_Atomic uint32_t *word, uint32_t attempt, uint32_t to)
{
	uint32_t x = atomic_load(word);

	while (!(x & 1) && x < 2 * attempt)
		if (atomic_compare_exchange_weak(word, &x, to ? to : x + 1))
			return to ? to : x + 1;
	return x;
}

/* check all ranks once; 1: each has arrived or is left out */
static int closed(struct te__control *c, const struct te__node_info *info, int sign,
		  uint32_t attempt, int late)
{
	int all = 1;

	for (int i = 0; i < info->nlocal; i++) {
		const uint32_t x = atomic_load(&c->member[i]);

		if (x & 1 || x >= 2 * attempt)
			continue;
		if (late || has_ended(sign, i)) {
			te__log_info("%s is left out: it %s", info->name[i],
				     late ? "has not arrived" : "has ended");
			advance(&c->member[i], attempt, 0);
		} else {
			all = 0;
		}
	}
	return all;
}

int te__members_settle(struct te__control *c, const struct te__node_info *info, int sign, int rank,
		       int64_t deadline_ns, uint32_t *ret_attempt)
{
	const struct timespec pause = { .tv_nsec = LOOK_NS };
	const uint32_t outcome = atomic_load(&c->outcome), attempt = outcome / 2 + 1;

	if (outcome & 1 || advance(&c->member[rank], attempt, 2 * attempt) & 1)
		return te__fail(-TE_ESTATE, "%s did not arrive in time, or failed: the other ranks "
				"have recovered without it", info->name[rank]);
	for (;;) {
		if (closed(c, info, sign, attempt, te__boot_now() >= deadline_ns))
			break;
		if (atomic_load(&c->outcome) != outcome)
			return te__fail(-TE_EABORT, "attempt %u has failed on another rank",
					(unsigned int)attempt);
		nanosleep(&pause, NULL);
	}
	*ret_attempt = attempt;
	return 0;
}

int te__members_has(const struct te__control *c, int rank, uint32_t attempt)
{
	return atomic_load(&c->member[rank]) >= 2 * attempt;
}

int te__members_end(struct te__control *c, uint32_t attempt, int success)
{
	const uint32_t failed = 2 * attempt, succeeded = failed - 1;
	uint32_t x = failed - 2;

	if (atomic_compare_exchange_strong(&c->outcome, &x, success ? succeeded : failed))
		return success;
	return success && x == succeeded;
}

const char *te__members_leave(struct te__control *c, const struct te__node_info *info, int sign,
			      int rank, int64_t deadline_ns)
{
	const struct timespec pause = { .tv_nsec = LOOK_NS };
	int told = -1;

	for (int i = 0; i < info->nlocal; i++)
		while (!atomic_load(&c->left[i]) && !has_ended(sign, i)) {
			if (told != i)
				te__log_info("%s waits until %s releases the communicator",
					     info->name[rank], info->name[i]);
			told = i;
			if (te__boot_now() >= deadline_ns)
				return info->name[i];
			nanosleep(&pause, NULL);
		}
	return NULL;
}
