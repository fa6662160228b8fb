/*
 * written.c - bytes that clients of ted(8) have written to their files today, by user and job, and
 * daily limits of that; see ted.h. Days are in UTC.
 *
 * If there is a limit, the counts are saved in a file in the folder of spill space, so that a
 * restart does not reset them. A job is identified by a hash of its key, which is secret. The file
 * has a line "day N", then for each row the user, the hash and the bytes, and a line "sum N", a
 * hash of the text before it.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/ted.h"

#define ROWS_MOST 8192
#define SAVE_NS 1000000000 /* minimum time between writes of the file */
#define NAME "ted.written"
#define NEW_NAME NAME ".new"
/* size of the file: "day", "sum" and the rows, with the maximum digits of each number */
#define FILE_MOST (32 + 32 + (size_t)ROWS_MOST * (10 + 1 + 16 + 1 + 19 + 1))

static int limited(const struct ted *t)
{
	return t->spill_dir >= 0 && (t->conf.spill_daily_job < INT64_MAX ||
				     t->conf.spill_daily_uid < INT64_MAX);
}

/* FNV-1a */
uint64_t ted_written_sum(const char *text, size_t n)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < n; i++)
		h = (h ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
	return h;
}

/* 0 is the row of the user */
static uint64_t hash(const uint8_t *key)
{
	const uint64_t h = ted_written_sum((const char *)key, TE__WIRE_KEY_NBYTES);

	return h ? h : 1;
}

static struct ted_written *find(const struct ted *t, uint32_t uid, uint64_t job)
{
	for (int i = 0; i < t->nwritten; i++)
		if (t->written[i].uid == uid && t->written[i].job == job)
			return &t->written[i];
	return NULL;
}

/*
 * Returns the row of a user or a job of it, a new one if there is none; NULL without memory or if
 * there are too many rows. Half of the rows are for users; one user has at most half of the others
 * for jobs.
 */
static struct ted_written *row(struct ted *t, uint32_t uid, uint64_t job)
{
	struct ted_written *w = find(t, uid, job);
	int of_uid = 0;

	if (w)
		return w;
	if (!t->written)
		t->written = calloc(ROWS_MOST, sizeof(*t->written));
	for (int i = 0; i < t->nwritten; i++)
		of_uid += t->written[i].uid == uid && t->written[i].job;
	if (!t->written || t->nwritten >= (job ? ROWS_MOST / 2 : ROWS_MOST) ||
	    (job && of_uid >= ROWS_MOST / 4))
		return NULL;
	w = &t->written[t->nwritten++];
	*w = (struct ted_written){ uid, job, 0 };
	return w;
}

static void begin_day(struct ted *t)
{
	const int64_t day = (int64_t)time(NULL) / 86400;

	if (day == t->day)
		return;
	t->day = day;
	t->nwritten = 0;
}

int64_t ted_written(struct ted *t, uint32_t uid, const struct ted_job *j)
{
	const struct ted_written *w;

	begin_day(t);
	w = find(t, uid, j ? hash(j->key) : 0);
	return w ? w->nbytes : 0;
}

/* ---- the file ---- */

/* the text, for free(); NULL without memory */
static char *text_of(const struct ted *t, size_t *ret_nbytes)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, ret_nbytes);

	if (!f)
		return NULL;
	fprintf(f, "day %" PRId64 "\n", t->day);
	for (int i = 0; i < t->nwritten; i++)
		fprintf(f, "%" PRIu32 " %016" PRIx64 " %" PRId64 "\n", t->written[i].uid,
			t->written[i].job, t->written[i].nbytes);
	if (!fflush(f))
		fprintf(f, "sum %016" PRIx64 "\n", ted_written_sum(text, *ret_nbytes));
	if (!fclose(f))
		return text;
	free(text);
	return NULL;
}

static void save(struct ted *t)
{
	size_t n = 0;
	char *text = text_of(t, &n);
	int fd = -1, bad = 1;

	t->save_ns = 0;
	t->saved_ns = ted_now_ns();
	/* left by a ted that was killed */
	(void)unlinkat(t->spill_dir, NEW_NAME, 0);
	if (text)
		fd = openat(t->spill_dir, NEW_NAME, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd >= 0) {
		bad = fchmod(fd, 0600) || write(fd, text, n) != (ssize_t)n ||
		      /* else the new name could reach the drive before the data does */
		      fsync(fd);
		bad |= close(fd);
	}
	free(text);
	/* a file that is incomplete does not replace the one before */
	if (bad || renameat(t->spill_dir, NEW_NAME, t->spill_dir, NAME))
		ted_say_client("%s/" NAME ": %s", t->conf.spill, strerror(errno));
}

/* a number without a sign, before the character end; 0, or -1 */
static int take(const char **at, int base, char end, uint64_t most, uint64_t *ret)
{
	const char *s = *at;
	uint64_t v = 0;

	do {
		const int digit = *s >= '0' && *s <= '9' ? *s - '0' :
				  *s >= 'a' && *s <= 'f' ? *s - 'a' + 10 : 16;

		if (digit >= base || v > (most - (uint64_t)digit) / (uint64_t)base)
			return -1;
		v = v * (uint64_t)base + (uint64_t)digit;
	} while (*++s != end);
	*at = s + 1;
	*ret = v;
	return 0;
}

static int take_row(struct ted *t, const char **at)
{
	struct ted_written *w;
	uint64_t uid, job, nbytes;

	if (take(at, 10, ' ', UINT32_MAX, &uid) || take(at, 16, ' ', UINT64_MAX, &job) ||
	    take(at, 10, '\n', INT64_MAX, &nbytes) || find(t, (uint32_t)uid, job))
		return -1;
	w = row(t, (uint32_t)uid, job);
	if (!w)
		return -1;
	w->nbytes = (int64_t)nbytes;
	return 0;
}

int ted_written_parse(struct ted *t, const char *text)
{
	const char *at = text + 4, *end = text, *last;
	uint64_t day, sum;
	int r = 0;

	/* begin of the last line */
	for (const char *s = text; (s = strchr(s, '\n')) && s[1]; s++)
		end = s + 1;
	last = end + 4;
	if (strncmp(text, "day ", 4) || strncmp(end, "sum ", 4) ||
	    take(&last, 16, '\n', UINT64_MAX, &sum) || *last ||
	    sum != ted_written_sum(text, (size_t)(end - text)) ||
	    take(&at, 10, '\n', INT64_MAX, &day))
		return -1;
	while (!r && at < end && day == (uint64_t)t->day)
		r = take_row(t, &at);
	if (r)
		t->nwritten = 0;
	return r;
}

/* NULL, or why it is not read: only ted can have written it, and no more bytes than that */
static const char *read_counts(struct ted *t, int fd)
{
	const char *why = NULL;
	struct stat st;
	char *text;
	ssize_t n;

	if (fd < 0)
		return errno == ELOOP ? "it is a link" : strerror(errno);
	if (fstat(fd, &st))
		return strerror(errno);
	if (!S_ISREG(st.st_mode))
		return "it is no regular file";
	if ((st.st_uid && st.st_uid != geteuid()) || st.st_mode & 0022)
		return "another user can write to it";
	if (st.st_size > (off_t)FILE_MOST)
		return "it is larger than ted makes it";
	text = malloc((size_t)st.st_size + 1);
	if (!text)
		return "no memory";
	n = read(fd, text, (size_t)st.st_size);
	text[n < 0 ? 0 : n] = 0;
	/* a zero byte ends the text early */
	if (n != st.st_size || strlen(text) != (size_t)n || ted_written_parse(t, text))
		why = n < 0 ? strerror(errno) : "it is damaged, or no file of ted";
	free(text);
	return why;
}

void ted_written_open(struct ted *t)
{
	const char *why;
	int fd;

	begin_day(t);
	if (!limited(t))
		return;
	/* neither follow a link, nor wait for a writer of a FIFO */
	fd = openat(t->spill_dir, NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return;
	why = read_counts(t, fd);
	if (why)
		ted_say("%s/" NAME ": %s: the counts of today begin at 0", t->conf.spill, why);
	if (fd >= 0)
		close(fd);
}

void ted_written_close(struct ted *t)
{
	if (t->save_ns)
		save(t);
	free(t->written);
}

void ted_written_late(struct ted *t, int64_t now_ns)
{
	if (t->save_ns && now_ns >= t->save_ns)
		save(t);
	if (t->save_ns && t->save_ns < t->timer_ns)
		t->timer_ns = t->save_ns;
}

/* ---- limits ---- */

/* once when the count passes four fifths of the limit, and once when it passes that */
static void warn(const char *who, int64_t before, int64_t now, int64_t limit, const char *key)
{
	if ((before < limit / 5 * 4 && now >= limit / 5 * 4) || (before < limit && now >= limit))
		ted_say("%s has written %" PRId64 " of its %" PRId64 " bytes a day (%s)", who, now,
			limit, key);
}

int ted_written_over(struct ted *t, const struct ted_client *c, char *why, size_t nbytes)
{
	const struct ted_conf *conf = &t->conf;
	const int64_t of_uid = ted_written(t, c->uid, NULL);
	const int64_t of_job = ted_written(t, c->uid, c->job);

	if (of_job >= conf->spill_daily_job)
		snprintf(why, nbytes, "the job has written %" PRId64 " bytes today, of %" PRId64
			 " (spill_daily_job)", of_job, conf->spill_daily_job);
	else if (of_uid >= conf->spill_daily_uid)
		snprintf(why, nbytes, "user %u has written %" PRId64 " bytes today, of %" PRId64
			 " (spill_daily_uid)", (unsigned int)c->uid, of_uid, conf->spill_daily_uid);
	else
		return 0;
	return 1;
}

void ted_written_add(struct ted *t, const struct ted_client *c, int64_t nbytes)
{
	const struct ted_conf *conf = &t->conf;
	struct ted_written *of_uid, *of_job;
	char who[40];

	begin_day(t);
	of_uid = row(t, c->uid, 0);
	of_job = row(t, c->uid, hash(c->job->key));
	t->n.written += (uint64_t)nbytes;
	if (of_uid) {
		snprintf(who, sizeof(who), "user %u", (unsigned int)c->uid);
		warn(who, of_uid->nbytes, ted_sum(of_uid->nbytes, nbytes), conf->spill_daily_uid,
		     "spill_daily_uid");
		of_uid->nbytes = ted_sum(of_uid->nbytes, nbytes);
	}
	if (of_job) {
		snprintf(who, sizeof(who), "job %u", c->job->id);
		warn(who, of_job->nbytes, ted_sum(of_job->nbytes, nbytes), conf->spill_daily_job,
		     "spill_daily_job");
		of_job->nbytes = ted_sum(of_job->nbytes, nbytes);
	}
	if (!limited(t) || t->save_ns)
		return;
	t->save_ns = t->saved_ns + SAVE_NS;
	if (t->save_ns < t->timer_ns)
		t->timer_ns = t->save_ns;
}
