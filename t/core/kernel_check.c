/* t/core/kernel_check.c - see kernel_check.h. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <te/errno.h>
#include <te/stream.h>

#include "kernel_check.h"
#include "tt_ctx.h"

#define GUARD 256 /* bytes on both sides, and in front up to ODD more */
#define ODD 16
#define MAX_ARRAYS 64

struct array {
	int32_t dtype;
	int64_t n;
	size_t nbytes; /* without guards */
	size_t guard;  /* bytes in front */
	char *host;    /* guards included, as the next two */
	char *device;
	char *got;
	char *was;	    /* before the launch */
	unsigned char *use; /* a bit for each access that te_k_ptr.def has of the byte */
	enum te_k_id *part; /* the kernel that wrote the byte as a PART, or TE_K_COUNT */
	int deferred;
};

static int exact; /* the backend is the reference itself */
static int odd;
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
	kc_odd(0);
	tt_teardown();
}

static size_t whole(const struct array *a)
{
	return a->nbytes + a->guard + GUARD;
}

void kc_odd(int on)
{
	odd = on;
}

int kc_is_odd(void)
{
	return odd;
}

void kc_reset(void)
{
	for (int i = 0; i < narrays; i++) {
		free(arrays[i].host);
		free(arrays[i].got);
		free(arrays[i].was);
		free(arrays[i].use);
		free(arrays[i].part);
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
	if (odd && dtype != TE_DTYPE_UINT8) {
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

/* the array that p points into or just behind */
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
	switch (id) {
#define TE_K(ID, name, module, host) \
	case TE_K_##ID:              \
		te__h_##host(args);  \
		break;
#include "kernels/te_k.def"
#undef TE_K
	default:
		ck_abort_msg("no kernel of id %d", (int)id);
	}
}

/* pointers lie in aligned words; nothing else in an argument struct looks like one of these */
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
 * ---- te_k_ptr.def ----
 *
 * The reference function gets what it says the launch does not read with all bits turned: a
 * result that depends on it is another one than the device's.
 */

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
		for (size_t i = 0; i < r.v[k].nbytes; i++)
			a->use[at + i] |= (unsigned char)(1 << r.v[k].access);
	}
}

/* parts are not read either; but only the same kernel tells which bytes of them it wrote */
static int is_turned(unsigned char use)
{
	return !use || (exact && use == 1 << TE__PART);
}

static void unused_turn(void)
{
	for (int i = 0; i < narrays; i++)
		for (size_t k = 0; k < whole(&arrays[i]); k++)
			if (is_turned(arrays[i].use[k]))
				arrays[i].host[k] = (char)~arrays[i].host[k];
}

static void part_wrote(enum te_k_id id, struct array *a, int at, size_t k)
{
	if (!a->part) {
		a->part = malloc(whole(a) * sizeof(*a->part));
		ck_assert_ptr_nonnull(a->part);
		for (size_t i = 0; i < whole(a); i++)
			a->part[i] = TE_K_COUNT;
	}
	if (a->part[k] != TE_K_COUNT && a->part[k] != id)
		ck_abort_msg("array %d: byte %zu is of the parts of both %s and %s", at,
			     k - a->guard, te__k_name(a->part[k]), te__k_name(id));
	a->part[k] = id;
}

/* after the reference: what was turned is turned back */
static void uses_check(enum te_k_id id)
{
	for (int i = 0; i < narrays; i++) {
		struct array *a = &arrays[i];

		for (size_t k = 0; k < whole(a); k++) {
			const int turned = is_turned(a->use[k]);
			const char as = (char)(turned ? ~a->was[k] : a->was[k]);

			if (turned && a->host[k] == as && a->got[k] == a->was[k])
				a->host[k] = a->was[k];
			else if (a->use[k] & 1 << TE__PART && a->host[k] != as)
				part_wrote(id, a, i, k);
			else if (!(a->use[k] & ~(1 << TE__READ)) &&
				 (a->host[k] != as || a->got[k] != a->was[k]))
				ck_abort_msg("%s: array %d: byte %lld of %zu is written, which "
					     "te_k_ptr.def does not say",
					     te__k_name(id), i, (long long)k - a->guard, a->nbytes);
			if (exact && a->host[k] != a->got[k])
				ck_abort_msg("%s: array %d: byte %lld of %zu depends on what "
					     "te_k_ptr.def says is not read",
					     te__k_name(id), i, (long long)k - a->guard, a->nbytes);
		}
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
	unused_turn();
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
	if (got == want || fabs(got - want) <= tol)
		return; /* an assertion that holds writes to a pipe each time */
	ck_abort_msg("array %d: element %lld of %lld: got %.9g, want %.9g, off %.3g, bound %.3g",
		     (int)(a - arrays), (long long)i, (long long)a->n, got, want, fabs(got - want),
		     tol);
}

/* ---- quantized side outputs ---- */

struct te_k_q kc_q(int32_t qdtype, int64_t n, float scale, const float *noop)
{
	return (struct te_k_q){ kc_poison(qdtype, n),
				kc_poison(qdtype, n),
				kc_word(scale),
				kc_word(-1.0f),
				kc_word(0.0f),
				noop,
				qdtype,
				0 };
}

void kc_defer_q(const struct te_k_q *q)
{
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

void kc_check_q(const struct te_k_q *q, int32_t dtype, const void *y, int64_t rows, int64_t cols)
{
	const uint8_t *row = q->row ? kc_got(q->row) : NULL, *col = q->col ? kc_got(q->col) : NULL;
	float amax = 0.0f;

	if (!q->scale)
		return; /* none was asked for */
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
