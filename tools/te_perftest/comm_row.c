/*
 * comm_row.c - a row of te_perftest comm.
 *
 * A sample is a recording of operations that depend on each other, launched by all ranks after a
 * barrier: device time between two events, of the slowest rank. All ranks take the same samples,
 * because they exchange after each one whether there is time for another.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <te/capture.h>
#include <te/collective.h>
#include <te/tensor.h>

#include "comm.h"
#include "tools/lib/say.h"

static const struct {
	const char *name;
	int doubles, parts; /* bytes on links: of both directions; without a rank's own part */
} calls[COMM_CALLS] = {
	[COMM_ALLREDUCE] = { "allreduce", 1, 1 }, [COMM_SENDRECV] = { "sendrecv", 0, 0 },
	[COMM_ALLTOALL] = { "alltoall", 0, 1 },	  [COMM_GATHER] = { "gather", 0, 1 },
	[COMM_SCATTER] = { "scatter", 0, 1 },	  [COMM_REDUCE] = { "reduce", 0, 0 },
	[COMM_SEND] = { "send", 0, 0 },
};

/* bytes that the most loaded link carries, in bytes of an array */
static double link_factor(const struct comm *c)
{
	const double part = calls[c->call].parts ? (double)(c->nranks - 1) / c->nranks : 1;

	return calls[c->call].doubles ? 2 * part : part;
}

static int queue_messages(struct comm *c, const void *in, void *out)
{
	const int n = c->nranks, to = (c->rank + 1) % n, from = (c->rank + n - 1) % n;
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_stream *s = c->b->stream;

	o.algorithm = c->algorithm;
	o.max_blocks = c->max_blocks;
	switch (c->call) {
	case COMM_SENDRECV:
		return te_comm_sendrecv(c->comm, s, in, c->count, to, out, c->count, from, c->dtype,
					&o);
	case COMM_SEND:
		if (c->rank % 2)
			return te_comm_recv(c->comm, s, out, c->count, c->dtype, from, &o);
		return to ? te_comm_send(c->comm, s, in, c->count, c->dtype, to, &o) : 0;
	case COMM_ALLTOALL:
		return te_comm_alltoall(c->comm, s, in, out, c->count / n, c->dtype, &o);
	case COMM_GATHER:
		return te_comm_gather(c->comm, s, in, out, c->count / n, c->dtype, 0, &o);
	case COMM_SCATTER:
		return te_comm_scatter(c->comm, s, in, out, c->count / n, c->dtype, 0, &o);
	default:
		return te_comm_reduce(c->comm, s, in, out, c->count, c->dtype, TE_COMM_AVG, 0,
				      &o);
	}
}

/* queue one operation; its result is the input of the next one if it is in place */
static int queue(struct comm *c, const void *in, void *out)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;

	if (c->fuse)
		return comm_fuse_queue(c, in, out);
	if (c->call)
		return queue_messages(c, in, out);
	o.algorithm = c->algorithm;
	o.max_blocks = c->max_blocks;
	return te_comm_allreduce(c->comm, c->b->stream, in, out, c->count, c->dtype, TE_COMM_AVG,
				 &o);
}

int comm_exchange(struct comm *c, const float *x, int n, float *ret)
{
	struct te_stream *s = c->b->stream;
	int r = te_copy(s, c->word, x, (size_t)n * sizeof(*x));

	if (r >= 0)
		r = te_comm_allreduce(c->comm, s, c->word, c->word, n, TE_DTYPE_FP32, TE_COMM_MAX,
				      NULL);
	if (r >= 0)
		r = te_copy(s, ret, c->word, (size_t)n * sizeof(*x));
	r = bench_idle(c->b, r);
	return r < 0 ? r : te_comm_error(c->comm);
}

static double bytes_of(enum te_dtype t, int64_t count)
{
	return (double)te_dtype_nbytes(t) * (double)count;
}

static int write_input(struct comm *c, void *host)
{
	int r;

	comm_fill(c, c->rank, host);
	r = te_copy(c->b->stream, c->in, host, c->nbytes);
	return bench_idle(c->b, r);
}

/* 1: the loop below computes the same results; results of --tune may be integers */
static int is_verified(const struct comm *c)
{
	return c->b->o->verify && c->dtype != TE_DTYPE_INT32 &&
	       (c->call || c->algorithm != TE_COMM_NCCL) && c->algorithm != TE_COMM_NVLS;
}

/* the result of one operation, byte by byte */
static int verify(struct comm *c, void *host)
{
	void *want = malloc(c->nbytes);
	char what[64];
	int r;

	if (!want)
		return say_failed("verify: out of memory");
	r = te_fill(c->b->stream, c->out, 0xa5, c->nbytes);
	if (r >= 0)
		r = write_input(c, host);
	if (r >= 0)
		r = queue(c, c->in, c->out);
	if (r >= 0)
		r = te_comm_barrier(c->comm, c->b->stream);
	if (r >= 0)
		r = te_copy(c->b->stream, host, c->out, c->nbytes);
	r = bench_idle(c->b, r);
	if (r >= 0)
		r = te_comm_error(c->comm);
	if (r < 0) {
		r = say_te(r, "verify");
	} else {
		memset(want, 0xa5, c->nbytes);
		comm_expect(c, want);
		snprintf(what, sizeof(what), "rank %d: %s of %lld elements by %s", c->rank,
			 calls[c->call].name, (long long)c->count,
			 te_comm_algorithm_name(c->algorithm));
		r = bench_equal(what, host, want, c->nbytes);
	}
	free(want);
	return r;
}

static int record(struct comm *c)
{
	const int n = (int)c->o->depth;
	/* NCCL is opened by a call outside of captures */
	int r = bench_idle(c->b, queue(c, c->in, c->out)), end;

	if (r >= 0)
		r = te_capture_begin(c->b->stream);
	if (r < 0)
		return r;
	/* as libtegraph captures passes */
	r = te_capture_edges(c->b->stream, TE_CAPTURE_CONCURRENT | TE_CAPTURE_PDL);
	for (int i = 0; i < n && r >= 0; i++)
		r = queue(c, i % 2 ? c->out : c->in, i % 2 ? c->in : c->out);
	end = te_capture_end(c->b->stream, &c->rec);
	return r < 0 ? r : end;
}

/* ret_us[1]: of a GEMM that runs at the same time */
static int sample(struct comm *c, struct comm_gemm *gemm, double ret_us[2])
{
	struct bench *b = c->b;
	double ms = 0;
	int r = te_comm_barrier(c->comm, b->stream);

	if (r >= 0)
		r = te_event_record(b->from, b->stream);
	if (r >= 0 && gemm)
		r = comm_gemm_queue(gemm, b->from);
	if (r >= 0)
		r = te_recording_launch(c->rec, b->stream);
	if (r >= 0)
		r = te_event_record(b->to, b->stream);
	r = bench_idle(b, r);
	if (r >= 0 && gemm)
		r = comm_gemm_us(gemm, &ret_us[1]);
	if (r >= 0)
		r = te_comm_error(c->comm);
	if (r >= 0)
		r = te_event_elapsed_ms(b->from, b->to, &ms);
	ret_us[0] = ms * 1e3 / (double)c->o->depth;
	return r;
}

/* all ranks take the same number of samples, each the slowest rank's time. gemm: or NULL */
static int take_samples(struct comm *c, struct comm_gemm *gemm, struct stats ret[2])
{
	struct bench *b = c->b;
	const double now = now_s(), until = now + fmax(0, b->row_until - now) / b->figures--;
	double us[2] = { 0, 0 };
	int64_t n = 0;
	float x[3];
	int r = 0;

	for (int64_t i = 0; i < b->o->warmup + b->o->iters && r >= 0; i++) {
		r = sample(c, gemm, us);
		x[0] = (float)us[0];
		x[1] = (float)us[1];
		x[2] = n && now_s() > until;
		if (r >= 0)
			r = comm_exchange(c, x, 3, x);
		if (r >= 0 && i >= b->o->warmup) {
			b->sample[n] = (double)x[0];
			b->sample[b->o->iters + n++] = (double)x[1];
		}
		if (x[2] > 0)
			break;
	}
	if (r < 0)
		return say_te(r, "comm");
	for (int i = 0; i < 2; i++)
		stats_of(b->sample + i * b->o->iters, (size_t)n, &ret[i]);
	return STATUS_OK;
}

/* measures both alone, then at the same time: how much each slows down */
static int report_gemm(struct comm *c, const struct stats *alone)
{
	struct bench *b = c->b;
	struct comm_gemm *g;
	struct stats us[2];
	double gemm_us = 0;
	int r = comm_gemm_open(b, alone->median * (double)c->o->depth, &g);

	if (!r)
		r = comm_gemm_alone(g, &gemm_us);
	if (!r)
		r = take_samples(c, g, us);
	if (!r) {
		bench_stats(b, "with_gemm_us", &us[0]);
		bench_stats(b, "gemm_us", &us[1]);
		bench_num(b, "gemm_alone_us", gemm_us);
		bench_num(b, "slowdown", us[0].median / alone->median);
		bench_num(b, "gemm_slowdown", us[1].median / gemm_us);
	}
	comm_gemm_close(g);
	return r;
}

/* compute the results by an all-reduce of any algorithm and a kernel without other ranks */
static int report_apart(struct comm *c, const struct stats *fused)
{
	struct stats us[2];
	int r;

	c->rec = te_recording_unref(c->rec);
	c->apart = 1;
	r = record(c);
	c->apart = 0;
	if (r < 0)
		return say_te(r, "comm: an all-reduce and a norm");
	r = take_samples(c, NULL, us);
	if (!r) {
		bench_stats(c->b, "apart_us", &us[0]);
		bench_num(c->b, "speedup", us[0].median / fused->median);
	}
	return r;
}

static int report(struct comm *c, const struct te_comm_choice *how)
{
	struct bench *b = c->b;
	struct stats two[2], us;
	int r = take_samples(c, NULL, two);
	double rate;

	if (r)
		return r;
	us = two[0];
	c->median_us = us.median;
	rate = us.n ? (double)c->nbytes / us.median * 1e6 : NAN;
	bench_int(b, "ranks", c->nranks);
	bench_text(b, "call", calls[c->call].name);
	bench_text(b, "type", te_dtype_name(c->dtype));
	bench_int(b, "bytes", (int64_t)c->nbytes);
	bench_text(b, "memory", c->symmetric ? "symmetric" : "any");
	bench_text(b, "algorithm", how->name);
	bench_text(b, "fuse", comm_fuse_name(c->fuse));
	bench_int(b, "fused", how->fused);
	bench_int(b, "blocks", how->nblocks);
	bench_int(b, "launches", how->nlaunches);
	bench_int(b, "sent_bytes", (int64_t)how->nsent);
	bench_stats(b, "max_us", &us);
	bench_num(b, "p99_us", us.n ? us.p99 : NAN);
	bench_num(b, "algorithm_bytes_per_s", rate);
	bench_num(b, "bus_bytes_per_s", rate * link_factor(c));
	if (c->o->gemm)
		r = report_gemm(c, &us);
	return r || !c->fuse ? r : report_apart(c, &us);
}

static int get(struct comm *c, void **ret)
{
	return c->symmetric ? te_comm_alloc(c->comm, c->nbytes, ret) :
			      te_mem_alloc(c->b->stream, c->nbytes, ret);
}

static void put(struct comm *c, void *p)
{
	if (!p)
		return;
	if (c->symmetric)
		te_comm_free(c->comm, p);
	else
		te_mem_free(c->b->stream, p);
}

/* the algorithm takes such arguments; other rows are left out */
static int takes(struct comm *c, struct te_comm_choice *ret)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_comm_call call = TE_COMM_CALL_INIT;

	o.algorithm = c->algorithm;
	o.max_blocks = c->max_blocks;
	call.in = c->in;
	call.out = c->out;
	call.count = c->count;
	call.dtype = c->dtype;
	call.op = TE_COMM_AVG;
	call.opts = &o;
	*ret = (struct te_comm_choice)TE_COMM_CHOICE_INIT;
	if (c->call) {
		snprintf(ret->name, sizeof(ret->name), "%s",
			 c->algorithm ? te_comm_algorithm_name(c->algorithm) : "messages");
		ret->nlaunches = 1;
		return 0;
	}
	return c->fuse ? comm_fuse_explain(c, ret) : te_comm_explain(c->comm, &call, ret);
}

static int verify_row(struct comm *c, void *host)
{
	int r = write_input(c, host);

	if (r < 0)
		return say_te(r, "comm");
	return c->fuse ? comm_fuse_verify(c) : verify(c, host);
}

int comm_measure(struct comm *c, int rows_left)
{
	const int figures = 1 + (c->o->gemm != 0) + (c->fuse != COMM_FUSE_NONE);
	struct te_comm_choice how;
	void *host = malloc(c->nbytes);
	/* wait until all ranks have freed the previous row's arrays: else the pool has gaps */
	int r = c->symmetric ? te_comm_reclaim(c->comm) : 0;

	c->median_us = NAN;
	c->nblocks = 0;
	if (r >= 0)
		r = host ? get(c, &c->in) : -ENOMEM;
	if (r >= 0)
		r = get(c, &c->out);
	if (r >= 0 && c->fuse)
		r = comm_fuse_open(c);
	if (r >= 0)
		r = takes(c, &how);
	if (!r)
		c->nblocks = how.nblocks;
	if (r == -EOPNOTSUPP || (!r && !bench_row(c->b, rows_left, figures)))
		goto out;
	if (r >= 0)
		r = write_input(c, host);
	if (r < 0)
		r = say_te(r, "comm");
	if (!r && (r = record(c)) < 0)
		r = say_te(r, "comm: %s", te_comm_algorithm_name(c->algorithm));
	if (!r)
		r = report(c, &how);
	if (!r && is_verified(c))
		r = verify_row(c, host);
out:
	te_stream_sync(c->b->stream);
	c->rec = te_recording_unref(c->rec);
	comm_fuse_close(c);
	put(c, c->in);
	put(c, c->out);
	c->in = c->out = NULL;
	free(host);
	return r == -EOPNOTSUPP ? STATUS_OK : r;
}

/* all ranks agree on the time of a row, and on leaving it out */
int comm_agree_on_time(struct comm *c)
{
	float left = (float)fmax(0, c->b->until - now_s()), most;
	int r = comm_exchange(c, &left, 1, &most);

	c->b->until = now_s() + (double)most;
	return r < 0 ? say_te(r, "comm") : STATUS_OK;
}

void comm_size(struct comm *c, int64_t nbytes)
{
	const int64_t es = (int64_t)te_dtype_nbytes(c->dtype);

	c->count = nbytes / es;
	if (c->call && calls[c->call].parts)
		c->count -= c->count % c->nranks;
	if (c->fuse) {
		c->cols = c->o->cols;
		c->rows = c->count / c->cols > 0 ? c->count / c->cols : 1;
		c->count = c->rows * c->cols;
	}
	c->nbytes = (size_t)bytes_of(c->dtype, c->count);
}
