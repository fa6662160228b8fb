/* t/daemon/ted_user.c - ted(8) and clients of other users; needs root, to become them. */
#include "config.h"

#include <errno.h>
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

static Suite *suite(void)
{
	Suite *s = suite_create("daemon/ted_user");
	TCase *c = tt_case(s, "users", "host serial");

	tcase_add_test(c, other_users_are_refused);
	tcase_add_test(c, a_job_belongs_to_one_user);
	return s;
}

TT_MAIN("daemon/ted_user", TT_NEED_ROOT, suite)
