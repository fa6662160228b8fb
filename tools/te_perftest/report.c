/* report.c - the rows of a bench as an aligned table, or as one JSON object. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <te/version.h>

#include "bench.h"

#define CELL 32

static void format_number(double x, char *ret)
{
	/* four digits, or five decimals */
	const char *fmt = x >= 999.95  ? "%.0f" :
			  x >= 99.995  ? "%.1f" :
			  x >= 9.9995  ? "%.2f" :
			  x >= 0.99995 ? "%.3f" :
			  x >= 0.099995 ? "%.4f" :
					  "%.5f";

	snprintf(ret, CELL, fmt, x);
}

/* half of p95 - p5 in percent of the median x; one sample has no spread */
static void format_spread(const json_t *v, double x, char *ret, size_t nbytes)
{
	const double wide = json_number_value(json_object_get(v, "p95")) -
			    json_number_value(json_object_get(v, "p5"));

	if (json_integer_value(json_object_get(v, "samples")) < 2 || !(x > 0))
		snprintf(ret, nbytes, "  n=1");
	else
		snprintf(ret, nbytes, " %3.0f%%", fmin(50 * wide / x, 999));
}

static void format_cell(const struct column *c, const json_t *v, char *ret)
{
	const json_t *median = json_object_get(v, "median");
	double scale = c->scale > 0 ? c->scale : 1, x = json_number_value(median);
	size_t len;

	if (json_is_string(v)) {
		snprintf(ret, CELL, "%s", json_string_value(v));
	} else if (json_is_integer(v) && !(c->scale > 0)) {
		snprintf(ret, CELL, "%lld", (long long)json_integer_value(v));
	} else if (json_is_number(v)) {
		format_number(json_number_value(v) * scale, ret);
	} else if (json_is_object(v)) {
		format_number(x * scale, ret);
		len = strlen(ret);
		if (c->spread)
			format_spread(v, x, ret + len, CELL - len);
	} else {
		snprintf(ret, CELL, "-");
	}
}

/* upper or lower line of a head */
static int head_line(const char *head, int lower, const char **ret)
{
	size_t upper = strcspn(head, "\n");

	*ret = lower ? head + upper + !!head[upper] : head;
	return (int)(lower ? strlen(*ret) : upper);
}

static int column_width(const struct bench *b, const struct column *c)
{
	char cell[CELL];
	const char *s;
	const json_t *row;
	int width = head_line(c->head, 0, &s), n = head_line(c->head, 1, &s);
	size_t i;

	width = n > width ? n : width;
	json_array_foreach(b->rows, i, row)
	{
		format_cell(c, json_object_get(row, c->key), cell);
		n = (int)strlen(cell);
		width = n > width ? n : width;
	}
	return width;
}

static int some_row_has(const struct bench *b, const char *key)
{
	const json_t *row;
	size_t i;

	json_array_foreach(b->rows, i, row)
	{
		if (json_object_get(row, key))
			return 1;
	}
	return 0;
}

static void print_table(const struct bench *b)
{
	const struct column *columns = b->o->test->columns;
	const json_t *row;
	const char *s;
	size_t i;

	for (int line = 0; line < 2; line++) {
		const char *sep = "";

		for (const struct column *c = columns; c->key; c++) {
			int n = head_line(c->head, line, &s);

			if (!some_row_has(b, c->key))
				continue;
			printf("%s%*.*s", sep, column_width(b, c), n, s);
			sep = "  ";
		}
		putchar('\n');
	}
	json_array_foreach(b->rows, i, row)
	{
		const char *sep = "";

		for (const struct column *c = columns; c->key; c++) {
			char cell[CELL];

			if (!some_row_has(b, c->key))
				continue;
			format_cell(c, json_object_get(row, c->key), cell);
			printf("%s%*s", sep, column_width(b, c), cell);
			sep = "  ";
		}
		putchar('\n');
	}
}

static double clock_resolution_ns(void)
{
	struct timespec t;

	clock_getres(CLOCK_MONOTONIC, &t);
	return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

void report_print(const struct bench *b)
{
	const struct te_device_info *d = &b->dev;

	printf("te_perftest %s %s: %s\n", TE_VERSION, b->o->test->name, b->o->test->text);
	printf("device   %s %d, %s", d->backend, (int)d->index, d->name);
	if (d->l2_nbytes)
		printf(", L2 %.1f MiB", (double)d->l2_nbytes / 0x1p20);
	if (d->peak_bandwidth > 0)
		printf(", %.2f TB/s", d->peak_bandwidth / 1e12);
	printf("\ndriver   %s\n", b->backend.version[0] ? b->backend.version : "none");
	printf("clock    CPU: CLOCK_MONOTONIC, step %.0f ns, read in %.0f ns; device: events\n",
	       clock_resolution_ns(), b->clock_read_ns);
	printf("samples  at most %lld after %lld of warm-up, %g s in all%s\n",
	       (long long)b->o->iters, (long long)b->o->warmup, b->o->seconds,
	       b->o->verify ? "; results verified" : "");
	printf("figures  median, and half of p95 - p5 in percent of it\n\n");
	print_table(b);
	if (b->left_out)
		printf("\n%d more rows did not fit into %g s: give --seconds\n", b->left_out,
		       b->o->seconds);
}

static void record_device(struct record *rec, const struct bench *b)
{
	const struct te_device_info *d = &b->dev;

	record_open(rec, "device");
	record_text(rec, "backend", d->backend);
	record_int(rec, "index", d->index);
	record_shown(rec, "name", d->name, strlen(d->name));
	record_text(rec, "driver", b->backend.version);
	record_int(rec, "nprocs", d->nprocs);
	record_int(rec, "clock_mhz", d->clock_mhz);
	record_int(rec, "l2_bytes", (int64_t)d->l2_nbytes);
	record_real(rec, "peak_bandwidth_bytes_per_s", d->peak_bandwidth);
	record_close(rec);
}

int report_json(const struct bench *b)
{
	const struct opts *o = b->o;
	struct record rec;

	record_begin(&rec);
	record_text(&rec, "version", TE_VERSION);
	record_text(&rec, "test", o->test->name);
	record_device(&rec, b);
	record_open(&rec, "clock");
	record_text(&rec, "cpu", "CLOCK_MONOTONIC");
	record_real(&rec, "cpu_resolution_ns", clock_resolution_ns());
	record_real(&rec, "cpu_read_ns", b->clock_read_ns);
	record_text(&rec, "device", "events");
	record_close(&rec);
	record_int(&rec, "iters", o->iters);
	record_int(&rec, "warmup", o->warmup);
	record_real(&rec, "time_limit_s", o->seconds);
	record_int(&rec, "seed", o->seed);
	record_flag(&rec, "verified", (int)o->verify);
	record_int(&rec, "rows_left_out", b->left_out);
	record_put(&rec, "rows", json_incref((json_t *)(uintptr_t)b->rows));
	return record_print(&rec, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
}
