/* t/base/dl.c - tables of the functions of libraries that may be absent. */
#include "config.h"

#include <pthread.h>
#include <stddef.h>

#include "libtecore/base/private.h"
#include "tt.h"

struct table {
	double (*root)(double x);
	double (*floor)(double x);
};

static struct table table;

static const struct te__dl_sym both[] = {
	{ "floor", offsetof(struct table, floor) },
	{ "sqrt", offsetof(struct table, root) },
};
static const struct te__dl_sym strange[] = {
	{ "floor", offsetof(struct table, floor) },
	{ "no_such_function", offsetof(struct table, root) },
	{ "nor_this_one", offsetof(struct table, root) },
};

CASE(dl, "host");

TEST(dl, members_are_functions_of_the_first_library_found)
{
	struct te__dl dl = TE__DL(both, &table, "libno-such.so.1", "libm.so.6");
	const double x = (double)tt_rand_int(1, 1000);

	memset(&table, 0, sizeof(table));
	ck_assert_ptr_null(te__dl_open(&dl));
	ck_assert(table.root(x * x) == x && table.floor(x + 0.5) == x);
	/* once: what is there now remains */
	table.root = table.floor;
	ck_assert_ptr_null(te__dl_open(&dl));
	ck_assert(table.root(x + 0.5) == x);
}

TEST(dl, what_is_missing_is_named)
{
	struct te__dl none = TE__DL(both, &table, "libno-such.so.1", "libno-such.so");
	struct te__dl less = TE__DL(strange, &table, "libm.so.6");

	for (int i = 0; i < 2; i++) {
		ck_assert_str_eq(te__dl_open(&none), "libno-such.so");
		ck_assert_str_eq(te__dl_open(&less), "no_such_function");
	}
}

static struct te__dl shared = TE__DL(both, &table, "libm.so.6");

static void *open_it(void *arg)
{
	return te__dl_open(&shared) || table.root(4) != 2 ? &shared : NULL;
}

TEST(dl, any_thread_opens_it)
{
	pthread_t t[4];
	void *failed;

	memset(&table, 0, sizeof(table));
	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(pthread_create(&t[i], NULL, open_it, NULL), 0);
	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(pthread_join(t[i], &failed), 0);
		ck_assert_ptr_null(failed);
	}
}

TT_MAIN("base/dl", TT_NEED_NOTHING)
