/* embed.c - reference kernels: token and position tables. */
#include "config.h"

#include "kernels/ref.h"

void te__h_embed_fwd(const struct te_k_embed_fwd *a)
{
	float v[TE__H_CHUNK];

	for (int64_t r = 0; r < a->rows; r++) {
		const int64_t token = a->tokens[r];
		const int known = token >= 0 && token < a->vocab;

		TE__H_CHUNKS(c, len, a->width) {
			if (known)
				memcpy(v, a->table + token * a->width + c,
				       (size_t)len * sizeof(*v));
			else
				memset(v, 0, (size_t)len * sizeof(*v));
			if (a->pos) {
				const float *pos = a->pos + r % a->seqlen * a->width + c;

				for (int64_t i = 0; i < len; i++)
					v[i] += pos[i];
			}
			te__h_store(a->dtype, a->y, r * a->width + c, len, v);
		}
	}
}

static int seen(const int32_t *tokens, int64_t r)
{
	for (int64_t i = 0; i < r; i++)
		if (tokens[i] == tokens[r])
			return 1;
	return 0;
}

/* add to the table: columns c .. c + n - 1 of dy, of row r and the later rows of its token */
static void add_token(const struct te_k_embed_bwd *a, int64_t r, int64_t c, int64_t n)
{
	const int32_t token = a->tokens[r];
	float *table = a->dtable + token * a->width + c;
	float dy[TE__H_CHUNK], sum[TE__H_CHUNK];

	memset(sum, 0, (size_t)n * sizeof(*sum));
	for (; r < a->rows; r++) {
		if (a->tokens[r] != token)
			continue;
		te__h_load(a->dtype, a->dy, r * a->width + c, n, dy);
		for (int64_t i = 0; i < n; i++)
			sum[i] += dy[i];
	}
	for (int64_t i = 0; i < n; i++)
		table[i] += sum[i];
}

void te__h_embed_bwd(const struct te_k_embed_bwd *a)
{
	for (int64_t r = 0; r < a->rows; r++) {
		if (a->tokens[r] < 0 || a->tokens[r] >= a->vocab || seen(a->tokens, r))
			continue;
		TE__H_CHUNKS(c, len, a->width)
			add_token(a, r, c, len);
	}
}

void te__h_pos_bwd(const struct te_k_pos_bwd *a)
{
	float dy[TE__H_CHUNK], sum[TE__H_CHUNK];

	for (int64_t t = 0; t < a->seqlen; t++)
		TE__H_CHUNKS(c, len, a->width) {
			memset(sum, 0, (size_t)len * sizeof(*sum));
			for (int64_t b = 0; b < a->batch; b++) {
				te__h_load(a->dtype, a->dy, (b * a->seqlen + t) * a->width + c,
					   len, dy);
				for (int64_t i = 0; i < len; i++)
					sum[i] += dy[i];
			}
			for (int64_t i = 0; i < len; i++)
				a->dpos[t * a->width + c + i] += sum[i];
		}
}
