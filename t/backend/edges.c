/*
 * t/backend/edges.c - dependencies computed from memory accesses, against a slow model: each node
 * depends, directly or not, on the nodes that it conflicts with and on no others.
 *
 * Addresses are never dereferenced.
 */
#include "config.h"

#include <te/dtype.h>
#include "libtecore/base/splitmix64.h"

#include "libtecore/backend/edges.h"
#include "libtecore/backend/host/host.h"
#include "tt_ctx.h"

#define BASE UINT64_C(0x7f0000000000)

union args {
	struct te_k_add add;
	struct te_k_cast cast;
	struct te_k_part_sum part_sum;
	struct te_k_attn_bwd attn;
	struct te_k_gemm gemm;
	struct te_k_scale_delayed delayed;
};

struct list {
	uint32_t n;
	struct te__gnode *node;
	union args *args;
	uint32_t *dep; /* the serial order in which they were captured */
	struct te__edges e;
	size_t nwords;
	uint64_t *reach; /* [n, nwords] bits: all that a node depends on by its edges */
};

static struct list list_new(uint32_t n)
{
	struct list l = { .n = n, .nwords = (n + 63) / 64 };

	l.node = calloc(n + 1u, sizeof(*l.node));
	l.args = calloc(n + 1u, sizeof(*l.args));
	l.dep = calloc(n + 1u, sizeof(*l.dep));
	l.reach = calloc(n * l.nwords + 1u, sizeof(*l.reach));
	ck_assert(l.node && l.args && l.dep && l.reach);
	for (uint32_t i = 0; i < n; i++) {
		l.dep[i] = i ? i - 1 : 0;
		l.node[i] = (struct te__gnode){ .id = -1, .ndeps = i > 0, .dep = &l.dep[i] };
	}
	return l;
}

static void list_free(struct list *l)
{
	te__edges_free(&l->e);
	free(l->node);
	free(l->args);
	free(l->dep);
	free(l->reach);
}

/* kinds of nodes */

static void *at(uint64_t begin)
{
	return (void *)(uintptr_t)(BASE + begin);
}

static void put_copy(struct list *l, uint32_t i, uint64_t dst, uint64_t src, uint64_t nbytes)
{
	l->node[i].kind = TE_NODE_COPY;
	l->node[i].dst = at(dst);
	l->node[i].src = at(src);
	l->node[i].nbytes = nbytes;
}

static void put_fill(struct list *l, uint32_t i, uint64_t dst, uint64_t nbytes)
{
	l->node[i].kind = TE_NODE_FILL;
	l->node[i].dst = at(dst);
	l->node[i].elem = 1;
	l->node[i].nbytes = nbytes;
}

static void put_kernel(struct list *l, uint32_t i, enum te_k_id id)
{
	l->node[i].kind = TE_NODE_KERNEL;
	l->node[i].id = id;
	l->node[i].args = &l->args[i];
	l->node[i].nbytes = te__k_nbytes(id);
}

/* y += x, words */
static void put_add(struct list *l, uint32_t i, uint64_t y, uint64_t x, int64_t n)
{
	put_kernel(l, i, TE_K_ADD);
	l->args[i].add = (struct te_k_add){ at(x), at(y), at(y), n, TE_DTYPE_FP32, 0 };
}

/* one of the two writes k and v of dqkv, the other q; a pass has both */
static void put_attn(struct list *l, uint32_t i, enum te_k_id id, uint32_t pass, uint64_t dqkv,
		     uint64_t rest)
{
	put_kernel(l, i, id);
	l->args[i].attn = (struct te_k_attn_bwd){ .qkv = at(rest),
						  .dout = at(rest + 8),
						  .lse = at(rest + 16),
						  .delta = at(rest + 24),
						  .dqkv = at(dqkv),
						  .batch = 1,
						  .seqlen = 2,
						  .nheads = 1,
						  .nkv = 1,
						  .head_dim = 1,
						  .tag = pass,
						  .dtype = TE_DTYPE_FP32 };
}

/* n nodes of one GEMM: a memset, unless there is only one, and kernels */
static void put_gemm(struct list *l, uint32_t i, uint32_t n, uint64_t d, uint64_t a,
			uint64_t scratch)
{
	for (uint32_t k = i; k < i + n; k++) {
		put_kernel(l, k, TE_K_GEMM);
		if (k == i && n > 1)
			l->node[k].kind = TE_NODE_FILL;
		l->node[k].fixed = 1;
		l->args[k].gemm = (struct te_k_gemm){ .a = at(a),
						      .b = at(a + 16),
						      .d = at(d),
						      .m = 2,
						      .n = 2,
						      .k = 2,
						      .adtype = TE_DTYPE_FP32,
						      .bdtype = TE_DTYPE_FP32,
						      .cdtype = TE_DTYPE_FP32,
						      .ddtype = TE_DTYPE_FP32 };
		l->node[k].scratch = (struct te__range){ BASE + scratch, 32, TE__WRITE };
	}
}

static void put_barrier(struct list *l, uint32_t i)
{
	switch (tt_rand_int(0, 3)) {
	case 0:
		l->node[i].kind = TE_NODE_HOST;
		break;
	case 1:
		l->node[i].kind = TE_NODE_EVENT;
		break;
	case 2:
		l->node[i].kind = TE_NODE_OTHER;
		break;
	default:
		l->node[i].kind = TE_NODE_KERNEL;
		l->node[i].opaque = 1;
	}
}

/* one node in nbarrier is a barrier, none if that is 0; room: size of the shared memory */
static struct list list_random(uint32_t n, int64_t room, int64_t nbarrier)
{
	struct list l = list_new(n);
#define WHERE (uint64_t) tt_rand_int(0, room)

	for (uint32_t i = 0; i < n; i++) {
		const int64_t len = tt_rand_int(1, tt_rand_int(0, 3) ? 8 : room / 2 + 1);

		if (nbarrier && !tt_rand_int(0, nbarrier)) {
			put_barrier(&l, i);
			continue;
		}
		switch (tt_rand_int(0, 7)) {
		case 0:
			put_copy(&l, i, WHERE, WHERE, (uint64_t)len);
			break;
		case 1:
			put_fill(&l, i, WHERE, (uint64_t)len);
			break;
		case 2:
			put_add(&l, i, WHERE, WHERE, (len + 3) / 4);
			break;
		case 3:
			put_kernel(&l, i, TE_K_CAST);
			l.args[i].cast =
				(struct te_k_cast){ at(WHERE),	   at(WHERE),
						    len,	   TE_DTYPE_FP32,
						    TE_DTYPE_BF16, len & 1 ? at(WHERE) : NULL };
			break;
		case 4:
			put_kernel(&l, i, TE_K_PART_SUM);
			l.args[i].part_sum = (struct te_k_part_sum){
				at(WHERE), at(WHERE), len, 1, TE_DTYPE_FP32, 0, NULL, NULL
			};
			break;
		case 5:
			put_attn(&l, i, tt_rand_int(0, 1) ? TE_K_ATTN_BWD_DKV : TE_K_ATTN_BWD_DQ, i,
				 tt_rand_int(0, 2) ? 0 : WHERE, WHERE);
			if (i + 1 < n && tt_rand_int(0, 1)) {
				put_kernel(&l, i + 1,
					   l.node[i].id == TE_K_ATTN_BWD_DQ ? TE_K_ATTN_BWD_DKV :
									      TE_K_ATTN_BWD_DQ);
				l.args[i + 1] = l.args[i];
				i++;
			}
			break;
		case 6:
			put_kernel(&l, i, TE_K_SCALE_DELAYED);
			l.args[i].delayed = (struct te_k_scale_delayed){
				.history = at(WHERE),
				.scale = at(WHERE),
				.fmt_max = at(WHERE),
				.first = (int32_t)tt_rand_int(0, 3),
				.count = (int32_t)tt_rand_int(0, 3),
				.history_len = 2,
			};
			break;
		default: {
			uint32_t nodes = (uint32_t)tt_rand_int(1, 3);

			nodes = nodes < n - i ? nodes : n - i;
			put_gemm(&l, i, nodes, WHERE, WHERE, WHERE);
			i += nodes - 1;
		}
		}
	}
	return l;
#undef WHERE
}

/* edges */

static void set(const struct list *l, uint64_t *bits, uint32_t node, uint32_t other)
{
	bits[node * l->nwords + other / 64] |= UINT64_C(1) << other % 64;
}

static int has(const struct list *l, const uint64_t *bits, uint32_t node, uint32_t other)
{
	return bits[node * l->nwords + other / 64] >> other % 64 & 1;
}

static void join(const struct list *l, uint64_t *bits, uint32_t node, uint32_t other)
{
	for (size_t w = 0; w < l->nwords; w++)
		bits[node * l->nwords + w] |= bits[other * l->nwords + w];
	set(l, bits, node, other);
}

static int follows(const struct list *l, uint32_t node, uint32_t other)
{
	return has(l, l->reach, node, other);
}

static void find_edges(struct list *l)
{
	DO(te__edges_from_accesses(l->n, l->node, &l->e));
	ck_assert_uint_eq(l->e.first[0], 0);
	for (uint32_t i = 0; i < l->n; i++) {
		ck_assert_uint_le(l->e.first[i], l->e.first[i + 1]);
		for (uint32_t d = l->e.first[i]; d < l->e.first[i + 1]; d++) {
			const uint32_t dep = l->e.dep[d];

			if (dep >= i || (d > l->e.first[i] && dep <= l->e.dep[d - 1]))
				ck_abort_msg("node %u: dependency %u is not above the one before "
					     "and below the node",
					     i, dep);
			join(l, l->reach, i, dep);
		}
	}
}

/* the model */

static int is_barrier(const struct te__gnode *n)
{
	return n->opaque || n->kind == TE_NODE_HOST || n->kind == TE_NODE_EVENT ||
	       n->kind == TE_NODE_OTHER;
}

static void ranges_of(const struct te__gnode *n, struct te__ranges *r)
{
	r->n = 0;
	if (n->args)
		te__k_ranges((enum te_k_id)n->id, n->args, r);
	else if (n->dst)
		r->v[r->n++] = (struct te__range){ (uintptr_t)n->dst, n->nbytes, TE__WRITE };
	if (n->src)
		r->v[r->n++] = (struct te__range){ (uintptr_t)n->src, n->nbytes, TE__READ };
	r->v[r->n++] = n->scratch;
}

/* 1: two kernels of one pass */
static int are_disjoint(const struct te__gnode *x, const struct te__gnode *y)
{
	const struct te_k_attn_bwd *a = x->args, *b = y->args;

	return x->id != y->id && a->tag == b->tag;
}

static int conflict(const struct te__gnode *x, const struct te__gnode *y)
{
	struct te__ranges a, b;

	if (is_barrier(x) || is_barrier(y))
		return 1;
	ranges_of(x, &a);
	ranges_of(y, &b);
	for (uint32_t i = 0; i < a.n; i++)
		for (uint32_t k = 0; k < b.n; k++)
			if (a.v[i].ptr < b.v[k].ptr + b.v[k].nbytes &&
			    b.v[k].ptr < a.v[i].ptr + a.v[i].nbytes &&
			    (a.v[i].access != b.v[k].access || a.v[i].access == TE__WRITE ||
			     (a.v[i].access == TE__DISJOINT && !are_disjoint(x, y))))
				return 1;
	return 0;
}

/* the nodes that each node depends on, directly or not */
static uint64_t *model(const struct list *l)
{
	uint64_t *must = calloc(l->n * l->nwords + 1u, sizeof(*must));

	ck_assert_ptr_nonnull(must);
	for (uint32_t i = 0; i < l->n; i++)
		for (uint32_t j = 0; j < i; j++)
			if (conflict(&l->node[j], &l->node[i]))
				join(l, must, i, j);
	return must;
}

static void check_exact(const struct list *l)
{
	uint64_t *want = model(l);

	for (uint32_t i = 0; i < l->n; i++)
		for (uint32_t j = 0; j < i; j++)
			if (has(l, want, i, j) != follows(l, i, j))
				ck_abort_msg("node %u of %u %s %u", i, l->n,
					     follows(l, i, j) ? "waits for" : "passes", j);
	free(want);
}

static void check_none_implied(const struct list *l)
{
	for (uint32_t i = 0; i < l->n; i++)
		for (uint32_t d = l->e.first[i]; d < l->e.first[i + 1]; d++)
			for (uint32_t k = l->e.first[i]; k < l->e.first[i + 1]; k++)
				if (follows(l, l->e.dep[k], l->e.dep[d]))
					ck_abort_msg("edge %u to %u: %u waits for both",
						     l->e.dep[d], i, l->e.dep[k]);
}

CASE(accesses, "host serial");

TEST(accesses, every_node_depends_on_conflicting_nodes)
{
	for (int trial = 0; trial < TT_FEWER(3000); trial++) {
		const uint32_t n = (uint32_t)tt_rand_int(1, trial % 8 ? 24 : 200);
		struct list l = list_random(n, 1 << tt_rand_int(2, 12),
					    tt_rand_int(0, 1) ? tt_rand_int(3, 40) : 0);

		find_edges(&l);
		check_exact(&l);
		check_none_implied(&l);
		list_free(&l);
	}
}

TEST_EACH(accesses, independent_chains_are_not_connected, 2)
{
	const uint32_t nchains = _i ? 20 : 2, n = 60 * nchains;
	struct list l = list_new(n);
	uint32_t chain[1200];

	ck_assert_uint_le(n, TT_LEN(chain));
	/* each node adds a word that all read to the word of its chain; some do so by a GEMM */
	for (uint32_t i = 0; i < n; i++) {
		chain[i] = i < nchains ? i : (uint32_t)tt_rand_int(0, nchains - 1);
		if (i + 1 < n && i >= nchains && !tt_rand_int(0, 4)) {
			chain[i + 1] = chain[i];
			put_gemm(&l, i, 2, chain[i] * 64, 4096, chain[i] * 64 + 32);
			i++;
		} else {
			put_add(&l, i, chain[i] * 64, 8192, 1);
		}
	}
	find_edges(&l);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < i; j++)
			if (follows(&l, i, j) != (chain[i] == chain[j]))
				ck_abort_msg("node %u, of chain %u, %s %u, of chain %u", i,
					     chain[i], follows(&l, i, j) ? "waits for" : "passes",
					     j, chain[j]);
	list_free(&l);
}

TEST(accesses, reads_and_disjoint_writes_run_concurrently)
{
	struct list l = list_new(7);

	put_fill(&l, 0, 0, 256);
	put_attn(&l, 1, TE_K_ATTN_BWD_DKV, 0, 0, 1024); /* disjoint writes */
	put_attn(&l, 2, TE_K_ATTN_BWD_DQ, 0, 0, 1024);
	put_copy(&l, 3, 2048, 0, 16); /* reads */
	put_copy(&l, 4, 3072, 8, 16);
	put_fill(&l, 5, 12, 1);
	put_fill(&l, 6, 200, 1); /* memory that only the first fill wrote */
	find_edges(&l);
	ck_assert(follows(&l, 1, 0) && follows(&l, 2, 0));
	ck_assert(!follows(&l, 2, 1));
	ck_assert(follows(&l, 3, 1) && follows(&l, 3, 2) && follows(&l, 4, 1) && follows(&l, 4, 2));
	ck_assert(!follows(&l, 4, 3));
	ck_assert(follows(&l, 5, 3) && follows(&l, 5, 4));
	ck_assert(follows(&l, 6, 0) && !follows(&l, 6, 1) && !follows(&l, 6, 5));
	list_free(&l);
}

/* the second pass overwrites what the first one wrote, although no node read that */
TEST(accesses, passes_of_disjoint_writes_are_ordered)
{
	struct list l = list_new(6);

	for (uint32_t i = 0; i < l.n; i++)
		put_attn(&l, i, i % 2 ? TE_K_ATTN_BWD_DQ : TE_K_ATTN_BWD_DKV, i / 4, 0, 1024);
	find_edges(&l);
	for (uint32_t i = 0; i < l.n; i++)
		for (uint32_t j = 0; j < i; j++)
			ck_assert_int_eq(follows(&l, i, j), i / 2 != j / 2);
	list_free(&l);
}

/* also with too many nodes to drop implied edges */
TEST_EACH(accesses, independent_nodes_depend_on_barriers_alone, 2)
{
	struct list l = list_new(_i ? 20000 : 400);

	for (uint32_t i = 0; i < l.n; i++) {
		put_fill(&l, i, 16 * i, 16);
		if (i % 100 == 99)
			l.node[i].kind = TE_NODE_HOST;
	}
	find_edges(&l);
	for (uint32_t i = 0; i < l.n; i++) {
		const uint32_t *dep = l.e.dep + l.e.first[i];
		const uint32_t ndeps = l.e.first[i + 1] - l.e.first[i];
		const uint32_t begin = i / 100 * 100; /* the first after a barrier */

		if (i % 100 == 99) {
			ck_assert_uint_eq(ndeps, 99);
			for (uint32_t k = 0; k < ndeps; k++)
				ck_assert_uint_eq(dep[k], begin + k);
		} else {
			ck_assert_uint_eq(ndeps, begin > 0);
			ck_assert(!ndeps || dep[0] == begin - 1);
		}
	}
	list_free(&l);
}

TEST(accesses, the_order_of_several_streams_is_kept)
{
	for (int trial = 0; trial < 200; trial++) {
		struct list l = list_random((uint32_t)tt_rand_int(2, 40), 64, 10);
		uint32_t *dep = malloc((size_t)l.n * l.n * sizeof(*dep)), ndeps = 0;
		int line = 1;

		ck_assert_ptr_nonnull(dep);
		for (uint32_t i = 0; i < l.n; i++) {
			l.node[i].dep = dep + ndeps;
			l.node[i].ndeps = 0;
			for (uint32_t j = 0; j < i; j++)
				if (!tt_rand_int(0, 3))
					dep[ndeps + l.node[i].ndeps++] = j;
			line &= l.node[i].ndeps == (i > 0) && (!i || dep[ndeps] == i - 1);
			ndeps += l.node[i].ndeps;
		}
		if (!line) {
			find_edges(&l);
			ck_assert_uint_eq(l.e.first[l.n], ndeps);
			for (uint32_t i = 0; i < l.n; i++)
				ck_assert_uint_eq(l.e.first[i + 1] - l.e.first[i], l.node[i].ndeps);
			if (ndeps)
				ck_assert_mem_eq(l.e.dep, dep, ndeps * sizeof(*dep));
		}
		free(dep);
		list_free(&l);
	}
}

/* different seeds draw different orders for the host backend, which respect the edges */
TEST(accesses, the_host_draws_a_valid_order)
{
	const struct te__backend_ops *ops = &te__backend_host;
	static unsigned char word[20];
	uint32_t first[TT_LEN(word)];
	int others = 0;

	for (uint64_t seed = 1; seed <= 5; seed++) {
		uint32_t at[TT_LEN(word)];
		void *dev, *stream, *graph;
		struct host_graph *g;

		ck_assert_int_eq(ops->open(&(struct te__open){ 0 }, &dev), 0);
		ck_assert_int_eq(ops->stream_create(dev, &stream), 0);
		ck_assert_int_eq(ops->capture_begin(stream), 0);
		for (size_t i = 0; i < TT_LEN(word); i++)
			ck_assert_int_eq(ops->fill8(stream, &word[i / 2], (uint8_t)i, 1), 0);
		ck_assert_int_eq(ops->capture_end(stream, &graph), 0);
		g = graph;
		ck_assert_int_eq(host_graph_order(g, seed), 0);
		ck_assert_ptr_nonnull(g->run);
		memset(at, 0xff, sizeof(at));
		for (uint32_t i = 0; i < TT_LEN(word); i++) {
			at[g->run[i]] = i;
			if (seed == 1)
				first[i] = g->run[i];
			others += g->run[i] != first[i];
		}
		/* the second fill of a byte comes after the first */
		for (size_t i = 0; i < TT_LEN(word); i += 2)
			ck_assert_uint_lt(at[i], at[i + 1]);
		ops->graph_destroy(graph);
		ops->stream_destroy(stream);
		ops->close(dev);
	}
	ck_assert_int_gt(others, 0);
}

/* of seed 1234567, as printed by the authors' reference program */
TEST(accesses, draws_equal_the_reference_program)
{
	uint64_t state = 1234567;

	ck_assert_uint_eq(te__splitmix64(&state), UINT64_C(6457827717110365317));
	ck_assert_uint_eq(te__splitmix64(&state), UINT64_C(3203168211198807973));
	ck_assert_uint_eq(te__splitmix64(&state), UINT64_C(9817491932198370423));
}

TEST(accesses, none_and_one)
{
	struct list none = list_new(0), one = list_new(1);

	find_edges(&none);
	put_fill(&one, 0, 0, 1);
	find_edges(&one);
	ck_assert_uint_eq(one.e.first[1], 0);
	list_free(&none);
	list_free(&one);
}

TEST(accesses, thousands)
{
	struct list l = list_random(5000, 20000, 500);

	find_edges(&l);
	check_exact(&l);
	check_none_implied(&l);
	list_free(&l);
}

/* more nodes than REDUCE_MAX: implied edges may remain, no dependency is missing */
TEST(accesses, tens_of_thousands)
{
	struct list l = list_random(17000, 100000, 0);

	find_edges(&l);
	for (int pair = 0; pair < TT_FEWER(300000); pair++) {
		const uint32_t i = (uint32_t)tt_rand_int(1, l.n - 1);
		const uint32_t j = (uint32_t)tt_rand_int(0, i - 1);

		if (conflict(&l.node[j], &l.node[i]) && !follows(&l, i, j))
			ck_abort_msg("node %u does not depend on %u", i, j);
	}
	list_free(&l);
}

static struct list of_faults;

static int edges_of_it(void)
{
	struct te__edges e = { 0 };
	int r = te__edges_from_accesses(of_faults.n, of_faults.node, &e);

	ck_assert(r == 0 || (r == -ENOMEM && !e.first && !e.dep));
	te__edges_free(&e);
	return r;
}

TEST(accesses, each_allocation_may_fail)
{
	of_faults = list_random(700, 256, 20);
	ck_assert_int_ge(tt_fault_each(edges_of_it), 8);
	/* nodes that are not a single chain */
	of_faults.node[3].ndeps = 0;
	ck_assert_int_ge(tt_fault_each(edges_of_it), 5);
	list_free(&of_faults);
}

TT_MAIN("backend/edges", TT_NEED_NOTHING)
