/* t/base/errno.c - te_strerror(3), the error message of a thread, and fault injection. */
#include "config.h"

#include <pthread.h>

#include "libtecore/base/base.h"
#include "tt.h"

static const int codes[] = {
#define CODE(name, number, text) number,
	TE_ERRNO_MAP(CODE)
#undef CODE
};

CASE(names, "host fast");

TEST_EACH(names, names_every_code_once, TT_LEN(codes))
{
	const char *s = te_strerror(-codes[_i]);

	ck_assert_str_ne(s, te_strerror(-EINVAL));
	ck_assert_str_ne(s, "success");
	ck_assert_str_eq(s, te_strerror(codes[_i]));
	for (size_t i = 0; i < TT_LEN(codes); i++)
		if (i != (size_t)_i)
			ck_assert_str_ne(s, te_strerror(codes[i]));
}

TEST(names, names_errnos_and_success)
{
	ck_assert_str_eq(te_strerror(0), "success");
	ck_assert_str_eq(te_strerror(-ENOMEM), strerror(ENOMEM));
	ck_assert_str_eq(te_strerror(5000), "success");
	ck_assert_str_eq(te_strerror(-TE_ERRNO_END), "unknown error");
	ck_assert_str_eq(te_strerror(-5000), "unknown error");
	ck_assert_str_eq(te_strerror(-2147483647 - 1), "unknown error");
}

CASE(message, "host fast");

TEST(message, keeps_the_last_message)
{
	ck_assert_str_eq(te_error_detail(), "");
	ck_assert_int_eq(te__fail(-EBUSY, "stream %d is capturing", 7), -EBUSY);
	ck_assert_str_eq(te_error_detail(), "stream 7 is capturing");
	ck_assert_int_eq(te__fail_cuda(2, "cuMemAlloc of %d bytes", 64),
			 -TE_ECUDA);
	ck_assert_str_eq(te_error_detail(), "cuMemAlloc of 64 bytes (CUresult 2)");
	ck_assert_int_eq(te_error_cuda(), 2);
	ck_assert_int_eq(te__fail_verbs(-EIO, 12, "qp %d", 3), -EIO);
	ck_assert_int_eq(te_error_verbs(), 12);
	ck_assert_int_eq(te_error_cuda(), 0);
	te_error_clear();
	ck_assert_str_eq(te_error_detail(), "");
	ck_assert_int_eq(te_error_verbs(), 0);
}

TEST(message, may_format_the_old_message)
{
	te__fail(-EINVAL, "inner");
	te__fail(-EINVAL, "outer: %s", te_error_detail());
	ck_assert_str_eq(te_error_detail(), "outer: inner");
}

TEST(message, truncates_a_long_message)
{
	char s[2000];

	memset(s, 'x', sizeof(s) - 1);
	s[sizeof(s) - 1] = '\0';
	te__fail_cuda(700, "%s", s);
	ck_assert_uint_eq(strlen(te_error_detail()), 511);
}

static void *fail_elsewhere(void *arg)
{
	*(int *)arg = te_error_detail()[0] == '\0';
	te__fail(-EIO, "elsewhere");
	return NULL;
}

TEST(message, the_message_is_per_thread)
{
	pthread_t t;
	int clean = 0;

	te__fail(-EINVAL, "here");
	ck_assert_int_eq(pthread_create(&t, NULL, fail_elsewhere, &clean), 0);
	pthread_join(t, NULL);
	ck_assert_int_eq(clean, 1);
	ck_assert_str_eq(te_error_detail(), "here");
}

/* a typical constructor */
static int three_allocations(void)
{
	void *a = NULL, *b = NULL;
	char *c = NULL;
	int r = 0;

	a = te__malloc(16);
	if (a)
		b = te__aligned_alloc(256, 1000);
	if (b)
		c = te__strdup("text");
	if (!c)
		r = te__fail(-ENOMEM, "three allocations");
	te__free(c);
	te__free(b);
	te__free(a);
	return r;
}

CASE(fault, "host fast");

TEST(fault, fault_injection_reaches_every_allocation)
{
	ck_assert_int_eq(tt_fault_each(three_allocations), 3);
}

TEST(fault, given_memory_is_freed_by_the_user)
{
	int64_t live = te__alloc_live();
	char *s = te__give(te__strdup("for the user"));

	ck_assert_int_eq(te__alloc_live(), live);
	ck_assert_ptr_null(te__give(NULL));
	ck_assert_int_eq(te__alloc_live(), live);
	free(s);
}

TT_MAIN("base/errno", TT_NEED_NOTHING)
