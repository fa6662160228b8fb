/* record.c - the JSON objects that the tools write and read, over jansson. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "folder.h"
#include "record.h"
#include "say.h"

#define NO_MEMORY "out of memory"
#define LINE_NBYTES ((size_t)16 << 20) /* most bytes of a line of record_lines() */

/*
 * Jansson returns NULL both for bad input and for a failed allocation, and reports the latter as
 * bad input, or leaves parts out, in some places. Its failed allocations are counted here.
 */
static _Thread_local int nfailed;
static pthread_once_t counts = PTHREAD_ONCE_INIT;

static void *counted_malloc(size_t nbytes)
{
	void *p = malloc(nbytes);

	nfailed += !p;
	return p;
}

static void count(void)
{
	json_set_alloc_funcs(counted_malloc, free);
}

static void count_failures(void)
{
	pthread_once(&counts, count);
	nfailed = 0;
}

/* ---- writing ---- */

static void wrong(struct record *r, const char *why)
{
	if (!r->wrong)
		r->wrong = why;
}

void record_begin(struct record *r)
{
	memset(r, 0, sizeof(*r));
	count_failures();
	r->at[0] = json_object();
	if (!r->at[0])
		wrong(r, NO_MEMORY);
}

void record_put(struct record *r, const char *key, json_t *value)
{
	json_t *at = r->at[r->depth];
	int bad;

	if (!value)
		wrong(r, nfailed ? NO_MEMORY : "a text is not UTF-8");
	if (r->wrong) {
		json_decref(value);
		return;
	}
	bad = key ? json_object_set_new(at, key, value) : json_array_append_new(at, value);
	if (bad || nfailed)
		wrong(r, NO_MEMORY);
}

/* value becomes the innermost one */
static void descend(struct record *r, const char *key, json_t *value)
{
	record_put(r, key, value);
	if (r->wrong)
		return;
	if (r->depth + 1 == RECORD_DEPTH)
		wrong(r, "too many levels");
	else
		r->at[++r->depth] = value;
}

void record_open(struct record *r, const char *key)
{
	if (!r->wrong)
		descend(r, key, json_object());
}

void record_open_list(struct record *r, const char *key)
{
	if (!r->wrong)
		descend(r, key, json_array());
}

void record_close(struct record *r)
{
	if (!r->wrong)
		r->depth--;
}

void record_int(struct record *r, const char *key, int64_t value)
{
	record_put(r, key, json_integer(value));
}

void record_real(struct record *r, const char *key, double value)
{
	record_put(r, key, isfinite(value) ? json_real(value) : json_null());
}

void record_flag(struct record *r, const char *key, int value)
{
	record_put(r, key, json_boolean(value));
}

void record_text(struct record *r, const char *key, const char *value)
{
	record_put(r, key, value ? json_string(value) : json_null());
}

void record_name(struct record *r, const char *key, const char *value)
{
	json_t *v = value ? json_string(value) : json_null();
	char *hex = v || nfailed ? NULL : malloc(2 * strlen(value) + 1);

	if (hex) {
		for (size_t i = 0; value[i]; i++)
			sprintf(hex + 2 * i, "%02x", (unsigned)(unsigned char)value[i]);
		v = json_pack("{s:s}", "hex", hex);
	}
	if (!v)
		nfailed++;
	free(hex);
	record_put(r, key, v);
}

void record_shown(struct record *r, const char *key, const char *text, size_t nbytes)
{
	json_t *value = json_stringn(text, nbytes);
	char *copy = value ? NULL : malloc(nbytes + 1);

	if (copy) {
		for (size_t i = 0; i < nbytes; i++)
			copy[i] = (char)((unsigned char)text[i] < 0x80 ? text[i] : '?');
		value = json_stringn(copy, nbytes);
		free(copy);
	}
	if (!value)
		nfailed++;
	record_put(r, key, value);
}

void record_drop(struct record *r)
{
	json_decref(r->at[0]);
	r->at[0] = NULL;
}

json_t *record_end(struct record *r, const char *what)
{
	if (!r->wrong)
		return r->at[0];
	say_failed("%s: %s", what, r->wrong);
	record_drop(r);
	return NULL;
}

char *record_to_text(const json_t *obj, size_t flags, const char *what)
{
	char *text;

	count_failures();
	text = json_dumps(obj, flags);
	if (text && !nfailed)
		return text;
	free(text);
	say_failed("%s: %s", what, NO_MEMORY);
	return NULL;
}

int record_print(struct record *r, size_t flags)
{
	json_t *obj = record_end(r, "standard output");
	char *text = obj ? record_to_text(obj, flags, "standard output") : NULL;
	int r_ = text ? STATUS_OK : STATUS_FAILED;

	if (text && (puts(text) < 0 || fflush(stdout)))
		r_ = say_failed("standard output: %s", strerror(errno));
	free(text);
	json_decref(obj);
	return r_;
}

/* ---- reading ---- */

/* obj is NULL, or what a parser returned */
static int check_parsed(json_t *obj, const json_error_t *err, const char *where, json_t **ret_obj)
{
	int r;

	if (json_is_object(obj) && !nfailed) {
		*ret_obj = obj;
		return STATUS_OK;
	}
	if (nfailed)
		r = say_failed("%s: %s", where, NO_MEMORY);
	else if (obj)
		r = say_bad("%s: not a JSON object", where);
	else if (err->line < 1)
		r = say_bad("%s: %s", where, err->text);
	else
		r = say_bad("%s: line %d: %s", where, err->line, err->text);
	json_decref(obj);
	return r;
}

/* lines: messages have the number of the line in text */
static int parse(const char *text, size_t nbytes, int lines, const char *where, json_t **ret_obj)
{
	json_error_t err = { 0 };
	json_t *obj;

	count_failures();
	obj = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &err);
	if (!lines)
		err.line = 0;
	return check_parsed(obj, &err, where, ret_obj);
}

int record_parse(const char *text, size_t nbytes, const char *where, json_t **ret_obj)
{
	return parse(text, nbytes, 1, where, ret_obj);
}

int record_read(int fd, const char *path, json_t **ret_obj)
{
	json_error_t err = { 0 };
	FILE *f = fdopen(fd, "re");
	json_t *obj;

	if (!f) {
		close(fd);
		return say_failed("%s: %s", path, NO_MEMORY);
	}
	count_failures();
	errno = 0;
	obj = json_loadf(f, JSON_REJECT_DUPLICATES, &err);
	if (ferror(f) && errno) {
		json_decref(obj);
		obj = NULL;
		err.line = 0;
		snprintf(err.text, sizeof(err.text), "%s", strerror(errno));
	}
	fclose(f);
	return check_parsed(obj, &err, path, ret_obj);
}

int record_load(const char *path, json_t **ret_obj)
{
	int fd, r = file_open(path, &fd);

	return r ? r : record_read(fd, path, ret_obj);
}

static int read_lines(FILE *f, const char *path, record_fn fn, void *arg)
{
	char *line = NULL, where[300];
	size_t room = 0;
	ssize_t n;
	int r = STATUS_OK;

	for (int64_t i = 1; !r && (n = getline(&line, &room, f)) >= 0; i++) {
		json_t *obj = NULL;

		snprintf(where, sizeof(where), "%.200s: line %" PRId64, path, i);
		if ((size_t)n > LINE_NBYTES)
			r = say_bad("%s: has more than %zu bytes", where, LINE_NBYTES);
		else if (line[strspn(line, " \t\r\n")])
			r = parse(line, (size_t)n, 0, where, &obj);
		if (!r && obj)
			r = fn(arg, obj, where);
		json_decref(obj);
	}
	if (!r && ferror(f))
		r = say_failed("%s: %s", path, strerror(errno));
	free(line);
	return r;
}

int record_lines(const char *path, record_fn fn, void *arg)
{
	int fd, r = file_open(path, &fd);
	FILE *f = r ? NULL : fdopen(fd, "re");

	if (r)
		return r;
	if (!f) {
		close(fd);
		return say_failed("%s: %s", path, NO_MEMORY);
	}
	r = read_lines(f, path, fn, arg);
	fclose(f);
	return r;
}

static int digit_of(char c)
{
	const char *all = "0123456789abcdef", *at = c ? strchr(all, c) : NULL;

	return at ? (int)(at - all) : -1;
}

char *record_name_of(const json_t *value)
{
	const char *hex = json_string_value(json_object_get(value, "hex"));
	const size_t n = hex ? strlen(hex) / 2 : 0;
	char *name;

	if (json_is_string(value))
		return strdup(json_string_value(value));
	if (!n || hex[2 * n] || !(name = calloc(1, n + 1)))
		return NULL;
	for (size_t i = 0; i < n; i++) {
		const int hi = digit_of(hex[2 * i]), lo = digit_of(hex[2 * i + 1]);

		if (hi < 0 || lo < 0 || !(hi | lo)) {
			free(name);
			return NULL;
		}
		name[i] = (char)(hi << 4 | lo);
	}
	return name;
}

/* the value, or NULL after a failure */
static const json_t *field(struct record_reader *r, const char *key)
{
	const json_t *v = r->status ? NULL : json_object_get(r->obj, key);

	if (!v && !r->status)
		r->status = say_bad("%s: there is no \"%s\"", r->where, key);
	return v;
}

int64_t record_get_int(struct record_reader *r, const char *key, int64_t lo, int64_t hi)
{
	const json_t *v = field(r, key);

	if (!v)
		return 0;
	if (json_is_integer(v) && json_integer_value(v) >= lo && json_integer_value(v) <= hi)
		return json_integer_value(v);
	r->status = say_bad("%s: \"%s\" is not a whole number from %" PRId64 " to %" PRId64,
			    r->where, key, lo, hi);
	return 0;
}

double record_get_real(struct record_reader *r, const char *key, double value_of_null)
{
	const json_t *v = field(r, key);

	if (!v)
		return 0;
	if (json_is_null(v))
		return value_of_null;
	if (json_is_number(v) && json_number_value(v) >= 0)
		return json_number_value(v);
	r->status = say_bad("%s: \"%s\" is not a number of 0 or more", r->where, key);
	return 0;
}

const char *record_get_text(struct record_reader *r, const char *key)
{
	const json_t *v = field(r, key);

	if (v && !json_is_string(v))
		r->status = say_bad("%s: \"%s\" is not a text", r->where, key);
	return v && !r->status ? json_string_value(v) : "";
}

const json_t *record_get_object(struct record_reader *r, const char *key)
{
	const json_t *v = field(r, key);

	if (v && !json_is_object(v))
		r->status = say_bad("%s: \"%s\" is not an object", r->where, key);
	return r->status ? NULL : v;
}

/* ---- saving ---- */

static int write_all(int fd, const char *text, size_t n)
{
	while (n) {
		ssize_t k = write(fd, text, n);

		if (k < 0 && errno != EINTR)
			return -1;
		if (k > 0) {
			text += k;
			n -= (size_t)k;
		}
	}
	return 0;
}

/* with the fewest digits that are read as the same numbers; NULL after a failure */
static char *shortest_text(const json_t *obj, const char *path)
{
	for (int digits = 6;; digits++) {
		char *text = record_to_text(
			obj, JSON_INDENT(2) | JSON_REAL_PRECISION((size_t)digits), path);
		json_t *got = NULL;
		int same = text && !record_parse(text, strlen(text), path, &got) &&
			   json_equal(got, obj);

		json_decref(got);
		if (!text || same || digits == 17)
			return text;
		free(text);
	}
}

int record_save(const struct folder *dir, const char *name, const json_t *obj)
{
	char *path = folder_path(dir, name), *text = path ? shortest_text(obj, path) : NULL;
	int fd = -1, r = text ? folder_create(dir, name, &fd) : STATUS_FAILED;
	json_t *got = NULL;

	if (!r && (write_all(fd, text, strlen(text)) || write_all(fd, "\n", 1) || fsync(fd) ||
		   lseek(fd, 0, SEEK_SET) < 0)) {
		r = say_bad("%s: %s; nothing was replaced", path, strerror(errno));
		close(fd);
	} else if (!r) {
		r = record_read(fd, path, &got);
	}
	if (!r && !json_equal(got, obj))
		r = say_failed("%s: is not what was written", path);
	json_decref(got);
	free(text);
	free(path);
	return r;
}
