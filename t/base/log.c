/* t/base/log.c - te_log_set(3) and te_log_filter(3). */
#include "config.h"

#include <unistd.h>

#include "libtecore/base/base.h"
#include "tt.h"

static struct {
	int lines;
	enum te_log_level level;
	char category[64];
	char text[256];
} heard;

static void listen(void *arg, enum te_log_level level, const char *category,
		   const char *text)
{
	ck_assert_ptr_eq(arg, &heard);
	heard.lines++;
	heard.level = level;
	snprintf(heard.category, sizeof(heard.category), "%s", category);
	snprintf(heard.text, sizeof(heard.text), "%s", text);
}

CASE(filter, "host fast");
CASE(lines, "host fast");

TEST(lines, silent_by_default)
{
	unsetenv("TE_LOG");
	te_log_set(listen, &heard);
	te__log_error("not enabled");
	ck_assert_int_eq(heard.lines, 0);
}

TEST(lines, environment_enables_messages)
{
	setenv("TE_LOG", "info", 1);
	te_log_set(listen, &heard);
	te__log_debug("too fine");
	ck_assert_int_eq(heard.lines, 0);
	te__log_info("slot %d of %s", 3, "ring");
	ck_assert_int_eq(heard.lines, 1);
	ck_assert_int_eq(heard.level, TE_LOG_INFO);
	ck_assert_str_eq(heard.category, "core");
	ck_assert_str_eq(heard.text, "slot 3 of ring");
}

TEST(lines, invalid_environment_means_warn)
{
	setenv("TE_LOG", "loud", 1);
	te_log_set(listen, &heard);
	te__log_info("no");
	te__log_warn("yes");
	ck_assert_int_eq(heard.lines, 1);
}

static const struct {
	const char *spec, *category;
	enum te_log_level level;
	int want;
} filters[] = {
	{ "off", "core", TE_LOG_ERROR, 0 },
	{ "warn", "core", TE_LOG_WARN, 1 },
	{ "warn", "core", TE_LOG_INFO, 0 },
	{ "warn,comm=trace", "comm/verbs", TE_LOG_TRACE, 1 },
	{ "comm=trace,warn", "comm/verbs", TE_LOG_TRACE, 1 },
	{ "warn,comm=trace", "common", TE_LOG_TRACE, 0 },
	{ "warn,comm=trace", "core", TE_LOG_TRACE, 0 },
	{ "trace,comm=off,comm/verbs=info", "comm/verbs", TE_LOG_INFO, 1 },
	{ "trace,comm=off,comm/verbs=info", "comm/ub", TE_LOG_ERROR, 0 },
	{ "comm=debug", "core", TE_LOG_ERROR, 0 },
};

TEST_EACH(filter, longest_category_decides, TT_LEN(filters))
{
	ck_assert_int_eq(te_log_filter(filters[_i].spec), 0);
	ck_assert_int_eq(te__log_on(filters[_i].level, filters[_i].category),
			 filters[_i].want);
}

#define SEVENTEEN_ITEMS \
	"a=off,b=off,c=off,d=off,e=off,f=off,g=off,h=off,i=off,j=off,k=off," \
	"l=off,m=off,n=off,o=off,p=off,q=off"

static const char *const bad_spec[] = {
	"", "warning", "warn,", "=warn", "comm=", "comm=loud", ",", "WARN",
	"averyveryverylongcategorynamethatfitsnowhere=warn",
	SEVENTEEN_ITEMS,
};

TEST_EACH(filter, bad_filter_keeps_the_old_one, TT_LEN(bad_spec))
{
	ck_assert_int_eq(te_log_filter("core=debug"), 0);
	ck_assert_int_eq(te_log_filter(bad_spec[_i]), -EINVAL);
	ck_assert_int_eq(te_log_filter(NULL), -EINVAL);
	ck_assert_int_eq(te__log_on(TE_LOG_DEBUG, "core"), 1);
	ck_assert_int_eq(te__log_on(TE_LOG_ERROR, "comm"), 0);
}

TEST(lines, failures_are_logged_at_debug)
{
	te_log_set(listen, &heard);
	ck_assert_int_eq(te_log_filter("debug"), 0);
	te__fail(-TE_ESHAPE, "a is %d wide", 3);
	ck_assert_int_eq(heard.level, TE_LOG_DEBUG);
	ck_assert_str_eq(heard.text, "shapes do not match: a is 3 wide");
}

static int evaluated(void)
{
	heard.lines = 100;
	return 1;
}

TEST(lines, filtered_arguments_are_not_evaluated)
{
	ck_assert_int_eq(te_log_filter("warn"), 0);
	te__log_info("%d", evaluated());
	ck_assert_int_eq(heard.lines, 0);
}

TEST(lines, without_a_callback_messages_go_to_stderr)
{
	char line[256] = "";
	FILE *f = tmpfile();

	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(dup2(fileno(f), 2), 0);
	ck_assert_int_eq(te_log_filter("warn"), 0);
	te_log_set(listen, &heard);
	te_log_set(NULL, NULL);
	te__log_warn("retry after %d ms", 12);
	rewind(f);
	ck_assert_ptr_nonnull(fgets(line, sizeof(line), f));
	ck_assert_str_eq(line, "te: warn: core: retry after 12 ms\n");
	ck_assert_int_eq(heard.lines, 0);
	fclose(f);
}

TT_MAIN("base/log", TT_NEED_NOTHING)
