/*
 * gemm.c - GEMM of the host backend: tiles of D on the threads of a team. A tile decodes a block of
 * rows of each operand to FP32, multiplies them, and ends with the epilogue.
 *
 * TE_GEMM_HOST chooses how two blocks are multiplied. ref: plain loops, which sum each element in
 * FP32 in ascending k, with one rounding per multiplication and per addition. tiles:
 * kernels/micro.c, in the same order, with fused multiply-adds where the processor has them. blas:
 * the order is the library's. Tiles split rows and columns of D, and all K is split at multiples of
 * KC, so that an element's sum depends neither on the tiles nor on the number of threads, except in
 * a BLAS. At most TE__H_MR rows are computed by columns instead of tiles, with the same sums.
 */
#include "config.h"

#ifdef HAVE_CBLAS
#include <cblas.h>
#endif

#include "kernels/micro.h"
#include "kernels/ref.h"
#include "kernels/team.h"
#include "libtecore/base/base.h"

/* rows and columns of the largest tile, multiples of TE__H_MR and TE__H_NR; depth of its blocks */
#define MC 256
#define NC 256
#define KC 256
/*
 * A result of few rows, at most TE__H_MR, is bound by reading the other operand. FEW_K elements of
 * each row are decoded at a time; FEW_NBYTES of the other operand are worth handing to a thread.
 */
#define FEW_K (MC * KC / TE__H_MR)
#define FEW_NBYTES 50000
/* tiles are cut in half for the threads of a team, as long as a half is worth handing to one */
#define TILES_PER_THREAD 2
#define TILE_FLOPS_MIN 2e6
#define TILE_MIN 32 /* rows or columns: each row is decoded once for all columns of a tile */

/* vectors for any instruction set */
typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
#define LANES 16

/*
 * An operand [rows, k], stored [k, rows] when t; scale: of blocks, else NULL. ld: elements of a
 * stored row, more than k for FP8 only.
 */
struct operand {
	const void *x;
	const float *scale;
	int64_t rows, k, ld;
	int32_t dtype, t, scaling;
};

static int is_plain(const struct operand *o)
{
	return o->dtype == TE_DTYPE_FP32 || o->dtype == TE_DTYPE_BF16;
}

/* element of an operand that is stored [rows, k] */
static const void *element(const struct operand *o, int64_t row, int64_t k)
{
	return (const char *)o->x + (size_t)(row * o->k + k) * te_dtype_nbytes(o->dtype);
}

/* n elements of a stored row, from column c on */
static void load_row(const struct operand *o, int64_t row, int64_t c, int64_t n, float *v)
{
	const int64_t off = row * o->ld + c;

	if (!te__is_codes(o->dtype)) {
		te__h_load(o->dtype, o->x, off, n, v);
		return;
	}
	/* codes with scales of blocks are not transposed; c is even */
	for (int64_t i = 0, len = n; i < n; i += len) {
		const uint8_t *code = (const uint8_t *)o->x + te__nbytes_of(o->dtype, off + i);
		const int64_t at = c + i;
		float scale = 1.0f;

		if (o->scale) {
			const int64_t width = te_k_scale_width(o->scaling);

			len = te__h_min(n - i, width - at % width);
			scale = te__h_scale_get(o->scale, o->scaling,
						te_k_scale_index(o->scaling, o->rows, o->k, row,
								 at));
		}
		te__h_decode(o->dtype, code, scale, len, v + i);
	}
}

/*
 * Columns [k0, k0 + nk) of rows [r0, r0 + nr): in place, or decoded into buf, kc elements for each
 * row, before rows of 0.
 */
static struct te__h_rows rows_of(const struct operand *o, int64_t r0, int64_t nr, int64_t k0,
				 int64_t nk, int64_t kc, float *buf)
{
	const int64_t padded = te__h_micro_rows(nr);

	if (o->dtype == TE_DTYPE_FP32 && padded == nr)
		return o->t ? (struct te__h_rows){ (const float *)o->x + k0 * o->rows + r0, 1,
						   o->rows } :
			      (struct te__h_rows){ (const float *)o->x + r0 * o->k + k0, o->k, 1 };
	if (o->t) {
		for (int64_t k = 0; k < nk; k++) {
			load_row(o, k0 + k, r0, nr, buf + k * padded);
			memset(buf + k * padded + nr, 0, (size_t)(padded - nr) * sizeof(*buf));
		}
		return (struct te__h_rows){ buf, 1, padded };
	}
	for (int64_t r = 0; r < nr; r++)
		load_row(o, r0 + r, k0, nk, buf + r * kc);
	memset(buf + nr * kc, 0, (size_t)((padded - nr) * kc) * sizeof(*buf));
	return (struct te__h_rows){ buf, kc, 1 };
}

/* n rows of o from k0 on, of nr numbers from r0 on, a multiple of TE__H_NR: see pack() */
TE__SIMD_BODY void pack_rows_body(const struct operand *o, int64_t r0, int64_t nr, int64_t k0,
				  int64_t n, float *buf)
{
	const float *x = (const float *)o->x + k0 * o->rows + r0;
	const uint16_t *h = (const uint16_t *)o->x + k0 * o->rows + r0;

	for (int64_t k = 0; k < n; k++, x += o->rows, h += o->rows, buf += TE__H_NR)
		for (int64_t r = 0; r < nr; r += LANES) {
			float *to = buf + r / TE__H_NR * (KC * TE__H_NR) + r % TE__H_NR;

			if (o->dtype == TE_DTYPE_FP32)
				*(vec *)to = *(const vec *)(x + r);
			else
				for (int i = 0; i < LANES; i++)
					to[i] = te__bf16_decode(h[r + i]);
		}
}
static TE__SIMD(void, pack_rows,
		(const struct operand *o, int64_t r0, int64_t nr, int64_t k0, int64_t n,
		 float *buf),
		(o, r0, nr, k0, n, buf))

/*
 * Packs the operand that becomes the columns of a tile: column r of row k is at buf[r / TE__H_NR *
 * KC * TE__H_NR + k * TE__H_NR + r % TE__H_NR].
 */
static void pack(const struct operand *o, int64_t r0, int64_t nr, int64_t k0, int64_t nk,
		 float *buf)
{
	float(*const rows)[KC] = te__k_take(TE__H_NR * sizeof(*rows));
	int64_t r = 0;

	if (is_plain(o) && o->t) {
		r = nr / TE__H_NR * TE__H_NR;
		pack_rows(o, r0, r, k0, nk, buf);
		buf += r * KC;
	}
	for (; r < nr; r += TE__H_NR, buf += KC * TE__H_NR) {
		const int64_t n = te__h_min(nr - r, TE__H_NR);

		if (is_plain(o) && !o->t && n == TE__H_NR) {
			te__h_pack(o->dtype, nk, element(o, r0 + r, k0), o->k, TE__H_NR * o->k,
				   buf);
			continue;
		}
		for (int64_t k = 0; k < nk && o->t; k++) {
			load_row(o, k0 + k, r0 + r, n, buf + k * TE__H_NR);
			memset(buf + k * TE__H_NR + n, 0, (size_t)(TE__H_NR - n) * sizeof(*buf));
		}
		if (o->t)
			continue;
		for (int64_t i = 0; i < n; i++)
			load_row(o, r0 + r + i, k0, nk, rows[i]);
		memset(rows[n], 0, (size_t)(TE__H_NR - n) * sizeof(rows[0]));
		te__h_pack(TE_DTYPE_FP32, nk, rows[0], KC, 0, buf);
	}
	te__k_give(rows);
}

/* the definition of te__h_micro(), without fused multiply-adds */
static void micro_ref(int64_t m, int64_t n, struct te__h_rows a, const float *b, float *c,
		      int64_t cs, int add)
{
	for (int64_t r = 0; r < m; r++) {
		if (!add)
			memset(c + r * cs, 0, TE__H_NR * sizeof(*c));
		for (int64_t k = 0; k < n; k++)
			for (int64_t i = 0; i < TE__H_NR; i++)
				c[r * cs + i] += a.p[r * a.rs + k * a.cs] * b[k * TE__H_NR + i];
	}
}

/* c [m, n] = or += a b, with rows, cs apart, and columns rounded up as micro.h needs */
static void multiply(int64_t m, int64_t n, int64_t k, struct te__h_rows a, const float *b, float *c,
		     int64_t cs, int add)
{
	const int how = te__param_enum(TE_PARAM_GEMM_HOST);

	for (int64_t j = 0; j < n; j += TE__H_NR, b += KC * TE__H_NR) {
#ifdef HAVE_CBLAS
		if (how == TE__GEMM_HOST_BLAS) {
			cblas_sgemm(CblasRowMajor, a.cs == 1 ? CblasNoTrans : CblasTrans,
				    CblasNoTrans, (int)m, TE__H_NR, (int)k, 1.0f, a.p,
				    (int)(a.cs == 1 ? a.rs : a.cs), b, TE__H_NR, add ? 1.0f : 0.0f,
				    c + j, (int)cs);
			continue;
		}
#endif
		for (int64_t i = 0; i < m; i += TE__H_MR) {
			const struct te__h_rows ai = { a.p + i * a.rs, a.rs, a.cs };

			if (how == TE__GEMM_HOST_REF)
				micro_ref(te__h_min(m - i, TE__H_MR), k, ai, b, c + i * cs + j, cs,
					  add);
			else
				te__h_micro(m - i, k, ai, b, TE__H_NR, c + i * cs + j, cs, add);
		}
	}
}

/* d = s * acc + beta * c + bias; d may be acc or c, and c and bias NULL */
TE__SIMD_BODY void finish_body(float *d, const float *acc, float s, const float *c, float beta,
			       const float *bias, int64_t n)
{
	int64_t i = 0;

	for (; i + LANES <= n; i += LANES) {
		vec v = *(const vec *)(acc + i) * s;

		if (c)
			v += *(const vec *)(c + i) * beta;
		if (bias)
			v += *(const vec *)(bias + i);
		*(vec *)(d + i) = v;
	}
	for (; i < n; i++) {
		float v = acc[i] * s;

		if (c)
			v += c[i] * beta;
		if (bias)
			v += bias[i];
		d[i] = v;
	}
}
static TE__SIMD(void, finish,
		(float *d, const float *acc, float s, const float *c, float beta, const float *bias,
		 int64_t n),
		(d, acc, s, c, beta, bias, n))

/* d = s * acc + beta * c + bias, each operation rounded, then rounded to D's type */
static void epilogue(const struct te_k_gemm *a, float s, int64_t off, int64_t col, int64_t n,
		     float *acc)
{
	float cbuf[TE__H_CHUNK], bbuf[TE__H_CHUNK];

	TE__H_CHUNKS(i0, len, n)
	{
		const int64_t at = off + i0;
		const float *c = NULL, *bias = NULL;
		float *d = a->ddtype == TE_DTYPE_FP32 ? (float *)a->d + at : acc + i0;

		if (a->beta != 0.0f)
			c = te__h_view(a->cdtype, a->c, at, len, cbuf);
		if (a->bias)
			bias = te__h_view(a->ddtype, a->bias, col + i0, len, bbuf);
		if (d != acc + i0 || s != 1.0f || c || bias)
			finish(d, acc + i0, s, c, a->beta, bias, len);
		if (a->ddtype != TE_DTYPE_FP32)
			te__h_store(a->ddtype, a->d, at, len, acc + i0);
	}
}

struct gemm {
	const struct te_k_gemm *a;
	struct operand x, y; /* rows and columns of D */
	float scale;
	int64_t mc, nc; /* extents of a tile */
	int64_t nrows;	/* rows of tiles */
};

/* tiles begin to end - 1, by columns of tiles */
static void tiles(void *arg, int64_t begin, int64_t end)
{
	const struct gemm *g = arg;
	const struct te_k_gemm *a = g->a;
	float *const xbuf = te__k_take((MC * KC + NC * KC + MC * NC) * sizeof(*xbuf));
	float *const ybuf = xbuf + MC * KC, *const acc = ybuf + NC * KC;
	int64_t packed = -1; /* the columns that are in ybuf, with all K */

	for (int64_t t = begin; t < end; t++) {
		const int64_t m0 = t % g->nrows * g->mc, n0 = t / g->nrows * g->nc;
		const int64_t m = te__h_min(a->m - m0, g->mc), n = te__h_min(a->n - n0, g->nc);
		/* FP32 sums are computed in D, unless they would end after it or C is there */
		const int direct = a->ddtype == TE_DTYPE_FP32 && a->beta == 0.0f &&
				   m % TE__H_MR == 0 && n % TE__H_NR == 0;
		const int64_t cs = direct ? a->n : NC;
		float *c = direct ? (float *)a->d + m0 * a->n + n0 : acc;

		for (int64_t k0 = 0; k0 < a->k; k0 += KC) {
			const int64_t k = te__h_min(a->k - k0, KC);

			if (packed != n0)
				pack(&g->y, n0, n, k0, k, ybuf);
			multiply(m, n, k, rows_of(&g->x, m0, m, k0, k, KC, xbuf), ybuf, c, cs,
				 k0 > 0);
		}
		packed = a->k <= KC ? n0 : -1;
		for (int64_t i = 0; i < m; i++)
			epilogue(a, g->scale, (m0 + i) * a->n + n0, n0, n, c + i * cs);
	}
	te__k_give(xbuf);
}

/* 1: te__h_few() reads it */
static int is_in_place(const struct operand *o)
{
	if (o->t || te__param_enum(TE_PARAM_GEMM_HOST) != TE__GEMM_HOST_TILES)
		return 0;
	return is_plain(o) || (o->dtype == TE_DTYPE_E4M3 && o->ld == o->k &&
			       (!o->scale || o->scaling == TE_K_SCALING_128X128));
}

/* scale of an element of an operand, or NULL */
static const float *scale_at(const struct operand *o, int64_t row, int64_t k)
{
	return o->scale ? o->scale + te_k_scale_index(o->scaling, o->rows, o->k, row, k) : NULL;
}

/* columns begin to end - 1 of a result of few rows */
static void columns(void *arg, int64_t begin, int64_t end)
{
	const struct gemm *g = arg;
	const struct te_k_gemm *a = g->a;
	const int in_place = is_in_place(&g->y);
	float *const xbuf = te__k_take((MC * KC + NC * KC + TE__H_MR * NC) * sizeof(*xbuf));
	float *const ybuf = xbuf + MC * KC, *const acc = ybuf + NC * KC;
	struct te__h_rows x = { 0 };

	for (int64_t n0 = begin; n0 < end; n0 += NC) {
		const int64_t n = te__h_min(end - n0, NC);

		for (int64_t k0 = 0; k0 < a->k; k0 += FEW_K) {
			const int64_t nk = te__h_min(a->k - k0, FEW_K);
			int64_t j = 0;

			if (n0 == begin || a->k > FEW_K)
				x = rows_of(&g->x, 0, a->m, k0, nk, nk, xbuf);
			for (; in_place && j + TE__H_NR <= n; j += TE__H_NR)
				te__h_few(g->y.dtype, a->m, nk, x, element(&g->y, n0 + j, k0), a->k,
					  TE__H_NR * a->k, scale_at(&g->y, n0 + j, k0), acc + j, NC,
					  k0 > 0);
			for (int64_t k = 0; k < nk && j < n; k += KC) {
				const struct te__h_rows xk = { x.p + k * x.cs, x.rs, x.cs };
				const int64_t depth = te__h_min(nk - k, KC);

				pack(&g->y, n0 + j, n - j, k0 + k, depth, ybuf);
				multiply(a->m, n - j, depth, xk, ybuf, acc + j, NC, k0 + k > 0);
			}
		}
		for (int64_t i = 0; i < a->m; i++)
			epilogue(a, g->scale, i * a->n + n0, n0, n, acc + i * NC);
	}
	te__k_give(xbuf);
}

static int64_t ntiles(const struct gemm *g)
{
	return (g->a->m + g->mc - 1) / g->mc * ((g->a->n + g->nc - 1) / g->nc);
}

/* rows begin to end - 1 of a result without terms */
static void zeros(void *arg, int64_t begin, int64_t end)
{
	const struct gemm *g = arg;
	float acc[TE__H_CHUNK];

	for (int64_t r = begin; r < end; r++)
		TE__H_CHUNKS(i0, len, g->a->n) {
			memset(acc, 0, sizeof(acc));
			epilogue(g->a, g->scale, r * g->a->n + i0, i0, len, acc);
		}
}

/* a_ld, b_ld: see struct operand */
static void gemm(const struct te_k_gemm *a, int64_t a_ld, int64_t b_ld)
{
	const int64_t most = TILES_PER_THREAD * (int64_t)te__k_nthreads();
	struct gemm g = {
		.a = a,
		.x = { a->a, a->asc ? a->sa : NULL, te_k_gemm_a_rows(a), a->k, a_ld, a->adtype,
		       a->a_t, a->asc },
		.y = { a->b, a->bsc ? a->sb : NULL, te_k_gemm_b_rows(a), a->k, b_ld, a->bdtype,
		       a->b_t, a->bsc },
		.scale = a->alpha * (a->sa && !a->asc ? *a->sa : 1.0f) *
			 (a->sb && !a->bsc ? *a->sb : 1.0f),
		.mc = MC,
		.nc = NC,
	};

	if (!a->k) {
		te__k_for(a->m, te__h_rows_grain(a->n, 1), zeros, &g);
		return;
	}
	if (a->m <= TE__H_MR) {
		const int64_t row = te__nbytes_of(a->bdtype, a->k);

		te__k_for(a->n, (FEW_NBYTES / (row * TE__H_NR) + 1) * TE__H_NR, columns, &g);
		return;
	}
	while (ntiles(&g) < most && (double)(g.mc * g.nc * a->k) > TILE_FLOPS_MIN &&
	       (g.mc > TILE_MIN || g.nc > TILE_MIN))
		*(g.mc >= g.nc ? &g.mc : &g.nc) /= 2;
	g.nrows = (a->m + g.mc - 1) / g.mc;
	te__k_for(ntiles(&g), 1, tiles, &g);
}

void te__h_gemm(const struct te_k_gemm *a)
{
	gemm(a, a->a_t ? te_k_gemm_a_rows(a) : a->k, a->b_t ? te_k_gemm_b_rows(a) : a->k);
}

/* the group's operands and result, of a launch with one group after another */
static void group(const struct te_k_gemm_grouped *a, int64_t g)
{
	const int64_t first = a->offsets[g], n = a->offsets[g + 1] - first;
	const int64_t as = (int64_t)te_dtype_nbytes(a->adtype);
	const int64_t bs = (int64_t)te_dtype_nbytes(a->bdtype);
	const int64_t ds = (int64_t)te_dtype_nbytes(a->ddtype);
	const int fp8 = te__is_fp8(a->adtype);
	struct te_k_gemm k = {
		.sa = a->sa ? a->sa + (a->a_each ? g : 0) : NULL,
		.sb = a->sb ? a->sb + (a->b_each ? g : 0) : NULL,
		.m = a->by_k ? a->m : n,
		.n = a->n,
		.k = a->by_k ? n : a->k,
		.alpha = a->alpha,
		.beta = a->beta,
		.a_t = !fp8 && a->by_k,
		.b_t = !fp8 && (a->by_k || a->b_t),
		.adtype = a->adtype,
		.bdtype = a->bdtype,
		.cdtype = a->ddtype,
		.ddtype = a->ddtype,
	};
	int64_t a_at, b_at, d_at;

	if (a->by_k) {
		a_at = fp8 ? first : first * a->m;
		b_at = fp8 ? first : first * a->n;
		d_at = g * a->m * a->n;
	} else {
		a_at = first * a->k;
		b_at = fp8 && a->b_t ? g * a->k : g * a->n * a->k;
		d_at = first * a->n;
	}
	k.a = (const char *)a->a + a_at * as;
	k.b = (const char *)a->b + b_at * bs;
	k.c = k.d = (char *)a->d + d_at * ds;
	if (k.m)
		gemm(&k, k.a_t ? a->m : a->k,
		     k.b_t	       ? a->n :
		     fp8 && a->b_t && !a->by_k ? a->groups * a->k :
						 a->k);
}

void te__h_gemm_grouped(const struct te_k_gemm_grouped *a)
{
	*a->status = 0;
	for (int64_t i = 0; i <= a->groups; i++)
		if (!te_k_gemm_grouped_ok(a, i)) {
			*a->status = (int32_t)(i + 1);
			return;
		}
	for (int64_t g = 0; g < a->groups; g++)
		group(a, g);
}

/* rows begin to end - 1 */
static void finish_rows(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_gemm_finish *a = arg;
	float cbuf[TE__H_CHUNK], bbuf[TE__H_CHUNK], v[TE__H_CHUNK];

	for (int64_t r = begin; r < end; r++)
		TE__H_CHUNKS(i0, len, a->n) {
			const int64_t at = r * a->n + i0;
			const float *c = NULL, *bias = NULL;

			if (a->beta != 0.0f)
				c = te__h_view(a->dtype, a->c, at, len, cbuf);
			if (a->bias)
				bias = te__h_view(a->dtype, a->bias, i0, len, bbuf);
			finish(v, a->sums + r * a->ld + i0, 1.0f, c, a->beta, bias, len);
			te__h_store(a->dtype, a->d, at, len, v);
		}
}

void te__h_gemm_finish(const struct te_k_gemm_finish *a)
{
	te__k_for(a->m, te__h_rows_grain(a->n, 1), finish_rows, (void *)(uintptr_t)a);
}
