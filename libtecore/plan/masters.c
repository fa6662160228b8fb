/* masters.c - masters in device memory as FP32 values in host memory, and back. */
#define TE_LOG_CATEGORY "core/seq"
#include "kernels/simd.h"

#include <string.h>

#include "libtecore/base/private.h"

#include "kernels/optim/round.h"
#include "libtecore/plan/seq.h"
#include "libtecore/tensor/ctx.h"

/* elements that are converted at a time */
#define VALUES_NELEMS ((int64_t)1 << 18)

TE__SIMD_BODY void split_some_body(const float *restrict x, uint16_t *restrict half,
			      uint16_t *restrict rest, int64_t n)
{
	for (int64_t k = 0; k < n; k++) {
		half[k] = (uint16_t)te_round_upper(x[k]);
		rest[k] = (uint16_t)te_round_lower(x[k]);
	}
}
static TE__SIMD(void, split_some,
		(const float *restrict x, uint16_t *restrict half, uint16_t *restrict rest,
		 int64_t n), (x, half, rest, n))

TE__SIMD_BODY void join_body(float *restrict x, const uint16_t *restrict half,
			     const uint16_t *restrict rest, int64_t n)
{
	for (int64_t k = 0; k < n; k++)
		x[k] = te_round_join(half[k], rest[k]);
}
static TE__SIMD(void, join,
		(float *restrict x, const uint16_t *restrict half, const uint16_t *restrict rest,
		 int64_t n), (x, half, rest, n))

struct te__values te__values_from(const struct te__values *v, int64_t first, int64_t nelems)
{
	const int64_t nrest = v->nrest - first;

	return (struct te__values){ v->ctx, v->split, (char *)v->at + first * (v->split ? 2 : 4),
				    nrest > 0 ? v->rest + first : NULL, nrest > 0 ? nrest : 0,
				    nelems };
}

void te__split(const float *x, uint16_t *ret_half, uint16_t *ret_rest, int64_t n)
{
	split_some(x, ret_half, ret_rest, n);
}

/* convert to or, if src is not NULL, from BF16 */
static int convert(const struct te__values *v, float *dst, const float *src)
{
	const int64_t most = v->n < VALUES_NELEMS ? v->n : VALUES_NELEMS;
	uint16_t *half = te__calloc(2, (size_t)most * sizeof(*half) + 1);
	uint16_t *rest = half ? half + most : NULL;
	int r = half ? 0 : te__no_memory("values of masters");

	for (int64_t i = 0, n; i < v->n && !r; i += n) {
		uint16_t *at = (uint16_t *)v->at + i;
		int64_t nrest = v->nrest - i;
		size_t nbytes;

		n = v->n - i < most ? v->n - i : most;
		nrest = nrest < 0 ? 0 : nrest < n ? nrest : n;
		nbytes = (size_t)n * sizeof(*half);
		memset(rest + nrest, 0, (size_t)(n - nrest) * sizeof(*rest));
		if (src)
			split_some(src + i, half, rest, n);
		r = te__ctx_copy(v->ctx, src ? at : half, src ? half : at, nbytes);
		if (!r && nrest)
			r = te__ctx_copy(v->ctx, src ? v->rest + i : rest, src ? rest : v->rest + i,
					 (size_t)nrest * sizeof(*rest));
		if (!src && !r)
			join(dst + i, half, rest, n);
	}
	te__free(half);
	return r;
}

int te__values_read(const struct te__values *v, float *dst)
{
	return v->split ? convert(v, dst, NULL) :
			  te__ctx_copy(v->ctx, dst, v->at, (size_t)v->n * sizeof(*dst));
}

int te__values_write_split(const struct te__values *v, const uint16_t *half, const uint16_t *rest)
{
	const int64_t nrest = v->nrest < v->n ? v->nrest : v->n;
	int r = te__ctx_copy(v->ctx, v->at, half, (size_t)v->n * sizeof(*half));

	return r || !nrest ? r :
			     te__ctx_copy(v->ctx, v->rest, rest, (size_t)nrest * sizeof(*rest));
}

int te__values_write(const struct te__values *v, const float *src)
{
	return v->split ? convert(v, NULL, src) :
			  te__ctx_copy(v->ctx, v->at, src, (size_t)v->n * sizeof(*src));
}
