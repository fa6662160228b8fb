/* t/daemon/ted_user.c - ted(8) and clients of other users; needs root, to become them. */
#include "config.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tt_ted.h"

CASE(users, "host serial");

TEST(users, other_users_are_refused)
{
	int s;

	run_begin_open("", NULL);
	ck_assert_int_eq(hello_as(4321, key, NULL), EACCES);
	ck_assert_ptr_nonnull(strstr(run_log(&run), "has user id 4321, expected 0"));
	s = join(&run, key);
	close(s);
	run_end_open();
}

enum { OTHER = 4321, THIRD = 4322 };

/* a connection of another user: it is that of the effective user id */
static int dial_as(uid_t uid)
{
	int s;

	ck_assert_int_eq(seteuid(uid), 0);
	s = dial(&run);
	ck_assert_int_eq(seteuid(0), 0);
	return s;
}

/* of a job with another key */
static int join_as(uid_t uid)
{
	const int s = dial_as(uid);

	make_key(key);
	ck_assert_int_eq(hello(s, key), 0);
	return s;
}

/* the code of a message with that item; *ret_jobs, unless NULL: the reply's, of 8 at most */
static int ask(int sock, uint32_t kind, uint32_t item, struct te__wire_job *ret_jobs,
	       size_t *ret_njobs)
{
	struct te__wire m = message(kind);
	struct te__wire_data data = { ret_jobs, 8 * sizeof(*ret_jobs), 0 };
	int r;

	m.item = item;
	r = call(sock, &m, -1, ret_jobs ? &data : NULL, NULL);
	if (ret_njobs)
		*ret_njobs = data.nbytes / sizeof(*ret_jobs);
	return r;
}

/* the same key is another job of another user, who neither sees nor changes the first */
TEST(users, a_job_belongs_to_one_user)
{
	struct te__wire_job j[8];
	int first, other, root;
	uint32_t id;
	size_t n;

	run_begin_open("allow = any\nspill = @\nspill_keep = 0\n", NULL);
	first = join_as(OTHER);
	other = dial_as(THIRD);
	ck_assert_int_eq(hello(other, key), 0);
	root = join(&run, key);
	ck_assert_int_eq(ask(first, TE__WIRE_JOBS, 0, j, &n), 0);
	ck_assert_uint_eq(n, 1);
	ck_assert_uint_eq(j[0].uid, OTHER);
	ck_assert_uint_eq(j[0].nclients, 1);
	id = j[0].id;
	ck_assert_int_eq(ask(other, TE__WIRE_JOBS, 0, j, &n), 0);
	ck_assert_uint_eq(n, 1);
	ck_assert_uint_eq(j[0].uid, THIRD);
	ck_assert_uint_ne(j[0].id, id);
	/* what is there at all is not told: the error is the one of a job that does not exist */
	ck_assert_int_eq(ask(other, TE__WIRE_REVOKE, id, NULL, NULL), -ENOENT);
	ck_assert_int_eq(grant(first, 1, NULL), 0);
	ck_assert_int_eq(ask(other, TE__WIRE_STATUS, 0, NULL, NULL), -EACCES);
	ck_reply("STATUS: for root and user 0 only");
	/* its own, and by root any */
	ck_assert_int_eq(ask(other, TE__WIRE_REVOKE, j[0].id, NULL, NULL), 0);
	ck_assert_int_eq(grant(other, 1, NULL), -EACCES);
	ck_assert_int_eq(ask(root, TE__WIRE_STATUS, 0, NULL, NULL), 0);
	ck_assert_int_eq(ask(root, TE__WIRE_JOBS, 0, j, &n), 0);
	ck_assert_uint_eq(n, 3);
	ck_assert_int_eq(ask(root, TE__WIRE_REVOKE, id, NULL, NULL), 0);
	ck_assert_int_eq(grant(first, 1, NULL), -EACCES);
	ck_reply("the job's spill space was revoked");
	close(first);
	close(other);
	close(root);
	run_end_open();
}

/* ---- spill space ---- */

/* that user could put any file in its place */
TEST(users, a_folder_of_another_user_is_no_spill_space)
{
	int s;

	run_init(&run, "spill = @\n");
	ck_assert_int_eq(chown(run.space, OTHER, OTHER), 0);
	run_start(&run);
	s = join(&run, key);
	ck_assert_int_eq(grant(s, 1, NULL), -EOPNOTSUPP);
	ck_reply("another user can write to the folder (mode 700, user 4321)");
	close(s);
	run_end(&run);
}

TEST(users, a_file_of_counts_of_another_user_is_ignored)
{
	char path[128];
	int s, fd;
	FILE *f;

	run_init(&run, "spill = @\nspill_keep = 0\nspill_daily_uid = 1000\n");
	snprintf(path, sizeof(path), "%s/ted.written", run.space);
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fclose(f);
	ck_assert_int_eq(chmod(path, 0600) | chown(path, OTHER, OTHER), 0);
	run_start(&run);
	ck_assert_ptr_nonnull(strstr(run_log(&run), "ted.written: another user can write to it"));
	s = join(&run, key);
	ck_assert_int_eq(grant(s, 1, &fd), 0);
	close(fd);
	close(s);
	run_end(&run);
}

/* ---- shares ---- */

/* one user takes all that it gets, which is half; another one and root get some still */
TEST(users, a_user_gets_half_of_the_files)
{
	int s[4], fd[4];

	run_begin_open("allow = any\nspill = @\nspill_keep = 0\nspill_files = 4\n", NULL);
	/* two jobs of one user */
	s[0] = join_as(OTHER);
	s[1] = join_as(OTHER);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(grant(s[i], 1, &fd[i]), 0);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(grant(s[i], 1, NULL), -ENOSPC);
		ck_reply("GRANT: user 4321 has 2 files, half of all is the limit (spill_files)");
	}
	s[2] = join_as(THIRD);
	ck_assert_int_eq(grant(s[2], 1, &fd[2]), 0);
	s[3] = join_as(0);
	ck_assert_int_eq(grant(s[3], 1, &fd[3]), 0);
	ck_assert_int_eq(grant(s[3], 1, NULL), -ENOSPC);
	ck_reply("the limit is 4");
	for (int i = 0; i < 4; i++) {
		close(fd[i]);
		close(s[i]);
	}
	run_end_open();
}

TEST(users, a_user_gets_half_of_the_connections)
{
	struct te__wire m;
	int s[4], late;

	run_begin_open("allow = any\nclients = 3\n", NULL);
	for (int i = 0; i < 2; i++)
		s[i] = join_as(OTHER);
	late = dial_as(OTHER);
	ck_assert_int_eq(next(late, &m, NULL, NULL), 1);
	ck_assert_int_eq(m.code, -EBUSY);
	ck_reply("user 4321 has 2 clients, half of all is the limit (clients)");
	s[2] = join_as(THIRD);
	close(late);
	for (int i = 0; i < 3; i++)
		close(s[i]);
	/* the user of ted gets all */
	for (int i = 0; i < 3; i++)
		s[i] = join_as(0);
	for (int i = 0; i < 3; i++)
		close(s[i]);
	run_end_open();
}

TT_MAIN("daemon/ted_user", TT_NEED_ROOT)
