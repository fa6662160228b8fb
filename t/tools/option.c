/* t/tools/option.c - times and sizes in options of the tools. */
#include "config.h"

#include "tools/lib/option.h"
#include "tt.h"

static const struct {
	const char *text;
	double s; /* negative: no time */
} times[] = {
	{ "90", 90 },	     { "0", 0 },	{ "0.25", 0.25 },   { "1e3", 1000 },
	{ "90s", 90 },	     { "10m", 600 },	{ "2h", 7200 },	    { "1.5h", 5400 },
	{ "1d", 86400 },     { "1h30m", 5400 }, { "1d2h3m4s", 93784 }, { "1d1s", 86401 },
	{ "0.5m0.5s", 30.5 }, { "", -1 },	{ "m", -1 },	    { "-5", -1 },
	{ "+5", -1 },	     { " 5", -1 },	{ "5 m", -1 },	    { "10M", -1 },
	{ "10min", -1 },     { "1h30", -1 },	{ "30m1h", -1 },    { "1m1m", -1 },
	{ "nan", -1 },	     { "inf", -1 },	{ "1e999", -1 },    { "0x10", -1 },
	{ ".", -1 },	     { "1h-5m", -1 },	{ "1hinfm", -1 },   { "1w", -1 },
};

CASE(option, "host numeric");

TEST_EACH(option, times_have_units, TT_LEN(times))
{
	double s = option_seconds(times[_i].text);

	if (times[_i].s < 0)
		ck_assert_msg(s < 0, "%s: %g", times[_i].text, s);
	else
		ck_assert_double_eq(s, times[_i].s);
}

TT_MAIN("tools/option", TT_NEED_NOTHING)
