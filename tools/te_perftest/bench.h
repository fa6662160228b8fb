/* bench.h - the device under test: clocks, samples within a time limit, and the report. */
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
#include "tools/lib/clock.h"
#include "tools/lib/record.h"

#define BENCH_VALUES_MAX 4

struct bench {
	const struct opts *o;
	struct te_ctx *ctx;
	struct te_stream *stream; /* the context's */
	struct te_event *from, *to;
	struct te_device_info dev;
	struct te_backend_info backend;
	double clock_read_ns; /* cost of reading the clock */
	const char *cache;    /* value of CACHE_OPTION */

	double until, row_until; /* end of the test and of the row: now_s() */
	int figures;		 /* series that the row has not measured yet */
	int silent;		 /* another rank prints the report */
	int left_out;		 /* rows that were left out because time was used up */
	double *sample;		 /* BENCH_VALUES_MAX times --iters */
	struct {
		atomic_int open;
		atomic_int late;
	} plug;
	struct record rec; /* the rows so far */
	int nrows;
	json_t *report;	    /* NULL before bench_end() */
	const json_t *rows; /* rows of the report */
	uint64_t rng;
};

/* returns an exit status; the caller closes the bench in any case */
int bench_open(struct bench *b, const struct opts *o);
void bench_close(struct bench *b);

/* returns given, or if it is 0, the device's default, which is smaller on the slower host */
int64_t bench_extent(const struct bench *b, int64_t given, int64_t on_host, int64_t on_gpu);

/*
 * Begin a row of the report: it gets an equal share of the time left, with the rows after it. If
 * the time is used up, returns 0, and the row is left out; the first row never is.
 */
int bench_row(struct bench *b, int rows_left, int figures);
void bench_text(struct bench *b, const char *key, const char *value);
void bench_int(struct bench *b, const char *key, int64_t value);
void bench_num(struct bench *b, const char *key, double value);		   /* not finite: null */
void bench_stats(struct bench *b, const char *key, const struct stats *s); /* none: null */

/* ends the report after the last row; returns an exit status */
int bench_end(struct bench *b);

/*
 * After warm-up, takes samples until there are --iters or the figure's share of the time is
 * used up, but at least one. One sample is nvalues times in us. fn returns 0, BENCH_NONE
 * if this sample does not count, or the negative code of a library call. If no sample
 * counted, the statistics have n 0. Returns an exit status.
 */
#define BENCH_NONE 1
typedef int (*bench_fn)(void *arg, double *ret_us);
int bench_series(struct bench *b, bench_fn fn, void *arg, int nvalues, struct stats *ret);

/* Work to measure: queues it on the stream and returns what the library returned. */
typedef int (*bench_work)(void *arg);

/* waits for the stream after calls that returned r; returns the first failure, or 0 */
int bench_idle(struct bench *b, int r);
/* CPU time of one of n calls, in us; the device is idle before and after */
int bench_cpu_us(struct bench *b, bench_work work, void *arg, int n, double *ret_us);
/* time of one of n calls between two events, in us, while the CPU queues them */
int bench_span_us(struct bench *b, bench_work work, void *arg, int n, double *ret_us);
/*
 * Device time of one of n calls between two events, in us: the stream is blocked until all calls
 * are queued. BENCH_NONE if queueing took longer than a stream may be blocked.
 */
int bench_device_us(struct bench *b, bench_work work, void *arg, int n, double *ret_us);
/* also sets ret_cpu_us[i]: CPU time of call i, in us */
int bench_calls_us(struct bench *b, bench_work work, void *arg, int n, double *ret_cpu_us,
		   double *ret_us);
/* sets *ret_n: the number of calls, from lo to hi, that take about us; returns an exit status */
int bench_batch(struct bench *b, bench_work work, void *arg, double us, int lo, int hi, int *ret_n);

/* an option of tests that set b->cache to its field */
#define CACHE_OPTION                                                                 \
	{                                                                            \
		"cache", OPTION_WORD, AT(cache), "cold", 0, 0, 0, "cold|warm",       \
			"cycle through buffers larger than the L2 cache, or use one" \
	}
/* the number of sets of buffers that exceed the caches; 1 with --cache warm */
int bench_nsets(const struct bench *b, double nbytes);

/* fill with random bytes, or normally distributed numbers, from the seed */
void bench_random(struct bench *b, void *p, size_t nbytes);
void bench_normal(struct bench *b, float *x, size_t n);

/* --verify: compares bytes and prints the first difference; returns an exit status */
int bench_equal(const char *what, const void *got, const void *want, size_t nbytes);

void report_print(const struct bench *b);
/* an exit status */
int report_json(const struct bench *b);

#endif
