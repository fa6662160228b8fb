/*
 * t/plan/weights_parts.c - parts of the gradients in te_seq_binding: a rank keeps the sums of its
 * part, and of the elements that all have, in as much memory.
 */
#include "config.h"

#include <stdlib.h>

#include <te/errno.h>
#include <te/optim.h>

#include "libtecore/plan/plan.h"
#include "plan_model.h"
#include "tt_ctx.h"
#include "tt_num.h"
#include "weights_cases.h"
#include "weights_pair.h"

#define MOST 4 /* parts */

static const struct model_shape llama = { 48, 160, 2, 16, 4, 2, 2, 0, 1 };
static const struct model_shape gpt = { 48, 48, 2, 16, 4, 4, 2, 0, 0 }; /* its head is tied */

/* elements that were reduced for each part, and last for all */
static int64_t reduced[MOST + 1];
static int32_t nparts;
static int code; /* what reduce() returns */
static int hosted; /* the gradients are in host memory */

/* the other ranks have zeros */
static int reduce(void *arg, struct te_stream *stream, void *x, void *sum, int64_t nelems,
		  enum te_dtype dtype, int32_t to)
{
	ck_assert_ptr_eq(arg, &reduced);
	ck_assert_ptr_nonnull(x);
	ck_assert(sum == x || !hosted); /* kernels of the ranks write to device memory */
	ck_assert_int_eq(dtype, TE_DTYPE_FP32);
	reduced[to < 0 ? nparts : to] += nelems;
	return code || sum == x ? code :
				  te_copy(stream, sum, x, (size_t)nelems * sizeof(float));
}

static struct te_seq_binding parts(int32_t n, int32_t part)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;

	nparts = b.nparts = n;
	b.part = part;
	b.reduce = reduce;
	b.reduce_arg = reduced;
	memset(reduced, 0, sizeof(reduced));
	code = 0;
	return b;
}

static struct te_seq *create(const struct model_shape *m, const struct te_seq_binding *b)
{
	struct te_seq *s = model_create_unbound(ctx, m);

	DO(te_seq_complete(s));
	DO(te_seq_bind(s, b));
	DO(te_seq_init(s, 5));
	return s;
}

static void make_pair(struct pair *q, const struct model_shape *m, int32_t n, int32_t part,
		      uint32_t flags, uint32_t host)
{
	const struct te_recipe r = model_recipe("bf16");
	const struct te_plan_opts o = pair_opts(m, &r, TE_PLAN_TRAIN | flags);

	*q = (struct pair){ .s = { NULL } };
	for (int i = 0; i < 2; i++) {
		struct te_seq_binding b[] = { TE_SEQ_BINDING_INIT, parts(n, part) };

		b[i].flags = (host ? TE_SEQ_BF16_MASTERS : 0) | (i ? host : 0);
		q->s[i] = create(m, &b[i]);
		DO(te_plan_create(q->s[i], &o, &q->p[i]));
	}
}

/* n elements of both, from those on */
static void same(const float *all, int64_t first, const float *own, int64_t at, int64_t n,
		 const char *what)
{
	ck_assert_msg(!memcmp(all + first, own + at, (size_t)n * sizeof(*all)), "%s differ", what);
}

/* two passes: the first begins with zeros, the second adds */
static void keeps(const struct pair *q, const struct model_shape *m, int32_t part)
{
	const int64_t n = te_seq_grad_nelems(q->s[0]), own = n / 64 / nparts * 64;
	int64_t nsum = 0;

	for (int i = 0; i < 2; i++)
		DO(te_seq_zero_grads(q->s[i], st));
	for (int pass = 0; pass < 2; pass++) {
		float *all, *mine;

		pair_feed(q, m);
		for (int i = 0; i < 2; i++)
			pair_queue_pass(q->p[i]);
		DO(te_stream_sync(st));
		all = tt_tensor_get(te_seq_grads(q->s[0]));
		mine = tt_tensor_get(te_seq_grads(q->s[1]));
		same(all, part * own, mine, 0, own, "sums of the part");
		/* the first rank's sums of the tail count for all: others begin with zeros */
		if (!part || !pass)
			same(all, nparts * own, mine, own, n - nparts * own, "sums of the tail");
		else if (n > nparts * own)
			ck_assert(memcmp(all + nparts * own, mine + own,
					 (size_t)(n - nparts * own) * sizeof(*all)));
		free(all);
		free(mine);
	}
	for (int i = 0; i <= nparts; i++)
		nsum += reduced[i];
	for (int i = 0; i < te_seq_nweights(q->s[0]); i++)
		nsum -= 2 * te_tensor_nelems(weight(q->s[0], i).grad);
	ck_assert_int_eq(nsum, 0); /* each element once a pass */
	for (int i = 0; i < nparts; i++)
		ck_assert_int_le(reduced[i], 2 * own);
	ck_assert_int_le(reduced[nparts], 2 * (n - nparts * own));
}

CTX_CASE(parts, "plan");

TEST_EACH(parts, a_rank_keeps_its_part_of_the_sums, 48, .parts = 12)
{
	static const uint32_t host[] = { 0, 0, TE_SEQ_HOST_GRADS,
					 TE_SEQ_HOST_MASTERS | TE_SEQ_HOST_GRADS };
	const struct model_shape *m = _i % 2 ? &gpt : &llama;
	const int32_t n = 2 + _i / 2 % 3, part = _i / 6 % 2 ? n - 1 : 0;
	int ngrads = 0;
	struct pair q;

	hosted = host[_i / 12] != 0;
	make_pair(&q, m, n, part, _i / 12 == 1 ? TE_PLAN_DELAY_DW : 0, host[_i / 12]);
	ck_assert_int_eq(q.p[0]->nhosted, 0);
	/* one buffer of each gradient, also of a table that two ops use */
	for (int i = 0; i < q.p[1]->nhosted; i++)
		ngrads += q.p[1]->hosted[i].grad;
	ck_assert_int_eq(ngrads, te_seq_nweights(q.s[1]));
	ck_assert_int_eq(q.p[1]->nhosted > ngrads, _i / 12 == 3);
	for (int i = 0; i < te_seq_nweights(q.s[1]); i++)
		ck_assert_ptr_null(weight(q.s[1], i).grad);
	keeps(&q, m, part);
	pair_free(&q);
	hosted = 0;
}

/* a plan of the first layer adds to some gradients only */
TEST(parts, a_part_in_host_memory_begins_with_zeros)
{
	const struct te_recipe r = model_recipe("bf16");
	struct te_plan_opts o = pair_opts(&llama, &r, TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC);
	struct te_seq_binding b = parts(3, 1);
	struct te_tensor *grads;
	struct te_plan *p;
	struct te_seq *s;
	float *value;

	b.flags = TE_SEQ_HOST_GRADS;
	s = create(&llama, &b);
	o.stop_before = "h.1.ln1";
	DO(te_plan_create(s, &o, &p));
	grads = te_seq_grads(s);
	DO(te_fill(st, te_tensor_data(grads), 0x3f, te_tensor_nbytes(grads)));
	DO(te__plans_zero_grads(&p, 1, st));
	DO(te_stream_sync(st));
	value = tt_tensor_get(grads);
	for (int64_t i = 0; i < te_tensor_nelems(grads); i++)
		ck_assert_float_eq(value[i], 0);
	free(value);
	tt_drop(p, s);
}

TEST(parts, memory_has_a_part)
{
	const struct te_seq_binding b[] = { TE_SEQ_BINDING_INIT, parts(4, 3) };
	const struct te_recipe r = model_recipe("bf16");
	struct te_plan_memory mem[2] = { TE_PLAN_MEMORY_INIT, TE_PLAN_MEMORY_INIT };
	int64_t n = 0, own;

	for (int i = 0; i < 2; i++) {
		const struct te_plan_opts o = pair_opts(&llama, &r, TE_PLAN_TRAIN);
		const uint64_t before = pair_measured();
		struct te_seq *s = create(&llama, &b[i]);
		struct te_plan *p;

		n = te_seq_grad_nelems(s);
		DO(te_plan_create(s, &o, &p));
		DO(te_plan_memory(p, &mem[i]));
		ck_assert_uint_le(pair_measured() - before, mem[i].total_nbytes + 512 * 16);
		ck_assert_uint_ge(pair_measured() - before, mem[i].total_nbytes - 512 * 16);
		tt_drop(p, s);
	}
	own = n / 64 / 4 * 64;
	ck_assert_int_eq((int64_t)mem[0].weights_nbytes - (int64_t)mem[1].weights_nbytes,
			 4 * 3 * own);
	/* but a GPU's plan gives no small buffer the memory of another (offsets.c) */
	if (!strcmp(backend, "host"))
		ck_assert_uint_lt(mem[1].total_nbytes, mem[0].total_nbytes);
}

TEST(parts, a_failed_sum_fails_the_pass)
{
	struct pair q;
	char *text;

	make_pair(&q, &llama, 2, 0, 0, 0);
	pair_feed(&q, &llama);
	code = -EIO;
	DO(te_plan_forward(q.p[1], st, 0));
	fails(te_plan_backward(q.p[1], st), -EIO, "the sum of gradients over the ranks returned");
	DO(te_plan_print(q.p[1], TE_PLAN_TEXT, &text));
	ck_assert_ptr_nonnull(strstr(text, "gradients that ranks divide, summed after a group:\n"));
	free(text);
	pair_free(&q);
}

static int gather(void *arg, struct te_stream *stream, void *all, size_t nbytes)
{
	(void)arg;
	(void)stream;
	(void)all;
	(void)nbytes;
	return 0;
}

TEST(parts, what_does_not_fit_parts_is_refused)
{
	const struct te_seq_binding good = parts(2, 1);
	struct te_adamw_shards shards = TE_ADAMW_SHARDS_INIT;
	struct te_seq *s = model_create_unbound(ctx, &llama);
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;
	struct te_seq_binding b;
	struct te_adamw *opt;

	DO(te_seq_complete(s));
#define WRONG(text, ...)                                 \
	do {                                             \
		b = good;                                \
		__VA_ARGS__                              \
		fails(te_seq_bind(s, &b), -EINVAL, text); \
	} while (0)
	WRONG("te_seq_bind: part 2 of 2 parts", b.part = 2;);
	WRONG("part -1 of 2 parts", b.part = -1;);
	WRONG("part 1 of -2 parts", b.nparts = -2;);
	WRONG("part 1 of 0 parts", b.nparts = 0;);
	WRONG("2 parts, and no reduce", b.reduce = NULL;);
	WRONG("2 parts, and grads", b.grads = (void *)(uintptr_t)4096;);
	WRONG("2 parts, and TE_SEQ_NO_GRADS", b.flags = TE_SEQ_NO_GRADS;);
	DO(te_seq_bind(s, &good));
	DO(te_seq_init(s, 5));
	o.gather = gather;
	fails(te_adamw_create(s, NULL, &opt), -EINVAL, "part 0 of 0 parts, of gradients 1 of 2");
	o.nparts = 3;
	o.part = 1;
	fails(te_adamw_create(s, &o, &opt), -EINVAL, "part 1 of 3 parts, of gradients 1 of 2");
	o.nparts = 2;
	DO(te_adamw_create(s, &o, &opt));
	shards.nshards = 2;
	shards.gather = gather;
	fails(te_adamw_set_shards(opt, &shards), -EINVAL, "parts of its gradients");
	te_adamw_unref(opt);
	te_seq_unref(s);
}
