/* t/capture/recording_nodes.c - nodes and edges of recordings. */
#include "config.h"

#include <te/capture.h>
#include <te/dtype.h>
#include <te/errno.h>
#include <te/gemm.h>
#include "libtecore/base/private.h"
#include <te/tensor.h>

#include "libtecore/backend/backend.h"
#include "recording_lib.h"

/* ---- inspection ---- */

/* a fill; then a kernel concurrent with a copy and a host call; then a fill that joins them */
static struct te_recording *forked(void)
{
	unsigned char *d = rec_device(512), *h = rec_pinned(512);
	float *x = rec_floats(100), *z = rec_floats(100), *y = rec_floats(100);
	struct te_event *fork, *join;
	struct te_recording *rec;
	uint64_t arg[5] = { 0 };

	DO(te_event_create(ctx, &fork));
	DO(te_event_create(ctx, &join));
	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 300));
	DO(te_event_record(fork, a));
	DO(te_event_wait(fork, b));
	DO(rec_add(a, x, z, y, 100));
	DO(te_copy(b, h, d, 200));
	DO(te_host_call(b, rec_nothing, arg, sizeof(arg)));
	DO(te_event_record(join, b));
	DO(te_event_wait(join, a));
	DO(te_fill_u32(a, d, 7, 400));
	DO(te_capture_end(a, &rec));
	te_event_unref(fork);
	te_event_unref(join);
	return rec;
}

REC_CASE(inspection);

TEST(inspection, lists_nodes_and_edges_of_a_fork)
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
	struct te_recording_info i = rec_info(rec);

	ck_assert_uint_eq(i.nnodes, TT_LEN(want));
	ck_assert_uint_eq(i.nedges, 5);
	ck_assert_uint_eq(i.nfills, 2);
	ck_assert_uint_eq(i.ninstantiated, 1);
	ck_assert_uint_eq(i.nupdated, 0);
	for (uint64_t k = 0; k < TT_LEN(want); k++) {
		uint64_t dep[3] = { 77, 77, 77 };
		struct te_node_info n = rec_node(rec, k);

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

/* random forks and joins of three streams: nedges is right, each edge leads to an earlier node */
TEST(inspection, edges_point_to_earlier_nodes)
{
	unsigned char *d = rec_device((size_t)60 * 64);
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
			/* other bytes each time: fills of two streams may run concurrently */
			DO(te_fill(s[to], d + 64 * (size_t)nfills, 1, 64));
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
	ck_assert_uint_eq(rec_info(rec).nnodes, nfills);
	for (uint64_t k = 0; k < rec_info(rec).nnodes; k++) {
		int n = te_recording_deps(rec, k, (int32_t)TT_LEN(dep), dep);

		ck_assert_int_eq(n, rec_node(rec, k).ndeps);
		nedges += (uint64_t)n;
		for (int i = 0; i < n; i++) {
			ck_assert_uint_lt(dep[i], k);
			ck_assert(!i || dep[i - 1] < dep[i]);
		}
	}
	ck_assert_uint_eq(nedges, rec_info(rec).nedges);
	rec_launch(rec);
	te_recording_unref(rec);
	for (int k = 0; k < 3; k++)
		te_event_unref(e[k]);
	te_stream_unref(s[2]);
}

/* 1: dot(1) accepts the text, 0: dot(1) is not installed */
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

TEST(inspection, draws_itself)
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

TEST(inspection, names_the_nodes_of_a_gemm)
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
	for (uint64_t i = 0; i < rec_info(rec).nnodes; i++)
		ngemm += !strcmp(rec_node(rec, i).name, "gemm");
	ck_assert_uint_ge(ngemm, 1);
	ck_assert_uint_eq(ngemm, rec_info(rec).nnodes - 2);
	ck_assert_str_eq(rec_node(rec, 0).name, "");
	ck_assert_str_eq(rec_node(rec, rec_info(rec).nnodes - 2).name, "gemm");
	ck_assert_uint_eq(rec_node(rec, rec_info(rec).nnodes - 2).nbytes, sizeof(struct te_k_gemm));
	DO(te_recording_dot(rec, NULL, &text));
	ck_assert_ptr_nonnull(strstr(text, "1 gemm"));
	free(text);
	/* each node of a GEMM has its arguments; one of cuBLASLt cannot be patched */
	rec_binding(rec, te_tensor_data(x), te_tensor_nbytes(x), 1 + (int)ngemm, is_host);
	rec_binding(rec, te_tensor_data(d), te_tensor_nbytes(d), (int)ngemm, is_host);
	if (!is_host) {
		ck_assert_int_eq(rec_rebind(rec, 1, te_tensor_data(w)), -EOPNOTSUPP);
		tt_said("gemm");
		te_error_clear();
	}
	te_recording_unref(rec);
	te_tensor_unref(x);
	te_tensor_unref(w);
	te_tensor_unref(d);
}

/* ---- edges ---- */

/* 1: the recording's edges make the node depend on the other one, directly or not */
static int depends_on(const struct te_recording *rec, uint64_t index, uint64_t other)
{
	uint64_t dep[64];
	const int n = te_recording_deps(rec, index, (int32_t)TT_LEN(dep), dep);

	ck_assert_int_ge(n, 0);
	ck_assert_int_le(n, (int)TT_LEN(dep));
	for (int i = 0; i < n; i++)
		if (dep[i] == other || (dep[i] > other && depends_on(rec, dep[i], other)))
			return 1;
	return 0;
}

/* index of the first queued node: a backend may insert an empty fill before it */
static uint64_t first_queued(const struct te_recording *rec)
{
	return rec_node(rec, 0).kind == TE_NODE_FILL && !rec_node(rec, 0).nbytes;
}

REC_CASE(edges);

TEST_EACH(edges, nodes_depend_on_conflicting_nodes, 2)
{
	unsigned char *d = rec_device(64), *h = rec_device(16);
	float *x = rec_floats(64), *y = rec_floats(64), *z = rec_floats(64);
	enum { LO, HI, COPY, ADD, AGAIN, CALL, LAST, N };
	const char *const waits[N] = { "", "", "01", "", "3", "01234", "012345" };
	struct te_recording *rec;
	uint64_t first;

	DO(te_capture_begin(a));
	DO(te_capture_edges(a, _i ? CONCURRENT_PDL : TE_CAPTURE_CONCURRENT));
	DO(te_fill(a, d, 1, 16));
	DO(te_fill(a, d + 16, 2, 16));
	DO(te_copy(a, d + 32, d, 32));
	DO(rec_add(a, x, x, y, 64));
	DO(rec_add(a, y, x, z, 64));
	DO(te_host_call(a, rec_nothing, NULL, 0));
	DO(te_fill(a, h, 3, 16));
	DO(te_capture_end(a, &rec));
	first = first_queued(rec);
	ck_assert_uint_eq(rec_info(rec).nnodes, first + N);
	for (uint64_t i = 0; i < N; i++)
		for (uint64_t k = 0; k < i; k++)
			ck_assert_msg(depends_on(rec, first + i, first + k) ==
					      (strchr(waits[i], '0' + (int)k) != NULL),
				      "node %d of the queued and node %d", (int)i, (int)k);
	rec_launch(rec);
	rec_check_part(d, 1, 16, "the first fill");
	rec_check_part(d + 32, 1, 16, "the copy of it");
	rec_check_part(d + 48, 2, 16, "the copy of the second");
	rec_check_sum(z, y, x, 64, "the second sum");
	rec_check_filled(h, 3, 16, "the last fill");
	te_recording_unref(rec);
}

/* how many pairs of three fills of separate memory are ordered */
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
			n += depends_on(rec, first + i, first + k);
	te_recording_unref(rec);
	return n;
}

TEST(edges, the_latest_choice_holds_for_the_whole_capture)
{
	unsigned char *d = rec_device(48);

	ck_assert_int_eq(pairs_in_order(d, CONCURRENT_PDL, CONCURRENT_PDL), 0);
	ck_assert_int_eq(pairs_in_order(d, 0, TE_CAPTURE_CONCURRENT), 0);
	ck_assert_int_eq(pairs_in_order(d, CONCURRENT_PDL, 0), 3);
	ck_assert_int_eq(pairs_in_order(d, 0, TE_CAPTURE_PDL), 3);
	rec_check_untouched(d, 48, "captured but never launched");
}

TEST(edges, edges_are_chosen_within_a_capture)
{
	unsigned char *d = rec_device(64);
	struct te_recording *rec;
	struct te_event *e;

	DO(te_event_create(ctx, &e));
	REFUSED(-EINVAL, te_capture_edges, NULL, 0);
	REFUSED(-EINVAL, te_capture_edges, a, 4);
	REFUSED(-TE_ESTATE, te_capture_edges, a, CONCURRENT_PDL);
	DO(te_capture_begin(a));
	REFUSED(-EINVAL, te_capture_edges, a, CONCURRENT_PDL | 8);
	REFUSED(-TE_ESTATE, te_capture_edges, b, CONCURRENT_PDL);
	DO(te_fill(a, d, 1, 32));
	DO(te_event_record(e, a));
	DO(te_event_wait(e, b));
	/* it takes part, but the capture was begun on another stream */
	REFUSED(-TE_ESTATE, te_capture_edges, b, CONCURRENT_PDL);
	DO(te_fill(b, d + 32, 1, 32));
	DO(te_event_record(e, b));
	DO(te_event_wait(e, a));
	DO(te_capture_end(a, &rec));
	REFUSED(-TE_ESTATE, te_capture_edges, a, CONCURRENT_PDL);
	rec_launch(rec);
	rec_check_filled(d, 1, 64, "both fills");
	te_recording_unref(rec);
	te_event_unref(e);
}

/* a fork and a join; the nodes in the branches use separate memory */
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

TEST(edges, several_streams_keep_their_order)
{
	unsigned char *d = rec_device(112);
	struct te_recording *rec[2] = { fork_of_fills(d, 0), fork_of_fills(d, CONCURRENT_PDL) };

	ck_assert_uint_eq(rec_info(rec[0]).nnodes, 7);
	ck_assert_uint_eq(rec_info(rec[1]).nnodes, 7);
	ck_assert_uint_eq(rec_info(rec[0]).nedges, rec_info(rec[1]).nedges);
	for (uint64_t i = 0; i < 7; i++) {
		uint64_t dep[2][7];
		int n = te_recording_deps(rec[0], i, 7, dep[0]);

		ck_assert_int_eq(te_recording_deps(rec[1], i, 7, dep[1]), n);
		ck_assert_mem_eq(dep[0], dep[1], (size_t)n * sizeof(dep[0][0]));
	}
	rec_launch(rec[1]);
	rec_check_filled(d, 1, 112, "all fills");
	te_recording_unref(rec[0]);
	te_recording_unref(rec[1]);
}

TEST(edges, an_update_may_choose_other_edges)
{
	unsigned char *d = rec_device(64);
	struct te_recording *rec;
	/* the third capture has the edges of the second */
	static const uint32_t edges[] = { 0, CONCURRENT_PDL, CONCURRENT_PDL, 0 };
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
		rec_launch(rec);
		rec_check_filled(d, k + 1, 64, "fills of an update");
	}
	te_recording_unref(rec);
}

TEST(edges, results_do_not_depend_on_edges)
{
	const size_t n = 4 * (size_t)tt_rand_int(20, 400), nbytes = n * sizeof(float);
	float *d = rec_floats(n), *was = malloc(nbytes), *want = malloc(nbytes);
	struct te_recording *rec;
	struct work w[300];

	rec_put(was, d, nbytes);
	for (int trial = 0; trial < 20; trial++) {
		const int nwork = (int)tt_rand_int(2, (int64_t)TT_LEN(w));

		for (int k = 0; k < nwork; k++)
			w[k] = rec_some_work(d, n);
		rec_put(d, was, nbytes);
		rec_queue_work(w, nwork);
		rec_put(want, d, nbytes);
		DO(te_capture_begin(a));
		DO(te_capture_edges(a, trial & 1 ? CONCURRENT_PDL : TE_CAPTURE_CONCURRENT));
		rec_queue_work(w, nwork);
		DO(te_capture_end(a, &rec));
		rec_put(d, was, nbytes);
		rec_launch(rec);
		rec_check(d, want, nbytes, "the work of concurrent nodes");
		te_recording_unref(rec);
	}
	free(was);
	free(want);
}
