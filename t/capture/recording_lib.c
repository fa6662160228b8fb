/* t/capture/recording_lib.c - see recording_lib.h. */
#include "config.h"

#include <te/capture.h>
#include <te/dtype.h>

#include "libtecore/tensor/ctx.h"
#include "libtecore/backend/cuda/driver.h"
#include "recording_lib.h"
#include "tt_gate.h"

int is_host;
struct te_stream *a, *b;

static void *owned[32];
static int owned_pinned[32], nowned;

void rec_setup(void)
{
	is_host = !strcmp(backend, "host");
	nowned = 0;
	tt_setup();
	DO(te_stream_create(ctx, &a));
	DO(te_stream_create(ctx, &b));
}

void rec_teardown(void)
{
	tt_gate_open();
	DO(te_stream_sync(a));
	DO(te_stream_sync(b));
	while (nowned--)
		DO(owned_pinned[nowned] ? te_pinned_free(ctx, owned[nowned]) :
					  te_mem_free(a, owned[nowned]));
	te_stream_unref(b);
	te_stream_unref(a);
	tt_teardown();
}

static void *keep(void *p, int pinned)
{
	ck_assert_int_lt(nowned, (int)TT_LEN(owned));
	owned_pinned[nowned] = pinned;
	owned[nowned++] = p;
	return p;
}

void *rec_pinned(size_t nbytes)
{
	void *p;

	DO(te_pinned_alloc(ctx, nbytes, &p));
	return keep(p, 1);
}

void rec_put(void *dst, const void *src, size_t nbytes)
{
	DO(te_copy(a, dst, src, nbytes));
	DO(te_stream_sync(a));
}

unsigned char *rec_device(size_t nbytes)
{
	unsigned char *p, *host = malloc(nbytes + 2 * PAD);
	void *d;

	DO(te_mem_alloc(a, nbytes + 2 * PAD, &d));
	p = keep(d, 0);
	tt_poison(host, nbytes + 2 * PAD);
	rec_put(p, host, nbytes + 2 * PAD);
	free(host);
	return p + PAD;
}

float *rec_floats(size_t n)
{
	float *x = malloc(n * sizeof(*x)), *d = (float *)rec_device(n * sizeof(*x));

	tt_fill_normal(x, n, 1);
	rec_put(d, x, n * sizeof(*x));
	free(x);
	return d;
}

void rec_check(const void *p, const void *want, size_t n, const char *what)
{
	unsigned char *got = malloc(n + 2 * PAD);
	size_t i = 0;

	rec_put(got, (const unsigned char *)p - PAD, n + 2 * PAD);
	while (i < n && got[PAD + i] == ((const unsigned char *)want)[i])
		i++;
	ck_assert_msg(i == n, "%s: byte %zu of %zu is 0x%x, not 0x%x", what, i, n, got[PAD + i],
		      ((const unsigned char *)want)[i]);
	ck_assert_msg(tt_is_poison(got, PAD), "%s: written before its beginning", what);
	ck_assert_msg(tt_is_poison(got + PAD + n, PAD), "%s: written after its end", what);
	free(got);
}

void rec_check_filled(const void *p, int value, size_t n, const char *what)
{
	unsigned char *want = malloc(n);

	memset(want, value, n);
	rec_check(p, want, n, what);
	free(want);
}

void rec_check_part(const void *p, int value, size_t n, const char *what)
{
	unsigned char *got = malloc(n);

	rec_put(got, p, n);
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(got[i] == value, "%s: byte %zu of %zu is 0x%x, not 0x%x", what, i, n,
			      got[i], value);
	free(got);
}

void rec_check_untouched(const void *p, size_t n, const char *what)
{
	unsigned char *want = malloc(n);

	tt_poison(want, n);
	rec_check(p, want, n, what);
	free(want);
}

void rec_check_sum(const float *y, const float *x, const float *z, size_t n, const char *what)
{
	float *h = malloc(3 * n * sizeof(*h));

	rec_put(h, x, n * sizeof(*h));
	rec_put(h + n, z, n * sizeof(*h));
	for (size_t i = 0; i < n; i++)
		h[2 * n + i] = h[i] + h[n + i];
	rec_check(y, h + 2 * n, n * sizeof(*h), what);
	free(h);
}

int rec_add(struct te_stream *s, const float *x, const float *z, float *y, size_t n)
{
	struct te_k_add k = { x, z, y, (int64_t)n, TE_DTYPE_FP32, 0 };

	return TE__LAUNCH(s, ADD, &k);
}

void rec_nothing(void *arg)
{
}

struct te_recording_info rec_info(const struct te_recording *rec)
{
	struct te_recording_info i = TE_RECORDING_INFO_INIT;

	DO(te_recording_info(rec, &i));
	return i;
}

struct te_node_info rec_node(const struct te_recording *rec, uint64_t index)
{
	struct te_node_info n = TE_NODE_INFO_INIT;

	DO(te_recording_node(rec, index, &n));
	return n;
}

int32_t rec_binding(struct te_recording *rec, const void *p, size_t n, int nuses, int patchable)
{
	struct te_binding_info i = TE_BINDING_INFO_INIT;
	int32_t s = te_recording_binding(rec, p, n, &i);

	ck_assert_msg(s >= 0, "%s", te_error_detail());
	ck_assert_int_eq(i.nuses, nuses);
	ck_assert_int_eq(i.patchable, patchable);
	return s;
}

int rec_rebind(struct te_recording *rec, int32_t s, void *p)
{
	return te_recording_rebind(rec, 1, &s, &p);
}

void rec_launch(struct te_recording *rec)
{
	DO(te_recording_launch(rec, a));
	DO(te_stream_sync(a));
}

static int apart(const float *x, const float *y, size_t n)
{
	return x >= y + n || y >= x + n;
}

struct work rec_some_work(float *d, size_t n)
{
	struct work w = { .n = 4 * (size_t)tt_rand_int(1, (int64_t)n / 16) };
	float **p[] = { &w.dst, &w.x, &w.z };

	for (int k = 0; k < 3; k++)
		*p[k] = d + 4 * tt_rand_int(0, (int64_t)(n - w.n) / 4);
	/* a source equals dst or does not overlap it: the order of elements does not matter */
	w.x = apart(w.x, w.dst, w.n) ? w.x : w.dst;
	w.z = apart(w.z, w.dst, w.n) ? w.z : w.dst;
	w.value = 0x3f800000u + (uint32_t)tt_rand_int(0, 1 << 23);
	w.kind = tt_rand_int(0, 3) || w.x == w.dst ? TE_NODE_KERNEL : TE_NODE_COPY;
	if (!tt_rand_int(0, 7))
		w.kind = TE_NODE_FILL;
	return w;
}

void rec_queue_work(const struct work *w, int n)
{
	for (; n--; w++)
		switch (w->kind) {
		case TE_NODE_FILL:
			DO(te_fill_u32(a, w->dst, w->value, w->n));
			break;
		case TE_NODE_COPY:
			DO(te_copy(a, w->dst, w->x, w->n * sizeof(float)));
			break;
		default:
			DO(rec_add(a, w->x, w->z, w->dst, w->n));
		}
}

struct te_recording *rec_filler(unsigned char *d, uint8_t value, size_t n)
{
	struct te_recording *rec;

	DO(te_capture_begin(a));
	DO(te_fill(a, d, value, n));
	DO(te_capture_end(a, &rec));
	return rec;
}

void rec_enter(void)
{
	void *cu;

	ck_assert_int_eq(te__cu.cuDevicePrimaryCtxRetain(&cu, 0), 0);
	ck_assert_int_eq(te__cu.cuCtxPushCurrent(cu), 0);
}

void rec_leave(void)
{
	void *cu;

	ck_assert_int_eq(te__cu.cuCtxPopCurrent(&cu), 0);
	ck_assert_int_eq(te__cu.cuDevicePrimaryCtxRelease(0), 0);
}
