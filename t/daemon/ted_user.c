/* t/daemon/ted_user.c - ted(8) and clients of other users; needs root, to become them. */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tt_ted.h"

START_TEST(other_users_are_refused)
{
	int s;

	run_begin_open("", NULL);
	ck_assert_int_eq(hello_as(4321, key, NULL), EACCES);
	ck_assert_ptr_nonnull(strstr(run_log(&run), "has user id 4321, expected 0"));
	s = join(&run, key, 0, 2);
	close(s);
	run_end_open();
}
END_TEST

/* the same key, and another number of ranks: nothing of it is seen by the other user */
START_TEST(a_job_belongs_to_one_user)
{
	int s;

	run_begin_open("allow = any\n", NULL);
	s = join(&run, key, 1, 3);
	ck_assert_int_eq(hello_as(4321, key, NULL), 0);
	/* that failed the job of the other user, which had one client, and not this one */
	ck_assert_int_eq(put(s, "x", "y", 1), 0);
	close(s);
	run_end_open();
}
END_TEST

/* ---- shares ---- */

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

static int join_as(uid_t uid)
{
	const int s = dial_as(uid);

	make_key(key);
	ck_assert_int_eq(hello(s, key, 0, 1), 0);
	return s;
}

/* one user takes all that it gets, which is half; another one and root get some still */
static int take_file(int s, int i)
{
	static int fd[8];

	return grant(s, (uint64_t)i + 1, &fd[i]);
}

static int publish_one(int s, int i)
{
	const int fd = memory("x");
	const int r = publish(s, (uint32_t)i, 1, fd);

	close(fd);
	return r;
}

static int put_one(int s, int i)
{
	static const uint8_t value[768];
	char name[8];

	snprintf(name, sizeof(name), "%d", i);
	return put(s, name, value, sizeof(value));
}

static const struct {
	int (*fn)(int s, int i);
	int code;
	const char *text;
} half[] = {
	{ take_file, -ENOSPC, "GRANT: user 4321 has 2 files, half of all is the limit "
			      "(spill_files)" },
	{ publish_one, -EMFILE, "user 4321 has 2 descriptors, half of all is the limit "
				"(RLIMIT_NOFILE)" },
	{ put_one, -ENOSPC, "user 4321 has 2048 bytes in stores, half of all is the limit "
			    "(store_all)" },
};

START_TEST(a_user_gets_half)
{
	int s[4];

	run_begin_open("allow = any\nclients = 8\nspill = /dev/shm\nspill_keep = 0\n"
		       "spill_files = 4\nstore_all = 4096\n", NULL);
	/* as many as the clients and ted itself need, and 4 */
	ck_assert_int_eq(run_stop(&run, SIGTERM), 0);
	run.nofile = 8 + 32 + 4;
	run_start(&run);
	/* two jobs of one user */
	s[0] = join_as(OTHER);
	s[1] = join_as(OTHER);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(half[_i].fn(s[i], i), 0);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(half[_i].fn(s[i], 2), half[_i].code);
		ck_reply(half[_i].text);
	}
	s[2] = join_as(THIRD);
	ck_assert_int_eq(half[_i].fn(s[2], 3), 0);
	s[3] = join_as(0);
	ck_assert_int_eq(half[_i].fn(s[3], 4), 0);
	ck_assert_int_eq(half[_i].fn(s[3], 5), half[_i].code);
	ck_reply("the limit is 4");
	for (int i = 0; i < 4; i++)
		close(s[i]);
	run_end_open();
}
END_TEST

START_TEST(a_user_gets_half_of_the_connections)
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
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("daemon/ted_user");
	TCase *c = tt_case(s, "users", "host serial");

	tcase_add_test(c, other_users_are_refused);
	tcase_add_test(c, a_job_belongs_to_one_user);
	tcase_add_loop_test(c, a_user_gets_half, 0, (int)TT_LEN(half));
	tcase_add_test(c, a_user_gets_half_of_the_connections);
	return s;
}

TT_MAIN("daemon/ted_user", TT_NEED_ROOT, suite)
