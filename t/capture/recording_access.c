/*
 * t/capture/recording_access.c - te_capture_access(3): user-defined work with declared memory. On
 * the host it is a host call, on a GPU a kernel that the test launches itself.
 */
#include "config.h"

#include <te/capture.h>
#include <te/errno.h>

#include "libtecore/backend/cuda/driver.h"
#include "libtecore/backend/host/host.h"
#include "libtecore/tensor/ctx.h"
#include "recording_lib.h"

#define N 500

/* z = x + y, n floats; also what the kernel's parameters look like */
struct sum {
	const float *x, *y;
	float *z;
	uint32_t n;
};

static const char ptx[] =
	".version 8.0\n.target sm_90\n.address_size 64\n"
	".visible .entry sum(.param .u64 x, .param .u64 y, .param .u64 z, .param .u32 n)\n{\n"
	".reg .pred %p; .reg .b32 %r<5>; .reg .f32 %f<3>; .reg .b64 %d<4>;\n"
	"mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;\n"
	"mad.lo.u32 %r3, %r0, %r1, %r2;\n"
	"ld.param.u32 %r4, [n]; setp.ge.u32 %p, %r3, %r4; @%p ret;\n"
	"mul.wide.u32 %d3, %r3, 4;\n"
	"ld.param.u64 %d0, [x]; add.u64 %d0, %d0, %d3; ld.global.f32 %f0, [%d0];\n"
	"ld.param.u64 %d1, [y]; add.u64 %d1, %d1, %d3; ld.global.f32 %f1, [%d1];\n"
	"add.rn.f32 %f2, %f0, %f1;\n"
	"ld.param.u64 %d2, [z]; add.u64 %d2, %d2, %d3; st.global.f32 [%d2], %f2;\n"
	"ret;\n}\n";

static void *module, *func;

static void load(void)
{
	rec_setup();
	if (is_host)
		return;
	rec_enter();
	ck_assert_int_eq(te__cu.cuModuleLoadData(&module, ptx), 0);
	ck_assert_int_eq(te__cu.cuModuleEnumerateFunctions(&func, 1, module), 0);
	rec_leave();
}

static void unload(void)
{
	if (!is_host) {
		rec_enter();
		ck_assert_int_eq(te__cu.cuModuleUnload(module), 0);
		rec_leave();
	}
	rec_teardown();
}

static void sum_host(void *arg)
{
	const struct sum *s = arg;

	for (uint32_t i = 0; i < s->n; i++)
		s->z[i] = s->x[i] + s->y[i];
}

/* 0, or what te_host_call returned */
static int queue(struct te_stream *s, const float *x, const float *y, float *z)
{
	struct sum arg = { x, y, z, N };
	void *param[] = { &arg.x, &arg.y, &arg.z, &arg.n };
	struct te__cu_launch_config c = {
		.grid = { (N + 127) / 128, 1, 1 },
		.block = { 128, 1, 1 },
		.stream = te_stream_native(s),
	};

	if (is_host)
		return te_host_call(s, sum_host, &arg, sizeof(arg));
	rec_enter();
	ck_assert_int_eq(te__cu.cuLaunchKernelEx(&c, func, param, NULL), 0);
	rec_leave();
	return 0;
}

static struct te_access range(const float *p, uint32_t flags, int32_t at)
{
	return (struct te_access){ p, N * sizeof(float), flags, at };
}

/* declared; places: with the places of the pointers */
static void queue_declared(struct te_stream *s, const float *x, const float *y, float *z,
			   int places)
{
	const struct te_access access[] = {
		range(x, 0, places ? (int32_t)offsetof(struct sum, x) : -1),
		range(y, 0, places ? (int32_t)offsetof(struct sum, y) : -1),
		range(z, TE_ACCESS_WRITE, places ? (int32_t)offsetof(struct sum, z) : -1),
	};

	DO(te_capture_access(s, 3, access));
	DO(queue(s, x, y, z));
	DO(te_capture_access_end(s));
}

static void begin(void)
{
	DO(te_capture_begin(a));
	DO(te_capture_edges(a, TE_CAPTURE_CONCURRENT));
}

static struct te_recording *end(void)
{
	struct te_recording *rec;

	DO(te_capture_end(a, &rec));
	return rec;
}

/* ---- edges ---- */

static int depends(const struct te_recording *rec, uint64_t node, uint64_t on)
{
	uint64_t dep[16];
	int n = te_recording_deps(rec, node, 16, dep);

	ck_assert_int_le(n, 16);
	for (int i = 0; i < n; i++)
		if (dep[i] == on || depends(rec, dep[i], on))
			return 1;
	return 0;
}

/* node: 0 fills x, 1 adds x and y to z, 2 fills w, 3 adds z and y to v, 4 fills x again */
static const struct {
	int declared;
	int edge[5][5]; /* row depends on column, directly or not */
} graphs[] = {
	{ 0, { { 0 }, { 1 }, { 1, 1 }, { 1, 1, 1 }, { 1, 1, 1, 1 } } },
	{ 1, { { 0 }, { 1 }, { 0 }, { 1, 1 }, { 1, 1 } } },
};

CASE(access, "backend", .setup = load, .teardown = unload);

TEST_EACH(access, edges_are_those_of_the_declaration, TT_LEN(graphs))
{
	float *x = rec_floats(N), *y = rec_floats(N), *z = rec_floats(N), *w = rec_floats(N);
	float *v = rec_floats(N);
	struct te_recording *rec;
	uint64_t base;

	begin();
	DO(te_fill(a, x, 1, N * sizeof(*x)));
	if (graphs[_i].declared)
		queue_declared(a, x, y, z, 0);
	else
		DO(queue(a, x, y, z));
	DO(te_fill(a, w, 2, N * sizeof(*w)));
	if (graphs[_i].declared)
		queue_declared(a, z, y, v, 0);
	else
		DO(queue(a, z, y, v));
	DO(te_fill(a, x, 3, N * sizeof(*x)));
	rec = end();
	base = rec_info(rec).nnodes - 5; /* on a GPU a node before those without dependencies */
	ck_assert_uint_le(base, !is_host);
	for (uint64_t i = 0; i < 5; i++)
		for (uint64_t k = 0; k < i; k++)
			ck_assert_msg(depends(rec, base + i, base + k) == graphs[_i].edge[i][k],
				      "%d on %d", (int)i, (int)k);
	te_recording_unref(rec);
}

/* several calls of one declaration run in their order, each with all of its memory */
TEST(access, a_declaration_holds_for_all_that_is_queued)
{
	float *x = rec_floats(N), *y = rec_floats(N), *z = rec_floats(N), *w = rec_floats(N);
	const struct te_access access[] = { range(x, 0, -1), range(y, 0, -1),
					    range(z, TE_ACCESS_WRITE, -1) };
	struct te_recording *rec;
	uint64_t base;

	begin();
	DO(te_fill(a, w, 2, N * sizeof(*w)));
	DO(te_capture_access(a, 3, access));
	DO(queue(a, x, y, z));
	DO(queue(a, z, y, z));
	DO(te_fill(a, y, 1, 4)); /* the library's: its own memory */
	DO(queue(a, z, x, z));
	DO(te_capture_access_end(a));
	DO(te_fill(a, w + 8, 3, 4));
	rec = end();
	base = rec_info(rec).nnodes - 6;
	ck_assert(!depends(rec, base + 1, base) && depends(rec, base + 2, base + 1));
	ck_assert(depends(rec, base + 3, base + 2) && depends(rec, base + 4, base + 2));
	ck_assert(!depends(rec, base + 3, base) && !depends(rec, base + 4, base));
	ck_assert(depends(rec, base + 5, base) && !depends(rec, base + 5, base + 4));
	te_recording_unref(rec);
}

TEST(access, an_event_comes_after_what_is_declared)
{
	float *x = rec_floats(N), *w = rec_floats(N);
	const struct te_access first = range(x, 0, -1), second = range(w, 0, -1);
	struct te_event *e[2];
	struct te_recording *rec;
	uint64_t base;
	double ms;

	for (int i = 0; i < 2; i++)
		DO(te_event_create(ctx, &e[i]));
	begin();
	DO(te_fill(a, x, 1, N * sizeof(*x)));
	DO(te_fill(a, w, 2, N * sizeof(*w)));
	DO(te_capture_access(a, 1, &first));
	DO(te_event_record_external(e[0], a));
	DO(te_capture_access_end(a));
	DO(te_capture_access(a, 1, &second));
	DO(te_event_record_external(e[1], a));
	DO(te_capture_access_end(a));
	DO(te_fill(a, x, 3, N * sizeof(*x)));
	rec = end();
	base = rec_info(rec).nnodes - 5;
	ck_assert(depends(rec, base + 2, base) && !depends(rec, base + 2, base + 1));
	ck_assert(depends(rec, base + 3, base + 1) && !depends(rec, base + 3, base + 2));
	ck_assert(depends(rec, base + 4, base + 2) && !depends(rec, base + 4, base + 3));
	DO(te_recording_launch(rec, a));
	DO(te_stream_sync(a));
	/* the two are recorded by the launch, in either order */
	DO(te_event_elapsed_ms(e[0], e[1], &ms));
	ck_assert(ms > -1e4 && ms < 1e4);
	te_recording_unref(rec);
	for (int i = 0; i < 2; i++)
		te_event_unref(e[i]);
}

/* work on no memory that others use */
TEST(access, nothing_may_be_declared)
{
	float *x = rec_floats(N);
	struct te_recording *rec;
	uint64_t base;

	begin();
	DO(te_fill(a, x, 2, N * sizeof(*x)));
	DO(te_capture_access(a, 0, NULL));
	DO(te_host_call(a, rec_nothing, NULL, 0));
	DO(te_capture_access_end(a));
	DO(te_fill(a, x, 3, N * sizeof(*x)));
	rec = end();
	base = rec_info(rec).nnodes - 3;
	ck_assert(!depends(rec, base + 1, base) && !depends(rec, base + 2, base + 1));
	ck_assert(depends(rec, base + 2, base));
	rec_launch(rec);
	rec_check_filled(x, 3, N * sizeof(*x), "x");
	te_recording_unref(rec);
}

/* a declaration that is not ended holds to the end of the capture, not for the next one */
TEST(access, the_end_of_a_capture_ends_a_declaration)
{
	float *x = rec_floats(N), *y = rec_floats(N), *z = rec_floats(N);
	const struct te_access access[] = { range(x, 0, -1), range(y, 0, -1),
					    range(z, TE_ACCESS_WRITE, -1) };
	struct te_recording *rec;

	for (int k = 0; k < 2; k++) {
		begin();
		DO(te_fill(a, x, 2, 4));
		if (!k)
			DO(te_capture_access(a, 3, access));
		DO(queue(a, y, y, z));
		rec = end();
		ck_assert_int_eq(depends(rec, rec_info(rec).nnodes - 1, rec_info(rec).nnodes - 2),
				 1);
		/* undeclared: opaque on a GPU, and a host call has no uses */
		rec_binding(rec, z, N * sizeof(*z), !k, k && is_host);
		te_recording_unref(rec);
	}
}

/* ---- results ---- */

#define NBUFS 6
#define NSTEPS 24

/* random sums over a few buffers, some by the library; the results of running them in order */
TEST(access, random_schedules_give_the_results_of_the_order)
{
	float *d[NBUFS], *want[NBUFS], *start[NBUFS];
	const size_t nbytes = N * sizeof(float);

	for (int i = 0; i < NBUFS; i++) {
		d[i] = rec_floats(N);
		want[i] = malloc(nbytes);
		start[i] = malloc(nbytes);
		rec_put(start[i], d[i], nbytes);
	}
	for (uint64_t seed = 1; seed <= (uint64_t)(is_host ? TT_FEWER(100) : 20); seed++) {
		struct te_recording *rec;

		for (int i = 0; i < NBUFS; i++) {
			rec_put(d[i], start[i], nbytes);
			memcpy(want[i], start[i], nbytes);
		}
		if (is_host) /* a random order that respects the edges, on one thread */
			((struct host_stream *)a->impl)->dev->shuffle = seed % 2 ? seed : 0;
		begin();
		for (int k = 0; k < NSTEPS; k++) {
			const int x = (int)tt_rand_int(0, NBUFS - 1);
			const int y = (int)tt_rand_int(0, NBUFS - 1);
			const int z = (int)tt_rand_int(0, NBUFS - 1);

			if (tt_rand_int(0, 2) || z == x || z == y)
				queue_declared(a, d[x], d[y], d[z], 0);
			else
				DO(rec_add(a, d[x], d[y], d[z], N));
			for (int i = 0; i < N; i++)
				want[z][i] = want[x][i] + want[y][i];
		}
		rec = end();
		rec_launch(rec);
		for (int i = 0; i < NBUFS; i++)
			rec_check(d[i], want[i], nbytes, "a buffer");
		te_recording_unref(rec);
	}
	for (int i = 0; i < NBUFS; i++) {
		free(want[i]);
		free(start[i]);
	}
}

/* ---- rebinding ---- */

TEST_EACH(access, declared_pointers_are_rebound, 2)
{
	float *x = rec_floats(N), *y = rec_floats(N), *z = rec_floats(N), *x2 = rec_floats(N);
	float *z2 = (float *)rec_device(N * sizeof(float));
	float *z3 = (float *)rec_device(N * sizeof(float));
	struct te_recording *rec;
	int32_t bx, bz;
	void *first;

	if (_i)
		begin();
	else
		DO(te_capture_begin(a));
	queue_declared(a, x, y, z, 1);
	rec = end();
	bx = rec_binding(rec, x, N * sizeof(*x), 1, 1);
	bz = rec_binding(rec, z, N * sizeof(*z), 1, 1);
	rec_launch(rec);
	rec_check_sum(z, x, y, N, "z");
	DO(rec_rebind(rec, bz, z2));
	rec_launch(rec);
	rec_check_sum(z2, x, y, N, "other z");
	/* one after the other: each keeps what was bound before */
	DO(rec_rebind(rec, bx, x2));
	rec_put(z, y, N * sizeof(*z));
	DO(te_recording_launch(rec, a));
	DO(rec_rebind(rec, bz, z3)); /* the queued launch keeps its memory */
	DO(te_stream_sync(a));
	rec_check_sum(z2, x2, y, N, "other z of other x");
	rec_check_untouched(z3, N * sizeof(*z3), "the next z");
	DO(rec_rebind(rec, bx, x));
	rec_launch(rec);
	rec_check_sum(z3, x, y, N, "the next z");
	first = tt_bytes(y, N * sizeof(*y));
	rec_check(z, first, N * sizeof(*z), "the first z");
	free(first);
	te_recording_unref(rec);
}

/* an update in place has other parameters; then pointers are rebound in these */
TEST(access, updates_keep_what_can_be_rebound)
{
	float *x = rec_floats(N), *y = rec_floats(N), *z = rec_floats(N), *y2 = rec_floats(N);
	float *z2 = (float *)rec_device(N * sizeof(float));
	struct te_recording *rec;
	enum te_update how;

	begin();
	queue_declared(a, x, y, z, 1);
	rec = end();
	begin();
	queue_declared(a, x, y2, z, 1);
	DO(te_capture_update(a, rec, &how));
	ck_assert_int_eq(how, TE_UPDATE_IN_PLACE);
	rec_launch(rec);
	rec_check_sum(z, x, y2, N, "z");
	DO(rec_rebind(rec, rec_binding(rec, z, N * sizeof(*z), 1, 1), z2));
	rec_launch(rec);
	rec_check_sum(z2, x, y2, N, "other z");
	te_recording_unref(rec);
}

TEST(access, ranges_without_a_place_are_not_rebound)
{
	float *x = rec_floats(N), *y = rec_floats(N), *z = rec_floats(N), *z2 = rec_floats(N);
	struct te_recording *rec;
	int32_t b;

	begin();
	queue_declared(a, x, y, z, 0);
	rec = end();
	b = rec_binding(rec, z, N * sizeof(*z), 1, 0);
	ck_assert_int_eq(rec_rebind(rec, b, z2), -EOPNOTSUPP);
	tt_said(is_host ? "node 0 (host call) uses 2000 bytes at" :
			  "node 0 (kernel) uses 2000 bytes at");
	rec_launch(rec);
	rec_check_sum(z, x, y, N, "z");
	te_recording_unref(rec);
	/* a range that goes on after the memory */
	begin();
	queue_declared(a, x, y, z, 1);
	rec = end();
	b = rec_binding(rec, z, N * sizeof(*z) - 4, 1, 0);
	ck_assert_int_eq(rec_rebind(rec, b, z2), -EOPNOTSUPP);
	tt_said("of 2000 bytes) also accesses memory outside the 1996 bytes of the binding");
	te_recording_unref(rec);
}

/* concurrently with a declared node its memory cannot become that of another */
TEST(access, rebinding_checks_declared_memory)
{
	float *x = rec_floats(N), *y = rec_floats(N), *z = rec_floats(N), *w = rec_floats(N);
	struct te_recording *rec;
	int32_t b;

	begin();
	queue_declared(a, x, y, z, 1);
	DO(te_fill(a, w, 1, N * sizeof(*w)));
	rec = end();
	b = rec_binding(rec, w, N * sizeof(*w), 1, 1);
	ck_assert_int_eq(rec_rebind(rec, b, x), -EINVAL);
	tt_said("overlap memory that node");
	ck_assert_int_eq(rec_rebind(rec, b, z), -EINVAL);
	b = rec_binding(rec, z, N * sizeof(*z), 1, 1);
	ck_assert_int_eq(rec_rebind(rec, b, w), -EINVAL);
	te_recording_unref(rec);
}

/* ---- errors ---- */

TEST_EACH(access, a_wrong_place_is_found, 3)
{
	float *x = rec_floats(N), *y = rec_floats(N), *z = rec_floats(N);
	const int32_t at[] = { 8, 400, 24 };
	const struct te_access access = range(x, 0, at[_i]);
	struct te_recording *rec = NULL;
	int r;

	begin();
	DO(te_capture_access(a, 1, &access));
	r = queue(a, x, y, z);
	ck_assert_int_eq(r, is_host ? -EINVAL : 0);
	if (is_host)
		tt_said(at[_i] == 8   ? "declared range 0: byte 8 of the argument has" :
			at[_i] == 400 ? "would be at byte 400 of an argument of 32 bytes" :
					"declared range 0");
	ck_assert_int_eq(te_capture_end(a, &rec), -EINVAL);
	ck_assert_ptr_null(rec);
	/* the stream is usable */
	DO(queue(a, x, y, z));
	DO(te_stream_sync(a));
	rec_check_sum(z, x, y, N, "z");
}

TEST(access, bad_declarations_are_refused)
{
	float *x = rec_floats(N);
	struct te_access r[TE_ACCESS_MAX + 1], *w = &r[1];
	struct te_recording *rec;

	for (int i = 0; i <= TE_ACCESS_MAX; i++)
		r[i] = range(x, 0, -1);
	REFUSED(-EINVAL, te_capture_access, NULL, 1, r);
	REFUSED(-EINVAL, te_capture_access_end, NULL);
	/* outside a capture there is nothing to declare, but mistakes are found */
	DO(te_capture_access(a, 2, r));
	DO(te_capture_access(a, 2, r));
	DO(te_capture_access_end(a));
	DO(te_capture_access_end(a));
	fails(te_capture_access(a, -1, r), -EINVAL, "n is below 0");
	fails(te_capture_access(a, TE_ACCESS_MAX + 1, r), -EINVAL, "n is above 16");
	fails(te_capture_access(a, 1, NULL), -EINVAL, "access is NULL");
	w->ptr = NULL;
	fails(te_capture_access(a, 2, r), -EINVAL,
	      "range 1: (nil) is not the address of 2000 bytes");
	w->ptr = x;
	w->nbytes = 0;
	fails(te_capture_access(a, 2, r), -EINVAL, "range 1");
	w->nbytes = 4;
	w->flags = 2;
	fails(te_capture_access(a, 2, r), -EINVAL, "range 1: unknown flags 0x2");
	w->flags = 0;
	w->at = -2;
	fails(te_capture_access(a, 2, r), -EINVAL, "range 1: at is -2");
	w->at = -1;
	begin();
	fails(te_capture_access_end(a), -TE_ESTATE, "te_capture_access has not begun");
	DO(te_capture_access(a, TE_ACCESS_MAX, r));
	fails(te_capture_access(a, 1, r), -EBUSY, "has not ended the previous declaration");
	DO(te_capture_access_end(a));
	DO(te_fill(a, x, 1, 4));
	rec = end();
	te_recording_unref(rec);
}
