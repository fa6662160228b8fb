/* attn/starts.cuh - first keys of tiles, for backward of documents (sm90_bwd.cu). */
#ifndef TE_ATTN_STARTS_CUH
#define TE_ATTN_STARTS_CUH

/* least first keys of a sequence's tiles, as te_k_attn_bwd.sums has them; a warp */
DEV void starts(const struct te_k_attn_bwd &a, int64_t b)
{
	const int T = (int)a.seqlen, ntiles = (T + 63) / 64;
	uint32_t *to = a.sums + te_k_attn_starts_at(&a) + b * ntiles;
	int after = INT32_MAX;

	for (int from = (ntiles - 1) / 32 * 32; from >= 0; from -= 32) {
		const int tile = from + (int)LANE;
		int least = INT32_MAX;

		for (int q = tile * 64; q < min(tile * 64 + 64, T); q++)
			least = min(least, (int)te_k_attn_first(q, a.window, a.first[b * T + q]));
		for (unsigned d = 1; d < 32; d *= 2) {
			const int x = __shfl_down_sync(~0u, least, d);

			least = LANE + d < 32 ? min(least, x) : least;
		}
		least = min(least, after);
		after = __shfl_sync(~0u, least, 0);
		if (tile < ntiles)
			to[tile] = (uint32_t)least;
	}
}

#endif
