/* pyjson.c - rewriting what Python's json module writes into JSON, word by word. */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "folder.h"
#include "pyjson.h"
#include "record.h"
#include "say.h"

#define MOST_NBYTES (64 << 20) /* a pipe or a device may not end */

/* maximum length of a number or a name outside of strings; Python reads no longer numbers */
struct word {
	char text[4400];
	size_t n;
};

static void put_float(FILE *out, double x)
{
	fprintf(out, "{\"__float__\":\"%s\"}", isnan(x) ? "NaN" : x < 0 ? "-Infinity" : "Infinity");
}

static void put_word(FILE *out, struct word *w)
{
	const char *t = w->text;
	char *end;
	double x;

	if (!w->n)
		return;
	w->text[w->n] = '\0';
	x = strtod(t, &end);
	if (!strcmp(t, "NaN") || !strcmp(t, "Infinity") || !strcmp(t, "-Infinity") ||
	    (isinf(x) && !*end && isdigit((unsigned char)t[w->n - 1])))
		put_float(out, x);
	else
		fputs(t, out);
	errno = 0;
	strtoll(t, &end, 10);
	if (!*end && errno == ERANGE && isfinite(x))
		fputs("e0", out); /* an integer becomes a real */
	w->n = 0;
}

static void rewrite(FILE *in, FILE *out)
{
	struct word w = { .n = 0 };
	int c, in_string = 0, escaped = 0;
	size_t nbytes = 0;

	while ((c = getc(in)) != EOF && nbytes++ < MOST_NBYTES) {
		if (!in_string && (isalnum(c) || strchr("+-.", c)) && w.n + 1 < sizeof(w.text)) {
			w.text[w.n++] = (char)c;
			continue;
		}
		put_word(out, &w);
		putc(c, out);
		if (c == '"' && !escaped)
			in_string = !in_string;
		escaped = in_string && c == '\\' && !escaped;
	}
	put_word(out, &w);
}

int pyjson_load(const char *path, json_t **ret_obj)
{
	char *text = NULL;
	size_t nbytes = 0;
	FILE *in, *out;
	int fd, failed, r = file_open(path, &fd);

	if (r)
		return r;
	in = fdopen(fd, "r");
	if (!in) {
		close(fd);
		return say_failed("%s: out of memory", path);
	}
	out = open_memstream(&text, &nbytes);
	errno = 0;
	if (out)
		rewrite(in, out);
	r = ferror(in) ? say_bad("%s: %s", path, strerror(errno)) : STATUS_OK;
	fclose(in);
	failed = !out || ferror(out);
	if ((!out || fclose(out) || failed) && !r)
		r = say_failed("%s: out of memory", path);
	if (!r)
		r = record_parse(text, nbytes, path, ret_obj);
	free(text);
	return r;
}
