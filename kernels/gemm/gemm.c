/*
 * gemm.c - GEMM of the host backend: operands decoded to FP32 panels, multiplied by a BLAS or by
 * plain loops, and the epilogue.
 *
 * Loops: each element is summed in FP32 in ascending k, with one rounding per multiplication and
 * per addition. BLAS: the order is the library's. Blocks split rows and columns of D, never k, so
 * that with the loops an element's sum does not depend on the blocks.
 */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#ifdef HAVE_CBLAS
#include <cblas.h>
#endif

#include "kernels/ref.h"
#include "libtecore/base/base.h"

/* FP32 panels of A and B hold this many elements each, unless k is huge */
#define PANEL_NELEMS ((int64_t)4 << 20)
#define BLOCK_MIN 64
#define BLOCK_MAX 1024

/* element (r, k) is at p[t ? k * ld + r : r * ld + k] */
struct panel {
	const float *p;
	int64_t ld;
	int t;
};

/*
 * Scratch of the calling thread, which grows and is freed when the thread exits. No object owns it,
 * and which threads need it depends on timing: it is not counted by te__alloc_live().
 */
static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;

struct scratch {
	size_t nelems;
	float *p;
};

static void scratch_free(void *arg)
{
	struct scratch *s = arg;

	te__free_libc(s->p);
	te__free_libc(s);
}

static void scratch_init(void)
{
	pthread_key_create(&scratch_key, scratch_free);
}

static float *scratch(size_t nelems)
{
	struct scratch *s;

	pthread_once(&scratch_once, scratch_init);
	s = pthread_getspecific(scratch_key);
	if (!s) {
		s = te__give(te__calloc(1, sizeof(*s)));
		if (!s || pthread_setspecific(scratch_key, s)) {
			te__free_libc(s);
			return NULL;
		}
	}
	if (s->nelems < nelems) {
		te__free_libc(s->p);
		s->nelems = 0;
		s->p = te__give(te__aligned_alloc(64, nelems * sizeof(float)));
		if (!s->p)
			return NULL;
		s->nelems = nelems;
	}
	return s->p;
}

static void load(int32_t dtype, const void *p, int64_t off, int64_t n, float *restrict v)
{
	const uint8_t *code = (const uint8_t *)p + off;

	switch (dtype) {
	case TE_DTYPE_E4M3:
		for (int64_t i = 0; i < n; i++)
			v[i] = te__e4m3_values[code[i]];
		break;
	case TE_DTYPE_E5M2:
		for (int64_t i = 0; i < n; i++)
			v[i] = te__e5m2_values[code[i]];
		break;
	default:
		te__h_load(dtype, p, off, n, v);
	}
}

/* an operand [rows, k], stored [k, rows] when t; scale: of blocks, else NULL */
struct operand {
	const void *x;
	const float *scale;
	int64_t rows, k;
	int32_t dtype, t, scaling;
};

/* n elements of a stored row, from column c on */
static void load_row(const struct operand *o, int64_t row, int64_t c, int64_t n, float *restrict v)
{
	load(o->dtype, o->x, row * (o->t ? o->rows : o->k) + c, n, v);
	if (!o->scale)
		return;
	/* FP8, so not transposed */
	for (int64_t i = 0, len; i < n; i += len) {
		const int64_t at = c + i;
		const float scale =
			o->scale[te_k_scale_index(o->scaling, o->rows, o->k, row, at)];

		len = te__h_min(n - i, TE_K_BLOCK - at % TE_K_BLOCK);
		for (int64_t j = i; j < i + len; j++)
			v[j] *= scale;
	}
}

/*
 * Rows r0 .. r0 + nr - 1 of the operand: in place if it is FP32 and stored as wanted, else decoded
 * into buf.
 */
static struct panel panel(const struct operand *o, int64_t r0, int64_t nr, int want_t, float *buf)
{
	const int64_t rows = o->rows, k = o->k;
	const int t = o->t;
	int64_t n = t ? nr : k; /* of a stored row */
	float tmp[TE__H_CHUNK];

	if (o->dtype == TE_DTYPE_FP32 && t == want_t)
		return (struct panel){ (const float *)o->x + (t ? r0 : r0 * k), t ? rows : k, t };
	for (int64_t i = 0; i < (t ? k : nr); i++) {
		const int64_t row = t ? i : r0 + i, c0 = t ? r0 : 0;

		if (t == want_t) {
			load_row(o, row, c0, n, buf + i * n);
			continue;
		}
		TE__H_CHUNKS(c, len, n) {
			load_row(o, row, c0 + c, len, tmp);
			for (int64_t j = 0; j < len; j++)
				buf[(c + j) * (t ? k : nr) + i] = tmp[j];
		}
	}
	return (struct panel){ buf, want_t ? nr : k, want_t };
}

/* c [m, n] = a b^T; b is stored [k, n], so that the inner loop reads consecutive elements */
static void multiply_ref(int64_t m, int64_t n, int64_t k, struct panel a, struct panel b,
			 float *restrict c)
{
	memset(c, 0, (size_t)(m * n) * sizeof(*c));
	for (int64_t i = 0; i < m; i++)
		for (int64_t p = 0; p < k; p++) {
			float x = a.p[a.t ? p * a.ld + i : i * a.ld + p];
			const float *restrict y = b.p + p * b.ld;

			for (int64_t j = 0; j < n; j++)
				c[i * n + j] += x * y[j];
		}
}

static int use_blas(void)
{
#ifdef HAVE_CBLAS
	return te__param_enum(TE_PARAM_GEMM_HOST) != TE__GEMM_HOST_REF;
#else
	return 0;
#endif
}

static void multiply(int64_t m, int64_t n, int64_t k, struct panel a, struct panel b, float *c)
{
#ifdef HAVE_CBLAS
	if (use_blas()) {
		cblas_sgemm(CblasRowMajor, a.t ? CblasTrans : CblasNoTrans,
			    b.t ? CblasNoTrans : CblasTrans, (int)m, (int)n, (int)k, 1.0f, a.p,
			    (int)a.ld, b.p, (int)b.ld, 0.0f, c, (int)n);
		return;
	}
#endif
	multiply_ref(m, n, k, a, b, c);
}

/* d = s * acc + beta * c + bias, each operation rounded, then rounded to D's type */
static void epilogue(const struct te_k_gemm *a, float s, int64_t off, int64_t col, int64_t n,
		     float *acc)
{
	float t[TE__H_CHUNK];

	TE__H_CHUNKS(i0, len, n) {
		float *v = acc + i0;

		for (int64_t i = 0; i < len; i++)
			v[i] *= s;
		if (a->beta != 0.0f) {
			te__h_load(a->cdtype, a->c, off + i0, len, t);
			for (int64_t i = 0; i < len; i++)
				v[i] += a->beta * t[i];
		}
		if (a->bias) {
			te__h_load(a->ddtype, a->bias, col + i0, len, t);
			for (int64_t i = 0; i < len; i++)
				v[i] += t[i];
		}
		te__h_store(a->ddtype, a->d, off + i0, len, v);
	}
}

static int64_t block(int64_t n, int64_t k)
{
	int64_t b = PANEL_NELEMS / k;

	b = b < BLOCK_MIN ? BLOCK_MIN : b > BLOCK_MAX ? BLOCK_MAX : b;
	return te__h_min(n, b);
}

void te__h_gemm(const struct te_k_gemm *a)
{
	const struct operand oa = { a->a, a->asc ? a->sa : NULL, a->m, a->k, a->adtype, a->a_t,
				    a->asc };
	const struct operand ob = { a->b, a->bsc ? a->sb : NULL, a->n, a->k, a->bdtype, a->b_t,
				    a->bsc };
	float s = a->alpha * (a->sa && !a->asc ? *a->sa : 1.0f) *
		  (a->sb && !a->bsc ? *a->sb : 1.0f);
	int64_t mb = block(a->m, a->k), nb = block(a->n, a->k);
	float *abuf = scratch((size_t)((mb + nb) * a->k + mb * nb));
	int b_t = use_blas() ? a->b_t : 1;
	float *bbuf, *acc;

	if (!abuf) {
		te__k_fail(te__fail(-ENOMEM, "no memory for the panels of a %lld x %lld x %lld "
				    "GEMM", (long long)a->m, (long long)a->n, (long long)a->k));
		return;
	}
	bbuf = abuf + mb * a->k;
	acc = bbuf + nb * a->k;
	for (int64_t n0 = 0; n0 < a->n; n0 += nb) {
		int64_t n = te__h_min(nb, a->n - n0);
		struct panel b = panel(&ob, n0, n, b_t, bbuf);

		for (int64_t m0 = 0; m0 < a->m; m0 += mb) {
			int64_t m = te__h_min(mb, a->m - m0);

			multiply(m, n, a->k, panel(&oa, m0, m, a->a_t, abuf), b, acc);
			for (int64_t i = 0; i < m; i++)
				epilogue(a, s, (m0 + i) * a->n + n0, n0, n, acc + i * n);
		}
	}
}
