/* t/base/param.c - te_param_info(3): parsing, sources, unknown variables. */
#include "config.h"

#include <te/errno.h>
#include <te/param.h>

#include "libtecore/base/base.h"
#include "tt.h"

static const struct {
	enum te__param_type type;
	const char *text;
	int64_t want;
} readable[] = {
	{ TE__PARAM_BOOL, "on", 1 },
	{ TE__PARAM_BOOL, "off", 0 },
	{ TE__PARAM_BOOL, "yes", 1 },
	{ TE__PARAM_BOOL, "false", 0 },
	{ TE__PARAM_BOOL, "1", 1 },
	{ TE__PARAM_INT, "-12", -12 },
	{ TE__PARAM_INT, "010", 10 }, /* decimal, not octal */
	{ TE__PARAM_INT, "9223372036854775807", INT64_MAX },
	{ TE__PARAM_SIZE, "0", 0 },
	{ TE__PARAM_SIZE, "100", 100 },
	{ TE__PARAM_SIZE, "3k", 3 << 10 },
	{ TE__PARAM_SIZE, "3K", 3 << 10 },
	{ TE__PARAM_SIZE, "2T", INT64_C(2) << 40 },
	{ TE__PARAM_SIZE, "8M", 8 << 20 },
	{ TE__PARAM_SIZE, "5G", INT64_C(5) << 30 },
	{ TE__PARAM_ENUM, "red", 0 },
	{ TE__PARAM_ENUM, "blue", 2 },
};

CASE(parse, "host fast");

TEST_EACH(parse, reads_values, TT_LEN(readable))
{
	union te__param_value v = { .i = 77 };

	ck_assert_int_eq(te__param_parse(readable[_i].type, "red|green|blue",
					 readable[_i].text, &v), 0);
	ck_assert_int_eq(v.i, readable[_i].want);
}

static const struct {
	enum te__param_type type;
	const char *text;
} unreadable[] = {
	{ TE__PARAM_BOOL, "" },
	{ TE__PARAM_BOOL, "On" },
	{ TE__PARAM_INT, "" },
	{ TE__PARAM_INT, "12x" },
	{ TE__PARAM_INT, "3k" },
	{ TE__PARAM_INT, "9223372036854775808" },
	{ TE__PARAM_SIZE, "-1" },
	{ TE__PARAM_SIZE, "3kk" },
	{ TE__PARAM_SIZE, "3P" },
	{ TE__PARAM_SIZE, "3m" },
	{ TE__PARAM_SIZE, "9999999999G" },
	{ TE__PARAM_DOUBLE, "" },
	{ TE__PARAM_DOUBLE, "0.5x" },
	{ TE__PARAM_DOUBLE, "nan" },
	{ TE__PARAM_DOUBLE, "1e999" },
	{ TE__PARAM_ENUM, "" },
	{ TE__PARAM_ENUM, "gre" },
	{ TE__PARAM_ENUM, "red|green" },
};

TEST_EACH(parse, refuses_invalid_values, TT_LEN(unreadable))
{
	union te__param_value v;

	ck_assert_int_eq(te__param_parse(unreadable[_i].type, "red|green|blue",
					 unreadable[_i].text, &v), -EINVAL);
}

TEST(parse, reads_a_double)
{
	union te__param_value v;

	ck_assert_int_eq(te__param_parse(TE__PARAM_DOUBLE, "", "0.125", &v), 0);
	ck_assert(v.d == 0.125);
}

static struct te_param_info find(const char *name)
{
	struct te_param_info info = TE_PARAM_INFO_INIT;

	for (size_t i = 0; i < te_param_count(); i++) {
		ck_assert_int_eq(te_param_info(i, &info), 0);
		if (!strcmp(info.name, name))
			return info;
	}
	ck_abort_msg("%s is not listed", name);
	return info;
}

CASE(registry, "host fast");

TEST_EACH(registry, every_default_can_be_parsed, TE_PARAM_END)
{
	struct te_param_info info = TE_PARAM_INFO_INIT;
	size_t len;

	/* each default is parsed here; an invalid one aborts */
	ck_assert_int_eq(te_param_info((size_t)_i, &info), 0);
	ck_assert_str_eq(info.source, "default");
	ck_assert_str_eq(info.value, info.dflt);
	len = strlen(info.text);
	ck_assert_uint_gt(len, 10);
	ck_assert_msg(info.text[len - 1] != '.', "%s: full stop", info.name);
}

TEST(registry, environment_wins)
{
	setenv("TE_BACKEND", "host", 1);
	setenv("TE_LOG", "trace", 1);
	ck_assert_str_eq(find("TE_BACKEND").source, "environment");
	ck_assert_str_eq(find("TE_BACKEND").value, "host");
	ck_assert_str_eq(find("TE_BACKEND").dflt, "auto");
	ck_assert_int_eq(te__param_enum(TE_PARAM_BACKEND), 1);
	ck_assert_str_eq(te__param_str(TE_PARAM_LOG), "trace");
	/* read once */
	setenv("TE_LOG", "warn", 1);
	ck_assert_str_eq(te__param_str(TE_PARAM_LOG), "trace");
}

static int warnings;

static void count_warnings(void *arg, enum te_log_level level,
			   const char *category, const char *text)
{
	if (level == TE_LOG_WARN && strstr(text, (const char *)arg))
		warnings++;
}

TEST(registry, invalid_value_is_an_error_and_warns_once)
{
	setenv("TE_BACKEND", "gpu", 1);
	ck_assert_str_eq(find("TE_BACKEND").source, "invalid");
	ck_assert_str_eq(find("TE_BACKEND").value, "auto");
	ck_assert_int_eq(te__param_enum(TE_PARAM_BACKEND), 0);
	te_log_set(count_warnings, "TE_BACKEND");
	ck_assert_int_eq(te_log_filter("warn"), 0);
	for (int i = 0; i < 2; i++) {
		te_error_clear();
		ck_assert_int_eq(te__param_check("fn"), -EINVAL);
		ck_assert_str_eq(te_error_detail(), "fn: TE_BACKEND=gpu in the environment: "
						    "expected auto|host|cuda");
	}
	ck_assert_int_eq(warnings, 1);
}

static const struct {
	const char *name, *value, *expected; /* NULL: valid */
} given[] = {
	{ "TE_COMM_POOL", "64Q", "expected a size in bytes such as" },
	{ "TE_COMM_TIMEOUT_MS", "1s", "expected a whole number" },
	{ "TE_COMM_DEBUG", "maybe", "expected on or off" },
	{ "TE_COMM_ALGO", "foo", "expected auto|ll|" },
	{ "TE_COMM_TRANSPORT", "pigeon", "expected auto|fabric|verbs|tcp" },
	{ "TE_LOG", "warn,comm=loud", "expected levels such as" },
	{ "TE_COMM_POOL", "64M", NULL },
	{ "TE_LOG", "error,comm=off", NULL },
	{ "TE_NO_PARAMETER", "64Q", NULL },
};

TEST_EACH(registry, checks_what_the_environment_gives, TT_LEN(given))
{
	char text[128];

	setenv(given[_i].name, given[_i].value, 1);
	te_error_clear();
	if (!given[_i].expected) {
		ck_assert_int_eq(te__param_check("fn"), 0);
		return;
	}
	ck_assert_int_eq(te__param_check("fn"), -EINVAL);
	snprintf(text, sizeof(text), "fn: %s=%s in the environment: %s", given[_i].name,
		 given[_i].value, given[_i].expected);
	ck_assert_msg(!strncmp(te_error_detail(), text, strlen(text)), "%s", te_error_detail());
}

TEST(registry, unknown_variables_are_listed)
{
	int found = 0;

	setenv("TE_BAKCEND", "host", 1);
	setenv("TEA", "green", 1);
	for (size_t i = 0; te_param_unknown(i); i++) {
		ck_assert_str_ne(te_param_unknown(i), "TE_BACKEND");
		ck_assert_str_ne(te_param_unknown(i), "TEA");
		found += !strcmp(te_param_unknown(i), "TE_BAKCEND");
	}
	ck_assert_int_eq(found, 1);
	te_log_set(count_warnings, "TE_BAKCEND");
	ck_assert_int_eq(te_log_filter("warn"), 0);
	ck_assert_int_eq(te__param_check("fn"), 0);
	ck_assert_int_eq(warnings, 1);
}

TEST(registry, refuses_bad_arguments)
{
	struct te_param_info info = TE_PARAM_INFO_INIT;

	ck_assert_int_eq(te_param_info(te_param_count(), &info), -EINVAL);
	ck_assert_int_eq(te_param_info(0, NULL), -EINVAL);
	info.size = 0;
	ck_assert_int_eq(te_param_info(0, &info), -EINVAL);
	ck_assert_ptr_null(info.name);
}

TT_MAIN("base/param", TT_NEED_NOTHING)
