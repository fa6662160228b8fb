/*
 * gemm.c - the matrix product of the host backend: FP32 panels, a BLAS or plain loops
 * over them, and the epilogue.
 *
 * Loops: each element is summed in FP32 by ascending k, one rounding a product and one
 * a sum. BLAS: the order is the library's own. Blocks split rows and columns of D, never
 * k, so an element's sum does not depend on them in the loops.
 */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#ifdef HAVE_CBLAS
#include <cblas.h>
#endif

#include "libtecore/host/host.h"
#include "libtecore/internal.h"

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

/* memory of the thread, that grows and goes with it */
static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;

struct scratch {
	size_t nelems;
	float *p;
};

static void scratch_free(void *arg)
{
	struct scratch *s = arg;

	te__free(s->p);
	te__free(s);
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
		s = te__calloc(1, sizeof(*s));
		if (!s || pthread_setspecific(scratch_key, s)) {
			te__free(s);
			return NULL;
		}
	}
	if (s->nelems < nelems) {
		te__free(s->p);
		s->nelems = 0;
		s->p = te__aligned_alloc(64, nelems * sizeof(float));
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

/*
 * Rows r0 .. r0 + nr - 1 of the operand x [rows, k], stored [k, rows] when t: in place where it
 * is FP32 and lies as wanted, else decoded into buf.
 */
static struct panel panel(int32_t dtype, const void *x, int t, int64_t rows, int64_t k,
			  int64_t r0, int64_t nr, int want_t, float *buf)
{
	int64_t n = t ? nr : k; /* of a stored row */
	float tmp[TE__H_CHUNK];

	if (dtype == TE_DTYPE_FP32 && t == want_t)
		return (struct panel){ (const float *)x + (t ? r0 : r0 * k), t ? rows : k, t };
	for (int64_t i = 0; i < (t ? k : nr); i++) {
		int64_t off = t ? i * rows + r0 : (r0 + i) * k;

		if (t == want_t) {
			load(dtype, x, off, n, buf + i * n);
			continue;
		}
		TE__H_CHUNKS(c, len, n) {
			load(dtype, x, off + c, len, tmp);
			for (int64_t j = 0; j < len; j++)
				buf[(c + j) * (t ? k : nr) + i] = tmp[j];
		}
	}
	return (struct panel){ buf, want_t ? nr : k, want_t };
}

/* c [m, n] = a b^T; b lies [k, n], so that the inner loop is over neighbours */
static void product_ref(int64_t m, int64_t n, int64_t k, struct panel a, struct panel b,
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

static void product(int64_t m, int64_t n, int64_t k, struct panel a, struct panel b, float *c)
{
#ifdef HAVE_CBLAS
	if (use_blas()) {
		cblas_sgemm(CblasRowMajor, a.t ? CblasTrans : CblasNoTrans,
			    b.t ? CblasNoTrans : CblasTrans, (int)m, (int)n, (int)k, 1.0f, a.p,
			    (int)a.ld, b.p, (int)b.ld, 0.0f, c, (int)n);
		return;
	}
#endif
	product_ref(m, n, k, a, b, c);
}

/* d = s * acc + beta * c + bias, each operation rounded, then D's rounding */
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
	float s = a->alpha * (a->sa ? *a->sa : 1.0f) * (a->sb ? *a->sb : 1.0f);
	int64_t mb = block(a->m, a->k), nb = block(a->n, a->k);
	float *abuf = scratch((size_t)((mb + nb) * a->k + mb * nb));
	int b_t = use_blas() ? a->b_t : 1;
	float *bbuf, *acc;

	if (!abuf) {
		te__k_fail(te__fail(-ENOMEM, "no memory for the panels of a %lld x %lld x %lld "
				    "product", (long long)a->m, (long long)a->n, (long long)a->k));
		return;
	}
	bbuf = abuf + mb * a->k;
	acc = bbuf + nb * a->k;
	for (int64_t n0 = 0; n0 < a->n; n0 += nb) {
		int64_t n = te__h_min(nb, a->n - n0);
		struct panel b = panel(a->bdtype, a->b, a->b_t, a->n, a->k, n0, n, b_t, bbuf);

		for (int64_t m0 = 0; m0 < a->m; m0 += mb) {
			int64_t m = te__h_min(mb, a->m - m0);

			product(m, n, a->k,
				panel(a->adtype, a->a, a->a_t, a->m, a->k, m0, m, a->a_t, abuf), b,
				acc);
			for (int64_t i = 0; i < m; i++)
				epilogue(a, s, (m0 + i) * a->n + n0, n0, n, acc + i * n);
		}
	}
}
