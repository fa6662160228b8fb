/*
 * t/core/recording_cases.c - nodes, edges, updates, slots and external events of recordings.
 */
#include "config.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <te/ctx.h>
#include <te/dtype.h>
#include <te/errno.h>
#include <te/gemm.h>
#include <te/plan.h>
#include <te/private.h>
#include <te/recording.h>
#include <te/tensor.h>

#include "libtecore/backend/backend.h"
#include "libtecore/backend/cuda_driver.h"
#include "plan_model.h"
#include "recording_cases.h"
#include "tt_ctx.h"
#include "tt_gate.h"

#define REFUSED(code, fn, ...) fails(fn(__VA_ARGS__), (code), "")

#define PAD 64	    /* poison on either side of what is written */
#define POISON 0xa5 /* as tt_poison() writes it */

static int is_host;
static struct te_stream *a, *b;

/* ---- fixture and memory ---- */

static void *owned[32];
static int owned_pinned[32], nowned;

static void setup(void)
{
	is_host = !strcmp(backend, "host");
	nowned = 0;
	tt_setup();
	DO(te_stream_create(ctx, &a));
	DO(te_stream_create(ctx, &b));
}

static void teardown(void)
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

static void *pinned(size_t nbytes)
{
	void *p;

	DO(te_pinned_alloc(ctx, nbytes, &p));
	return keep(p, 1);
}

static void put(void *dst, const void *src, size_t nbytes)
{
	DO(te_copy(a, dst, src, nbytes));
	DO(te_stream_sync(a));
}

/* device memory with poison in it and around it; returns where its PAD begins */
static unsigned char *device(size_t nbytes)
{
	unsigned char *p, *host = malloc(nbytes + 2 * PAD);
	void *d;

	DO(te_mem_alloc(a, nbytes + 2 * PAD, &d));
	p = keep(d, 0);
	tt_poison(host, nbytes + 2 * PAD);
	put(p, host, nbytes + 2 * PAD);
	free(host);
	return p + PAD;
}

static float *floats(size_t n)
{
	float *x = malloc(n * sizeof(*x)), *d = (float *)device(n * sizeof(*x));

	tt_fill_normal(x, n, 1);
	put(d, x, n * sizeof(*x));
	free(x);
	return d;
}

/* the memory holds just that, and poison around it */
static void check_bytes(const void *p, const void *want, size_t n, const char *what)
{
	unsigned char *got = malloc(n + 2 * PAD);
	size_t i = 0;

	put(got, (const unsigned char *)p - PAD, n + 2 * PAD);
	while (i < n && got[PAD + i] == ((const unsigned char *)want)[i])
		i++;
	ck_assert_msg(i == n, "%s: byte %zu of %zu is 0x%x, not 0x%x", what, i, n, got[PAD + i],
		      ((const unsigned char *)want)[i]);
	ck_assert_msg(tt_is_poison(got, PAD), "%s: written before its beginning", what);
	ck_assert_msg(tt_is_poison(got + PAD + n, PAD), "%s: written behind its end", what);
	free(got);
}

static void check_filled(const void *p, int value, size_t n, const char *what)
{
	unsigned char *want = malloc(n);

	memset(want, value, n);
	check_bytes(p, want, n, what);
	free(want);
}

/* a part of some memory, whatever is around it */
static void check_part(const void *p, int value, size_t n, const char *what)
{
	unsigned char *got = malloc(n);

	put(got, p, n);
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(got[i] == value, "%s: byte %zu of %zu is 0x%x, not 0x%x", what, i, n,
			      got[i], value);
	free(got);
}

static void check_untouched(const void *p, size_t n, const char *what)
{
	unsigned char *want = malloc(n);

	tt_poison(want, n);
	check_bytes(p, want, n, what);
	free(want);
}

static void check_sum(const float *y, const float *x, const float *z, size_t n, const char *what)
{
	float *h = malloc(3 * n * sizeof(*h));

	put(h, x, n * sizeof(*h));
	put(h + n, z, n * sizeof(*h));
	for (size_t i = 0; i < n; i++)
		h[2 * n + i] = h[i] + h[n + i];
	check_bytes(y, h + 2 * n, n * sizeof(*h), what);
	free(h);
}

/* y = x + z, FP32 */
static int add(struct te_stream *s, const float *x, const float *z, float *y, size_t n)
{
	struct te_k_add k = { x, z, y, (int64_t)n, TE_DTYPE_FP32, 0 };

	return TE__LAUNCH(s, ADD, &k);
}

static void nothing(void *arg)
{
	(void)arg;
}

static struct te_recording_info info(const struct te_recording *rec)
{
	struct te_recording_info i = TE_RECORDING_INFO_INIT;

	DO(te_recording_info(rec, &i));
	return i;
}

static struct te_node_info node(const struct te_recording *rec, uint64_t index)
{
	struct te_node_info n = TE_NODE_INFO_INIT;

	DO(te_recording_node(rec, index, &n));
	return n;
}

static int32_t slot(struct te_recording *rec, const void *p, size_t n, int nuses, int patchable)
{
	struct te_slot_info i = TE_SLOT_INFO_INIT;
	int32_t s = te_recording_slot(rec, p, n, &i);

	ck_assert_msg(s >= 0, "%s", te_error_detail());
	ck_assert_int_eq(i.nuses, nuses);
	ck_assert_int_eq(i.patchable, patchable);
	return s;
}

static int rebind(struct te_recording *rec, int32_t s, void *p)
{
	return te_recording_rebind(rec, 1, &s, &p);
}

static void launch(struct te_recording *rec)
{
	DO(te_recording_launch(rec, a));
	DO(te_stream_sync(a));
}

/* ---- inspection ---- */

/* fill, then a kernel beside a copy and a host call, then a fill that joins them */
static struct te_recording *forked(void)
{
	unsigned char *d = device(512), *h = pinned(512);
	float *x = floats(100), *z = floats(100), *y = floats(100);
	struct te_event *fork, *join;
	struct te_recording *rec;
	uint64_t arg[5] = { 0 };

	DO(te_event_create(ctx, &fork));
	DO(te_event_create(ctx, &join));
	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 300));
	DO(te_event_record(fork, a));
	DO(te_event_wait(fork, b));
	DO(add(a, x, z, y, 100));
	DO(te_copy(b, h, d, 200));
	DO(te_host_call(b, nothing, arg, sizeof(arg)));
	DO(te_event_record(join, b));
	DO(te_event_wait(join, a));
	DO(te_fill_u32(a, d, 7, 400));
	DO(te_capture_end(a, &rec));
	te_event_unref(fork);
	te_event_unref(join);
	return rec;
}

START_TEST(lists_nodes_and_edges_of_a_fork)
{
	static const struct {
		enum te_node_kind kind;
		const char *name;
		uint64_t nbytes;
		int32_t ndeps;
		uint64_t dep[2];
	} want[] = {
		{ TE_NODE_FILL, "", 300, 0, { 0 } },
		{ TE_NODE_KERNEL, "add", sizeof(struct te_k_add), 1, { 0 } },
		{ TE_NODE_COPY, "", 200, 1, { 0 } },
		{ TE_NODE_HOST, "", 40, 1, { 2 } },
		{ TE_NODE_FILL, "", 400, 2, { 1, 3 } },
	};
	struct te_recording *rec = forked();
	struct te_recording_info i = info(rec);

	ck_assert_uint_eq(i.nnodes, TT_LEN(want));
	ck_assert_uint_eq(i.nedges, 5);
	ck_assert_uint_eq(i.nfills, 2);
	ck_assert_uint_eq(i.ninstantiated, 1);
	ck_assert_uint_eq(i.nupdated, 0);
	for (uint64_t k = 0; k < TT_LEN(want); k++) {
		uint64_t dep[3] = { 77, 77, 77 };
		struct te_node_info n = node(rec, k);

		ck_assert_int_eq(n.kind, want[k].kind);
		ck_assert_str_eq(n.name, want[k].name);
		ck_assert_uint_eq(n.nbytes, want[k].nbytes);
		ck_assert_int_eq(n.ndeps, want[k].ndeps);
		ck_assert_int_eq(te_recording_deps(rec, k, 0, NULL), want[k].ndeps);
		ck_assert_int_eq(te_recording_deps(rec, k, 1, dep), want[k].ndeps);
		ck_assert_uint_eq(dep[0], want[k].ndeps ? want[k].dep[0] : 77);
		ck_assert_uint_eq(dep[1], 77);
		ck_assert_int_eq(te_recording_deps(rec, k, 3, dep), want[k].ndeps);
		ck_assert_uint_eq(dep[1], want[k].ndeps > 1 ? want[k].dep[1] : 77);
		ck_assert_uint_eq(dep[2], 77);
	}
	te_recording_unref(rec);
}
END_TEST

/* random forks and joins of three streams: as many edges as counted, each backwards */
START_TEST(edges_lead_backwards)
{
	unsigned char *d = device(64);
	struct te_stream *s[3] = { a, b, NULL };
	struct te_event *e[3];
	struct te_recording *rec;
	uint64_t nedges = 0, dep[64];
	int nfills = 0;

	DO(te_stream_create(ctx, &s[2]));
	for (int k = 0; k < 3; k++)
		DO(te_event_create(ctx, &e[k]));
	DO(te_capture_begin(a));
	DO(te_event_record(e[0], a));
	DO(te_event_wait(e[0], s[1]));
	DO(te_event_wait(e[0], s[2]));
	for (int k = 0; k < 60; k++) {
		int from = (int)tt_rand_int(0, 2), to = (int)tt_rand_int(0, 2);

		if (tt_rand_int(0, 1)) {
			DO(te_fill(s[to], d, 1, 64));
			nfills++;
		} else if (from != to) {
			DO(te_event_record(e[from], s[from]));
			DO(te_event_wait(e[from], s[to]));
		}
	}
	for (int k = 1; k < 3; k++) {
		DO(te_event_record(e[k], s[k]));
		DO(te_event_wait(e[k], a));
	}
	DO(te_capture_end(a, &rec));
	ck_assert_uint_eq(info(rec).nnodes, nfills);
	for (uint64_t k = 0; k < info(rec).nnodes; k++) {
		int n = te_recording_deps(rec, k, (int32_t)TT_LEN(dep), dep);

		ck_assert_int_eq(n, node(rec, k).ndeps);
		nedges += (uint64_t)n;
		for (int i = 0; i < n; i++) {
			ck_assert_uint_lt(dep[i], k);
			ck_assert(!i || dep[i - 1] < dep[i]);
		}
	}
	ck_assert_uint_eq(nedges, info(rec).nedges);
	launch(rec);
	te_recording_unref(rec);
	for (int k = 0; k < 3; k++)
		te_event_unref(e[k]);
	te_stream_unref(s[2]);
}
END_TEST

/* 1: dot(1) is there and understands the text, 0: it is not there */
static int parses(const char *text)
{
	FILE *f;

	if (system("dot -V >/dev/null 2>&1"))
		return 0;
	f = popen("dot -Tplain >/dev/null", "w");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(text, f), 0);
	ck_assert_msg(pclose(f) == 0, "dot refuses:\n%s", text);
	return 1;
}

START_TEST(draws_itself)
{
	static const char *const want[] = {
		"digraph \"a \\\"fork\\\" \\\\\" {\n",
		"n0 [label=\"0 fill\\n300 bytes\"];\n",
		"n1 [label=\"1 add\"];\n",
		"n2 [label=\"2 copy\\n200 bytes\"];\n",
		"n3 [label=\"3 host call\\n40 bytes\"];\n",
		"n0 -> n1;\n",
		"n2 -> n3;\n",
		"n1 -> n4;\n",
		"n3 -> n4;\n",
	};
	struct te_recording *rec = forked(), *empty;
	int64_t live = te__alloc_live();
	char *text;

	DO(te_recording_dot(rec, "a \"fork\" \\", &text));
	for (size_t k = 0; k < TT_LEN(want); k++)
		ck_assert_msg(strstr(text, want[k]) != NULL, "no %s in\n%s", want[k], text);
	parses(text);
	free(text);
	DO(te_capture_begin(a));
	DO(te_capture_end(a, &empty));
	DO(te_recording_dot(empty, NULL, &text));
	ck_assert_int_eq(strncmp(text, "digraph \"recording\" {", 21), 0);
	ck_assert_ptr_null(strstr(text, "label"));
	parses(text);
	free(text);
	te_recording_unref(empty);
	ck_assert_int_eq(te__alloc_live(), live);
	te_recording_unref(rec);
}
END_TEST

START_TEST(names_the_nodes_of_a_product)
{
	const int64_t m = 48, n = 32, k = 64, sa[] = { m, k }, sb[] = { n, k }, sd[] = { m, n };
	struct te_tensor *x, *w, *d;
	struct te_recording *rec;
	uint64_t ngemm = 0;
	char *text;

	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, sa, NULL, &x));
	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, sb, NULL, &w));
	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, sd, NULL, &d));
	DO(te_capture_begin(a));
	DO(te_fill(a, te_tensor_data(x), 0, te_tensor_nbytes(x)));
	DO(te_gemm(a, x, w, d, NULL));
	DO(te_fill(a, te_tensor_data(w), 0, te_tensor_nbytes(w)));
	DO(te_capture_end(a, &rec));
	for (uint64_t i = 0; i < info(rec).nnodes; i++)
		ngemm += !strcmp(node(rec, i).name, "gemm");
	ck_assert_uint_ge(ngemm, 1);
	ck_assert_uint_eq(ngemm, info(rec).nnodes - 2);
	ck_assert_str_eq(node(rec, 0).name, "");
	ck_assert_str_eq(node(rec, info(rec).nnodes - 2).name, "gemm");
	ck_assert_uint_eq(node(rec, info(rec).nnodes - 2).nbytes, sizeof(struct te_k_gemm));
	DO(te_recording_dot(rec, NULL, &text));
	ck_assert_ptr_nonnull(strstr(text, "1 gemm"));
	free(text);
	/* cuBLASLt's own node cannot be patched */
	slot(rec, te_tensor_data(x), te_tensor_nbytes(x), 2, is_host);
	slot(rec, te_tensor_data(d), te_tensor_nbytes(d), 1, is_host);
	if (!is_host) {
		ck_assert_int_eq(rebind(rec, 1, te_tensor_data(w)), -EOPNOTSUPP);
		tt_said("gemm");
		te_error_clear();
	}
	te_recording_unref(rec);
	te_tensor_unref(x);
	te_tensor_unref(w);
	te_tensor_unref(d);
}
END_TEST

/* ---- edges ---- */

#define BY_DATA (TE_CAPTURE_BY_DATA | TE_CAPTURE_EARLY)

/* 1: the node is behind the other one by the recording's edges */
static int is_behind(const struct te_recording *rec, uint64_t index, uint64_t other)
{
	uint64_t dep[64];
	const int n = te_recording_deps(rec, index, (int32_t)TT_LEN(dep), dep);

	ck_assert_int_ge(n, 0);
	ck_assert_int_le(n, (int)TT_LEN(dep));
	for (int i = 0; i < n; i++)
		if (dep[i] == other || (dep[i] > other && is_behind(rec, dep[i], other)))
			return 1;
	return 0;
}

/* the nodes that were queued: a backend may put a fill of nothing before them */
static uint64_t first_queued(const struct te_recording *rec)
{
	return node(rec, 0).kind == TE_NODE_FILL && !node(rec, 0).nbytes;
}

START_TEST(nodes_wait_for_their_data)
{
	unsigned char *d = device(64), *h = device(16);
	float *x = floats(64), *y = floats(64), *z = floats(64);
	enum { LO, HI, COPY, ADD, AGAIN, CALL, LAST, N };
	const char *const waits[N] = { "", "", "01", "", "3", "01234", "012345" };
	struct te_recording *rec;
	uint64_t first;

	DO(te_capture_begin(a));
	DO(te_capture_edges(a, _i ? BY_DATA : TE_CAPTURE_BY_DATA));
	DO(te_fill(a, d, 1, 16));
	DO(te_fill(a, d + 16, 2, 16));
	DO(te_copy(a, d + 32, d, 32));
	DO(add(a, x, x, y, 64));
	DO(add(a, y, x, z, 64));
	DO(te_host_call(a, nothing, NULL, 0));
	DO(te_fill(a, h, 3, 16));
	DO(te_capture_end(a, &rec));
	first = first_queued(rec);
	ck_assert_uint_eq(info(rec).nnodes, first + N);
	for (uint64_t i = 0; i < N; i++)
		for (uint64_t k = 0; k < i; k++)
			ck_assert_msg(is_behind(rec, first + i, first + k) ==
					      (strchr(waits[i], '0' + (int)k) != NULL),
				      "node %d of the queued and node %d", (int)i, (int)k);
	launch(rec);
	check_part(d, 1, 16, "the first fill");
	check_part(d + 32, 1, 16, "the copy of it");
	check_part(d + 48, 2, 16, "the copy of the second");
	check_sum(z, y, x, 64, "the second sum");
	check_filled(h, 3, 16, "what came last");
	te_recording_unref(rec);
}
END_TEST

/* how many pairs of three fills that share nothing have an order */
static int pairs_in_order(unsigned char *d, uint32_t edges, uint32_t then)
{
	struct te_recording *rec;
	uint64_t first;
	int n = 0;

	DO(te_capture_begin(a));
	DO(te_capture_edges(a, edges));
	DO(te_fill(a, d, 1, 16));
	DO(te_fill(a, d + 16, 1, 16));
	DO(te_capture_edges(a, then));
	DO(te_fill(a, d + 32, 1, 16));
	DO(te_capture_end(a, &rec));
	first = first_queued(rec);
	for (uint64_t i = 0; i < 3; i++)
		for (uint64_t k = 0; k < i; k++)
			n += is_behind(rec, first + i, first + k);
	te_recording_unref(rec);
	return n;
}

START_TEST(the_latest_choice_is_for_the_whole_capture)
{
	unsigned char *d = device(48);

	ck_assert_int_eq(pairs_in_order(d, BY_DATA, BY_DATA), 0);
	ck_assert_int_eq(pairs_in_order(d, 0, TE_CAPTURE_BY_DATA), 0);
	ck_assert_int_eq(pairs_in_order(d, BY_DATA, 0), 3);
	ck_assert_int_eq(pairs_in_order(d, 0, TE_CAPTURE_EARLY), 3);
	check_untouched(d, 48, "what was captured only");
}
END_TEST

START_TEST(edges_are_chosen_within_a_capture)
{
	unsigned char *d = device(64);
	struct te_recording *rec;
	struct te_event *e;

	DO(te_event_create(ctx, &e));
	REFUSED(-EINVAL, te_capture_edges, NULL, 0);
	REFUSED(-EINVAL, te_capture_edges, a, 4);
	REFUSED(-TE_ESTATE, te_capture_edges, a, BY_DATA);
	DO(te_capture_begin(a));
	REFUSED(-EINVAL, te_capture_edges, a, BY_DATA | 8);
	REFUSED(-TE_ESTATE, te_capture_edges, b, BY_DATA);
	DO(te_fill(a, d, 1, 32));
	DO(te_event_record(e, a));
	DO(te_event_wait(e, b));
	/* it takes part, but another one began */
	REFUSED(-TE_ESTATE, te_capture_edges, b, BY_DATA);
	DO(te_fill(b, d + 32, 1, 32));
	DO(te_event_record(e, b));
	DO(te_event_wait(e, a));
	DO(te_capture_end(a, &rec));
	REFUSED(-TE_ESTATE, te_capture_edges, a, BY_DATA);
	launch(rec);
	check_filled(d, 1, 64, "both fills");
	te_recording_unref(rec);
	te_event_unref(e);
}
END_TEST

/* a fork and a join, and within the branches nodes that share nothing */
static struct te_recording *fork_of_fills(unsigned char *d, uint32_t edges)
{
	struct te_recording *rec;
	struct te_event *e;

	DO(te_event_create(ctx, &e));
	DO(te_capture_begin(a));
	DO(te_capture_edges(a, edges));
	for (int k = 0; k < 2; k++)
		DO(te_fill(a, d + 16 * k, 1, 16));
	DO(te_event_record(e, a));
	DO(te_event_wait(e, b));
	for (int k = 2; k < 4; k++) {
		DO(te_fill(a, d + 16 * k, 1, 16));
		DO(te_fill(b, d + 32 + 16 * k, 1, 16));
	}
	DO(te_event_record(e, b));
	DO(te_event_wait(e, a));
	DO(te_fill(a, d + 96, 1, 16));
	DO(te_capture_end(a, &rec));
	te_event_unref(e);
	return rec;
}

START_TEST(several_streams_keep_their_order)
{
	unsigned char *d = device(112);
	struct te_recording *rec[2] = { fork_of_fills(d, 0), fork_of_fills(d, BY_DATA) };

	ck_assert_uint_eq(info(rec[0]).nnodes, 7);
	ck_assert_uint_eq(info(rec[1]).nnodes, 7);
	ck_assert_uint_eq(info(rec[0]).nedges, info(rec[1]).nedges);
	for (uint64_t i = 0; i < 7; i++) {
		uint64_t dep[2][7];
		int n = te_recording_deps(rec[0], i, 7, dep[0]);

		ck_assert_int_eq(te_recording_deps(rec[1], i, 7, dep[1]), n);
		ck_assert_mem_eq(dep[0], dep[1], (size_t)n * sizeof(dep[0][0]));
	}
	launch(rec[1]);
	check_filled(d, 1, 112, "all fills");
	te_recording_unref(rec[0]);
	te_recording_unref(rec[1]);
}
END_TEST

START_TEST(an_update_may_choose_other_edges)
{
	unsigned char *d = device(64);
	struct te_recording *rec;
	/* the last one's are those of the one before */
	static const uint32_t edges[] = { 0, BY_DATA, BY_DATA, 0 };
	enum te_update how = (enum te_update)0;

	for (int k = 0; k < (int)TT_LEN(edges); k++) {
		DO(te_capture_begin(a));
		DO(te_capture_edges(a, edges[k]));
		for (int i = 0; i < 4; i++)
			DO(te_fill(a, d + 16 * i, (uint8_t)(k + 1), 16));
		if (k)
			DO(te_capture_update(a, rec, &how));
		else
			DO(te_capture_end(a, &rec));
		if (k)
			ck_assert_int_eq(how, k == 2 ? TE_UPDATE_IN_PLACE : TE_UPDATE_INSTANTIATED);
		launch(rec);
		check_filled(d, k + 1, 64, "fills of an update");
	}
	te_recording_unref(rec);
}
END_TEST

/* n floats: dst becomes those of x and z, of x, or a value */
struct work {
	enum te_node_kind kind;
	float *dst, *x, *z;
	size_t n;
	uint32_t value;
};

static int apart(const float *x, const float *y, size_t n)
{
	return x >= y + n || y >= x + n;
}

static struct work some_work(float *d, size_t n)
{
	struct work w = { .n = 4 * (size_t)tt_rand_int(1, (int64_t)n / 16) };
	float **p[] = { &w.dst, &w.x, &w.z };

	for (int k = 0; k < 3; k++)
		*p[k] = d + 4 * tt_rand_int(0, (int64_t)(n - w.n) / 4);
	/* no element reads what another one writes */
	w.x = apart(w.x, w.dst, w.n) ? w.x : w.dst;
	w.z = apart(w.z, w.dst, w.n) ? w.z : w.dst;
	w.value = 0x3f800000u + (uint32_t)tt_rand_int(0, 1 << 23);
	w.kind = tt_rand_int(0, 3) || w.x == w.dst ? TE_NODE_KERNEL : TE_NODE_COPY;
	if (!tt_rand_int(0, 7))
		w.kind = TE_NODE_FILL;
	return w;
}

static void queue_work(const struct work *w, int n)
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
			DO(add(a, w->x, w->z, w->dst, w->n));
		}
}

START_TEST(results_do_not_depend_on_edges)
{
	const size_t n = 4 * (size_t)tt_rand_int(20, 400), nbytes = n * sizeof(float);
	float *d = floats(n), *was = malloc(nbytes), *want = malloc(nbytes);
	struct te_recording *rec;
	struct work w[300];

	put(was, d, nbytes);
	for (int trial = 0; trial < 20; trial++) {
		const int nwork = (int)tt_rand_int(2, (int64_t)TT_LEN(w));

		for (int k = 0; k < nwork; k++)
			w[k] = some_work(d, n);
		put(d, was, nbytes);
		queue_work(w, nwork);
		put(want, d, nbytes);
		DO(te_capture_begin(a));
		DO(te_capture_edges(a, trial & 1 ? BY_DATA : TE_CAPTURE_BY_DATA));
		queue_work(w, nwork);
		DO(te_capture_end(a, &rec));
		put(d, was, nbytes);
		launch(rec);
		check_bytes(d, want, nbytes, "the work of nodes by data");
		te_recording_unref(rec);
	}
	free(was);
	free(want);
}
END_TEST

/* ---- updates ---- */

static struct te_recording *filler(unsigned char *d, uint8_t value, size_t n)
{
	struct te_recording *rec;

	DO(te_capture_begin(a));
	DO(te_fill(a, d, value, n));
	DO(te_capture_end(a, &rec));
	return rec;
}

START_TEST(updates_in_place_what_looks_the_same)
{
	unsigned char *d = device(256);
	float *x = floats(70), *z = floats(70), *y = floats(70);
	enum te_update how = (enum te_update)0;
	struct te_recording *rec;

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 256));
	DO(add(a, x, x, y, 70));
	DO(te_capture_end(a, &rec));
	launch(rec);
	check_filled(d, 1, 256, "first");
	for (int k = 2; k < 5; k++) {
		DO(te_capture_begin(b));
		DO(te_fill(b, d, (uint8_t)k, 256));
		DO(add(b, x, z, y, 70));
		DO(te_capture_update(b, rec, &how));
		ck_assert_int_eq(how, TE_UPDATE_IN_PLACE);
		ck_assert_uint_eq(info(rec).nupdated, k - 1);
		ck_assert_uint_eq(info(rec).ninstantiated, 1);
		launch(rec);
		check_filled(d, k, 256, "updated");
		check_sum(y, x, z, 70, "updated");
	}
	te_recording_unref(rec);
}
END_TEST

START_TEST(instantiates_what_does_not)
{
	unsigned char *d = device(256), *c = device(256), *h = pinned(256);
	enum te_update how = (enum te_update)0;
	struct te_recording *rec = filler(d, 1, 256);

	/* another node */
	DO(te_capture_begin(a));
	DO(te_fill(a, d, 2, 256));
	DO(te_copy(a, c, d, 256));
	DO(te_capture_update(a, rec, &how));
	ck_assert_int_eq(how, TE_UPDATE_INSTANTIATED);
	ck_assert_uint_eq(info(rec).ninstantiated, 2);
	ck_assert_uint_eq(info(rec).nupdated, 0);
	ck_assert_uint_eq(info(rec).nnodes, 2);
	ck_assert_uint_eq(info(rec).ncopies, 1);
	launch(rec);
	check_filled(c, 2, 256, "a longer graph");
	/* another kind of node at the same place */
	DO(te_capture_begin(a));
	DO(te_copy(a, d, c, 256));
	DO(te_fill(a, c, 3, 256));
	DO(te_capture_update(a, rec, NULL));
	ck_assert_uint_eq(info(rec).ninstantiated, 3);
	launch(rec);
	check_filled(c, 3, 256, "another order");
	/* and in place again */
	DO(te_capture_begin(a));
	DO(te_copy(a, d, c, 256));
	DO(te_fill(a, c, 4, 256));
	DO(te_capture_update(a, rec, &how));
	ck_assert_int_eq(how, TE_UPDATE_IN_PLACE);
	ck_assert_uint_eq(info(rec).ninstantiated, 3);
	ck_assert_uint_eq(info(rec).nupdated, 1);
	/* what this backend cannot do in place is done all the same */
	DO(te_capture_begin(a));
	DO(te_copy(a, h, c, 256));
	DO(te_fill(a, c, 5, 100));
	DO(te_capture_update(a, rec, NULL));
	ck_assert_uint_eq(node(rec, 1).nbytes, 100);
	ck_assert_uint_eq(info(rec).ninstantiated + info(rec).nupdated, 5);
	launch(rec);
	ck_assert_int_eq(h[0], 3);
	check_part(c, 5, 100, "a smaller fill");
	check_part(c + 100, 3, 156, "what it leaves");
	te_recording_unref(rec);
}
END_TEST

/* same nodes, other edges */
START_TEST(instantiates_other_edges)
{
	unsigned char *d = device(64), *c = device(64);
	enum te_update how = (enum te_update)0;
	struct te_recording *rec;
	struct te_event *e;

	DO(te_event_create(ctx, &e));
	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 64));
	DO(te_fill(a, c, 1, 64));
	DO(te_fill(a, d, 2, 64));
	DO(te_capture_end(a, &rec));
	DO(te_capture_begin(a));
	DO(te_event_record(e, a));
	DO(te_event_wait(e, b));
	DO(te_fill(a, d, 3, 64));
	DO(te_fill(b, c, 3, 64));
	DO(te_event_record(e, b));
	DO(te_event_wait(e, a));
	DO(te_fill(a, d, 4, 64));
	DO(te_capture_update(a, rec, &how));
	ck_assert_int_eq(how, TE_UPDATE_INSTANTIATED);
	ck_assert_int_eq(node(rec, 2).ndeps, 2);
	launch(rec);
	check_filled(c, 3, 64, "the branch");
	check_filled(d, 4, 64, "the join");
	te_event_unref(e);
	te_recording_unref(rec);
}
END_TEST

/* 1: no fault was met */
static int update_fails_at(uint64_t nth, struct te_recording *rec, unsigned char *d, int longer)
{
	struct te_recording_info before = info(rec), after;
	int fired, r;

	DO(te_capture_begin(a));
	te__fault_set(nth);
	r = te_fill(a, d, 9, 256);
	if (!r && longer)
		r = te_fill(a, d, 9, 200);
	r = te_capture_update(a, rec, NULL);
	fired = te__fault_fired();
	te__fault_set(0);
	if (!fired) {
		DO(r);
		return 1;
	}
	ck_assert_msg(r < 0, "fault %d is not reported", (int)nth);
	te_error_clear();
	after = info(rec);
	ck_assert_int_eq(memcmp(&before, &after, sizeof(before)), 0);
	ck_assert_uint_eq(node(rec, 0).nbytes, 256);
	DO(te_fill(a, d, 0, 256));
	launch(rec);
	check_filled(d, 1, 256, "what a failed update left");
	ck_assert_int_eq(te_recording_slot(rec, d, 256, NULL), 0);
	return 0;
}

START_TEST(a_failed_update_changes_nothing)
{
	unsigned char *d = device(256);
	struct te_recording *rec = filler(d, 1, 256);
	uint64_t nth = 1;

	slot(rec, d, 256, 1, 1);
	while (!update_fails_at(nth, rec, d, _i))
		nth++;
	ck_assert_uint_ge(nth, 5);
	launch(rec);
	check_filled(d, 9, 256, "what an update left");
	te_recording_unref(rec);
}
END_TEST

START_TEST(a_spoilt_capture_updates_nothing)
{
	unsigned char *d = device(256);
	struct te_recording *rec = filler(d, 1, 256);

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 2, 256));
	ck_assert_int_eq(te_copy(a, NULL, d, 5), -EINVAL);
	REFUSED(-EINVAL, te_capture_update, a, rec, NULL);
	launch(rec);
	check_filled(d, 1, 256, "what a spoilt capture left");
	ck_assert_uint_eq(info(rec).nupdated, 0);
	te_recording_unref(rec);
}
END_TEST

/* launches that are queued keep what they were queued with, arguments of calls too */
static atomic_int last;

static void take(void *arg)
{
	atomic_store(&last, *(int *)arg);
}

START_TEST(an_update_leaves_queued_launches_alone)
{
	unsigned char *d = device(256), *c = device(256), *h = pinned(256);
	int one[100] = { 1 }, two[100] = { 2 }; /* more than a small argument */
	struct te_recording *rec;

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 256));
	DO(te_host_call(a, take, one, sizeof(one)));
	DO(te_capture_end(a, &rec));
	atomic_store(&last, 0);
	tt_gate_close();
	DO(te_host_call(a, tt_gate_wait, NULL, 0));
	DO(te_recording_launch(rec, a));
	DO(te_copy(a, h, d, 256));
	/* a driver that instantiates may wait for the device, whoever asks */
	tt_gate_open_later(200);
	DO(te_capture_begin(b));
	DO(te_fill(b, _i ? c : d, 2, 256));
	DO(te_host_call(b, take, two, sizeof(two)));
	if (_i)
		DO(te_fill(b, d, 3, 256));
	DO(te_capture_update(b, rec, NULL));
	ck_assert_uint_eq(info(rec).nupdated, !_i);
	DO(te_stream_sync(a));
	ck_assert_int_eq(h[0], 1);
	ck_assert_int_eq(h[255], 1);
	ck_assert_int_eq(atomic_load(&last), 1);
	launch(rec);
	ck_assert_int_eq(atomic_load(&last), 2);
	check_filled(d, _i ? 3 : 2, 256, "the next launch");
	te_recording_unref(rec);
}
END_TEST

/* ---- slots ---- */

START_TEST(rebinds_uses_of_every_kind)
{
	const size_t n = (size_t)tt_rand_int(17, 900), nbytes = n * sizeof(float);
	float *x = floats(n), *z = floats(n), *y = (float *)device(nbytes);
	float *x2 = floats(n), *y2 = (float *)device(nbytes);
	float *y3 = (float *)device(nbytes);
	unsigned char *d = device(nbytes), *d2 = device(nbytes);
	unsigned char *c = device(nbytes), *c2 = device(nbytes);
	struct te_recording *rec;
	int32_t s[4];
	void *p[4];

	DO(te_capture_begin(a));
	DO(add(a, x, z, y, n));
	DO(te_copy(a, c, y, nbytes));
	DO(te_fill(a, d, 0x3c, nbytes - 5));
	DO(te_fill_u32(a, d, 0x11111111, 8));
	DO(te_capture_end(a, &rec));
	s[0] = slot(rec, x, nbytes, 1, 1);
	s[1] = slot(rec, y, nbytes, 2, 1);
	s[2] = slot(rec, d, nbytes, 2, 1);
	s[3] = slot(rec, c, nbytes, 1, 1);
	for (int k = 0; k < 4; k++)
		ck_assert_int_eq(s[k], k);
	p[0] = x2;
	p[1] = y2;
	p[2] = d2;
	p[3] = c2;
	DO(te_recording_rebind(rec, 4, s, p));
	launch(rec);
	check_untouched(y, nbytes, "the result's old memory");
	check_untouched(c, nbytes, "the copy's old memory");
	check_untouched(d, nbytes, "the fill's old memory");
	check_sum(y2, x2, z, n, "the result");
	check_sum((float *)c2, x2, z, n, "the copy");
	check_part(d2, 0x11, 8, "the words");
	check_part(d2 + 8, 0x3c, nbytes - 13, "the fill");
	check_part(d2 - PAD, POISON, PAD, "before the fill");
	check_part(d2 + nbytes - 5, POISON, 5 + PAD, "behind the fill");
	ck_assert_int_eq(te_recording_slot(rec, y2, nbytes, NULL), s[1]);
	/* one alone, and back */
	DO(rebind(rec, s[1], y3));
	launch(rec);
	check_sum(y3, x2, z, n, "the result, moved on");
	check_sum((float *)c2, x2, z, n, "the copy of it");
	p[0] = x;
	p[1] = y;
	DO(te_recording_rebind(rec, 2, s, p));
	launch(rec);
	check_sum(y, x, z, n, "the result, back again");
	te_recording_unref(rec);
}
END_TEST

/* copies to random places, in slots side by side that are looked up in any order, and some of which
 * move: each has the uses that are left in its memory, and is patchable where those lie within */
static void search(unsigned char *to, unsigned char *from, unsigned char *other, size_t size)
{
	enum { NCOPIES = 30 };
	const int64_t most = tt_rand_int(1, 100), moves = tt_rand_int(0, 1);
	size_t begin[NCOPIES], end[NCOPIES], at[100] = { 0 };
	int turn[100], nslots = 0, nfound = 0;
	struct te_recording *rec;

	DO(te_capture_begin(a));
	for (int k = 0; k < NCOPIES; k++) {
		begin[k] = (size_t)tt_rand_int(0, (int64_t)size - 1);
		end[k] = begin[k] + (size_t)tt_rand_int(1, most);
		if (end[k] > size)
			end[k] = size;
		DO(te_copy(a, to + begin[k], from + begin[k], end[k] - begin[k]));
	}
	DO(te_capture_end(a, &rec));
	for (at[0] = 0; at[nslots] < size; nslots++) {
		at[nslots + 1] = at[nslots] + (size_t)tt_rand_int(20, 300);
		if (at[nslots + 1] > size - 20)
			at[nslots + 1] = size;
		turn[nslots] = nslots;
	}
	for (int k = 0; k < nslots; k++) {
		const int other_k = (int)tt_rand_int(k, nslots - 1), t = turn[other_k];
		const size_t first = at[t], next = at[t + 1];
		int32_t nuses = 0, within = 0, number;

		turn[other_k] = turn[k];
		for (int c = 0; c < NCOPIES; c++) {
			nuses += begin[c] < next && end[c] > first;
			within += begin[c] >= first && end[c] <= next;
		}
		number = slot(rec, to + first, next - first, nuses, nuses == within);
		ck_assert_int_eq(number, nfound++);
		ck_assert_int_eq(slot(rec, to + first, next - first, nuses, nuses == within),
				 number);
		fails(te_recording_slot(rec, to + first + 1, size, NULL), -EINVAL, "overlap slot");
		fails(te_recording_slot(rec, to + next - 1, 1, NULL), -EINVAL, "overlap slot");
		if (!moves || nuses != within || tt_rand_int(0, 1))
			continue;
		DO(rebind(rec, number, other + first));
		slot(rec, to + first, next - first, 0, 1);
		nfound++;
		for (int c = 0; c < NCOPIES; c++)
			if (begin[c] >= first && end[c] <= next)
				begin[c] = end[c] = size + 1;
	}
	te_recording_unref(rec);
}

START_TEST(uses_are_those_that_a_scan_finds)
{
	const size_t size = 1024;
	unsigned char *to = device(size), *from = device(size), *other = device(size);

	for (int k = 0; k < 100; k++)
		search(to, from, other, size);
}
END_TEST

/* pointers into the middle of a slot move along with it */
START_TEST(offsets_within_a_slot_stay)
{
	unsigned char *d = device(1024), *d2 = device(1024);
	struct te_recording *rec;

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 100));
	DO(te_fill(a, d + 100, 2, 200));
	DO(te_fill(a, d + 1000, 3, 24));
	DO(te_capture_end(a, &rec));
	DO(rebind(rec, slot(rec, d, 1024, 3, 1), d2));
	launch(rec);
	check_untouched(d, 1024, "the old memory");
	check_part(d2 - PAD, POISON, PAD, "before the memory");
	check_part(d2, 1, 100, "the first fill");
	check_part(d2 + 100, 2, 200, "the second fill");
	check_part(d2 + 300, POISON, 700, "between the fills");
	check_part(d2 + 1000, 3, 24, "the third fill");
	check_part(d2 + 1024, POISON, PAD, "behind the memory");
	te_recording_unref(rec);
}
END_TEST

/* a launch that is queued is not touched, the next one is */
START_TEST(a_rebind_leaves_queued_launches_alone)
{
	const size_t n = 300;
	float *x = floats(n), *x2 = floats(n), *z = floats(n);
	float *y = (float *)device(4 * n), *y2 = (float *)device(4 * n);
	unsigned char big[600] = { 0 };
	struct te_recording *rec;
	int32_t s[2];

	DO(te_capture_begin(a));
	DO(te_host_call(a, nothing, big, sizeof(big)));
	DO(add(a, x, z, y, n));
	DO(te_capture_end(a, &rec));
	s[0] = slot(rec, x, 4 * n, 1, 1);
	s[1] = slot(rec, y, 4 * n, 1, 1);
	tt_gate_close();
	DO(te_host_call(a, tt_gate_wait, NULL, 0));
	DO(te_recording_launch(rec, a));
	DO(te_recording_rebind(rec, 2, s, (void *[]){ x2, y2 }));
	DO(te_recording_launch(rec, a));
	ck_assert_int_eq(te_stream_query(a), 0);
	tt_gate_open();
	DO(te_stream_sync(a));
	check_sum(y, x, z, n, "the launch from before");
	check_sum(y2, x2, z, n, "the launch from after");
	te_recording_unref(rec);
}
END_TEST

START_TEST(binding_what_is_bound_does_nothing)
{
	unsigned char *d = device(64);
	struct te_recording *rec = filler(d, 1, 64);
	int32_t s = slot(rec, d, 64, 1, 1);

	te__fault_set(1);
	ck_assert_int_eq(rebind(rec, s, d), 0);
	ck_assert_int_eq(te_recording_rebind(rec, 0, NULL, NULL), 0);
	ck_assert_int_eq(te__fault_fired(), 0);
	te__fault_set(0);
	/* the same memory is the same slot */
	ck_assert_int_eq(slot(rec, d, 64, 1, 1), s);
	te_recording_unref(rec);
}
END_TEST

START_TEST(a_rebind_is_all_or_nothing)
{
	unsigned char *d = device(256), *d2 = device(256), *e = device(256), *e2 = device(256);
	struct te_recording *rec;
	int32_t s[2];

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 256));
	DO(te_fill(a, e, 2, 200));
	DO(te_capture_end(a, &rec));
	s[0] = slot(rec, d, 256, 1, 1);
	/* the fill reaches over the end */
	s[1] = slot(rec, e, 100, 1, 0);
	ck_assert_int_eq(te_recording_rebind(rec, 2, s, (void *[]){ d2, e2 }), -EOPNOTSUPP);
	tt_said("slot 1: node 1, fill of 200 bytes");
	te_error_clear();
	launch(rec);
	check_filled(d, 1, 256, "the memory from before");
	check_untouched(d2, 256, "the memory that was refused");
	check_untouched(e2, 256, "the memory that was refused");
	/* it is bound to that, so there is nothing to refuse */
	DO(te_recording_rebind(rec, 2, s, (void *[]){ d2, e }));
	launch(rec);
	check_filled(d2, 1, 256, "the memory from after");
	te_recording_unref(rec);
}
END_TEST

/* a driver that fails at the second node leaves the first as it was */
START_TEST(a_fault_leaves_all_as_it_was)
{
	unsigned char *d = device(256), *d2 = device(256), *h = pinned(256);
	float *x = floats(64), *x2 = floats(64), *y = (float *)device(256);
	struct te_recording *rec;
	int32_t s[2];
	uint64_t nth;

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 256));
	DO(te_copy(a, h, d, 256));
	DO(add(a, x, x, y, 64));
	DO(te_capture_end(a, &rec));
	s[0] = slot(rec, d, 256, 2, 1);
	s[1] = slot(rec, x, 256, 2, 1);
	/* so that the host has to copy, too */
	for (nth = 1;; nth++) {
		int fired, r;

		tt_gate_close();
		DO(te_host_call(a, tt_gate_wait, NULL, 0));
		DO(te_recording_launch(rec, a));
		te__fault_set(nth);
		r = te_recording_rebind(rec, 2, s, (void *[]){ d2, x2 });
		fired = te__fault_fired();
		te__fault_set(0);
		tt_gate_open();
		DO(te_stream_sync(a));
		if (!fired) {
			DO(r);
			break;
		}
		ck_assert_int_lt(r, 0);
		te_error_clear();
		memset(h, 0, 256);
		DO(te_fill(a, y, 0, 256));
		launch(rec);
		check_sum(y, x, x, 64, "the sum after a fault");
		check_untouched(d2, 256, "the memory that was not bound");
		ck_assert_int_eq(h[255], 1);
	}
	ck_assert_uint_ge(nth, 3);
	launch(rec);
	check_sum(y, x2, x2, 64, "the sum without a fault");
	check_filled(d2, 1, 256, "the fill without a fault");
	te_recording_unref(rec);
}
END_TEST

START_TEST(refuses_what_makes_no_sense)
{
	unsigned char *d = device(256), *d2 = device(256);
	struct te_recording *rec = filler(d, 1, 256), *r2;
	struct te_node_info n = TE_NODE_INFO_INIT;
	struct te_slot_info si = TE_SLOT_INFO_INIT;
	int32_t s = slot(rec, d, 256, 1, 1), twice[] = { s, s }, bad[] = { s, 1 };
	void *p[] = { d2, d2 };
	struct te_event *e;
	uint64_t dep;
	char *text;

	DO(te_event_create(ctx, &e));
	REFUSED(-EINVAL, te_recording_node, NULL, 0, &n);
	REFUSED(-EINVAL, te_recording_node, rec, 1, &n);
	REFUSED(-EINVAL, te_recording_node, rec, 0, NULL);
	n.size--;
	REFUSED(-EINVAL, te_recording_node, rec, 0, &n);
	REFUSED(-EINVAL, te_recording_deps, NULL, 0, 1, &dep);
	REFUSED(-EINVAL, te_recording_deps, rec, 1, 1, &dep);
	REFUSED(-EINVAL, te_recording_deps, rec, 0, -1, &dep);
	REFUSED(-EINVAL, te_recording_deps, rec, 0, 1, NULL);
	REFUSED(-EINVAL, te_recording_dot, NULL, "", &text);
	REFUSED(-EINVAL, te_recording_dot, rec, "", NULL);
	REFUSED(-EINVAL, te_recording_slot, NULL, d, 1, NULL);
	REFUSED(-EINVAL, te_recording_slot, rec, NULL, 1, NULL);
	REFUSED(-EINVAL, te_recording_slot, rec, d, 0, NULL);
	REFUSED(-EINVAL, te_recording_slot, rec, d, SIZE_MAX, NULL);
	REFUSED(-EINVAL, te_recording_slot, rec, d + 16, 10, NULL);
	si.size++;
	REFUSED(-EINVAL, te_recording_slot, rec, d2, 10, &si);
	REFUSED(-EINVAL, te_recording_rebind, NULL, 1, &s, p);
	REFUSED(-EINVAL, te_recording_rebind, rec, -1, &s, p);
	REFUSED(-EINVAL, te_recording_rebind, rec, 1, NULL, p);
	REFUSED(-EINVAL, te_recording_rebind, rec, 1, &s, NULL);
	REFUSED(-EINVAL, te_recording_rebind, rec, 2, twice, p);
	REFUSED(-EINVAL, te_recording_rebind, rec, 2, bad, p);
	bad[1] = -1;
	REFUSED(-EINVAL, te_recording_rebind, rec, 2, bad, p);
	REFUSED(-EINVAL, rebind, rec, s, NULL);
	REFUSED(-EINVAL, rebind, rec, s, d2 + 8); /* not aligned alike */
	REFUSED(-EINVAL, te_event_record_external, NULL, a);
	REFUSED(-EINVAL, te_event_record_external, e, NULL);
	REFUSED(-EINVAL, te_capture_update, NULL, rec, NULL);
	REFUSED(-EINVAL, te_capture_update, a, NULL, NULL);
	REFUSED(-TE_ESTATE, te_capture_update, a, rec, NULL);
	/* a capture stays as it is */
	DO(te_capture_begin(a));
	DO(te_fill(a, d, 7, 256));
	REFUSED(-EINVAL, te_capture_update, a, NULL, NULL);
	DO(te_capture_end(a, &r2));
	launch(r2);
	check_filled(d, 7, 256, "the capture that went on");
	launch(rec);
	check_filled(d, 1, 256, "the recording that was left alone");
	te_recording_unref(r2);
	te_recording_unref(rec);
	te_event_unref(e);
}
END_TEST

START_TEST(recordings_of_another_context_are_refused)
{
	unsigned char *d = device(64);
	struct te_recording *rec = filler(d, 1, 64);
	struct te_stream *s;
	struct te_event *e;
	struct te_ctx *other;

	DO(tt_ctx_new(&other));
	s = te_ctx_stream(other);
	DO(te_event_create(other, &e));
	REFUSED(-EINVAL, te_event_record_external, e, a);
	DO(te_capture_begin(s));
	REFUSED(-EINVAL, te_capture_update, s, rec, NULL);
	te_recording_unref(rec);
	DO(te_capture_end(s, &rec));
	te_recording_unref(rec);
	te_event_unref(e);
	te_ctx_unref(other);
}
END_TEST

/* in place and not, the slots are those of the new nodes, and there are never more of them */
START_TEST(an_update_drops_the_slots)
{
	unsigned char *d = device(256), *d2 = device(256), *e = device(256);
	struct te_recording *rec = filler(d, 1, 256);
	enum te_update how;

	for (int k = 0; k < 1000; k++) {
		int more = k % 3 == 2;

		/* the fill of d has gone elsewhere, and what follows is not to go along */
		ck_assert_int_eq(slot(rec, e, 256, k && (k - 1) % 3 == 2, 1), 0);
		ck_assert_int_eq(slot(rec, d, 256, 1, 1), 1);
		DO(rebind(rec, 1, d2));
		DO(te_capture_begin(a));
		DO(te_fill(a, d, 3, 256));
		if (more)
			DO(te_fill(a, e, 5, 256));
		DO(te_capture_update(a, rec, &how));
		ck_assert_int_eq(how, k % 3 == 1 || k == 0 ? TE_UPDATE_IN_PLACE :
							     TE_UPDATE_INSTANTIATED);
		ck_assert_int_eq(rebind(rec, 0, d2), -EINVAL);
		tt_said("no slot has number 0: there are 0");
		if (k > 5)
			continue;
		DO(te_fill(a, d, 0, 256));
		DO(te_fill(a, e, 0, 256));
		launch(rec);
		check_filled(d, 3, 256, "the fill where it was captured");
		check_filled(e, more ? 5 : 0, 256, "the other fill");
		check_untouched(d2, 256, "the memory that a slot was bound to");
	}
	te_recording_unref(rec);
}
END_TEST

/* two slots on one memory stay apart, and are no obstacle to an update */
START_TEST(an_update_separates_two_slots_on_one_memory)
{
	unsigned char *d = device(64), *e = device(64);
	struct te_recording *rec;
	int32_t s[2];

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 64));
	DO(te_fill(a, e, 2, 64));
	DO(te_capture_end(a, &rec));
	s[0] = slot(rec, d, 64, 1, 1);
	s[1] = slot(rec, e, 64, 1, 1);
	DO(rebind(rec, s[1], d)); /* two inputs, the same tensor */
	launch(rec);
	check_filled(d, 2, 64, "the second fill");
	DO(rebind(rec, s[1], e));
	launch(rec);
	check_filled(d, 1, 64, "the first fill");
	DO(rebind(rec, s[1], d));
	DO(te_capture_begin(a));
	DO(te_fill(a, d, 3, 64));
	DO(te_fill(a, e, 4, 64));
	DO(te_capture_update(a, rec, NULL));
	launch(rec);
	check_filled(d, 3, 64, "the first fill, updated");
	check_filled(e, 4, 64, "the second fill, updated");
	ck_assert_int_eq(slot(rec, e, 64, 1, 1), 0);
	te_recording_unref(rec);
}
END_TEST

/* on the stream, by the driver's own call */
static void fill_natively(void *d, int value, size_t n)
{
	void *cu;

	ck_assert_int_eq(te__cu.cuDevicePrimaryCtxRetain(&cu, 0), 0);
	ck_assert_int_eq(te__cu.cuCtxPushCurrent(cu), 0);
	ck_assert_int_eq(te__cu.cuMemsetD8Async((uintptr_t)d, (unsigned char)value, n,
						te_stream_native(a)),
			 0);
	ck_assert_int_eq(te__cu.cuCtxPopCurrent(&cu), 0);
	ck_assert_int_eq(te__cu.cuDevicePrimaryCtxRelease(0), 0);
}

/* what was not queued through this library: nobody knows what it uses */
START_TEST(a_node_of_others_stops_every_rebind)
{
	unsigned char *d = device(64), *d2 = device(64);
	struct te_recording *rec;

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 64));
	if (!is_host)
		fill_natively(d, 2, 32);
	DO(te_fill(a, d + 32, 3, 32));
	DO(te_capture_end(a, &rec));
	if (is_host) {
		DO(rebind(rec, slot(rec, d, 64, 2, 1), d2));
	} else {
		slot(rec, d, 64, 2, 0);
		ck_assert_int_eq(rebind(rec, 0, d2), -EOPNOTSUPP);
		tt_said("node 1, fill, was not queued through this library");
		te_error_clear();
		DO(rebind(rec, 0, d));
		launch(rec);
		check_untouched(d2, 64, "the memory that was refused");
	}
	te_recording_unref(rec);
}
END_TEST

static void feed(struct te_tensor *t, void *into, int64_t vocab)
{
	size_t n = te_tensor_nbytes(t) / sizeof(int32_t);
	int32_t *tok = malloc(n * sizeof(*tok));

	for (size_t i = 0; i < n; i++)
		tok[i] = (int32_t)tt_rand_int(0, vocab - 1);
	put(into, tok, n * sizeof(*tok));
	free(tok);
}

/* the forward pass of a model, recorded once, on tokens elsewhere */
START_TEST(rebinds_the_input_of_a_plan)
{
	static const struct model_shape m = { 48, 32, 2, 16, 4, 4, 2, 0, 0 };
	struct te_seq *seq = model_create(ctx, &m, tt_rand_u64());
	struct te_plan *p = model_plan(seq, &m, _i ? "fp8-current" : "fp32", 0);
	struct te_tensor *x = te_plan_input(p, "x");
	const size_t n = te_tensor_nbytes(x);
	void *tok = device(n);
	float eager[2], replayed[2];
	struct te_slot_info i = TE_SLOT_INFO_INIT;
	struct te_recording *rec;
	int32_t s;

	DO(te_ctx_sync(ctx));
	model_feed(p, &m);
	DO(te_plan_forward(p, a, 0));
	DO(te_stream_sync(a));
	eager[0] = model_loss(p);
	DO(te_capture_begin(a));
	DO(te_plan_forward(p, a, 0));
	DO(te_capture_end(a, &rec));
	s = te_recording_slot(rec, te_tensor_data(x), n, &i);
	ck_assert_int_eq(s, 0);
	ck_assert_int_ge(i.nuses, 1);
	ck_assert_int_eq(i.patchable, 1);
	feed(x, tok, m.vocab);
	DO(rebind(rec, s, tok));
	launch(rec);
	replayed[1] = model_loss(p);
	DO(rebind(rec, s, te_tensor_data(x)));
	launch(rec);
	replayed[0] = model_loss(p);
	/* eagerly, where the plan reads them */
	put(te_tensor_data(x), tok, n);
	DO(te_plan_forward(p, a, 0));
	DO(te_stream_sync(a));
	eager[1] = model_loss(p);
	ck_assert_int_eq(tt_ulps_f32(eager[0], replayed[0]), 0);
	ck_assert_int_eq(tt_ulps_f32(eager[1], replayed[1]), 0);
	ck_assert(eager[0] != eager[1]);
	te_recording_unref(rec);
	te_plan_unref(p);
	te_seq_unref(seq);
}
END_TEST

/* what no edge orders: memory of a slot that another node or slot uses, one of them writing */
START_TEST(by_data_slots_stay_apart_from_what_is_written)
{
	float *x = floats(64), *z = floats(64), *y = floats(64), *sum = floats(64);
	float *other = floats(128), *far = floats(64);
	struct te_recording *rec;
	int32_t sx, sz, sy, all[3];

	DO(te_capture_begin(a));
	DO(te_capture_edges(a, _i ? TE_CAPTURE_BY_DATA : 0));
	DO(add(a, x, x, y, 64));
	DO(add(a, z, other, sum, 64));
	DO(te_capture_end(a, &rec));
	sx = slot(rec, x, 256, 2, 1);
	sz = slot(rec, z, 256, 1, 1);
	sy = slot(rec, y, 256, 1, 1);
	if (!_i) { /* one behind the other: anything goes */
		DO(rebind(rec, sx, sum));
		DO(rebind(rec, sy, z));
		DO(rebind(rec, sz, y));
		te_recording_unref(rec);
		return;
	}
	/* what nobody writes may be read by all */
	DO(rebind(rec, sx, other));
	DO(rebind(rec, sz, other + 32));
	launch(rec);
	check_sum(y, other, other, 64, "the sum of what another node reads");
	check_sum(sum, other + 32, other, 64, "the sum of what both read");
	/* a node that no slot takes along */
	REFUSED(-EINVAL, rebind, rec, sx, sum);
	ck_assert_int_eq(rebind(rec, sx, sum + 32), -EINVAL);
	tt_said("slot 0: 256 bytes at 0x");
	tt_said(", add, and one of both is written");
	REFUSED(-EINVAL, rebind, rec, sy, other);
	REFUSED(-EINVAL, rebind, rec, sy, other + 60);
	REFUSED(-EINVAL, rebind, rec, sy, other - 60);
	/* another slot, wherever that is by now */
	ck_assert_int_eq(rebind(rec, sy, other + 92), -EINVAL);
	tt_said("slot 2: 256 bytes at 0x");
	tt_said("overlap slot 1 of node ");
	DO(rebind(rec, sz, z));
	DO(rebind(rec, sy, other + 64));
	REFUSED(-EINVAL, rebind, rec, sz, other + 124);
	/* what left its own memory does not use it */
	DO(rebind(rec, sz, y));
	REFUSED(-EINVAL, rebind, rec, sy, y);
	launch(rec);
	check_sum(sum, y, other, 64, "the sum of what is free by now");
	/* all at once: where they will be counts */
	all[0] = sz;
	all[1] = sy;
	REFUSED(-EINVAL, te_recording_rebind, rec, 2, all, ((void *[]){ far, far + 60 }));
	DO(te_recording_rebind(rec, 2, all, ((void *[]){ far, y })));
	launch(rec);
	check_sum(sum, far, other, 64, "the sum of what is far");
	check_sum(y, other, other, 64, "the sum at home");
	/* and home again */
	all[2] = sx;
	DO(te_recording_rebind(rec, 3, all, ((void *[]){ z, y, x })));
	launch(rec);
	check_sum(y, x, x, 64, "the sum of what was captured");
	check_sum(sum, z, other, 64, "the other sum of what was captured");
	te_recording_unref(rec);
}
END_TEST

/* edges of the capture order what shared memory in it: going home is no matter */
START_TEST(by_data_slots_may_go_home)
{
	float *x = floats(128), *y = floats(128), *other = floats(64);
	struct te_recording *rec;
	int32_t s, head;

	DO(te_capture_begin(a));
	DO(te_capture_edges(a, TE_CAPTURE_BY_DATA));
	DO(add(a, other, other, x + 64, 64)); /* a part of what the next one reads */
	DO(add(a, x, x, y, 128));
	DO(te_capture_end(a, &rec));
	s = slot(rec, x + 64, 256, 1, 1);
	DO(rebind(rec, s, floats(64)));
	launch(rec);
	check_sum(y, x, x, 128, "the sum of what nobody writes");
	DO(rebind(rec, s, x + 64));
	launch(rec);
	check_sum(y, x, x, 128, "the sum of what is written before");
	/* a slot that reaches into the other one */
	head = slot(rec, x, 256, 2, 1);
	DO(rebind(rec, head, floats(128)));
	DO(rebind(rec, head, x));
	launch(rec);
	check_sum(y, x, x, 128, "the sum of two slots");
	/* not quite home */
	REFUSED(-EINVAL, rebind, rec, s, x + 60);
	/* the next capture's edges count, and its slots */
	DO(te_capture_begin(a));
	DO(add(a, other, other, x + 64, 64));
	DO(add(a, x, x, y, 128));
	DO(te_capture_update(a, rec, NULL));
	s = slot(rec, x + 64, 256, 1, 1);
	DO(rebind(rec, s, x + 60));
	te_recording_unref(rec);
}
END_TEST

/* with slots at random, whatever a rebind takes keeps the results of a line */
START_TEST(what_a_rebind_takes_needs_no_other_edges)
{
	const size_t n = 256, room = 4 * n, nbytes = room * sizeof(float);
	float *d = floats(room), *was = malloc(nbytes), *want = malloc(nbytes);
	int taken = 0;

	put(was, d, nbytes);
	for (int trial = 0; trial < 60; trial++) {
		struct te_recording *rec[2];
		struct work w[12];

		for (int k = 0; k < (int)TT_LEN(w); k++)
			w[k] = some_work(d, n);
		for (int k = 0; k < 2; k++) {
			DO(te_capture_begin(a));
			DO(te_capture_edges(a, k ? TE_CAPTURE_BY_DATA : 0));
			queue_work(w, (int)TT_LEN(w));
			DO(te_capture_end(a, &rec[k]));
		}
		for (int k = 0; k < 8; k++) {
			float *from = d + 4 * tt_rand_int(0, (int64_t)n / 4 - 1);
			float *to = d + 4 * tt_rand_int(0, (int64_t)(room - n) / 4);
			const int32_t s = te_recording_slot(rec[1], from, 64, NULL);

			if (s < 0)
				continue;
			ck_assert_int_eq(te_recording_slot(rec[0], from, 64, NULL), s);
			if (rebind(rec[1], s, to))
				continue;
			DO(rebind(rec[0], s, to));
			taken++;
		}
		te_error_clear();
		for (int k = 0; k < 2; k++) {
			put(d, was, nbytes);
			launch(rec[k]);
			if (k)
				check_bytes(d, want, nbytes, "what was rebound");
			put(want, d, nbytes);
			te_recording_unref(rec[k]);
		}
	}
	ck_assert_int_gt(taken, 20);
	free(was);
	free(want);
}
END_TEST

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* eight slots of a line of kernels: the goal is 10 us; sanitizers and shared CPUs take longer */
START_TEST(a_rebind_is_cheap)
{
	enum { NSLOTS = 8 };
	const size_t n = 256;
	float *x[NSLOTS], *y[NSLOTS], *out = floats(n);
	struct te_recording *rec;
	double best = 1;
	int32_t s[NSLOTS];
	void *p[2][NSLOTS];

	for (int k = 0; k < NSLOTS; k++) {
		x[k] = floats(n);
		y[k] = floats(n);
		p[0][k] = x[k];
		p[1][k] = y[k];
	}
	DO(te_capture_begin(a));
	for (int k = 0; k < NSLOTS; k++)
		DO(add(a, x[k], x[k], out, n));
	DO(te_capture_end(a, &rec));
	for (int k = 0; k < NSLOTS; k++)
		s[k] = slot(rec, x[k], 4 * n, 2, 1);
	for (int k = 0; k < 200; k++) {
		double t = now_s();

		DO(te_recording_rebind(rec, NSLOTS, s, p[!(k & 1)]));
		t = now_s() - t;
		best = t < best ? t : best;
	}
	ck_assert_msg(is_host || best < 10e-6, "%.1f us", 1e6 * best);
	launch(rec);
	check_sum(out, x[NSLOTS - 1], x[NSLOTS - 1], n, "after an even number");
	te_recording_unref(rec);
}
END_TEST

/* ---- external events ---- */

/* a waiter goes on while a later node of the same launch has not ended */
START_TEST(waiters_pass_before_the_trailing_node)
{
	unsigned char *d = device(64), *c = device(64), *h = pinned(64);
	struct te_recording *rec;
	struct te_event *e;

	DO(te_event_create(ctx, &e));
	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 64));
	DO(te_event_record_external(e, a));
	DO(te_host_call(a, tt_gate_wait, NULL, 0));
	DO(te_fill(a, c, 2, 64));
	DO(te_capture_end(a, &rec));
	ck_assert_uint_eq(info(rec).nnodes, 4);
	ck_assert_uint_eq(info(rec).nkernels, 0);
	ck_assert_int_eq(node(rec, 1).kind, TE_NODE_EVENT);
	ck_assert_str_eq(node(rec, 1).name, "");
	ck_assert_int_eq(node(rec, 2).ndeps, 1);
	/* no launch yet: nothing to wait for */
	DO(te_event_sync(e));
	ck_assert_int_eq(te_event_query(e), 1);
	for (int k = 0; k < 3; k++) {
		DO(te_fill(a, d, 0, 64));
		DO(te_fill(a, c, 0, 64));
		DO(te_stream_sync(a));
		memset(h, 0, 64);
		tt_gate_close();
		DO(te_recording_launch(rec, a));
		if (k == 1)
			DO(te_event_sync(e)); /* the CPU, too */
		DO(te_event_wait(e, b));
		DO(te_copy(b, h, d, 64));
		DO(te_stream_sync(b));
		ck_assert_int_eq(h[63], 1);
		ck_assert_int_eq(te_event_query(e), 1);
		ck_assert_int_eq(te_stream_query(a), 0);
		ck_assert(!tt_gate_timed_out());
		tt_gate_open();
		DO(te_stream_sync(a));
		check_filled(c, 2, 64, "the trailing node");
	}
	te_recording_unref(rec);
	te_event_unref(e);
}
END_TEST

/* ... and not before the node in front of the record, of the newest launch */
START_TEST(a_wait_is_for_the_latest_launch)
{
	unsigned char *d = device(64), *h = pinned(64);
	struct te_recording *rec;
	struct te_event *e, *f;
	double ms = -1;

	DO(te_event_create(ctx, &e));
	DO(te_event_create(ctx, &f));
	DO(te_capture_begin(a));
	DO(te_host_call(a, tt_gate_wait, NULL, 0));
	DO(te_fill(a, d, 1, 64));
	DO(te_event_record_external(e, a));
	DO(te_capture_end(a, &rec));
	launch(rec);
	ck_assert_int_eq(te_event_query(e), 1);
	DO(te_fill(a, d, 0, 64));
	memset(h, 0, 64);
	tt_gate_close();
	DO(te_event_record(f, a));
	DO(te_recording_launch(rec, a));
	ck_assert_int_eq(te_event_query(e), 0);
	DO(te_event_wait(e, b));
	DO(te_copy(b, h, d, 64));
	ck_assert_int_eq(te_event_query(e), 0);
	tt_sleep_ms(20);
	ck_assert_int_eq(te_event_query(e), 0);
	ck_assert_int_eq(te_stream_query(b), 0);
	tt_gate_open();
	DO(te_event_sync(e));
	DO(te_stream_sync(b));
	ck_assert_int_eq(h[0], 1);
	DO(te_event_elapsed_ms(f, e, &ms));
	ck_assert_double_ge(ms, 19);
	te_recording_unref(rec);
	te_event_unref(e);
	te_event_unref(f);
}
END_TEST

START_TEST(outside_of_captures_it_is_a_record)
{
	unsigned char *d = device(64), *h = pinned(64);
	struct te_event *e;

	DO(te_event_create(ctx, &e));
	tt_gate_close();
	DO(te_host_call(a, tt_gate_wait, NULL, 0));
	DO(te_fill(a, d, 5, 64));
	DO(te_event_record_external(e, a));
	ck_assert_int_eq(te_event_query(e), 0);
	DO(te_event_wait(e, b));
	DO(te_copy(b, h, d, 64));
	tt_gate_open();
	DO(te_stream_sync(b));
	ck_assert_int_eq(h[63], 5);
	te_event_unref(e);
}
END_TEST

START_TEST(an_external_event_joins_nobody)
{
	unsigned char *d = device(64);
	struct te_recording *rec;
	struct te_event *e;

	DO(te_event_create(ctx, &e));
	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 64));
	DO(te_event_record_external(e, a));
	DO(te_event_wait(e, b));
	/* b does not capture: it runs at once */
	DO(te_fill(b, d, 2, 64));
	DO(te_stream_sync(b));
	REFUSED(-TE_ESTATE, te_event_wait, e, a);
	/* which spoils the capture, as every failed call */
	REFUSED(-TE_ESTATE, te_capture_end, a, &rec);
	check_filled(d, 2, 64, "what ran outside");
	/* and the event can be used again */
	DO(te_event_record(e, a));
	DO(te_event_sync(e));
	te_event_unref(e);
}
END_TEST

START_TEST(a_recording_keeps_its_event)
{
	unsigned char *d = device(64);
	struct te_recording *rec;
	struct te_event *e, *f;

	DO(te_event_create(ctx, &e));
	DO(te_event_create(ctx, &f));
	DO(te_capture_begin(a));
	DO(te_event_record_external(e, a));
	DO(te_fill(a, d, 1, 64));
	DO(te_capture_end(a, &rec));
	te_event_unref(e);
	launch(rec);
	check_filled(d, 1, 64, "a launch whose event is gone");
	/* another event at the same place, while a launch is queued */
	tt_gate_close();
	DO(te_host_call(a, tt_gate_wait, NULL, 0));
	DO(te_recording_launch(rec, a));
	DO(te_capture_begin(b));
	DO(te_event_record_external(f, b));
	DO(te_fill(b, d, 2, 64));
	DO(te_capture_update(b, rec, NULL));
	DO(te_recording_launch(rec, a));
	ck_assert_int_eq(te_event_query(f), 0);
	tt_gate_open();
	DO(te_event_sync(f));
	DO(te_stream_sync(a));
	check_filled(d, 2, 64, "the update");
	DO(te_recording_launch(rec, a));
	te_recording_unref(rec);
	DO(te_event_sync(f));
	te_event_unref(f);
}
END_TEST

static void fail_full(void *arg)
{
	(void)arg;
	te__fail(-ENOSPC, "the disk of rank 3 is full");
	te__k_fail(-ENOSPC);
}

/* a launch that fails before its record; a CUDA stream cannot be made to fail like this */
START_TEST(waiters_hear_of_a_launch_that_failed)
{
	struct te_recording *rec;
	struct te_stream *s;
	struct te_event *e, *f;

	DO(te_event_create(ctx, &e));
	DO(te_event_create(ctx, &f));
	DO(te_stream_create(ctx, &s));
	DO(te_capture_begin(s));
	DO(te_event_record_external(f, s));
	DO(te_host_call(s, fail_full, NULL, 0));
	DO(te_event_record_external(e, s));
	DO(te_capture_end(s, &rec));
	DO(te_recording_launch(rec, s));
	DO(te_event_sync(f));
	if (is_host) {
		ck_assert_int_eq(te_event_sync(e), -ENOSPC);
		tt_said("the disk of rank 3 is full");
		ck_assert_int_eq(te_event_query(e), -ENOSPC);
		te_error_clear();
		/* reached before the failure */
		ck_assert_int_eq(te_event_query(f), 1);
	} else {
		DO(te_event_sync(e));
	}
	te_recording_unref(rec);
	te_event_unref(e);
	te_event_unref(f);
	te_stream_unref(s);
}
END_TEST

/* ---- faults ---- */

static unsigned char *sweep_d[2];

struct things {
	struct te_recording *rec;
	struct te_event *e, *f;
	char *text;
};

static int use_all(struct things *o)
{
	struct te_k_add k = { sweep_d[0], sweep_d[0], sweep_d[0], 16, TE_DTYPE_FP32, 0 };
	int32_t s;
	int r, end;

#define ROW(call)                 \
	do {                      \
		r = call;         \
		if (r < 0)        \
			return r; \
	} while (0)
	ROW(te_event_create(ctx, &o->e));
	ROW(te_event_create(ctx, &o->f));
	for (int round = 0; round < 4; round++) {
		const int forks = round < 3;

		ROW(te_capture_begin(a));
		r = te_capture_edges(a, BY_DATA);
		if (!r)
			r = te_fill(a, sweep_d[0], 1, 64);
		if (!r && round == 2)
			r = te_fill_u32(a, sweep_d[0], 2, 64);
		if (!r)
			r = te_event_record_external(o->e, a);
		if (!r)
			r = te_event_record(o->f, a);
		if (!r && forks)
			r = te_event_wait(o->f, b);
		if (!r)
			r = TE__LAUNCH(forks ? b : a, ADD, &k);
		if (!r)
			r = te_host_call(a, nothing, &k, sizeof(k));
		if (!r && forks)
			r = te_event_record(o->f, b);
		if (!r && forks)
			r = te_event_wait(o->f, a);
		end = round ? te_capture_update(a, o->rec, NULL) : te_capture_end(a, &o->rec);
		/* a stream that could not join leaves the capture as it is */
		ROW(r);
		ROW(end);
		s = te_recording_slot(o->rec, sweep_d[0], 64, NULL);
		ROW(s);
		ROW(te_recording_rebind(o->rec, 1, &s, (void *[]){ sweep_d[1] }));
		ROW(te_recording_launch(o->rec, a));
		ROW(te_event_wait(o->e, b));
		ROW(te_recording_rebind(o->rec, 1, &s, (void *[]){ sweep_d[0] }));
		ROW(te_recording_dot(o->rec, "sweep", &o->text));
		free(o->text);
		ROW(te_stream_sync(a));
		ROW(te_stream_sync(b));
	}
#undef ROW
	return 0;
}

static int sweep(void)
{
	struct things o = { 0 };
	int r = use_all(&o);
	int ra = te_stream_sync(a), rb = te_stream_sync(b);

	/* queued launches held what they use */
	te_recording_unref(o.rec);
	te_event_unref(o.e);
	te_event_unref(o.f);
	return r ? r : ra ? ra : rb;
}

START_TEST(each_call_fails_cleanly)
{
	sweep_d[0] = device(64);
	sweep_d[1] = device(64);
	ck_assert_int_gt(tt_fault_each(sweep), 40);
}
END_TEST

/* ---- the table ---- */

START_TEST(a_backend_may_lack_all_of_it)
{
	struct te__backend_ops o = { .name = "none" };
	struct te__gnode n = { .id = 5 };

	te__backend_fill(&o);
	REFUSED(-EOPNOTSUPP, o.event_record_external, NULL, NULL);
	REFUSED(-EOPNOTSUPP, o.exec_update, NULL, NULL, 1);
	REFUSED(-EOPNOTSUPP, o.exec_patch, NULL, 0, NULL);
	o.graph_node(NULL, 0, &n);
	ck_assert_int_eq(n.kind, TE_NODE_OTHER);
	ck_assert_int_eq(n.foreign, 1);
}
END_TEST

/* in every struct the places are apart, aligned and inside */
START_TEST(pointers_of_arguments_are_inside)
{
	for (int id = 0; id < TE_K_COUNT; id++) {
		const uint16_t *at = NULL;
		uint32_t n = te__k_ptrs((enum te_k_id)id, &at);

		ck_assert_uint_ge(n, 1);
		/* a range each, a copy's two and a product's scratch */
		ck_assert_uint_le(n + 3, TE__RANGES_MAX);
		for (uint32_t k = 0; k < n; k++) {
			ck_assert_uint_eq(at[k] % sizeof(void *), 0);
			ck_assert_uint_le(at[k] + sizeof(void *), te__k_nbytes((enum te_k_id)id));
			for (uint32_t j = 0; j < k; j++)
				ck_assert_uint_ne(at[j], at[k]);
		}
	}
	ck_assert_uint_eq(te__k_ptrs(TE_K_COUNT, NULL), 0);
}
END_TEST

Suite *recording_suite(const char *name, const char *on)
{
	Suite *s = suite_create(name);
	TCase *c;

	backend = on;
#define CASE(title)                                            \
	do {                                                   \
		c = tt_case(s, title, "backend");              \
		tcase_add_checked_fixture(c, setup, teardown); \
	} while (0)
	CASE("inspection");
	tcase_add_test(c, lists_nodes_and_edges_of_a_fork);
	tcase_add_test(c, edges_lead_backwards);
	tcase_add_test(c, draws_itself);
	tcase_add_test(c, names_the_nodes_of_a_product);
	CASE("edges");
	tcase_add_loop_test(c, nodes_wait_for_their_data, 0, 2);
	tcase_add_test(c, the_latest_choice_is_for_the_whole_capture);
	tcase_add_test(c, edges_are_chosen_within_a_capture);
	tcase_add_test(c, several_streams_keep_their_order);
	tcase_add_test(c, an_update_may_choose_other_edges);
	tcase_add_test(c, results_do_not_depend_on_edges);
	CASE("updates");
	tcase_add_test(c, updates_in_place_what_looks_the_same);
	tcase_add_test(c, instantiates_what_does_not);
	tcase_add_test(c, instantiates_other_edges);
	tcase_add_loop_test(c, a_failed_update_changes_nothing, 0, 2);
	tcase_add_test(c, a_spoilt_capture_updates_nothing);
	tcase_add_loop_test(c, an_update_leaves_queued_launches_alone, 0, 2);
	CASE("slots");
	tcase_add_test(c, rebinds_uses_of_every_kind);
	tcase_add_test(c, uses_are_those_that_a_scan_finds);
	tcase_add_test(c, offsets_within_a_slot_stay);
	tcase_add_test(c, a_rebind_leaves_queued_launches_alone);
	tcase_add_test(c, binding_what_is_bound_does_nothing);
	tcase_add_test(c, a_rebind_is_all_or_nothing);
	tcase_add_test(c, a_fault_leaves_all_as_it_was);
	tcase_add_test(c, refuses_what_makes_no_sense);
	tcase_add_test(c, recordings_of_another_context_are_refused);
	tcase_add_test(c, an_update_drops_the_slots);
	tcase_add_test(c, an_update_separates_two_slots_on_one_memory);
	tcase_add_test(c, a_node_of_others_stops_every_rebind);
	tcase_add_loop_test(c, rebinds_the_input_of_a_plan, 0, 2);
	tcase_add_loop_test(c, by_data_slots_stay_apart_from_what_is_written, 0, 2);
	tcase_add_test(c, by_data_slots_may_go_home);
	tcase_add_test(c, what_a_rebind_takes_needs_no_other_edges);
	tcase_add_test(c, a_rebind_is_cheap);
	CASE("external events");
	tcase_add_test(c, waiters_pass_before_the_trailing_node);
	tcase_add_test(c, a_wait_is_for_the_latest_launch);
	tcase_add_test(c, outside_of_captures_it_is_a_record);
	tcase_add_test(c, an_external_event_joins_nobody);
	tcase_add_test(c, a_recording_keeps_its_event);
	tcase_add_test(c, waiters_hear_of_a_launch_that_failed);
	CASE("faults");
	tcase_add_test(c, each_call_fails_cleanly);
#undef CASE
	c = tt_case(s, "table", "backend");
	tcase_add_test(c, a_backend_may_lack_all_of_it);
	tcase_add_test(c, pointers_of_arguments_are_inside);
	return s;
}
