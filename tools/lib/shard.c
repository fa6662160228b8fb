/* shard.c - parts of weights that ranks have, and copies between parts and whole weights. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <te/collective.h>
#include <te/errno.h>
#include <te/quant.h>

#include "say.h"
#include "shard.h"

#define PIECE ((int64_t)1 << 20) /* elements of each rank in one exchange */

enum split {
	SAME,  /* all shards have it */
	FIRST, /* shard 0 has it */
	ROWS,  /* rows of each block of rows, such as queries, keys and values */
	COLS
};

static enum split split_of(const char *name)
{
	static const struct {
		const char *name;
		enum split split;
	} table[] = {
		{ "embed.weight", ROWS },   { "embed.position", FIRST }, { "h.#.qkv.weight", ROWS },
		{ "h.#.qkv_b.bias", ROWS }, { "h.#.proj.weight", COLS }, { "h.#.up.weight", ROWS },
		{ "h.#.up_b.bias", ROWS },  { "h.#.down.weight", COLS }, { "head.weight", ROWS },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (weight_match(table[i].name, name) != -2)
			return table[i].split;
	return SAME;
}

/* the row of the whole weight that is row i of a shard's, which has `rows` */
static int64_t whole_row(const struct model *m, const char *name, int32_t shard, int64_t rows,
			 int64_t i)
{
	const struct config *c = &m->cfg;
	const int64_t kv = c->kv_heads * c->head_dim / m->nshards;
	const int64_t qkv[] = { c->heads * c->head_dim / m->nshards, kv, kv };
	const int64_t gated[] = { rows / 2, rows / 2 };
	const int64_t *block = &rows, n = m->nshards;
	int64_t first = 0;

	if (weight_match("h.#.qkv.weight", name) != -2 ||
	    weight_match("h.#.qkv_b.bias", name) != -2)
		block = qkv;
	else if (c->gated && (weight_match("h.#.up.weight", name) != -2 ||
			      weight_match("h.#.up_b.bias", name) != -2))
		block = gated;
	for (; i >= *block; block++) {
		i -= *block;
		first += n * *block;
	}
	return first + shard * *block + i;
}

/* a weight: elements, [rows, cols] */
struct extents {
	int64_t rows, cols;
};

static struct extents extents_of(const struct te_weight_info *w)
{
	struct extents e = { te_tensor_extent(w->master, 0), 1 };

	if (te_tensor_ndim(w->master) == 2)
		e.cols = te_tensor_extent(w->master, 1);
	return e;
}

/* between the whole weight and a shard's, whichever is written; padding of the vocabulary may end
 * at other rows */
static void copy_weight(const struct model *m, const char *name, int32_t shard, float *whole,
			struct extents we, float *part, struct extents pe, int to_whole)
{
	const enum split split = split_of(name);
	const int64_t col = split == COLS ? shard * pe.cols : 0;

	for (int64_t i = 0; i < pe.rows; i++) {
		const int64_t row = split == ROWS ? whole_row(m, name, shard, pe.rows, i) : i;
		const size_t nbytes = (size_t)pe.cols * sizeof(float);

		if (row >= we.rows)
			continue;
		if (to_whole)
			memcpy(whole + row * we.cols + col, part + i * pe.cols, nbytes);
		else
			memcpy(part + i * pe.cols, whole + row * we.cols + col, nbytes);
	}
}

/* the weight of that name; 0 if there is none */
static int find(const struct model *m, const char *name, struct te_weight_info *ret)
{
	for (int i = 0; i < te_seq_nweights(m->seq); i++) {
		struct te_weight_info w = TE_WEIGHT_INFO_INIT;

		if (te_seq_weight(m->seq, i, &w) >= 0 && !strcmp(w.name, name)) {
			*ret = w;
			return 1;
		}
	}
	return 0;
}

void shard_take(const struct model *m, const struct model *whole, const float *flat, int trained,
	       float *part)
{
	const int64_t n = trained ? te_seq_grad_nelems(m->seq) : te_seq_nelems(m->seq);

	memset(part, 0, (size_t)n * sizeof(*part));
	for (int i = 0; i < te_seq_nweights(m->seq); i++) {
		struct te_weight_info w = TE_WEIGHT_INFO_INIT, all = TE_WEIGHT_INFO_INIT;

		if (te_seq_weight(m->seq, i, &w) < 0 || !find(whole, w.name, &all) ||
		    (trained && w.flags & TE_WEIGHT_FROZEN))
			continue;
		copy_weight(m, w.name, m->shard, (float *)(uintptr_t)flat + all.offset_nelems,
			    extents_of(&all), part + w.offset_nelems, extents_of(&w), 0);
	}
}

int shard_set(const struct model *m, const struct model *whole, const float *flat)
{
	struct te_tensor *masters = te_seq_masters(m->seq);
	float *part = malloc(te_tensor_nbytes(masters));
	int te;

	if (!part)
		return say_failed("out of memory");
	shard_take(m, whole, flat, 0, part);
	te = te_tensor_write(masters, part, te_tensor_nbytes(masters));
	free(part);
	return te < 0 ? say_te(te, "writing the weights of a rank") : STATUS_OK;
}

/* ---- gathering ---- */

struct gathering {
	const struct model *m;
	struct te_stream *stream;
	const float *src; /* device memory */
	float *all;	  /* device memory for a piece of each shard */
	float *piece;	  /* host memory for a piece of each shard */
	float *whole;	  /* NULL but in shard 0 of stage 0 */
};

int settle(struct te_stream *stream, int te)
{
	int r = te_stream_sync(stream);

	return te < 0 ? te : r;
}

/* parts: the weight of each shard, in host memory of shard 0 */
static int gather_parts(const struct gathering *g, const float *src, int64_t nelems, float *parts)
{
	const int32_t n = g->m->nshards;
	int te = 0;

	for (int64_t at = 0; at < nelems && te >= 0; at += PIECE) {
		const int64_t len = nelems - at < PIECE ? nelems - at : PIECE;

		te = te_comm_all_gather(g->m->comm, g->stream, src + at, g->all, len, TE_DTYPE_FP32,
					NULL);
		if (te >= 0)
			te = te_copy(g->stream, g->piece, g->all,
				     (size_t)(n * len) * sizeof(float));
		if (te >= 0)
			te = te_stream_sync(g->stream);
		if (te >= 0)
			te = te_comm_error(g->m->comm);
		for (int32_t k = 0; k < n && parts && te >= 0; k++)
			memcpy(parts + k * nelems + at, g->piece + k * len,
			       (size_t)len * sizeof(float));
	}
	return te;
}

/* a weight that shards divide; dst: host memory of shard 0 */
static int gather_weight(const struct gathering *g, const struct te_weight_info *all,
			 const struct te_weight_info *own, float *dst)
{
	const int64_t nelems = te_tensor_nelems(own->master);
	const int32_t n = g->m->nshards;
	float *parts = dst ? malloc((size_t)(n * nelems) * sizeof(*parts)) : NULL;
	int te = dst && !parts ? -ENOMEM : 0;

	if (te >= 0)
		te = gather_parts(g, g->src + own->offset_nelems, nelems, parts);
	for (int32_t k = 0; k < n && parts && te >= 0; k++)
		copy_weight(g->m, own->name, k, dst, extents_of(all), parts + k * nelems,
			    extents_of(own), 1);
	free(parts);
	return te;
}

/* a weight of this stage, from the shards that have it; dst: host memory of shard 0 */
static int gather_shards(const struct gathering *g, const struct te_weight_info *all, float *dst)
{
	struct te_weight_info own = TE_WEIGHT_INFO_INIT;
	const enum split split = split_of(all->name);
	int te;

	if (!find(g->m, all->name, &own))
		return 0;
	if (g->m->nshards > 1 && (split == ROWS || split == COLS))
		return gather_weight(g, all, &own, dst);
	te = dst ? te_copy(g->stream, dst, g->src + own.offset_nelems,
			   te_tensor_nbytes(own.master)) : 0;
	return te < 0 ? te : te_stream_sync(g->stream);
}

static int32_t stage_of(const struct model *m, const char *name)
{
	const int64_t layer = strncmp(name, "h.", 2) ? m->cfg.layers : atoll(name + 2);

	return strncmp(name, "embed.", 6) ? stage_of_layer(m, layer) : 0;
}

/* from shard 0 of a stage to rank 0; x: host memory of both */
static int carry(const struct gathering *g, int32_t stage, float *x, int64_t nelems)
{
	int te = 0;

	for (int64_t at = 0; at < nelems && te >= 0; at += PIECE) {
		const int64_t len = nelems - at < PIECE ? nelems - at : PIECE;
		const size_t nbytes = (size_t)len * sizeof(*x);

		if (g->m->stage) {
			te = te_copy(g->stream, g->all, x + at, nbytes);
			if (te >= 0)
				te = te_comm_send(g->m->pipe, g->stream, g->all, len,
						  TE_DTYPE_FP32, 0, NULL);
		} else {
			te = te_comm_recv(g->m->pipe, g->stream, g->all, len, TE_DTYPE_FP32,
					  stage * g->m->nshards, NULL);
			if (te >= 0)
				te = te_copy(g->stream, x + at, g->all, nbytes);
		}
	}
	return settle(g->stream, te);
}

/* a weight of one stage */
static int gather_from_stage(const struct gathering *g, const struct te_weight_info *all)
{
	const struct model *m = g->m;
	const int64_t nelems = te_tensor_nelems(all->master);
	const int32_t stage = stage_of(m, all->name);
	float *x = NULL, *own = NULL;
	int te = 0;

	if (g->whole)
		x = g->whole + all->offset_nelems;
	else if (!m->shard && m->stage == stage)
		x = own = calloc((size_t)nelems, sizeof(*own));
	if (own || g->whole || m->shard || m->stage != stage) {
		if (m->stage == stage)
			te = gather_shards(g, all, x);
		if (te >= 0 && stage && !m->shard && (!m->stage || m->stage == stage))
			te = carry(g, stage, x, nelems);
	} else {
		te = -ENOMEM;
	}
	free(own);
	return te;
}

static int gather_all(const struct gathering *g, int trained)
{
	int te = 0;

	for (int i = 0; i < te_seq_nweights(g->m->whole->seq) && te >= 0; i++) {
		struct te_weight_info all = TE_WEIGHT_INFO_INIT;

		te = te_seq_weight(g->m->whole->seq, i, &all);
		if (te >= 0 && !(trained && all.flags & TE_WEIGHT_FROZEN))
			te = gather_from_stage(g, &all);
	}
	return te < 0 || !g->m->pipe ? te : te_comm_error(g->m->pipe);
}

int shard_gather(const struct model *m, const struct te_tensor *src, int trained, float **ret_flat)
{
	const struct te_seq *seq = m->whole->seq;
	const int64_t nelems = trained ? te_seq_grad_nelems(seq) : te_seq_nelems(seq);
	const size_t nbytes = (size_t)(m->nshards * PIECE) * sizeof(float);
	struct gathering g = { .m = m,
			       .stream = te_ctx_stream(te_seq_ctx(m->seq)),
			       .src = te_tensor_data(src),
			       .piece = malloc(nbytes) };
	void *all = NULL;
	int te = g.piece ? te_mem_alloc(g.stream, nbytes, &all) : -ENOMEM;

	g.all = all;
	if (te >= 0 && !m->shard && !m->stage) {
		g.whole = calloc((size_t)nelems, sizeof(*g.whole));
		te = g.whole ? 0 : -ENOMEM;
	}
	if (te >= 0)
		te = gather_all(&g, trained);
	if (all)
		te_mem_free(g.stream, all);
	free(g.piece);
	if (te < 0) {
		free(g.whole);
		return say_te(te, "gathering the weights of all ranks");
	}
	*ret_flat = g.whole;
	return STATUS_OK;
}

/* ---- quantizers ---- */

/* slots of te_seq_quant(): 2i is the input of operation i of n, 2i + 1 its weight, 2n + i the
 * gradient of its output */
static int slot_of(int i, int n, int role)
{
	return role == 2 ? 2 * n + i : 2 * i + role;
}

static int find_op(const struct te_seq *seq, const char *name)
{
	int i = te_seq_nops(seq) - 1;

	while (i >= 0 && strcmp(te_op_name(te_seq_op(seq, i)), name))
		i--;
	return i;
}

/* The state of operations of both sequences, which is equal in all shards: amaxes are reduced over
 * them. Operations of one sequence only do not quantize. */
static int copy_quant(const struct te_seq *from, const struct te_quant *src,
		      const struct te_seq *to, const struct te_quant *dst)
{
	struct te_stream *stream = te_ctx_stream(te_seq_ctx(to));
	const int n = te_seq_nops(from), m = te_seq_nops(to);
	const float *first = te_quant_amax_ptr(src, 0);
	const size_t window = first ? (size_t)(te_quant_amax_ptr(src, 1) - first) : 0;
	int te = 0;

	for (int i = 0; i < m; i++) {
		const int k = find_op(from, te_op_name(te_seq_op(to, i)));

		for (int role = 0; role < 3 && k >= 0 && te >= 0; role++) {
			const int a = slot_of(k, n, role), b = slot_of(i, m, role);

			if (te_quant_scale_ptr(src, a))
				te = te_copy(stream, te_quant_scale_ptr(dst, b),
					     te_quant_scale_ptr(src, a), sizeof(float));
			if (te >= 0 && window)
				te = te_copy(stream, te_quant_amax_ptr(dst, b),
					     te_quant_amax_ptr(src, a), window * sizeof(float));
		}
	}
	return settle(stream, te);
}

int shard_quant_whole(const struct model *m, const struct te_quant *q, struct te_quant **ret_q)
{
	const int n = te_seq_nops(m->whole->seq), own = te_seq_nops(m->seq);
	enum te_dtype *dtype = malloc(3 * (size_t)n * sizeof(*dtype));
	struct te_quant *whole = NULL;
	int te = dtype ? 0 : -ENOMEM;

	for (int i = 0; i < n && dtype; i++)
		for (int role = 0; role < 3; role++)
			dtype[slot_of(i, n, role)] = te_quant_dtype(q, slot_of(0, own, role));
	if (te >= 0)
		te = te_quant_create(te_seq_ctx(m->seq), te_quant_recipe(q), 3 * n, dtype, &whole);
	if (te >= 0)
		te = copy_quant(m->seq, q, m->whole->seq, whole);
	free(dtype);
	if (te < 0) {
		te_quant_unref(whole);
		return say_te(te, "the scales of all operations");
	}
	*ret_q = whole;
	return STATUS_OK;
}

int shard_quant_take(const struct model *m, const struct te_quant *whole)
{
	int te = copy_quant(m->whole->seq, whole, m->seq, te_seq_quant(m->seq));

	return te < 0 ? say_te(te, "the scales of a rank") : STATUS_OK;
}

/* ---- places of weights ---- */

/* the number of all layers for the part after the last one */
static int64_t first_layer(const struct model *m, int32_t part)
{
	return part * m->cfg.layers / (m->nstages * m->nchunks);
}

int32_t stage_of_layer(const struct model *m, int64_t layer)
{
	int32_t part = m->nstages * m->nchunks - 1;

	while (layer < first_layer(m, part))
		part--;
	return part % m->nstages;
}

const char *stage_begins_with(const struct model *m, int32_t chunk, char *buf, size_t nbytes)
{
	snprintf(buf, nbytes, "h.%lld.res1",
		 (long long)first_layer(m, chunk * m->nstages + m->stage));
	return buf;
}

uint8_t *shard_common(const struct model *m)
{
	uint8_t *common = calloc((size_t)te_seq_nweights(m->seq), 1);

	for (int i = 0; common && i < te_seq_nweights(m->seq); i++) {
		struct te_weight_info w = TE_WEIGHT_INFO_INIT;

		if (te_seq_weight(m->seq, i, &w) >= 0)
			common[i] = split_of(w.name) == SAME;
	}
	return common;
}
