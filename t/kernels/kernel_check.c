/* t/kernels/kernel_check.c - see kernel_check.h. */
#include "config.h"

#include <math.h>

#include <te/errno.h>
#include <te/stream.h>

#include "kernel_check.h"
#include "kernels/optim/round.h"
#include "libtecore/base/dtype_inline.h"
#include "libtecore/tensor/ctx.h"
#include "tt_ctx.h"

#define GUARD 256 /* bytes before and after, and up to ODD more before */
#define ODD 16
#define MAX_ARRAYS 64

struct array {
	int32_t dtype;
	int64_t n;
	size_t nbytes; /* without guards */
	size_t guard;  /* bytes before */
	char *host;    /* with guards, as the next two */
	char *device;
	char *got;
	char *was;	    /* before the launch */
	unsigned char *use; /* one bit for each access of the byte in kernels.def */
	enum te_k_id *disjoint; /* the kernel that wrote the byte as DISJOINT, or TE_K_COUNT */
	int deferred;
};

static int exact; /* the backend runs the reference function */
static int unaligned;
static struct array arrays[MAX_ARRAYS];
static int narrays;

void kc_open(const char *on)
{
	backend = on;
	tt_setup();
	exact = !strcmp(backend, "host");
}

void kc_close(void)
{
	kc_reset();
	kc_unaligned(0);
	tt_teardown();
}

static size_t whole(const struct array *a)
{
	return a->nbytes + a->guard + GUARD;
}

void kc_unaligned(int on)
{
	unaligned = on;
}

uint64_t kc_block_smem(void)
{
	struct te_device_info info = TE_DEVICE_INFO_INIT;

	ck_assert_int_eq(te_ctx_device_info(ctx, &info), 0);
	return exact ? UINT64_MAX : info.block_smem_nbytes;
}

int kc_is_unaligned(void)
{
	return unaligned;
}

void kc_reset(void)
{
	for (int i = 0; i < narrays; i++) {
		free(arrays[i].host);
		free(arrays[i].got);
		free(arrays[i].was);
		free(arrays[i].use);
		free(arrays[i].disjoint);
		if (arrays[i].device)
			DO(te_mem_free(te_ctx_stream(ctx), arrays[i].device));
	}
	narrays = 0;
}

/* ---- arrays ---- */

void *kc_poison(int32_t dtype, int64_t n)
{
	struct array *a = &arrays[narrays++];
	size_t room;

	ck_assert_int_le(narrays, MAX_ARRAYS);
	*a = (struct array){ .dtype = dtype, .n = n, .guard = GUARD };
	a->nbytes = (size_t)n * te_dtype_nbytes((enum te_dtype)dtype);
	if (unaligned && dtype != TE_DTYPE_UINT8) {
		const size_t w = te_dtype_nbytes((enum te_dtype)dtype);

		a->guard += w * (size_t)tt_rand_int(0, (int64_t)(ODD / w) - 1);
	}
	room = (whole(a) + 255) / 256 * 256;
	a->host = aligned_alloc(256, room);
	a->got = malloc(room);
	a->was = malloc(room);
	a->use = malloc(room);
	ck_assert(a->host && a->got && a->was && a->use);
	tt_poison(a->host, room);
	DO(te_mem_alloc(te_ctx_stream(ctx), room, (void **)&a->device));
	return a->host + a->guard;
}

/* the array that p points into or to the end of */
static struct array *find(const void *p)
{
	for (int i = 0; i < narrays; i++) {
		const char *begin = arrays[i].host + arrays[i].guard;

		if ((const char *)p >= begin && (const char *)p <= begin + arrays[i].nbytes)
			return &arrays[i];
	}
	return NULL;
}

void *kc_normal(int32_t dtype, int64_t n, float scale)
{
	void *p = kc_poison(dtype, n);

	for (int64_t i = 0; i < n; i++)
		tt_set(dtype, p, i, scale * tt_rand_normal());
	return p;
}

void *kc_anything(int32_t dtype, int64_t n)
{
	void *p = kc_poison(dtype, n);

	for (int64_t i = 0; i < n; i++) {
		if (dtype == TE_DTYPE_FP32)
			tt_set(dtype, p, i, tt_rand_bits_f32());
		else
			((uint16_t *)p)[i] = (uint16_t)tt_rand_u64();
	}
	return p;
}

uint16_t *kc_split(const float *w, int64_t n, const uint16_t **ret_rest)
{
	uint16_t *upper = kc_poison(TE_DTYPE_BF16, n), *rest = kc_poison(TE_DTYPE_BF16, n);

	for (int64_t i = 0; i < n; i++) {
		upper[i] = (uint16_t)te_round_upper(w[i]);
		rest[i] = (uint16_t)te_round_lower(w[i]);
	}
	*ret_rest = rest;
	return upper;
}

float *kc_word(float x)
{
	float *p = kc_poison(TE_DTYPE_FP32, 1);

	*p = x;
	return p;
}

/* ---- running ---- */

void kc_defer(const void *p)
{
	if (p)
		find(p)->deferred = 1;
}

static void reference(enum te_k_id id, const void *args)
{
	te__k_fn *run = te__k_reference(id);

	ck_assert_msg(run != NULL, "no kernel of id %d", (int)id);
	run(args);
}

/* pointers are in aligned words; nothing else in an argument struct looks like one of them */
static void move_pointers(void *args, size_t nbytes)
{
	for (size_t i = 0; i + sizeof(void *) <= nbytes; i += sizeof(void *)) {
		const struct array *a;
		char *p;

		memcpy(&p, (char *)args + i, sizeof(p));
		a = p ? find(p) : NULL;
		if (!a)
			continue;
		p = a->device + (p - a->host);
		memcpy((char *)args + i, &p, sizeof(p));
	}
}

static void check_equal(enum te_k_id id, int at, const struct array *a)
{
	const char *got = a->got + a->guard, *want = a->host + a->guard;
	const size_t w = te_dtype_nbytes((enum te_dtype)a->dtype);

	if (!memcmp(got, want, a->nbytes))
		return;
	for (int64_t i = 0; i < a->n; i++) {
		const int real = a->dtype != TE_DTYPE_INT32 && a->dtype != TE_DTYPE_UINT8;

		if (!memcmp(got + (size_t)i * w, want + (size_t)i * w, w))
			continue;
		if (real && isnan(tt_get(a->dtype, got, i)) && isnan(tt_get(a->dtype, want, i)))
			continue;
		ck_abort_msg("%s: array %d: element %lld of %lld: got %.9g, want %.9g",
			     te__k_name(id), at, (long long)i, (long long)a->n,
			     real ? (double)tt_get(a->dtype, got, i) : NAN,
			     real ? (double)tt_get(a->dtype, want, i) : NAN);
	}
}

/*
 * ---- kernels.def ----
 *
 * For the reference function, all bits that the launch does not read according to kernels.def are
 * inverted: a result that depends on them differs from the device's.
 */

/* p = (p | set) ^ flip, of each byte; builds with sanitizers are slow at one by one */
static void change(void *p, size_t nbytes, unsigned char set, unsigned char flip)
{
	const uint64_t sets = set * UINT64_C(0x0101010101010101);
	const uint64_t flips = flip * UINT64_C(0x0101010101010101);
	unsigned char *b = p;
	size_t i = 0;
	uint64_t w;

	for (; i + sizeof(w) <= nbytes; i += sizeof(w)) {
		memcpy(&w, b + i, sizeof(w));
		w = (w | sets) ^ flips;
		memcpy(b + i, &w, sizeof(w));
	}
	for (; i < nbytes; i++)
		b[i] = (b[i] | set) ^ flip;
}

/* how many bytes from k on have the same use */
static size_t run_of(const struct array *a, size_t k)
{
	const size_t n = whole(a);
	size_t end = k + 1;
	uint64_t same, next;

	memset(&same, a->use[k], sizeof(same));
	for (; end + sizeof(next) <= n; end += sizeof(next)) {
		memcpy(&next, a->use + end, sizeof(next));
		if (next != same)
			break;
	}
	while (end < n && a->use[end] == a->use[k])
		end++;
	return end - k;
}

static void uses_note(enum te_k_id id, const void *args)
{
	struct te__ranges r;

	for (int i = 0; i < narrays; i++) {
		memset(arrays[i].use, 0, whole(&arrays[i]));
		memcpy(arrays[i].was, arrays[i].host, whole(&arrays[i]));
	}
	te__k_ranges(id, args, &r);
	for (uint32_t k = 0; k < r.n; k++) {
		struct array *a = find((const void *)r.v[k].ptr);
		const size_t at = a ? (size_t)(r.v[k].ptr - (uintptr_t)a->host) : 0;

		ck_assert_msg(a && at >= a->guard && at + r.v[k].nbytes <= a->guard + a->nbytes,
			      "%s: range %u, %llu bytes, reaches over its array's %zu",
			      te__k_name(id), k, (unsigned long long)r.v[k].nbytes,
			      a ? a->nbytes : 0);
		change(a->use + at, r.v[k].nbytes, (unsigned char)(1 << r.v[k].access), 0);
	}
}

/* DISJOINT bytes are not read either; which of them were written is known on the host only */
static int is_inverted(unsigned char use)
{
	return !use || (exact && use == 1 << TE__DISJOINT);
}

static void unused_invert(void)
{
	for (int i = 0; i < narrays; i++)
		for (size_t k = 0, n; k < whole(&arrays[i]); k += n) {
			n = run_of(&arrays[i], k);
			if (is_inverted(arrays[i].use[k]))
				change(arrays[i].host + k, n, 0, 0xff);
		}
}

static void disjoint_wrote(enum te_k_id id, struct array *a, int at, size_t k)
{
	if (!a->disjoint) {
		a->disjoint = malloc(whole(a) * sizeof(*a->disjoint));
		ck_assert_ptr_nonnull(a->disjoint);
		for (size_t i = 0; i < whole(a); i++)
			a->disjoint[i] = TE_K_COUNT;
	}
	if (a->disjoint[k] != TE_K_COUNT && a->disjoint[k] != id)
		ck_abort_msg("array %d: byte %zu is written by both %s and %s, as DISJOINT", at,
			     k - a->guard, te__k_name(a->disjoint[k]), te__k_name(id));
	a->disjoint[k] = id;
}

/* of a run: 1: as they are to be, and restored */
static int run_holds(struct array *a, size_t k, size_t n)
{
	const unsigned char use = a->use[k];
	char *host = a->host + k, *got = a->got + k;
	const char *was = a->was + k;

	if (use & ~(1 << TE__READ) && use != 1 << TE__DISJOINT)
		return !(use & 1 << TE__DISJOINT) && (!exact || !memcmp(host, got, n));
	if (is_inverted(use))
		change(host, n, 0, 0xff);
	if (!memcmp(host, was, n) && !memcmp(got, was, n))
		return 1;
	if (is_inverted(use))
		change(host, n, 0, 0xff);
	return 0;
}

static void byte_check(enum te_k_id id, int at, size_t k)
{
	struct array *a = &arrays[at];
	const int inverted = is_inverted(a->use[k]);
	const char as = (char)(inverted ? ~a->was[k] : a->was[k]);

	if (inverted && a->host[k] == as && a->got[k] == a->was[k])
		a->host[k] = a->was[k];
	else if (a->use[k] & 1 << TE__DISJOINT && a->host[k] != as)
		disjoint_wrote(id, a, at, k);
	else if (!(a->use[k] & ~(1 << TE__READ)) && (a->host[k] != as || a->got[k] != a->was[k]))
		ck_abort_msg("%s: array %d: byte %lld of %zu is written, which kernels.def does "
			     "not list", te__k_name(id), at, (long long)k - a->guard, a->nbytes);
	if (exact && a->host[k] != a->got[k])
		ck_abort_msg("%s: array %d: byte %lld of %zu depends on memory that kernels.def "
			     "does not list as read",
			     te__k_name(id), at, (long long)k - a->guard, a->nbytes);
}

/* after the reference: restore the inverted bytes, and check what was written */
static void uses_check(enum te_k_id id)
{
	for (int i = 0; i < narrays; i++)
		for (size_t k = 0, n; k < whole(&arrays[i]); k += n) {
			n = run_of(&arrays[i], k);
			if (run_holds(&arrays[i], k, n))
				continue;
			for (size_t m = 0; m < n; m++)
				byte_check(id, i, k + m);
		}
}

void kc_run(enum te_k_id id, const void *args, size_t nbytes)
{
	struct te_stream *stream = te_ctx_stream(ctx);
	char moved[1024];

	ck_assert_uint_eq(nbytes, te__k_nbytes(id));
	ck_assert_uint_le(nbytes, sizeof(moved));
	memcpy(moved, args, nbytes);
	move_pointers(moved, nbytes);
	for (int i = 0; i < narrays; i++)
		DO(te_copy(stream, arrays[i].device, arrays[i].host, whole(&arrays[i])));
	DO(te__launch_k(stream, id, moved, nbytes));
	for (int i = 0; i < narrays; i++)
		DO(te_copy(stream, arrays[i].got, arrays[i].device, whole(&arrays[i])));
	DO(te_stream_sync(stream));
	uses_note(id, args);
	unused_invert();
	reference(id, args);
	uses_check(id);
	for (int i = 0; i < narrays; i++) {
		struct array *a = &arrays[i];

		if (!a->deferred)
			check_equal(id, i, a);
		a->deferred = 0;
	}
}

const void *kc_got(const void *p)
{
	const struct array *a = find(p);

	return a->got + ((const char *)p - a->host);
}

void kc_near(const void *p, int64_t i, double tol)
{
	const struct array *a = find(p);
	const double got = tt_get(a->dtype, kc_got(p), i), want = tt_get(a->dtype, p, i);

	if (isnan(got) && isnan(want))
		return;
	if (exact)
		tol = 0.0;
	ck_assert_msg(got == want || fabs(got - want) <= tol,
		      "array %d: element %lld of %lld: got %.9g, want %.9g, off %.3g, bound %.3g",
		      (int)(a - arrays), (long long)i, (long long)a->n, got, want,
		      fabs(got - want), tol);
}

/* ---- quantized side outputs ---- */

struct te_k_q kc_q(int32_t qdtype, int64_t n, float scale, const float *noop)
{
	/* two codes a byte */
	const int32_t stored = qdtype == TE_DTYPE_E2M1 ? TE_DTYPE_UINT8 : qdtype;
	const int64_t nbytes = qdtype == TE_DTYPE_E2M1 ? n / 2 : n;

	return (struct te_k_q){
		.row = kc_poison(stored, nbytes),
		.col = kc_poison(stored, nbytes),
		.scale = kc_word(scale),
		.scale_inv = kc_word(-1.0f),
		.amax = kc_word(0.0f),
		.noop = noop,
		.dtype = qdtype,
	};
}

struct te_k_q kc_q_blocks(int32_t qdtype, int32_t scaling, int64_t rows, int64_t cols,
			  const float *noop)
{
	struct te_k_q q = kc_q(qdtype, rows * cols, 1.0f, noop);

	if (scaling == TE_K_SCALING_TENSOR)
		return q;
	q.scaling = scaling;
	q.scale_inv = kc_poison(TE_DTYPE_FP32, te_k_scale_nfloats(scaling, rows, cols));
	q.col_scale_inv = kc_poison(TE_DTYPE_FP32, te_k_scale_nfloats(scaling, cols, rows));
	q.pow2 = tt_rand_int(0, 1) != 0;
	q.epsilon = tt_rand_int(0, 2) ? 0.0f : tt_rand_float(0.0f, 2.0f);
	return q;
}

void kc_defer_q(const struct te_k_q *q)
{
	if (q->scaling != TE_K_SCALING_TENSOR) {
		kc_defer(q->row ? q->scale_inv : NULL);
		kc_defer(q->col ? q->col_scale_inv : NULL);
	}
	kc_defer(q->row);
	kc_defer(q->col);
	kc_defer(q->amax);
}

static void check_code(const struct te_k_q *q, const uint8_t *codes, int64_t i, float v,
		       uint8_t code)
{
	if (!codes || codes[i] == code || (isnan(v) && isnan(tt_get(q->dtype, codes, i))))
		return;
	ck_abort_msg("%s code %lld: got %02x, want %02x of %.9g",
		     q->row && codes == kc_got(q->row) ? "row" : "column", (long long)i, codes[i],
		     code, (double)v);
}

static void check_words(const char *what, const float *got, const float *want, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (te__f32_bits(got[i]) != te__f32_bits(want[i]))
			ck_abort_msg("%s %lld of %lld: got %.9g, want %.9g", what, (long long)i,
				     (long long)n, (double)got[i], (double)want[i]);
}

/* by te__h_quantize, which t/kernels/host_kernels_block.c compares with golden data */
static void check_blocks(const struct te_k_q *q, int32_t dtype, const void *y, int64_t rows,
			 int64_t cols)
{
	const int64_t n = rows * cols, nrow = te_k_scale_nfloats(q->scaling, rows, cols);
	const int64_t ncol = te_k_scale_nfloats(q->scaling, cols, rows);
	struct te_k_quantize k = { y, rows, cols, *q, dtype, 0, 0, 0, 0 };
	uint8_t *codes = malloc((size_t)(2 * n));
	float *scales = malloc((size_t)(nrow + ncol) * sizeof(*scales));

	ck_assert(codes && scales);
	k.q.row = q->row ? codes : NULL;
	k.q.col = q->col ? codes + n : NULL;
	k.q.scale_inv = scales;
	k.q.col_scale_inv = scales + nrow;
	k.q.noop = NULL;
	te__h_quantize(&k);
	for (int64_t i = 0; i < n; i++) {
		if (q->row)
			check_code(q, kc_got(q->row), i, tt_get(q->dtype, codes, i), codes[i]);
		if (q->col)
			check_code(q, kc_got(q->col), i, tt_get(q->dtype, codes + n, i),
				   codes[n + i]);
	}
	if (q->row)
		check_words("scale_inv", kc_got(q->scale_inv), scales, nrow);
	if (q->col)
		check_words("col_scale_inv", kc_got(q->col_scale_inv), scales + nrow, ncol);
	free(codes);
	free(scales);
}

void kc_check_q(const struct te_k_q *q, int32_t dtype, const void *y, int64_t rows, int64_t cols)
{
	const uint8_t *row = q->row ? kc_got(q->row) : NULL, *col = q->col ? kc_got(q->col) : NULL;
	float amax = 0.0f;

	if (!q->scale)
		return; /* not requested */
	if (q->scaling != TE_K_SCALING_TENSOR) {
		check_blocks(q, dtype, y, rows, cols);
		return;
	}
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			const float v = tt_get(dtype, y, r * cols + c);
			const uint8_t code = te_fp8_encode((enum te_dtype)q->dtype, v * *q->scale);

			check_code(q, row, r * cols + c, v, code);
			check_code(q, col, c * rows + r, v, code);
			/* ignores NaN */
			amax = fmaxf(amax, fabsf(v));
		}
	if (q->amax)
		ck_assert_float_eq(*(const float *)kc_got(q->amax), amax);
}
