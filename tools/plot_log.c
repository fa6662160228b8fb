/* plot_log.c - see plot_log.h. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/export.h>

#include "plot_log.h"

static int fail(char *why, int status, const char *fmt, ...) TE_PRINTF(3, 4);
static int fail(char *why, int status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, PLOT_LOG_WHY, fmt, ap);
	va_end(ap);
	return status;
}

static int add(struct curve *c, double step, double y, char *why)
{
	/* a resumed run repeats the steps that were logged after the last checkpoint */
	while (c->n && c->point[c->n - 1].step >= step)
		c->n--;
	if (c->n == c->room) {
		size_t room = c->room ? 2 * c->room : 256;
		struct point *p = realloc(c->point, room * sizeof(*p));

		if (!p)
			return fail(why, 1, "out of memory");
		c->point = p;
		c->room = room;
	}
	c->point[c->n++] = (struct point){ step, y };
	return 0;
}

static int take(struct curve *c, const json_t *obj, const char *key, uint64_t line, char *why)
{
	const json_t *step = json_object_get(obj, "step"), *loss = json_object_get(obj, key);

	if (!loss || json_is_null(loss))
		return 0;
	if (!json_is_number(step) || !json_is_number(loss))
		return fail(why, 2, "line %" PRIu64 ": step or %s is not a number", line, key);
	return add(c, json_number_value(step), json_number_value(loss), why);
}

static int take_line(void *arg, const json_t *obj, uint64_t line, char *why)
{
	struct plot_log *log = arg;
	int r;

	if (line == 1 && !json_object_get(obj, "te_train"))
		return fail(why, 2, "line 1: not the first line of a te_train log");
	r = take(&log->train, obj, "train_loss_nats", line, why);
	return r ? r : take(&log->val, obj, "val_loss_nats", line, why);
}

typedef int (*line_fn)(void *arg, const json_t *obj, uint64_t line, char *why);

/* call fn for each line; *ret_torn: as in struct plot_log */
static int read_lines(const char *path, line_fn fn, void *arg, uint64_t *ret_torn, char *why)
{
	FILE *f = fopen(path, "r");
	char *text = NULL;
	uint64_t line = 0;
	size_t room = 0;
	ssize_t n;
	int r = 0;

	if (!f)
		return fail(why, 2, "%s", strerror(errno));
	while (!r && (n = getline(&text, &room, f)) > 0) {
		json_error_t err;
		json_t *obj = json_loadb(text, (size_t)n, 0, &err);

		/* a run that was killed while it wrote: earlier lines are complete */
		if (++line > 1 && !obj && text[n - 1] != '\n')
			*ret_torn = line;
		else if (!json_is_object(obj))
			r = fail(why, 2, "line %" PRIu64 ": not a JSON object", line);
		else
			r = fn(arg, obj, line, why);
		json_decref(obj);
	}
	if (!r && !feof(f))
		r = fail(why, errno == ENOMEM ? 1 : 2, "%s", strerror(errno));
	free(text);
	fclose(f);
	return r;
}

int plot_log_read(const char *path, struct plot_log *ret_log, char ret_why[PLOT_LOG_WHY])
{
	struct plot_log log = { .torn = 0 };
	int r = read_lines(path, take_line, &log, &log.torn, ret_why);

	if (!r && !log.train.n && !log.val.n)
		r = fail(ret_why, 2, "no losses in this log");
	if (r)
		plot_log_free(&log);
	else
		*ret_log = log;
	return r;
}

void plot_log_free(struct plot_log *log)
{
	free(log->train.point);
	free(log->val.point);
}

/* ---- values of --numerics ---- */

static int find_value(struct plot_numerics *n, const char *name, struct plot_value **ret_v,
		      char *why)
{
	struct plot_value *all;
	size_t room;

	/* passes write their values in one order */
	for (size_t i = 0; i < n->n; i++) {
		const size_t k = (n->next + i) % n->n;

		if (!strcmp(n->value[k].name, name)) {
			n->next = (k + 1) % n->n;
			*ret_v = &n->value[k];
			return 0;
		}
	}
	room = n->room ? 2 * n->room : 64;
	all = n->n < n->room ? n->value : realloc(n->value, room * sizeof(*all));
	if (!all)
		return fail(why, 1, "out of memory");
	n->room = n->n < n->room ? n->room : room;
	n->value = all;
	all[n->n] = (struct plot_value){ .name = strdup(name) };
	if (!all[n->n].name)
		return fail(why, 1, "out of memory");
	*ret_v = &all[n->n++];
	return 0;
}

/* a number of 0 or more; null, which is not finite, is NaN */
static int get(const json_t *obj, const char *key, uint64_t line, double *ret, char *why)
{
	const json_t *v = json_object_get(obj, key);

	*ret = json_is_null(v) ? NAN : json_number_value(v);
	if (!json_is_null(v) && (!json_is_number(v) || *ret < 0))
		return fail(why, 2, "line %" PRIu64 ": %s is not a number of 0 or more", line, key);
	return 0;
}

static int take_value(void *arg, const json_t *obj, uint64_t line, char *why)
{
	enum { STEP, ELEMENTS, NNAN, INFINITE, SATURATED, UNDERFLOW, AMAX, SCALE, NKEYS };
	static const char *const key[] = { "step",	"elements",  "nan",  "infinite",
					   "saturated", "underflow", "amax", "scale_inv" };
	const char *value = json_string_value(json_object_get(obj, "value"));
	const char *pass = json_string_value(json_object_get(obj, "pass"));
	const char *dtype = json_string_value(json_object_get(obj, "dtype"));
	const int is_cast = dtype && strcmp(dtype, "fp32") && strcmp(dtype, "bf16");
	struct plot_numerics *n = arg;
	struct plot_value *v = NULL;
	double x[NKEYS], y[PLOT_NNUMERICS];
	char name[300];
	int r = 0;

	if (!value || !pass || !dtype)
		return fail(why, 2, "line %" PRIu64 ": not a value of te_train --numerics", line);
	for (int i = 0; i < NKEYS && !r; i++)
		r = get(obj, key[i], line, &x[i], why);
	if (!r && !(x[STEP] >= 0 && x[ELEMENTS] > 0))
		r = fail(why, 2, "line %" PRIu64 ": has no step or no elements", line);
	snprintf(name, sizeof(name), "%s %s %s", value, pass, dtype);
	if (!r)
		r = find_value(n, name, &v, why);
	if (r)
		return r;
	y[PLOT_AMAX] = x[AMAX];
	y[PLOT_SCALE] = x[SCALE] > 0 ? x[SCALE] : NAN; /* 0: blocks have scales */
	y[PLOT_SATURATED] = x[SATURATED] / x[ELEMENTS];
	y[PLOT_UNDERFLOW] = x[UNDERFLOW] / x[ELEMENTS];
	for (int i = 0; i < (is_cast ? PLOT_NNUMERICS : PLOT_SCALE) && !r; i++)
		if (isfinite(y[i]))
			r = add(&v->curve[i], x[STEP], y[i], why);
	if (is_cast && y[PLOT_SATURATED] + y[PLOT_UNDERFLOW] > v->worst)
		v->worst = y[PLOT_SATURATED] + y[PLOT_UNDERFLOW];
	if (x[NNAN] + x[INFINITE] == 0)
		return r;
	v->worst = 2;
	if (!r && !n->bad) {
		n->bad = strdup(name);
		n->bad_step = x[STEP];
		r = n->bad ? 0 : fail(why, 1, "out of memory");
	}
	return r;
}

int plot_numerics_read(const char *path, struct plot_numerics *ret_n, char ret_why[PLOT_LOG_WHY])
{
	struct plot_numerics n = { .torn = 0 };
	int r = read_lines(path, take_value, &n, &n.torn, ret_why);

	if (!r && !n.n)
		r = fail(ret_why, 2, "no values in this file");
	if (r)
		plot_numerics_free(&n);
	else
		*ret_n = n;
	return r;
}

void plot_numerics_free(struct plot_numerics *n)
{
	for (size_t i = 0; i < n->n; i++) {
		for (int k = 0; k < PLOT_NNUMERICS; k++)
			free(n->value[i].curve[k].point);
		free(n->value[i].name);
	}
	free(n->value);
	free(n->bad);
}
