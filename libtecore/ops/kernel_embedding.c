/* kernel_embedding.c - launches of token and position embeddings, and te_kernel_embedding_*(). */
#define TE_LOG_CATEGORY "core/kernel"
#include "config.h"

#include <errno.h>

#include "libtecore/ops/common.h"

int te__embedding_fwd(struct te_stream *stream, const struct te_tensor *tokens,
		      const struct te_tensor *table, const struct te_tensor *position,
		      const void *const *remainder, const struct te_tensor *at, int64_t first,
		      int64_t ntokens, struct te_tensor *y)
{
	const struct te_k_embed_fwd k = {
		.tokens = te_tensor_data(tokens),
		.table = te_tensor_data(table),
		.pos = te__ops_ptr(position),
		.y = te_tensor_data(y),
		.rows = te_tensor_nelems(tokens),
		.seqlen = te_tensor_cols(tokens),
		.vocab = te_tensor_rows(table),
		.width = te_tensor_cols(table),
		.dtype = te_tensor_dtype(y),
		.first = (int32_t)first,
		.noutside = ntokens ? &stream->ctx->device_outside->ntokens : NULL,
		.position = te__ops_ptr(at),
		.npos = position ? te_tensor_rows(position) : 0,
		.ntokens = ntokens,
		.table_rest = remainder ? remainder[0] : NULL,
		.pos_rest = remainder && position ? remainder[1] : NULL,
		.split = te_tensor_dtype(table) == TE_DTYPE_BF16,
	};

	return TE__LAUNCH(stream, EMBED_FWD, &k);
}

static int table_dw(struct te_stream *stream, const struct te_tensor *dy,
		    const struct te_tensor *tokens, struct te_tensor *dtable, int64_t first)
{
	const struct te_k_embed_bwd k = {
		.tokens = te_tensor_data(tokens),
		.dy = te_tensor_data(dy),
		.dtable = te_tensor_data(dtable),
		.rows = te_tensor_nelems(tokens),
		.vocab = te_tensor_rows(dtable),
		.width = te_tensor_cols(dtable),
		.dtype = te_tensor_dtype(dy),
		.first = (int32_t)first,
		.table_dtype = te_tensor_dtype(dtable),
	};

	return TE__LAUNCH(stream, EMBED_BWD, &k);
}

static int position_dw(struct te_stream *stream, const struct te_tensor *dy,
		       const struct te_tensor *tokens, struct te_tensor *dposition)
{
	const struct te_k_pos_bwd k = {
		.dy = te_tensor_data(dy),
		.dpos = te_tensor_data(dposition),
		.batch = te_tensor_rows(tokens),
		.seqlen = te_tensor_cols(tokens),
		.width = te_tensor_cols(dposition),
		.dtype = te_tensor_dtype(dy),
		.table_dtype = te_tensor_dtype(dposition),
	};

	return TE__LAUNCH(stream, POS_BWD, &k);
}

int te__embedding_dw(struct te_stream *stream, const struct te_tensor *dy,
		     const struct te_tensor *tokens, struct te_tensor *dtable,
		     struct te_tensor *dposition, int64_t first)
{
	int r = dtable ? table_dw(stream, dy, tokens, dtable, first) : 0;

	return r < 0 || !dposition ? r : position_dw(stream, dy, tokens, dposition);
}

/* checks of both passes; names and tensors: tokens; y or dy; a table; a table of positions */
static int check(const char *fn, const struct te_stream *stream, const char *const name[4],
		 const struct te_tensor *const t[4], const uint32_t flags[4], int64_t first)
{
	const struct te_tensor *tokens = t[0], *y = t[1], *table = t[2], *position = t[3];
	struct te__main m;
	int r = te__arg_main(fn, stream, name[1], y, &m);

	if (!r && !tokens)
		r = te__fail(-EINVAL, "%s: tokens is NULL", fn);
	if (r < 0)
		return r;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ name[0], tokens, TE_DTYPE_INT32, 0, te_tensor_nelems(tokens), flags[0], 0 },
		{ name[1], y, m.dtype, te_tensor_nelems(tokens), m.cols, flags[1], 0 },
		{ name[2], table, TE_DTYPE_FP32, table ? te_tensor_rows(table) : 0, m.cols,
		  flags[2], 0 },
		{ name[3], position, TE_DTYPE_FP32, position ? te_tensor_rows(position) : 0, m.cols,
		  flags[3], 0 },
	}, 4);
	if (!r && table && te_tensor_rows(table) > INT32_MAX)
		return te__fail(-TE_ESHAPE, "%s: %s has %lld rows, more than %d", fn, name[2],
				(long long)te_tensor_rows(table), INT32_MAX);
	if (!r && (first < 0 || first > INT32_MAX - (table ? te_tensor_rows(table) : 0)))
		return te__fail(-EINVAL, "%s: first is %lld, expected a token", fn,
				(long long)first);
	if (!r && position && te_tensor_rows(position) < te_tensor_cols(tokens))
		return te__fail(-TE_ESHAPE, "%s: %s has %lld rows, but tokens are in rows of %lld",
				fn, name[3], (long long)te_tensor_rows(position),
				(long long)te_tensor_cols(tokens));
	return r;
}

static int forward(struct te_stream *stream, const struct te_tensor *tokens,
		   const struct te_tensor *table, struct te_tensor *y,
		   const struct te_kernel_embedding_opts *opts)
{
	static const char fn[] = "te_kernel_embedding_forward";
	static const char *const name[4] = { "tokens", "y", "table", "position" };
	static const uint32_t flags[4] = { 0, TE__ARG_OUT, 0, TE__ARG_NULL };
	struct te_kernel_embedding_opts o = TE_KERNEL_EMBEDDING_OPTS_INIT;
	int r = opts ? te__sized_in(fn, te_kernel_embedding_opts, opts, &o) : 0;
	const struct te_tensor *const t[4] = { tokens, y, table, o.position };

	if (!r && o.dposition)
		r = te__fail(-EINVAL, "%s: dposition is for the backward pass", fn);
	if (!r)
		r = check(fn, stream, name, t, flags, o.first);
	return r < 0 ? r : te__embedding_fwd(stream, tokens, table, o.position, NULL, NULL,
						  o.first, 0, y);
}

int te_kernel_embedding_forward(struct te_stream *stream, const struct te_tensor *tokens,
				const struct te_tensor *table, struct te_tensor *y,
				const struct te_kernel_embedding_opts *opts)
{
	return te__stream_queued(stream, forward(stream, tokens, table, y, opts));
}

static int backward(struct te_stream *stream, const struct te_tensor *dy,
		    const struct te_tensor *tokens, struct te_tensor *dtable,
		    const struct te_kernel_embedding_opts *opts)
{
	static const char fn[] = "te_kernel_embedding_backward";
	static const char *const name[4] = { "tokens", "dy", "dtable", "dposition" };
	static const uint32_t out = TE__ARG_OUT | TE__ARG_NULL | TE__ARG_GRAD;
	const uint32_t flags[4] = { 0, 0, out, out };
	struct te_kernel_embedding_opts o = TE_KERNEL_EMBEDDING_OPTS_INIT;
	int r = opts ? te__sized_in(fn, te_kernel_embedding_opts, opts, &o) : 0;
	const struct te_tensor *const t[4] = { tokens, dy, dtable, o.dposition };

	if (!r && !dtable && !o.dposition)
		r = te__fail(-EINVAL, "%s: dtable and dposition are NULL", fn);
	if (!r)
		r = check(fn, stream, name, t, flags, o.first);
	return r < 0 ? r : te__embedding_dw(stream, dy, tokens, dtable, o.dposition, o.first);
}

int te_kernel_embedding_backward(struct te_stream *stream, const struct te_tensor *dy,
				 const struct te_tensor *tokens, struct te_tensor *dtable,
				 const struct te_kernel_embedding_opts *opts)
{
	return te__stream_queued(stream, backward(stream, dy, tokens, dtable, opts));
}
