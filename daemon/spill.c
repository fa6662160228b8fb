/*
 * spill.c - spill space: files without a name that ted(8) creates, reserves and hands out; see
 * ted.h.
 *
 * ted closes the descriptor, so the kernel frees the file when the last process that has it closes
 * it or ends. An inotify watch, which does not hold the file either, reports that. Until then the
 * grant counts, whether its client is connected or not.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "daemon/ted.h"

/* opens a file that never has a name (O_EXCL), with direct I/O where the file system has it */
static int open_file(int dir)
{
	int fd = openat(dir, ".", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);

	if (fd < 0 && errno == EINVAL)
		fd = openat(dir, ".", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	return fd;
}

static int reserve(int fd, uint64_t nbytes)
{
	int r;

	do
		r = fallocate(fd, 0, 0, (off_t)nbytes);
	while (r && errno == EINTR);
	return r;
}

/* bytes of the file system that may be granted; -1 with errno */
static int space(const struct ted *t, int64_t *ret_free, int64_t *ret_keep)
{
	struct statvfs s;

	if (fstatvfs(t->spill_dir, &s))
		return -1;
	*ret_free = (int64_t)s.f_bavail * (int64_t)s.f_frsize;
	*ret_keep = t->conf.spill_keep < 0 ?
			    (int64_t)s.f_blocks / 100 * (int64_t)s.f_frsize * -t->conf.spill_keep :
			    t->conf.spill_keep;
	return 0;
}

static void unavailable(struct ted *t, const char *why)
{
	snprintf(t->spill_why, sizeof(t->spill_why), "%.60s: %s", t->conf.spill, why);
	ted_say("spill space is unavailable: %s", t->spill_why);
	if (t->spill_dir >= 0)
		close(t->spill_dir);
	t->spill_dir = -1;
}

/* create one file as for a grant; 0, or -1 with the reason */
static int try_file(struct ted *t, char *why, size_t nbytes)
{
	const int fd = open_file(t->spill_dir);
	struct stat st;
	int r = -1;

	if (fd < 0)
		snprintf(why, nbytes, "%s%s", errno == EISDIR || errno == EOPNOTSUPP ?
			 "no files without a name (O_TMPFILE): " : "", strerror(errno));
	else if (fstat(fd, &st) || reserve(fd, 4096))
		snprintf(why, nbytes, "cannot reserve 4096 bytes: %s", strerror(errno));
	else
		r = 0;
	if (!r)
		t->spill_dev = st.st_dev;
	if (fd >= 0)
		close(fd);
	return r;
}

int ted_spill_open(struct ted *t)
{
	char why[96];

	if (!*t->conf.spill) {
		strcpy(t->spill_why, "none is configured (spill)");
		return 0;
	}
	t->grants = calloc((size_t)t->conf.spill_files, sizeof(*t->grants));
	t->inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (!t->grants || t->inotify < 0) {
		ted_say("spill space: %s", strerror(errno));
		return -1;
	}
	t->spill_dir = open(t->conf.spill, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (ted_folder_shared(t->spill_dir, why, sizeof(why)) || try_file(t, why, sizeof(why)))
		unavailable(t, why);
	return 0;
}

void ted_spill_close(struct ted *t)
{
	if (t->inotify >= 0)
		close(t->inotify);
	if (t->spill_dir >= 0)
		close(t->spill_dir);
	while (t->ngrants)
		ted_job_release(t, t->grants[--t->ngrants].job);
	free(t->grants);
}

static void release(struct ted *t, int wd)
{
	for (int i = 0; i < t->ngrants; i++) {
		struct ted_job *j = t->grants[i].job;

		if (t->grants[i].wd != wd)
			continue;
		t->n.reclaimed++;
		t->grants[i] = t->grants[--t->ngrants];
		ted_job_release(t, j);
		return;
	}
}

void ted_spill_read(struct ted *t)
{
	union {
		struct inotify_event align;
		char bytes[64 * sizeof(struct inotify_event)];
	} buf;
	ssize_t n;

	/* watched files have no name, so events have none either */
	while ((n = read(t->inotify, buf.bytes, sizeof(buf.bytes))) > 0)
		for (size_t at = 0; at < (size_t)n; at += sizeof(struct inotify_event)) {
			struct inotify_event e;

			memcpy(&e, buf.bytes + at, sizeof(e));
			if (e.mask & IN_DELETE_SELF)
				release(t, e.wd);
		}
}

int64_t ted_spill_granted(const struct ted *t, const struct ted_job *job, int any, uid_t uid)
{
	int64_t sum = 0;

	for (int i = 0; i < t->ngrants; i++)
		if (any || (job ? t->grants[i].job == job : t->grants[i].job->uid == uid))
			sum = ted_sum(sum, t->grants[i].nbytes);
	return sum;
}

/* 0, or 1 + enum ted_denied after an error reply */
static int refused(struct ted *t, struct ted_client *c, uint64_t nbytes)
{
	const int64_t of_job = ted_spill_granted(t, c->job, 0, 0);
	const int64_t of_uid = ted_spill_granted(t, NULL, 0, c->uid);
	int64_t avail, keep;
	char why[128];

	if (*t->spill_why) {
		ted_error(t, c, -EOPNOTSUPP, "GRANT: no spill space: %s", t->spill_why);
		return 1 + TED_DENIED_UNAVAILABLE;
	}
	if (c->job->revoked) {
		ted_error(t, c, -EACCES, "GRANT: the job's spill space was revoked");
		return 1 + TED_DENIED_OTHER;
	}
	if (!nbytes || nbytes > INT64_MAX / 2) {
		ted_error(t, c, -EINVAL, "GRANT: %" PRIu64 " bytes", nbytes);
		return 1 + TED_DENIED_OTHER;
	}
	if (ted_over(t, c->uid, TED_FILES, why, sizeof(why))) {
		ted_error(t, c, -ENOSPC, "GRANT: %s", why);
		return 1 + TED_DENIED_QUOTA;
	}
	if ((int64_t)nbytes > t->conf.spill_job - of_job) {
		ted_error(t, c, -EDQUOT, "GRANT: %" PRIu64 " bytes, but the job has %" PRId64
			  " of its %" PRId64 " (spill_job)", nbytes, of_job, t->conf.spill_job);
		return 1 + TED_DENIED_QUOTA;
	}
	if ((int64_t)nbytes > t->conf.spill_uid - of_uid) {
		ted_error(t, c, -EDQUOT, "GRANT: %" PRIu64 " bytes, but user %u has %" PRId64
			  " of its %" PRId64 " (spill_uid)", nbytes, (unsigned int)c->uid, of_uid,
			  t->conf.spill_uid);
		return 1 + TED_DENIED_QUOTA;
	}
	if (ted_written_over(t, c, why, sizeof(why))) {
		ted_error(t, c, -EDQUOT, "GRANT: %s", why);
		return 1 + TED_DENIED_QUOTA;
	}
	if (space(t, &avail, &keep)) {
		ted_error(t, c, -errno, "GRANT: %s: %s", t->conf.spill, strerror(errno));
		return 1 + TED_DENIED_OTHER;
	}
	if ((int64_t)nbytes <= avail - keep)
		return 0;
	ted_error(t, c, -ENOSPC, "GRANT: %" PRIu64 " bytes, but %" PRId64 " are available, of "
		  "which %" PRId64 " are kept free (spill_keep)", nbytes, avail, keep);
	return 1 + TED_DENIED_SPACE;
}

/* the watch that reports the end of the file; -1 with errno */
static int watch(struct ted *t, int fd)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return inotify_add_watch(t->inotify, path, IN_DELETE_SELF);
}

void ted_spill_grant(struct ted *t, struct ted_client *c, uint64_t nbytes)
{
	const int denied = refused(t, c, nbytes);
	int fd, wd;

	if (denied) {
		t->n.denied[denied - 1]++;
		return;
	}
	fd = open_file(t->spill_dir);
	wd = fd < 0 || reserve(fd, nbytes) ? -1 : watch(t, fd);
	if (wd < 0) {
		const int error = errno;

		t->n.denied[error == ENOSPC ? TED_DENIED_SPACE : TED_DENIED_OTHER]++;
		ted_error(t, c, -error, "GRANT: %s: a file of %" PRIu64 " bytes: %s", t->conf.spill,
			  nbytes, strerror(errno));
	} else {
		t->grants[t->ngrants++] = (struct ted_grant){ wd, (int64_t)nbytes, c->job };
		c->job->ngrants++;
		t->n.granted++;
		ted_reply(t, c, 0, "", nbytes, NULL, 0, fd);
	}
	if (fd >= 0)
		close(fd);
}

void ted_spill_hold(struct ted *t, struct ted_client *c, int fd)
{
	struct statvfs all;
	struct statx st;
	char why[128];
	int wd;

	if (*t->spill_why) {
		ted_error(t, c, -EOPNOTSUPP, "HOLD: no spill space: %s", t->spill_why);
		return;
	}
	if (ted_stat(fd, &st) || st.stx_nlink || !ted_in_spill(t, &st)) {
		ted_error(t, c, -EINVAL, "HOLD: the descriptor is not of a file without a name in "
			  "%s", t->conf.spill);
		return;
	}
	/* such a file is sparse: ted has granted none that is larger than the file system */
	if (fstatvfs(t->spill_dir, &all) || st.stx_size / all.f_frsize > all.f_blocks) {
		ted_error(t, c, -EINVAL, "HOLD: a file of %lld bytes, more than the file system of "
			  "%s has", (long long)st.stx_size, t->conf.spill);
		return;
	}
	if (ted_over(t, c->uid, TED_FILES, why, sizeof(why))) {
		ted_error(t, c, -ENOSPC, "HOLD: %s", why);
		return;
	}
	wd = watch(t, fd);
	if (wd < 0) {
		ted_error(t, c, -errno, "HOLD: %s", strerror(errno));
		return;
	}
	/* the same watch: it is counted already */
	for (int i = 0; i < t->ngrants && wd >= 0; i++)
		if (t->grants[i].wd == wd)
			wd = -1;
	if (wd >= 0) {
		t->grants[t->ngrants++] = (struct ted_grant){ wd, (int64_t)st.stx_size, c->job };
		c->job->ngrants++;
		t->n.held++;
	}
	ted_reply(t, c, 0, "", 0, NULL, 0, -1);
}
