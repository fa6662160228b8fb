/*
 * t/fuzz/param.c - values of TE_* variables, of any text, as each type: what is taken is in its
 * range, and is the value of its own text again.
 */
#include "config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "libtecore/base/base.h"

static const char choices[] = "auto|a|bc|auto2";

/* the text of what was parsed */
static void print(enum te__param_type type, const union te__param_value *v, char *text, size_t n)
{
	const char *s = choices;

	if (type == TE__PARAM_DOUBLE) {
		snprintf(text, n, "%.17g", v->d);
	} else if (type == TE__PARAM_ENUM) {
		for (int64_t i = 0; i < v->i; i++)
			s += strcspn(s, "|") + 1;
		snprintf(text, n, "%.*s", (int)strcspn(s, "|"), s);
	} else {
		snprintf(text, n, "%" PRId64, v->i);
	}
}

static void check(enum te__param_type type, const char *given)
{
	union te__param_value v = { .i = 0 }, again = { .i = 0 };
	char text[64];

	if (te__param_parse(type, choices, given, &v) || type == TE__PARAM_STRING)
		return;
	if ((type == TE__PARAM_BOOL && v.i != 0 && v.i != 1) ||
	    (type == TE__PARAM_SIZE && v.i < 0) || (type == TE__PARAM_DOUBLE && !isfinite(v.d)) ||
	    (type == TE__PARAM_ENUM && (v.i < 0 || v.i > 3)))
		abort();
	print(type, &v, text, sizeof(text));
	if (type == TE__PARAM_ENUM && strcmp(text, given))
		abort();
	if (te__param_parse(type, choices, text, &again) || memcmp(&v, &again, sizeof(v)))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	char *text = malloc(nbytes + 1);

	if (!text)
		abort();
	memcpy(text, data, nbytes);
	text[nbytes] = 0;
	for (int type = TE__PARAM_BOOL; type <= TE__PARAM_STRING; type++)
		check((enum te__param_type)type, text);
	free(text);
	return 0;
}
