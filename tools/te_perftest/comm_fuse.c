/*
 * comm_fuse.c - te_perftest comm --fuse: te_comm_allreduce_norm(3). Operations depend on each other
 * by the residual, which each reads and writes, and by y, which is the next one's input.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "tools/lib/say.h"

#define SCALE 16.0f /* scale of codes: y is near 1 */

/* arrays in device memory */
struct comm_arrays {
	void *residual; /* and residual_out */
	float *gamma, *scale, *scale_inv;
	void *codes; /* NULL: y is the output */
	void *sum;   /* result of a separate all-reduce */
	void *ws;
	size_t ws_nbytes;
};

/* outputs of a call, except scale_inv */
struct outputs {
	void *sum, *residual_out, *y, *codes;
};

const char *comm_fuse_name(int fuse)
{
	static const char *const name[] = { "none", "add-rms", "add-rms-fp8" };

	return name[fuse];
}

static int get(struct comm *c, size_t nbytes, void *ret)
{
	return te_mem_alloc(c->b->stream, nbytes, ret);
}

static void put(struct comm *c, void *p)
{
	if (p)
		te_mem_free(c->b->stream, p);
}

static struct te_comm_norm_opts options(const struct comm *c, enum te_comm_algorithm algorithm,
					const struct outputs *o)
{
	const struct comm_arrays *a = c->arrays;
	struct te_comm_norm_opts opts = TE_COMM_NORM_OPTS_INIT;

	opts.algorithm = algorithm;
	opts.max_blocks = c->max_blocks;
	opts.gamma = a->gamma;
	opts.residual = a->residual;
	opts.sum = o->sum;
	opts.residual_out = o->residual_out;
	opts.y = o->y;
	opts.codes = o->codes;
	opts.scale = o->codes ? a->scale : NULL;
	opts.scale_inv = o->codes ? a->scale_inv : NULL;
	opts.ws = a->ws;
	opts.ws_nbytes = a->ws_nbytes;
	return opts;
}

int comm_fuse_queue(struct comm *c, const void *in, void *out)
{
	const struct comm_arrays *a = c->arrays;
	const struct outputs o = { NULL, a->residual, a->codes ? NULL : out, a->codes };
	const struct te_comm_norm_opts opts = options(c, c->algorithm, &o);
	int r;

	if (a->codes)
		in = c->in;
	if (!c->apart)
		return te_comm_allreduce_norm(c->comm, c->b->stream, in, c->rows, c->cols,
					      c->dtype, &opts);
	r = te_comm_allreduce(c->comm, c->b->stream, in, a->sum, c->count, c->dtype, TE_COMM_SUM,
			      NULL);
	return r < 0 ? r : te_comm_allreduce_norm(c->alone, c->b->stream, a->sum, c->rows, c->cols,
						  c->dtype, &opts);
}

int comm_fuse_explain(struct comm *c, struct te_comm_choice *ret)
{
	const struct comm_arrays *a = c->arrays;
	const struct outputs o = { NULL, a->residual, a->codes ? NULL : c->out, a->codes };
	const struct te_comm_norm_opts opts = options(c, c->algorithm, &o);
	struct te_comm_call call = TE_COMM_CALL_INIT;

	call.function = TE_COMM_CALL_ALLREDUCE_NORM;
	call.in = c->in;
	call.rows = c->rows;
	call.cols = c->cols;
	call.dtype = c->dtype;
	call.opts = &opts;
	return te_comm_explain(c->comm, &call, ret);
}

/* gamma is 1 - 1/2 to 1 + 1/2; the residual is equal on all ranks */
static int fill(struct comm *c, void *host)
{
	struct comm_arrays *a = c->arrays;
	struct te_stream *s = c->b->stream;
	const float scale = SCALE;
	float *gamma = host;
	int r;

	for (int64_t i = 0; i < c->cols; i++)
		gamma[i] = 1 + comm_element(0, i) / 2;
	r = te_copy(s, a->gamma, gamma, (size_t)c->cols * sizeof(*gamma));
	if (r >= 0)
		r = te_copy(s, a->scale, &scale, sizeof(scale));
	r = bench_idle(c->b, r);
	comm_fill(c, 0, host);
	if (r >= 0)
		r = te_copy(s, a->residual, host, c->nbytes);
	return bench_idle(c->b, r);
}

int comm_fuse_open(struct comm *c)
{
	struct comm_arrays *a = calloc(1, sizeof(*a));
	const size_t gamma_nbytes = (size_t)c->cols * sizeof(float);
	void *host = malloc(c->nbytes < gamma_nbytes ? gamma_nbytes : c->nbytes);
	int r = a && host ? 0 : -ENOMEM;

	c->arrays = a;
	if (!r && !c->alone)
		r = te_comm_split(c->comm, c->rank, 0, NULL, &c->alone);
	if (!r)
		r = get(c, c->nbytes, &a->residual);
	if (r >= 0)
		r = get(c, c->nbytes, &a->sum);
	if (r >= 0)
		r = get(c, gamma_nbytes, &a->gamma);
	if (r >= 0)
		r = get(c, sizeof(float), &a->scale);
	if (r >= 0)
		r = get(c, sizeof(float), &a->scale_inv);
	if (r >= 0 && c->fuse == COMM_FUSE_FP8)
		r = get(c, (size_t)c->count, &a->codes);
	if (!r)
		a->ws_nbytes = te_comm_norm_ws_nbytes(c->rows, c->cols, c->dtype);
	if (r >= 0 && a->ws_nbytes)
		r = get(c, a->ws_nbytes, &a->ws);
	if (r >= 0)
		r = fill(c, host);
	free(host);
	return r;
}

void comm_fuse_close(struct comm *c)
{
	struct comm_arrays *a = c->arrays;

	c->arrays = NULL;
	if (!a)
		return;
	put(c, a->residual);
	put(c, a->sum);
	put(c, a->gamma);
	put(c, a->scale);
	put(c, a->scale_inv);
	put(c, a->codes);
	put(c, a->ws);
	te_stream_sync(c->b->stream);
	free(a);
}

/* ---- --verify ---- */

/* all outputs of a call, consecutively: in device memory and, after it has run, in host memory */
struct results {
	unsigned char *dev, *host;
	size_t nbytes;
	struct outputs o;
};

static int results_get(struct comm *c, struct results *ret)
{
	const size_t n = (c->nbytes + 255) / 256 * 256;

	ret->nbytes = 4 * n;
	ret->host = malloc(ret->nbytes);
	if (!ret->host)
		return -ENOMEM;
	return get(c, ret->nbytes, &ret->dev);
}

static void results_put(struct comm *c, struct results *p)
{
	put(c, p->dev);
	free(p->host);
}

/* sum: 1: also compute the sum */
static int call(struct comm *c, enum te_comm_algorithm algorithm, int sum, struct results *p)
{
	const size_t n = p->nbytes / 4;
	struct te_stream *s = c->b->stream;
	struct te_comm_norm_opts opts;
	int r = te_fill(s, p->dev, 0xa5, p->nbytes);

	p->o = (struct outputs){
		.sum = sum ? p->dev : NULL,
		.residual_out = p->dev + n,
		.y = c->arrays->codes ? NULL : p->dev + 2 * n,
		.codes = c->arrays->codes ? p->dev + 3 * n : NULL,
	};
	opts = options(c, algorithm, &p->o);
	if (r >= 0)
		r = te_comm_allreduce_norm(c->comm, s, c->in, c->rows, c->cols, c->dtype, &opts);
	if (r >= 0)
		r = te_comm_barrier(c->comm, s);
	if (r >= 0)
		r = te_copy(s, p->host, p->dev, p->nbytes);
	r = bench_idle(c->b, r);
	return r < 0 ? r : te_comm_error(c->comm);
}

static int compare(struct comm *c, const struct results *got, const struct results *want)
{
	void *loop = malloc(c->nbytes);
	char what[80];
	int r;

	if (!loop)
		return say_failed("verify: out of memory");
	snprintf(what, sizeof(what), "rank %d: %lld x %lld elements by %s, %s", c->rank,
		 (long long)c->rows, (long long)c->cols, te_comm_algorithm_name(c->algorithm),
		 comm_fuse_name(c->fuse));
	comm_expect(c, loop);
	r = bench_equal(what, want->host, loop, c->nbytes);
	/* except the sum, which was not requested */
	if (!r)
		r = bench_equal(what, got->host + got->nbytes / 4, want->host + got->nbytes / 4,
				got->nbytes / 4 * 3);
	free(loop);
	return r;
}

int comm_fuse_verify(struct comm *c)
{
	struct results got = { 0 }, want = { 0 };
	void *host = malloc(c->nbytes + (size_t)c->cols * sizeof(float));
	int r = host ? results_get(c, &got) : -ENOMEM;

	if (r >= 0)
		r = results_get(c, &want);
	if (r >= 0)
		r = fill(c, host); /* the measured operations changed the residual */
	if (r >= 0)
		r = call(c, c->algorithm, 0, &got);
	if (r >= 0)
		r = call(c, TE_COMM_STAGED, 1, &want);
	r = r < 0 ? say_te(r, "verify") : compare(c, &got, &want);
	results_put(c, &got);
	results_put(c, &want);
	free(host);
	return r;
}
