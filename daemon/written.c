/*
 * written.c - what clients of ted(8) have written to their files today, by user and by job, and the
 * daily limits of that; see ted.h. Days are those of UTC.
 *
 * The counts are in a file of the folder of spill space while there is a limit, so that a restart
 * does not begin them anew. A job is there by a hash of its key, which is secret.
 */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/ted.h"

#define ROWS_MOST 8192
#define SAVE_NS 1000000000 /* between writes of the file, at least */

static int limited(const struct ted_conf *c)
{
	return *c->spill && (c->spill_daily_job < INT64_MAX ||
			     c->spill_daily_uid < INT64_MAX);
}

/* FNV-1a; 0 is that of the row of the user */
static uint64_t hash(const uint8_t *key)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (int i = 0; i < TE__WIRE_KEY_NBYTES; i++)
		h = (h ^ key[i]) * UINT64_C(0x100000001b3);
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
 * A new one if there is none. NULL without memory, and if there are too many: half are for users,
 * and one user has at most half of the others for jobs.
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

static void path_of(const struct ted *t, char *path, size_t nbytes, const char *end)
{
	snprintf(path, nbytes, "%s/ted.written%s", t->conf.spill, end);
}

static void save(struct ted *t)
{
	char path[300], new_path[300];
	int bad = 1;
	FILE *f;

	t->save_ns = 0;
	t->saved_ns = ted_now_ns();
	path_of(t, path, sizeof(path), "");
	path_of(t, new_path, sizeof(new_path), ".new");
	/* not through a link that another user has made */
	(void)unlink(new_path);
	f = fopen(new_path, "wxe");
	if (f) {
		(void)fchmod(fileno(f), 0600);
		fprintf(f, "day %" PRId64 "\n", t->day);
		for (int i = 0; i < t->nwritten; i++)
			fprintf(f, "%" PRIu32 " %016" PRIx64 " %" PRId64 "\n", t->written[i].uid,
				t->written[i].job, t->written[i].nbytes);
		/* else the new name could reach the drive before the data does */
		bad = fflush(f) || ferror(f) || fsync(fileno(f));
		bad |= fclose(f);
	}
	/* a file that is incomplete does not replace the one before */
	if (bad || rename(new_path, path))
		ted_say_client("%s: %s", path, strerror(errno));
}

void ted_written_open(struct ted *t)
{
	struct ted_written r;
	int64_t day;
	char path[300];
	FILE *f;

	begin_day(t);
	if (!limited(&t->conf))
		return;
	path_of(t, path, sizeof(path), "");
	f = fopen(path, "re");
	if (!f) {
		if (errno != ENOENT)
			ted_say("%s: %s", path, strerror(errno));
		return;
	}
	if (fscanf(f, "day %" SCNd64 "\n", &day) != 1)
		ted_say("%s: not a file of ted: the count of today begins at 0", path);
	else if (day == t->day)
		while (fscanf(f, "%" SCNu32 " %" SCNx64 " %" SCNd64 "\n", &r.uid, &r.job,
			      &r.nbytes) == 3 && r.nbytes >= 0) {
			struct ted_written *w = row(t, r.uid, r.job);

			if (w)
				*w = r;
		}
	fclose(f);
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
	if (!limited(conf) || t->save_ns)
		return;
	t->save_ns = t->saved_ns + SAVE_NS;
	if (t->save_ns < t->timer_ns)
		t->timer_ns = t->save_ns;
}
