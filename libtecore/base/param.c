/* param.c - the TE_* environment variables: read once, parsed. */
#include "config.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <te/param.h>

#include "libtecore/base/base.h"

extern char **environ;

static const struct {
	const char *name;
	enum te__param_type type;
	const char *dflt;
	const char *unit;
	const char *category;
	const char *text;
} row[] = {
#define TE_PARAM(name, type, dflt, unit, category, text) \
	{ "TE_" #name, TE__PARAM_##type, dflt, unit, #category, text },
#include "libtecore/base/params.def"
#undef TE_PARAM
};

static struct {
	const char *text;	/* as written */
	const char *invalid;	/* invalid value of the environment; or NULL */
	const char *source;
	union te__param_value v;
} value[TE_PARAM_END];

static const char **unknown; /* ends with NULL; NULL when there are none */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int parse_bool(const char *s, int64_t *ret)
{
	static const char *const word[] = { "off", "on",  "no",    "yes",
					    "0",   "1",	  "false", "true" };

	for (size_t i = 0; i < sizeof(word) / sizeof(word[0]); i++) {
		if (strcmp(s, word[i]))
			continue;
		*ret = i & 1;
		return 0;
	}
	return -EINVAL;
}

static int parse_int(const char *s, const char **ret_end, int64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoll(s, &end, 10);
	*ret_end = end;
	return end == s || errno ? -EINVAL : 0;
}

/* K or k, M, G and T are powers of 1024 */
static int parse_size(const char *s, int64_t *ret)
{
	static const char suffix[] = "KMGT";
	const char *end, *at;

	if (parse_int(s, &end, ret) || *ret < 0)
		return -EINVAL;
	if (!*end)
		return 0;
	at = strchr(suffix, *end == 'k' ? 'K' : *end);
	if (!at || end[1])
		return -EINVAL;
	return __builtin_mul_overflow(
		       *ret, INT64_C(1) << (10 * (at - suffix + 1)), ret) ?
		       -EINVAL :
		       0;
}

static int parse_double(const char *s, double *ret)
{
	char *end;

	*ret = strtod(s, &end);
	return end == s || *end || !isfinite(*ret) ? -EINVAL : 0;
}

static int parse_enum(const char *s, const char *choices, int64_t *ret)
{
	size_t n = strlen(s);

	for (*ret = 0;; ++*ret) {
		size_t len = strcspn(choices, "|");

		if (len == n && !memcmp(choices, s, n))
			return 0;
		if (!choices[len])
			return -EINVAL;
		choices += len + 1;
	}
}

int te__param_parse(enum te__param_type type, const char *choices,
		    const char *text, union te__param_value *ret_value)
{
	const char *end;

	switch (type) {
	case TE__PARAM_BOOL:
		return parse_bool(text, &ret_value->i);
	case TE__PARAM_INT:
		return parse_int(text, &end, &ret_value->i) || *end ? -EINVAL :
								      0;
	case TE__PARAM_SIZE:
		return parse_size(text, &ret_value->i);
	case TE__PARAM_DOUBLE:
		return parse_double(text, &ret_value->d);
	case TE__PARAM_ENUM:
		return parse_enum(text, choices, &ret_value->i);
	case TE__PARAM_STRING:
		return 0;
	}
	return -EINVAL;
}

static int set(int id, const char *text, const char *source)
{
	value[id].text = text;
	value[id].source = source;
	return te__param_parse(row[id].type, row[id].unit, text, &value[id].v);
}

static int is_unknown(const char *entry)
{
	size_t n = strcspn(entry, "=");

	if (strncmp(entry, "TE_", 3))
		return 0;
	for (int id = 0; id < TE_PARAM_END; id++)
		if (strlen(row[id].name) == n && !memcmp(row[id].name, entry, n))
			return 0;
	return 1;
}

/* plain calloc and strdup: kept until the process ends, so not counted as leaks */
static void find_unknown(void)
{
	size_t n = 0;

	for (char **e = environ; e && *e; e++)
		n += (size_t)is_unknown(*e);
	if (!n)
		return;
	unknown = calloc(n + 1, sizeof(*unknown));
	n = 0;
	for (char **e = environ; unknown && *e; e++)
		if (is_unknown(*e))
			unknown[n++] = strndup(*e, strcspn(*e, "="));
}

static void init(void)
{
	for (int id = 0; id < TE_PARAM_END; id++) {
		const char *source = "default";
		char *s = getenv(row[id].name);

		/* a copy: the program may call setenv() later */
		s = s ? strdup(s) : NULL;
		if (s) {
			if (!set(id, s, "environment"))
				continue;
			source = "invalid";
			value[id].invalid = s;
		}
		if (set(id, row[id].dflt, source))
			assert(!"a default of params.def cannot be parsed");
	}
	find_unknown();
}

static int get(enum te__param id, enum te__param_type type)
{
	pthread_once(&once, init);
	assert(row[id].type == type);
	(void)type;
	return (int)id;
}

int te__param_bool(enum te__param id)
{
	return (int)value[get(id, TE__PARAM_BOOL)].v.i;
}

int64_t te__param_int(enum te__param id)
{
	return value[get(id, TE__PARAM_INT)].v.i;
}

size_t te__param_size(enum te__param id)
{
	return (size_t)value[get(id, TE__PARAM_SIZE)].v.i;
}

const char *te__param_str(enum te__param id)
{
	return value[get(id, TE__PARAM_STRING)].text;
}

int te__param_enum(enum te__param id)
{
	return (int)value[get(id, TE__PARAM_ENUM)].v.i;
}

const char *te__env(const char *name)
{
	return getenv(name);
}

static pthread_once_t cache_once = PTHREAD_ONCE_INIT;
static char cache_dir[400];

static void find_cache_dir(void)
{
	const char *set = te__param_str(TE_PARAM_CACHE_DIR);
	const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	int n = 0;

	if (!strcmp(set, "none"))
		return;
	if (*set)
		n = snprintf(cache_dir, sizeof(cache_dir), "%s", set);
	else if (xdg && *xdg == '/')
		n = snprintf(cache_dir, sizeof(cache_dir), "%s/te", xdg);
	else if (home && *home == '/')
		n = snprintf(cache_dir, sizeof(cache_dir), "%s/.cache/te", home);
	if (n <= 0 || n >= (int)sizeof(cache_dir)) {
		cache_dir[0] = 0;
		return;
	}
	/* every parent folder; existing ones are not an error */
	for (char *p = cache_dir + 1; (p = strchr(p, '/')); p++) {
		*p = 0;
		mkdir(cache_dir, 0777);
		*p = '/';
	}
	mkdir(cache_dir, 0777);
}

const char *te__param_cache_dir(void)
{
	pthread_once(&cache_once, find_cache_dir);
	return cache_dir[0] ? cache_dir : NULL;
}

struct te__param_seen te__param_seen(int id)
{
	pthread_once(&once, init);
	return (struct te__param_seen){
		.name = row[id].name,
		.dflt = row[id].dflt,
		.unit = row[id].unit,
		.category = row[id].category,
		.text = row[id].text,
		.type = row[id].type,
		.value = value[id].text,
		.invalid = value[id].invalid,
		.source = value[id].source,
	};
}

size_t te_param_count(void)
{
	return TE_PARAM_END;
}

const char *te_param_unknown(size_t i)
{
	pthread_once(&once, init);
	for (size_t n = 0; unknown && unknown[n]; n++)
		if (n == i)
			return unknown[n];
	return NULL;
}
