/* embed.c - reference kernels: token and position tables. */
#include "config.h"

#include "kernels/ref.h"
#include "kernels/team.h"

static void fwd_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_embed_fwd *a = arg;
	const struct te_k_split table = { a->table, a->table_rest };
	const struct te_k_split pos_table = { a->pos, a->pos_rest };
	const int32_t dtype = a->split ? TE_K_DTYPE_SPLIT : TE_DTYPE_FP32;
	uint32_t noutside = 0;
	float v[TE__H_CHUNK], p[TE__H_CHUNK];

	for (int64_t r = begin; r < end; r++) {
		const int64_t token = (int64_t)a->tokens[r] - a->first;
		const int known = token >= 0 && token < a->vocab;
		const int64_t pos = a->position ? a->position[r] : r % a->seqlen;
		const int has_pos = a->pos && (!a->position || (pos >= 0 && pos < a->npos));

		noutside += a->tokens[r] < 0 || a->tokens[r] >= a->ntokens;

		TE__H_CHUNKS(c, len, a->width) {
			if (known)
				te__h_load(dtype, a->split ? (const void *)&table : a->table,
					   token * a->width + c, len, v);
			else
				memset(v, 0, (size_t)len * sizeof(*v));
			if (has_pos)
				te__h_add_to(v, te__h_view(dtype,
							   a->split ? (const void *)&pos_table :
								      a->pos,
							   pos * a->width + c, len, p),
					     len);
			te__h_store(a->dtype, a->y, r * a->width + c, len, v);
		}
	}
	if (a->noutside && noutside)
		__atomic_fetch_add(a->noutside, noutside, __ATOMIC_RELAXED);
}

void te__h_embed_fwd(const struct te_k_embed_fwd *a)
{
	te__k_for(a->rows, te__h_rows_grain(a->width, 1), fwd_part, (void *)(uintptr_t)a);
}

/* the number of rows begin to end - 1, at most TE__H_CHUNK, that have this token */
TE__SIMD_BODY int32_t count_body(const int32_t *tokens, int64_t begin, int64_t end, int32_t token)
{
	int32_t n = 0;

	for (int64_t i = begin; i < end; i++)
		n += tokens[i] == token;
	return n;
}
static TE__SIMD(int32_t, count,
		(const int32_t *tokens, int64_t begin, int64_t end, int32_t token),
		(tokens, begin, end, token))

/* the first row from begin to end - 1 that has this token, or end */
static int64_t find(const int32_t *tokens, int64_t begin, int64_t end, int32_t token)
{
	for (int64_t i; begin < end; begin = i) {
		i = te__h_min(end, begin + 256);
		if (count(tokens, begin, i, token))
			break;
	}
	while (begin < end && tokens[begin] != token)
		begin++;
	return begin;
}

/* add to the table: columns c .. c + n - 1 of dy, of row r and the later rows of its token */
static void add_token(const struct te_k_embed_bwd *a, int64_t r, int64_t c, int64_t n)
{
	const int32_t token = a->tokens[r];
	float dy[TE__H_CHUNK], sum[TE__H_CHUNK];

	memset(sum, 0, (size_t)n * sizeof(*sum));
	for (; r < a->rows; r = find(a->tokens, r + 1, a->rows, token)) {
		te__h_load(a->dtype, a->dy, r * a->width + c, n, dy);
		te__h_add_to(sum, dy, n);
	}
	te__h_add_at(a->table_dtype, a->dtable, ((int64_t)token - a->first) * a->width + c, n, sum);
}

/* the tokens that occur first in rows begin to end - 1 */
static void bwd_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_embed_bwd *a = arg;

	for (int64_t r = begin; r < end; r++) {
		const int32_t token = a->tokens[r];

		if (token < a->first || token - a->first >= a->vocab ||
		    find(a->tokens, 0, r, token) < r)
			continue;
		TE__H_CHUNKS(c, len, a->width)
			add_token(a, r, c, len);
	}
}

void te__h_embed_bwd(const struct te_k_embed_bwd *a)
{
	te__k_for(a->rows, te__h_rows_grain(a->width, 1), bwd_part, (void *)(uintptr_t)a);
}

static void pos_bwd_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_pos_bwd *a = arg;
	float dy[TE__H_CHUNK], sum[TE__H_CHUNK];

	for (int64_t t = begin; t < end; t++)
		TE__H_CHUNKS(c, len, a->width) {
			memset(sum, 0, (size_t)len * sizeof(*sum));
			for (int64_t b = 0; b < a->batch; b++) {
				te__h_load(a->dtype, a->dy, (b * a->seqlen + t) * a->width + c,
					   len, dy);
				te__h_add_to(sum, dy, len);
			}
			te__h_add_at(a->table_dtype, a->dpos, t * a->width + c, len, sum);
		}
}

void te__h_pos_bwd(const struct te_k_pos_bwd *a)
{
	te__k_for(a->seqlen, te__h_rows_grain(a->batch * a->width, 1), pos_bwd_part,
		  (void *)(uintptr_t)a);
}
