/* ranks.c - the ranks of a data-parallel run: what they share, and what they agree on. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <te/errno.h>
#include <te/param.h>

#include "ranks.h"
#include "say.h"

/* Rank 0 saves and takes samples while the others wait, so ranks may be apart for minutes. One that
 * ends is seen at once. */
#define TIMEOUT_MS 600000
#define MOST_WORDS 16 /* of a rank, in addition to its losses */
#define MOST_RANKS 64
#define PIECE ((size_t)1 << 20) /* of the weights, to be compared */

int32_t ranks_n(const struct ranks *r)
{
	return r->others + 1;
}

static int is_set(const char *name)
{
	struct te_param_info p = TE_PARAM_INFO_INIT;

	for (size_t i = 0; i < te_param_count(); i++)
		if (!te_param_info(i, &p) && !strcmp(p.name, name))
			return !strcmp(p.source, "environment");
	return 0;
}

static int join(struct te_ctx *ctx, struct te_seq *seq, int train, struct ranks *r)
{
	const size_t nbytes = (size_t)te_seq_grad_nelems(seq) * sizeof(float);
	const size_t words = (size_t)r->nwords * sizeof(float);
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	void *p = NULL;
	int te;

	o.name = "te_train";
	o.timeout_ms = is_set("TE_COMM_TIMEOUT_MS") ? 0 : TIMEOUT_MS;
	/* blocks begin at multiples of 2 MiB within the pool */
	o.pool_nbytes = (train ? nbytes : 0) + words + ((uint64_t)4 << 20);
	te = te_comm_create(ctx, &o, &r->comm);
	if (te < 0)
		return te;
	r->rank = te_comm_rank(r->comm);
	r->others = te_comm_nranks(r->comm) - 1;
	if (!r->others) {
		r->comm = te_comm_unref(r->comm);
		return 0;
	}
	if (r->others >= MOST_RANKS)
		return te_fail(-EINVAL, "%d ranks, at most %d can train", (int)ranks_n(r),
			       MOST_RANKS);
	te = te_comm_alloc(r->comm, words, NULL, &p);
	r->words = p;
	if (te < 0 || !train)
		return te;
	te = te_comm_alloc(r->comm, nbytes, NULL, &r->grads);
	if (te < 0)
		return te;
	r->taken_nbytes = o.pool_nbytes;
	b.grads = r->grads;
	return te_seq_bind(seq, &b);
}

int ranks_open(struct te_ctx *ctx, struct te_seq *seq, int64_t naccum, int train,
	       struct ranks *ret_r)
{
	int te;

	if (!te_comm_launched())
		return STATUS_OK;
	ret_r->nwords = MOST_RANKS * (naccum + MOST_WORDS);
	te = join(ctx, seq, train, ret_r);
	if (te < 0)
		return say_te(te, "the other ranks");
	say_only_failures(ret_r->rank > 0);
	return STATUS_OK;
}

int ranks_reduce(struct ranks *r, struct te_seq *seq)
{
	int te = r->comm ? te_comm_reducer_create(r->comm, seq, NULL, &r->reducer) : 0;

	return te < 0 ? say_te(te, "gradients of all ranks") : STATUS_OK;
}

void ranks_step(const struct ranks *r, struct te_step_opts *so)
{
	so->first_micro_batch = r->rank * so->micro_batches;
	so->total_micro_batches = ranks_n(r) * so->micro_batches;
	if (!r->reducer)
		return;
	so->hook = te_comm_reducer_hook;
	so->hook_arg = r->reducer;
	so->hooks = TE_COMM_REDUCER_HOOKS;
}

void ranks_close(struct ranks *r)
{
	te_comm_reducer_unref(r->reducer);
	if (r->comm) {
		te_comm_free(r->comm, r->grads);
		te_comm_free(r->comm, r->words);
	}
	te_comm_unref(r->comm);
	memset(r, 0, sizeof(*r));
}

/* ---- exchanges ---- */

/* each rank has zeros but for its own block, and so the sum has the blocks of all, bit for bit */
static int add_up(const struct ranks *r, struct te_stream *stream, int64_t n, enum te_dtype dtype)
{
	return te_comm_allreduce(r->comm, stream, r->words, r->words, n, dtype, TE_COMM_SUM, NULL);
}

int ranks_exchange(const struct ranks *r, struct te_stream *stream, const struct te_step *step,
		   int64_t naccum, const float *x, int n, float *all)
{
	const int64_t block = naccum + n, nwords = ranks_n(r) * block;
	const int64_t at = r->rank * block;
	int te;

	memset(all, 0, (size_t)nwords * sizeof(*all));
	memcpy(all + at + naccum, x, (size_t)n * sizeof(*x));
	te = te_copy(stream, r->words, all, (size_t)nwords * sizeof(*all));
	for (int64_t i = 0; i < naccum && te >= 0; i++)
		te = te_copy(stream, r->words + at + i,
			     te_tensor_data(te_step_output(step, 0, (int32_t)i)), sizeof(*all));
	if (te >= 0)
		te = add_up(r, stream, nwords, TE_DTYPE_FP32);
	return te < 0 ? te : te_copy(stream, all, r->words, (size_t)nwords * sizeof(*all));
}

int ranks_check(const struct ranks *r)
{
	return r->comm ? te_comm_error(r->comm) : 0;
}

/* all: n of each rank, in rank order; waits */
static int gather(const struct ranks *r, struct te_stream *stream, const int32_t *own, int n,
		  int32_t *all)
{
	const size_t nbytes = (size_t)(ranks_n(r) * n) * sizeof(*all);
	int te;

	memset(all, 0, nbytes);
	memcpy(all + r->rank * n, own, (size_t)n * sizeof(*own));
	te = te_copy(stream, r->words, all, nbytes);
	if (te >= 0)
		te = add_up(r, stream, ranks_n(r) * n, TE_DTYPE_INT32);
	if (te >= 0)
		te = te_copy(stream, all, r->words, nbytes);
	if (te >= 0)
		te = te_stream_sync(stream);
	return te < 0 ? te : te_comm_error(r->comm);
}

int ranks_status(const struct ranks *r, struct te_stream *stream, int status)
{
	int32_t all[MOST_RANKS], own = status;
	int te = r->comm ? gather(r, stream, &own, 1, all) : 0;

	if (te < 0)
		return say_te(te, "rank 0 saves");
	return r->comm ? all[0] : status;
}

static int digest_weights(const struct te_seq *seq, struct te_stream *stream, char *ret_text)
{
	const struct te_tensor *w = te_seq_masters(seq);
	const char *p = te_tensor_data(w);
	const size_t nbytes = te_tensor_nbytes(w);
	struct digest d = { 0 };
	char *piece = malloc(PIECE);
	int te = 0;

	if (!piece)
		return say_failed("out of memory");
	for (size_t i = 0; i < nbytes && te >= 0; i += PIECE) {
		const size_t n = nbytes - i < PIECE ? nbytes - i : PIECE;

		te = te_copy(stream, piece, p + i, n);
		if (te >= 0)
			te = te_stream_sync(stream);
		digest_add(&d, piece, n);
	}
	free(piece);
	digest_end(&d, ret_text);
	return te < 0 ? say_te(te, "reading the weights") : STATUS_OK;
}

int ranks_compare(const struct ranks *r, struct te_stream *stream, const struct te_seq *seq)
{
	int32_t own[4], all[4 * MOST_RANKS];
	char text[DIGEST_NBYTES];
	int te;

	if (!r->comm)
		return STATUS_OK;
	te = digest_weights(seq, stream, text);
	if (te)
		return te;
	memcpy(own, text, sizeof(own)); /* 16 digits */
	te = gather(r, stream, own, 4, all);
	if (te < 0)
		return say_te(te, "comparing the weights of all ranks");
	for (int32_t i = 1; i < ranks_n(r); i++)
		if (memcmp(all + 4 * i, all, sizeof(own)))
			return say_failed("the weights of rank %d are not those of rank 0; they "
					  "are not saved", (int)i);
	return STATUS_OK;
}
