/* returns.c - ranks that were lost and that te_run --respawn has started again. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "returns.h"
#include "tools/lib/say.h"

#define ALIVE "te_train-alive"	/* ranks that train have a shared lock of it */
#define WAITS "te_train-waits-" /* one that waits has a lock of this file; its start is in it */
#define OFFER "te_train-offer"
#define WRITTEN "te_train-written" /* returns_written(), as text */
#define POLL_MS 20
#define ALONE_MS 10000 /* a rank may have been started again before the others began to train */
#define PATH_MOST 4200

int32_t returns_starts(void)
{
	const char *starts = getenv("TE_COMM_RESTARTS");

	return starts && getenv("TE_COMM_DIR") ? atoi(starts) : -1;
}

static void path_of(char ret_path[PATH_MOST], const char *name, int number)
{
	int n = snprintf(ret_path, PATH_MOST, "%s/%s", getenv("TE_COMM_DIR"), name);

	if (number >= 0 && n < PATH_MOST)
		snprintf(ret_path + n, (size_t)(PATH_MOST - n), "%d", number);
}

static int open_in(const char *name, int number, int flags)
{
	char path[PATH_MOST];

	path_of(path, name, number);
	return open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
}

int returns_train(void)
{
	static int alive = -1;

	if (returns_starts() < 0 || alive >= 0)
		return STATUS_OK;
	alive = open_in(ALIVE, -1, O_RDWR | O_CREAT);
	/* a rank that waits has it exclusively for an instant, to see whether others train */
	return alive < 0 || flock(alive, LOCK_SH) ?
		       say_failed("%s in TE_COMM_DIR: %s", ALIVE, strerror(errno)) :
		       STATUS_OK;
}

int returns_note_written(int64_t ns)
{
	char text[32];
	const int n = snprintf(text, sizeof(text), "%lld", (long long)ns);
	int fd, r;

	if (returns_starts() < 0)
		return STATUS_OK;
	fd = open_in(WRITTEN, -1, O_WRONLY | O_CREAT | O_TRUNC);
	r = fd < 0 || write(fd, text, (size_t)n) != n ?
		    say_failed("%s in TE_COMM_DIR: %s", WRITTEN, strerror(errno)) :
		    STATUS_OK;
	if (fd >= 0)
		close(fd);
	return r;
}

int64_t returns_written(void)
{
	char text[32] = "";
	int fd = open_in(WRITTEN, -1, O_RDONLY);
	const int has = fd >= 0 && read(fd, text, sizeof(text) - 1) > 0;

	if (fd >= 0)
		close(fd);
	return has ? atoll(text) : 0;
}

/* ---- ranks that train ---- */

/* the start of a rank that waits, or -1 */
static int32_t waits(int32_t number)
{
	char text[16] = "";
	int fd = open_in(WAITS, number, O_RDONLY);
	int32_t start = -1;

	if (fd < 0)
		return -1;
	/* the file of a process that has ended is not locked */
	if (flock(fd, LOCK_SH | LOCK_NB) && read(fd, text, sizeof(text) - 1) > 0)
		start = atoi(text);
	close(fd);
	return start;
}

int returns_look(const struct ranks *r, int64_t nmicro, struct offer *ret_o)
{
	const int32_t nparts = r->nparts ? r->nparts : 1, nold = r->others + 1;
	int32_t n = nold;

	if (nold == r->nfirst || returns_starts() < 0)
		return 0;
	memset(ret_o, 0, sizeof(*ret_o));
	for (int32_t i = 0; i < nold; i++)
		ret_o->rank[i] = r->number[i];
	for (int32_t first = 0; first < r->nfirst; first += nparts) {
		int32_t k = 0;

		for (; k < nparts && r->state[first + k] != RANK_TRAINS; k++) {
			ret_o->rank[n + k] = first + k;
			ret_o->start[n + k] = waits(first + k);
			if (ret_o->start[n + k] <= r->absent[first + k])
				break;
		}
		n += k == nparts ? k : 0;
	}
	while (n > nold && nmicro % (n / nparts))
		n -= nparts;
	ret_o->n = n;
	ret_o->nold = nold;
	return n > nold;
}

int returns_write(const struct offer *o)
{
	char path[PATH_MOST], tmp[PATH_MOST];
	int fd = open_in(OFFER ".new", -1, O_WRONLY | O_CREAT | O_TRUNC), r = 0;

	if (fd < 0)
		return -errno;
	path_of(path, OFFER, -1);
	path_of(tmp, OFFER ".new", -1);
	if (write(fd, o, sizeof(*o)) != (ssize_t)sizeof(*o) || rename(tmp, path))
		r = errno ? -errno : -EIO;
	close(fd);
	return r;
}

int returns_read(struct offer *ret_o)
{
	int fd = open_in(OFFER, -1, O_RDONLY), r = 0;

	if (fd < 0)
		return -errno;
	if (read(fd, ret_o, sizeof(*ret_o)) != (ssize_t)sizeof(*ret_o) || ret_o->n > MOST_RANKS ||
	    ret_o->nold < 0 || ret_o->nold > ret_o->n)
		r = -EIO;
	close(fd);
	return r;
}

/* ---- a rank that returns ---- */

/* 1: no process has the lock of those that train */
static int is_alone(void)
{
	int fd = open_in(ALIVE, -1, O_RDWR | O_CREAT);
	int alone = fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB);

	if (fd >= 0)
		close(fd);
	return alone;
}

static int is_offered(const struct offer *o, int32_t number, int32_t start, int32_t *ret_rank)
{
	for (int32_t i = o->nold; i < o->n; i++)
		if (o->rank[i] == number && o->start[i] == start) {
			*ret_rank = i;
			return 1;
		}
	return 0;
}

/* the file of this rank, locked until it is closed */
static int begin_to_wait(int32_t number, int32_t start)
{
	char text[16];
	int fd = open_in(WAITS, number, O_RDWR | O_CREAT);
	const int n = snprintf(text, sizeof(text), "%d", start);

	/* a rank that trains may have it for an instant */
	if (fd >= 0 &&
	    (flock(fd, LOCK_EX) || ftruncate(fd, 0) || write(fd, text, (size_t)n) != n)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* 1: every rank waits, so that none trains; *ret_o: the offer to all of them */
static int all_wait(int32_t nranks, int32_t start, struct offer *ret_o)
{
	memset(ret_o, 0, sizeof(*ret_o));
	ret_o->start[0] = start;
	for (ret_o->n = 1; ret_o->n < nranks; ret_o->n++) {
		ret_o->rank[ret_o->n] = ret_o->n;
		ret_o->start[ret_o->n] = waits(ret_o->n);
		if (ret_o->start[ret_o->n] < 0)
			return 0;
	}
	return 1;
}

int returns_wait(int32_t number, int32_t nranks, struct offer *ret_o, int32_t *ret_rank)
{
	const struct timespec pause = { 0, POLL_MS * 1000000 };
	const int32_t start = returns_starts();
	const int fd = begin_to_wait(number, start);
	int32_t alone_ms = 0;
	int offered = 0, all = 0;

	if (fd < 0) {
		(void)say_failed("%s%d in TE_COMM_DIR: %s", WAITS, number, strerror(errno));
		return -EIO;
	}
	while (!offered && !all && alone_ms < ALONE_MS) {
		nanosleep(&pause, NULL);
		alone_ms = is_alone() ? alone_ms + POLL_MS : 0;
		offered = !returns_read(ret_o) && is_offered(ret_o, number, start, ret_rank);
		all = !offered && !number && all_wait(nranks, start, ret_o);
	}
	close(fd);
	if (offered || all)
		return all;
	(void)say_failed("rank %d was started again, and no other rank trains", number);
	return -ESRCH;
}
