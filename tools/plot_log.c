/* plot_log.c - see plot_log.h. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
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

static int add(struct curve *c, double step, double loss, char *why)
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
	c->point[c->n++] = (struct point){ step, loss };
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

static int take_line(struct plot_log *log, const json_t *obj, uint64_t line, char *why)
{
	int r;

	if (!json_is_object(obj))
		return fail(why, 2, "line %" PRIu64 ": not a JSON object", line);
	if (line == 1 && !json_object_get(obj, "te_train"))
		return fail(why, 2, "line 1: not the first line of a te_train log");
	r = take(&log->train, obj, "train_loss_nats", line, why);
	return r ? r : take(&log->val, obj, "val_loss_nats", line, why);
}

int plot_log_read(const char *path, struct plot_log *ret_log, char ret_why[PLOT_LOG_WHY])
{
	struct plot_log log = { .torn = 0 };
	FILE *f = fopen(path, "r");
	char *text = NULL;
	uint64_t line = 0;
	size_t room = 0;
	ssize_t n;
	int r = 0;

	if (!f)
		return fail(ret_why, 2, "%s", strerror(errno));
	while (!r && (n = getline(&text, &room, f)) > 0) {
		json_error_t err;
		json_t *obj = json_loadb(text, (size_t)n, 0, &err);

		/* a run that was killed while it wrote: earlier lines are complete */
		if (++line > 1 && !obj && text[n - 1] != '\n')
			log.torn = line;
		else
			r = take_line(&log, obj, line, ret_why);
		json_decref(obj);
	}
	if (!r && !feof(f))
		r = fail(ret_why, errno == ENOMEM ? 1 : 2, "%s", strerror(errno));
	if (!r && !log.train.n && !log.val.n)
		r = fail(ret_why, 2, "no losses in this log");
	free(text);
	fclose(f);
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
