/* t/daemon/ted_written.c - limits of what a user writes in a day, and the file of counts. */
#include "config.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <te/errno.h>

#include "daemon/ted.h"
#include "libtecore/base/private.h"
#include "ted_space.h"

static int wrote(int sock, uint64_t nbytes)
{
	struct te__wire m = message(TE__WIRE_WROTE);

	m.nbytes = nbytes;
	return call(sock, &m, -1, NULL, NULL);
}

static char counts[128];

/* until the file of the counts has the text */
static void wait_for_counts(const char *text)
{
	char got[1024] = "";

	for (int ms = 0; !strstr(got, text); ms++) {
		FILE *f = fopen(counts, "r");
		const size_t n = f ? fread(got, 1, sizeof(got) - 1, f) : 0;

		if (f)
			fclose(f);
		got[n] = 0;
		ck_assert_msg(ms < TT_SLOWER(20000), "%s has no %s", got, text);
		usleep(1000);
	}
}

/* the file, as ted writes it: with its sum */
static void write_counts(const char *text)
{
	FILE *f = fopen(counts, "w");

	ck_assert_ptr_nonnull(f);
	fprintf(f, "%ssum %016llx\n", text,
		(unsigned long long)ted_written_sum(text, strlen(text)));
	ck_assert_int_eq(fclose(f), 0);
}

CASE(written, "host serial");

TEST(written, what_is_written_in_a_day_is_limited)
{
	uint8_t other[TE__WIRE_KEY_NBYTES];
	char want[160];
	int a, b, fd;

	space_begin("spill_daily_job = 1000\nspill_daily_uid = 1500\n");
	snprintf(counts, sizeof(counts), "%s/ted.written", space);
	make_key(other);
	a = join(&run, key);
	b = join(&run, other);
	ck_assert_int_eq(wrote(a, 799), 0);
	ck_assert_ptr_null(strstr(run_log(&run), "of its 1000 bytes a day"));
	ck_assert_int_eq(wrote(a, 200), 0);
	ck_assert_ptr_nonnull(strstr(run_log(&run), "has written 999 of its 1000 bytes a day "
				     "(spill_daily_job)"));
	ck_assert_int_eq(grant(a, 4096, &fd), 0);
	close(fd);
	/* all of it counts */
	ck_assert_int_eq(wrote(a, 2), -EDQUOT);
	ck_reply("WROTE: the job has written 1001 bytes today, of 1000 (spill_daily_job)");
	ck_assert_int_eq(grant(a, 4096, NULL), -EDQUOT);
	ck_reply("GRANT: the job has written 1001 bytes today");
	ck_assert_int_eq(wrote(b, 498), 0);
	ck_assert_int_eq(wrote(b, UINT64_MAX), -EINVAL);
	ck_assert_int_eq(grant(b, 4096, &fd), 0);
	close(fd);
	/* the counts outlive ted: those of the first second, when it is killed */
	close(a);
	close(b);
	snprintf(want, sizeof(want), "%u 0000000000000000 1499\n", (unsigned int)geteuid());
	wait_for_counts(want);
	ck_assert_int_eq(run_stop(&run, SIGKILL), -SIGKILL);
	run_start(&run);
	a = join(&run, key);
	b = join(&run, other);
	ck_assert_int_eq(grant(a, 4096, NULL), -EDQUOT);
	ck_reply("the job has written 1001 bytes today");
	ck_assert_int_eq(wrote(b, 1), -EDQUOT);
	snprintf(want, sizeof(want), "user %u has written 1500 bytes today, of 1500 "
		 "(spill_daily_uid)", (unsigned int)geteuid());
	ck_reply(want);
	/* and all of them when it ends */
	ck_assert_int_eq(wrote(b, INT64_MAX), -EDQUOT);
	close(a);
	close(b);
	ck_assert_int_eq(run_stop(&run, SIGTERM), 0);
	snprintf(want, sizeof(want), "%u 0000000000000000 %lld\n", (unsigned int)geteuid(),
		 (long long)INT64_MAX);
	wait_for_counts(want);
	/* another day */
	write_counts("day 7\n0 0000000000000000 5000\n");
	run_start(&run);
	ck_assert_ptr_null(strstr(run_log(&run), "ted.written"));
	a = join(&run, key);
	ck_assert_int_eq(grant(a, 4096, &fd), 0);
	close(fd);
	close(a);
	ck_assert_int_eq(run_stop(&run, SIGTERM), 0);
	ck_assert_int_eq(unlink(counts), 0);
	space_end();
}

static int nsynced, sync_fails;

/* in place of that of the C library */
int fsync(int fd)
{
	struct stat st;

	/* all of it is in the file, not in memory of the process */
	ck_assert_int_eq(fstat(fd, &st), 0);
	ck_assert_int_gt(st.st_size, 0);
	ck_assert_int_eq((int)st.st_mode & 0777, 0600);
	nsynced++;
	errno = EIO;
	return -sync_fails;
}

/* after a loss of power there is the file of before, or the new one with all it has */
TEST(written, counts_reach_the_drive_before_their_name)
{
	static struct ted t;
	struct ted_conf conf;
	struct ted_job job = { .key = { 1 } };
	const struct ted_client c = { .uid = 7, .job = &job };

	run_init(&run, "");
	space_create();
	snprintf(counts, sizeof(counts), "%s/ted.written", space);
	ted_conf_init(&conf);
	conf.spill_daily_uid = 1000;
	strcpy(conf.spill, space);
	for (int i = 0; i < 2; i++) {
		sync_fails = i;
		ck_assert_int_eq(ted_init(&t, &conf), 0);
		ted_written_add(&t, &c, 5);
		ck_assert_int_eq(access(counts, F_OK), i - 1);
		ted_fini(&t);
		ck_assert_int_eq(nsynced, i + 1);
		wait_for_counts("7 0000000000000000 5\n");
	}
	ck_assert_int_eq(unlink(counts), 0);
	snprintf(counts, sizeof(counts), "%s/ted.written.new", space);
	ck_assert_int_eq(unlink(counts), 0);
	space_end();
}

/* ---- a file of the counts that ted has not written ---- */

static int64_t today(void)
{
	return (int64_t)time(NULL) / 86400;
}

static void conf_of(struct ted_conf *conf)
{
	ted_conf_init(conf);
	conf->clients = 1;
	conf->spill_daily_uid = 1000;
	strcpy(conf->spill, run.space);
	snprintf(counts, sizeof(counts), "%s/ted.written", run.space);
}

/* bytes of user 7, whose limit is reached in the file, after a start; it is told why they are 0 */
static int64_t counted(const char *why)
{
	static struct ted t;
	struct ted_conf conf;
	const int err = dup(STDERR_FILENO);
	int out, n;
	char got[1024] = "";
	int64_t sum;

	conf_of(&conf);
	out = memfd_create("stderr", MFD_CLOEXEC);
	fflush(stderr);
	dup2(out, STDERR_FILENO);
	n = ted_init(&t, &conf);
	fflush(stderr);
	dup2(err, STDERR_FILENO);
	close(err);
	ck_assert_int_eq(n, 0);
	ck_assert_int_ge((int)pread(out, got, sizeof(got) - 1, 0), 0);
	close(out);
	sum = ted_written(&t, 7, NULL);
	ted_fini(&t);
	if (why) {
		ck_assert_msg(strstr(got, why) != NULL, "%s", got);
		ck_assert_ptr_nonnull(strstr(got, "the counts of today begin at 0"));
		ck_assert_int_eq(sum, 0);
	} else {
		ck_assert_str_eq(got, "");
	}
	return sum;
}

TEST(written, a_file_of_counts_that_is_damaged_is_told_and_ignored)
{
	static const char *const wrong[] = {
		"7 0000000000000000 -1\n", "7 0000000000000000 9223372036854775808\n",
		"7 0000000000000000\n", "7 0000000000000000 1 2\n", "4294967296 0 1\n",
		"7 10000000000000000 1\n", "7 x 1\n", " 7 0 1\n", "+7 0 1\n", "7  1\n", "\n",
		"7 0 1\n7 0 1\n", "7 0 1\nsum 0\n",
	};
	static struct ted t;
	char text[256], bad[256];
	size_t n;
	FILE *f;

	run_init(&run, "");
	snprintf(counts, sizeof(counts), "%s/ted.written", run.space);
	snprintf(text, sizeof(text), "day %lld\n7 0000000000000000 5000\n7 00000000000000ab 44\n",
		 (long long)today());
	write_counts(text);
	ck_assert_int_eq(counted(NULL), 5000);
	ck_assert_int_eq(truncate(counts, 60), 0);
	(void)counted("it is damaged, or no file of ted");
	/* each bit, each length */
	write_counts(text);
	f = fopen(counts, "r");
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	fclose(f);
	t.day = today();
	ck_assert_int_eq(ted_written_parse(&t, text), 0);
	ck_assert_int_eq(t.nwritten, 2);
	for (size_t i = 0; i < 9 * n; i++) {
		memcpy(bad, text, sizeof(bad));
		if (i < 8 * n)
			bad[i / 8] ^= (char)(1 << i % 8);
		else
			bad[i - 8 * n] = 0;
		t.nwritten = 0;
		ck_assert_int_eq(ted_written_parse(&t, bad), -1);
		ck_assert_int_eq(t.nwritten, 0);
	}
	free(t.written);
	/* with a right sum */
	for (size_t i = 0; i < TT_LEN(wrong); i++) {
		snprintf(text, sizeof(text), "day %lld\n%s", (long long)today(), wrong[i]);
		write_counts(text);
		(void)counted("it is damaged, or no file of ted");
	}
	run_end(&run);
}

TEST(written, what_is_no_file_of_ted_is_neither_read_nor_waited_for)
{
	char other[128], text[64];

	run_init(&run, "");
	snprintf(counts, sizeof(counts), "%s/ted.written", run.space);
	snprintf(other, sizeof(other), "%s/other", run.space);
	snprintf(text, sizeof(text), "day %lld\n7 0 5000\n", (long long)today());
	/* a FIFO that nothing writes to */
	ck_assert_int_eq(mkfifo(counts, 0600), 0);
	(void)counted("ted.written: it is no regular file");
	ck_assert_int_eq(unlink(counts), 0);
	ck_assert_int_eq(mkdir(counts, 0700), 0);
	(void)counted("ted.written: it is no regular file");
	ck_assert_int_eq(rmdir(counts), 0);
	write_counts(text);
	ck_assert_int_eq(rename(counts, other), 0);
	ck_assert_int_eq(symlink("other", counts), 0);
	(void)counted("ted.written: it is a link");
	ck_assert_int_eq(rename(other, counts), 0);
	ck_assert_int_eq(counted(NULL), 5000);
	ck_assert_int_eq(chmod(counts, 0620), 0);
	(void)counted("ted.written: another user can write to it");
	ck_assert_int_eq(chmod(counts, 0600), 0);
	ck_assert_int_eq(truncate(counts, 1 << 20), 0);
	(void)counted("ted.written: it is larger than ted makes it");
	run_end(&run);
}

/* as the folder of the socket: ted goes on without spill space */
TEST_EACH(written, a_folder_that_others_can_write_to_is_no_spill_space, 2)
{
	int a;

	run_init(&run, "spill = @\nspill_daily_uid = 1000\n");
	ck_assert_int_eq(chmod(run.space, _i ? 0770 : 01777), 0);
	snprintf(counts, sizeof(counts), "%s/ted.written", run.space);
	write_counts("day 7\n");
	run_start(&run);
	a = join(&run, key);
	ck_assert_int_eq(grant(a, 1, NULL), -EOPNOTSUPP);
	ck_reply(_i ? "another user can write to the folder (mode 770, user " :
		      "another user can write to the folder (mode 777, user ");
	/* nothing there is read, nor written */
	ck_assert_int_eq(wrote(a, 500), 0);
	close(a);
	ck_assert_int_eq(run_stop(&run, SIGTERM), 0);
	ck_assert_ptr_null(strstr(run_log(&run), "ted.written"));
	wait_for_counts("day 7\n");
	run_end(&run);
}

/* the counts begin anew while ted runs, at midnight */
TEST(written, a_day_ends)
{
	static struct ted t;
	struct ted_conf conf;
	struct ted_job job = { .key = { 1 } };
	const struct ted_client c = { .uid = 7, .job = &job };

	ted_conf_init(&conf);
	ck_assert_int_eq(ted_init(&t, &conf), 0);
	ted_written_add(&t, &c, 12);
	ted_written_add(&t, &c, 5);
	ck_assert_int_eq(ted_written(&t, 7, NULL), 17);
	ck_assert_int_eq(ted_written(&t, 7, &job), 17);
	ck_assert_int_eq(ted_written(&t, 8, NULL), 0);
	t.day--;
	ck_assert_int_eq(ted_written(&t, 7, NULL), 0);
	ted_written_add(&t, &c, 3);
	ck_assert_int_eq(ted_written(&t, 7, &job), 3);
	/* jobs do not displace users */
	for (int i = 0; i < 5000; i++) {
		tt_fill_bytes(job.key, sizeof(job.key));
		ted_written_add(&t, &c, 1);
	}
	ck_assert_int_eq(ted_written(&t, 7, NULL), 5003);
	ck_assert_int_eq(ted_written(&t, 7, &job), 0);
	/* nor do jobs of one user displace those of another */
	ted_written_add(&t, &(struct ted_client){ .uid = 9, .job = &job }, 1);
	ck_assert_int_eq(ted_written(&t, 9, NULL), 1);
	ck_assert_int_eq(ted_written(&t, 9, &job), 1);
	ted_fini(&t);
}

TEST(written, offload_tells_what_it_has_written)
{
	struct te__spill_opts o = space_opts(MIB);
	struct te__pinned *arena;
	struct te__spill *spill;

	space_begin("spill_daily_uid = 400001\n");
	snprintf(counts, sizeof(counts), "%s/ted.written", space);
	ck_assert_int_eq(te__pinned_create(NULL, MIB, &arena), 0);
	for (int i = 0; i < 3; i++) {
		const int r = te__spill_create(arena, &o, &spill);

		ck_assert_msg(r == (i < 2 ? 0 : -EDQUOT), "%d: %d: %s", i, r, te_error_detail());
		if (r)
			break;
		ck_assert_int_eq(te__spill_reserve(spill, 0, 300000), 0);
		ck_assert_int_eq(space_use(spill, arena, 0), 0);
		te__spill_destroy(spill);
	}
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "has written 400002 bytes today, of 400001 "
				     "(spill_daily_uid)"));
	te__pinned_destroy(arena);
	ck_assert_int_eq(run_stop(&run, SIGTERM), 0);
	ck_assert_int_eq(unlink(counts), 0);
	run_start(&run);
	space_end();
}

TT_MAIN("daemon/ted_written", TT_NEED_NOTHING)
