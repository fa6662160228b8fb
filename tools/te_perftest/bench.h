/* bench.h - a device under test: clocks, samples within a time, and the report. */
#ifndef BENCH_H
#define BENCH_H

#include <jansson.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <te/ctx.h>
#include <te/stream.h>

#include "opts.h"
#include "stats.h"

#define BENCH_VALUES_MAX 4

struct bench {
	const struct opts *o;
	struct te_ctx *ctx;
	struct te_stream *stream; /* the context's */
	struct te_event *from, *to;
	struct te_device_info dev;
	struct te_backend_info backend;
	double clock_read_ns; /* what looking at the clock costs */

	double until, row_until; /* seconds, as bench_now() counts */
	int figures;		 /* series that the row has yet to measure */
	double *sample;		 /* BENCH_VALUES_MAX times --iters */
	struct {
		atomic_int open;
		atomic_int late;
	} plug;
	json_t *rows, *row;
	uint64_t rng;
};

/* an exit status; the bench is to be closed in any case */
int bench_open(struct bench *b, const struct opts *o);
void bench_close(struct bench *b);

double bench_now(void); /* seconds */

/* begins a row of the report: its time is what is left, shared with the rows behind it */
void bench_row(struct bench *b, int rows_left, int figures);
void bench_text(struct bench *b, const char *key, const char *value);
void bench_int(struct bench *b, const char *key, int64_t value);
void bench_num(struct bench *b, const char *key, double value);		   /* not finite: null */
void bench_stats(struct bench *b, const char *key, const struct stats *s); /* none: null */

/*
 * Takes samples until there are --iters or the figure's share of the time is over,
 * one at least, after warm-up. One sample is n values of us. The function returns
 * 0, BENCH_NONE when this sample does not count, or what a call of the library
 * returned. Statistics of figures that never counted have n 0. An exit status.
 */
#define BENCH_NONE 1
typedef int (*bench_fn)(void *arg, double *ret_us);
int bench_series(struct bench *b, bench_fn fn, void *arg, int nvalues, struct stats *ret);

/* Work to measure: queues something on the stream; the return of the library. */
typedef int (*bench_work)(void *arg);

/* waits for the stream after calls that returned r; what failed first, or 0 */
int bench_idle(struct bench *b, int r);
/* us of CPU that one of n calls takes, begun with the device idle and ended so */
int bench_cpu_us(struct bench *b, bench_work work, void *arg, int n, double *ret_us);
/* us of one of n calls between two events, while the CPU queues them */
int bench_span_us(struct bench *b, bench_work work, void *arg, int n, double *ret_us);
/*
 * us of one of n calls between two events on the device alone: the stream is held
 * up until all is queued. BENCH_NONE when the queue took too little for that.
 */
int bench_device_us(struct bench *b, bench_work work, void *arg, int n, double *ret_us);
/* how many calls, from lo to hi, take about so many us; an exit status */
int bench_batch(struct bench *b, bench_work work, void *arg, double us, int lo, int hi, int *ret_n);

/* how many sets of buffers make a working set of some caches; 1 with --cache warm */
int bench_nsets(const struct bench *b, double nbytes);

/* random bytes; random normal numbers, from the seed */
void bench_random(struct bench *b, void *p, size_t nbytes);
void bench_normal(struct bench *b, float *x, size_t n);

/* --verify: whether got is want, byte by byte; an exit status, with what and where */
int bench_equal(const char *what, const void *got, const void *want, size_t nbytes);

void report_print(const struct bench *b);
void report_json(const struct bench *b);

#endif
