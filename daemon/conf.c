/* conf.c - reads ted.conf(5): lines "key = value", each key known and given once; see conf.h. */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/export.h>

#include "daemon/conf.h"

enum type { INT, SIZE, KEEP, TEXT, CHOICE };

#define AT(member) offsetof(struct ted_conf, member), sizeof(((struct ted_conf *)0)->member)

static const struct key {
	const char *name;
	enum type type;
	size_t at, nbytes;
	int64_t lo, hi;
	const char *choice[2]; /* the values 0 and 1 */
} keys[] = {
	{ "allow", CHOICE, AT(any), 0, 0, { "own", "any" } },
	{ "clients", INT, AT(clients), 1, 65536, { NULL } },
	{ "clients_uid", INT, AT(clients_uid), 1, 65536, { NULL } },
	{ "group", TEXT, AT(group), 0, 0, { NULL } },
	{ "hello_ms", INT, AT(hello_ms), 1, 3600000, { NULL } },
	{ "metrics", TEXT, AT(metrics), 0, 0, { NULL } },
	{ "queue", SIZE, AT(queue), 131072, 1 << 26, { NULL } },
	{ "socket", TEXT, AT(socket), 0, 0, { NULL } },
	{ "spill", TEXT, AT(spill), 0, 0, { NULL } },
	{ "spill_daily_job", SIZE, AT(spill_daily_job), 0, INT64_MAX, { NULL } },
	{ "spill_daily_uid", SIZE, AT(spill_daily_uid), 0, INT64_MAX, { NULL } },
	{ "spill_files", INT, AT(spill_files), 1, 4096, { NULL } },
	{ "spill_job", SIZE, AT(spill_job), 0, INT64_MAX, { NULL } },
	{ "spill_keep", KEEP, AT(spill_keep), 0, INT64_MAX, { NULL } },
	{ "spill_uid", SIZE, AT(spill_uid), 0, INT64_MAX, { NULL } },
};
#define NKEYS (sizeof(keys) / sizeof(keys[0]))

void ted_conf_init(struct ted_conf *conf)
{
	*conf = (struct ted_conf){
		.clients = 1024,
		.clients_uid = 1024,
		.hello_ms = 10000,
		.queue = 256 << 10,
		.spill_daily_job = INT64_MAX,
		.spill_daily_uid = INT64_MAX,
		.spill_files = 1024,
		.spill_job = INT64_MAX,
		.spill_uid = INT64_MAX,
		.spill_keep = -5,
	};
}

struct where {
	const char *path;
	int line;
	char *text;
	size_t nbytes;
};

static int TE_PRINTF(2, 3) bad(const struct where *w, const char *fmt, ...)
{
	va_list ap;
	const int n = snprintf(w->text, w->nbytes, "%s:%d: ", w->path, w->line);

	va_start(ap, fmt);
	if (n >= 0 && (size_t)n < w->nbytes)
		vsnprintf(w->text + n, w->nbytes - (size_t)n, fmt, ap);
	va_end(ap);
	return -1;
}

/* a number, with k, M, G or T if it is a size; 0, or -1 without a message */
static int number(const char *s, int size, int64_t lo, int64_t hi, int64_t *ret)
{
	static const char unit[] = "kMGT";
	const char *u;
	char *end;
	long long v;

	if (!isdigit((unsigned char)*s))
		return -1;
	errno = 0;
	v = strtoll(s, &end, 10);
	if (errno)
		return -1;
	if (size && *end && (u = strchr(unit, *end))) {
		const int shift = 10 * (int)(u - unit + 1);

		if (v > INT64_MAX >> shift)
			return -1;
		v <<= shift;
		end++;
	}
	if (*end || v < lo || v > hi)
		return -1;
	*ret = v;
	return 0;
}

static int set(const struct where *w, const struct key *k, const char *value,
	       struct ted_conf *conf)
{
	char *at = (char *)conf + k->at;
	char percent[8];
	int64_t v;
	size_t n;
	int wrong;

	switch (k->type) {
	case INT:
	case SIZE:
		if (number(value, k->type == SIZE, k->lo, k->hi, &v))
			return bad(w, "%s = %.80s: expected a number%s from %lld to %lld", k->name,
				   value, k->type == SIZE ? ", with k, M, G or T," : "",
				   (long long)k->lo, (long long)k->hi);
		memcpy(at, &v, sizeof(v));
		return 0;
	case KEEP:
		/* 0 % of a file system are 0 bytes */
		n = strlen(value);
		if (value[n - 1] == '%' && n < sizeof(percent)) {
			memcpy(percent, value, n - 1);
			percent[n - 1] = 0;
			wrong = number(percent, 0, 0, 100, &v);
			v = wrong ? 0 : -v;
		} else {
			wrong = number(value, 1, k->lo, k->hi, &v);
		}
		if (wrong)
			return bad(w, "%s = %.80s: expected 0%% to 100%%, or a size", k->name,
				   value);
		memcpy(at, &v, sizeof(v));
		return 0;
	case CHOICE:
		for (int i = 0; i < 2; i++)
			if (!strcmp(value, k->choice[i])) {
				memcpy(at, &i, sizeof(i));
				return 0;
			}
		return bad(w, "%s = %.80s: expected %s or %s", k->name, value, k->choice[0],
			   k->choice[1]);
	default:
		if (strlen(value) >= k->nbytes)
			return bad(w, "%s: the value is longer than %zu bytes", k->name,
				   k->nbytes - 1);
		strcpy(at, value);
		return 0;
	}
}

/* without the white space at its ends */
static char *trim(char *s)
{
	char *end;

	while (isspace((unsigned char)*s))
		s++;
	end = s + strlen(s);
	while (end > s && isspace((unsigned char)end[-1]))
		end--;
	*end = 0;
	return s;
}

static int read_line(const struct where *w, char *line, int *seen, struct ted_conf *conf)
{
	char *name = trim(line), *value;

	if (!*name || *name == '#')
		return 0;
	value = strchr(name, '=');
	if (!value)
		return bad(w, "expected key = value");
	*value++ = 0;
	name = trim(name);
	value = trim(value);
	for (size_t i = 0; i < NKEYS; i++) {
		if (strcmp(name, keys[i].name))
			continue;
		if (seen[i])
			return bad(w, "%s is set in line %d already", name, seen[i]);
		seen[i] = w->line;
		return *value ? set(w, &keys[i], value, conf) : bad(w, "%s has no value", name);
	}
	return bad(w, "there is no key \"%.80s\"", name);
}

/* checks that need several lines */
static int check(const struct where *w, const struct ted_conf *conf)
{
	if (*conf->socket && *conf->socket != '/')
		return bad(w, "socket = %s: expected a path from the root: abstract names have no "
			   "permissions", conf->socket);
	if (*conf->metrics && *conf->metrics != '/')
		return bad(w, "metrics = %s: expected a path from the root", conf->metrics);
	if (*conf->spill && *conf->spill != '/')
		return bad(w, "spill = %s: expected a path from the root", conf->spill);
	return 0;
}

int ted_conf_read(const char *path, struct ted_conf *conf, char *text, size_t nbytes)
{
	struct where w = { path, 0, text, nbytes };
	struct ted_conf c = *conf;
	int seen[NKEYS] = { 0 }, r = 0;
	char line[512];
	FILE *f = fopen(path, "re");

	if (!f) {
		snprintf(text, nbytes, "%s: %s", path, strerror(errno));
		return -1;
	}
	while (!r && fgets(line, sizeof(line), f)) {
		const size_t n = strlen(line);

		w.line++;
		/* a zero byte ends the line early too */
		if (n && line[n - 1] != '\n' && !feof(f))
			r = bad(&w, "the line is longer than %zu bytes or has a zero byte",
				sizeof(line) - 2);
		else
			r = read_line(&w, line, seen, &c);
	}
	if (!r && ferror(f)) {
		snprintf(text, nbytes, "%s: %s", path, strerror(errno));
		r = -1;
	}
	fclose(f);
	if (!r)
		r = check(&w, &c);
	if (!r)
		*conf = c;
	return r;
}
