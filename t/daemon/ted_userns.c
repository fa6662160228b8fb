/*
 * t/daemon/ted_userns.c - ted(8) and clients of another user namespace; needs root, to become other
 * users.
 */
#include "config.h"

#include <unistd.h>

#include "tt_ted.h"

CASE(namespaces, "host serial");

/* whoever it says that it is inside */
TEST(namespaces, a_user_is_who_it_is_outside_of_its_namespace)
{
	run_begin_open("", NULL);
	ck_assert_int_eq(hello_as(4321, key, "0 4321 1\n"), EACCES);
	ck_assert_ptr_nonnull(strstr(run_log(&run), "has user id 4321, expected 0"));
	ck_assert_int_eq(hello_as(4321, key, ""), EACCES);
	ck_assert_int_eq(hello_as(0, key, "4321 0 1\n"), 0);
	ck_assert_int_eq(hello_as(0, key, ""), 0);
	run_end_open();
}

/* all users without an id are one number there: they would be one user */
TEST_EACH(namespaces, users_who_have_no_id_are_refused, 2)
{
	run_begin_open(_i ? "allow = any\n" : "", "0 0 1\n");
	ck_assert_int_eq(hello_as(4321, key, NULL), EACCES);
	ck_assert_ptr_nonnull(strstr(run_log(&run), "is of a user who has no id in the user "
				     "namespace of ted"));
	/* the number of all of them is also that of a user, but not there */
	ck_assert_int_eq(hello_as(65534, key, NULL), EACCES);
	ck_assert_int_eq(hello_as(0, key, NULL), 0);
	run_end_open();
}

TEST(namespaces, the_number_is_that_of_a_user_where_all_have_an_id)
{
	run_begin_open("allow = any\n", NULL);
	ck_assert_int_eq(hello_as(65534, key, NULL), 0);
	run_end_open();
}

TT_MAIN("daemon/ted_userns", TT_NEED_ROOT | TT_NEED_USERNS)
