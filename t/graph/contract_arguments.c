/*
 * t/graph/contract_arguments.c - arguments of a replay: inputs and gradients by position and by
 * name, and whether its micro-batch is the first.
 */
#include "config.h"

#include <te/errno.h>

#include "contract_lib.h"

#define NONE(call, message)                                 \
	do {                                                \
		te_error_clear();                           \
		ck_assert_ptr_null(call);                   \
		ck_assert_str_eq(te_error_detail(), message); \
	} while (0)

CTX_CASE(arguments, "graph");

TEST(arguments, tensors_that_do_not_exist_are_named)
{
	struct some s;

	some_create(&s);
	NONE(te_graph_grad(s.g, 0, "mask"), "te_graph_grad: many has no gradient of mask");
	NONE(te_graph_grad(s.g, 0, "seen"), "te_graph_grad: many has no gradient of seen");
	NONE(te_graph_tensor(s.g, 0, "nothing"), "te_graph_tensor: many has no nothing");
	NONE(te_graph_tensor(s.g, 7, "x"), "te_graph_tensor: x: callable 7 of 1");
	NONE(te_graph_tensor(s.g, -1, "x"), "te_graph_tensor: x: callable -1 of 1");
	NONE(te_graph_tensor(s.g, 0, NULL), "te_graph_tensor: name is NULL");
	NONE(te_graph_grad(NULL, 0, "x"), "te_graph_grad: graph is NULL");
	ck_assert_ptr_nonnull(te_graph_tensor(s.g, 0, "x"));
	some_destroy(&s);
}

TEST(arguments, named_arguments_come_in_any_order)
{
	static const int perm[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
					{ 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
	struct some s;

	some_create(&s);
	for (int npos = 0; npos <= 3; npos++) {
		for (int i = 0; i < 6; i++) {
			struct te_named named[3], dy[2] = { { "z", s.dy[2] }, { "y", s.dy[0] } };
			struct te_named kept[2] = { { "bias", s.kept[1] }, { "x", s.kept[0] } };
			struct te_replay f = TE_REPLAY_INIT, b = f;
			int n = 0;

			for (int k = 0; k < 3; k++)
				if (perm[i][k] >= npos)
					named[n++] = (struct te_named){ many_in[perm[i][k]].name,
									s.in[perm[i][k]] };
			f.npos = npos;
			f.pos = s.in;
			f.nnamed = n;
			f.named = named;
			DO(te_graph_forward(s.g, 0, st, &f));
			some_gave(&s, 10);
			b.nnamed = 2 - i % 2;
			b.named = dy; /* only z by name where y is given by position */
			b.npos = i % 2;
			b.pos = s.dy;
			b.nkept = 2;
			b.kept = kept;
			DO(te_fill(st, te_tensor_data(s.kept[0]), 0, 24));
			DO(te_fill(st, te_tensor_data(s.kept[1]), 0, 24));
			DO(te_graph_backward(s.g, 0, st, &b));
			ck_assert_uint_eq(value_of(s.kept[0]), 22);
			ck_assert_uint_eq(value_of(s.kept[1]), 20);
		}
	}
	some_destroy(&s);
}

/* the static tensors themselves may be given: nothing is copied onto itself */
TEST(arguments, static_tensors_may_be_given)
{
	struct te_tensor *in[3];
	struct te_replay f = TE_REPLAY_INIT;
	struct some s;

	some_create(&s);
	for (int k = 0; k < 3; k++) {
		in[k] = te_graph_tensor(s.g, 0, many_in[k].name);
		DO(te_fill_u32(st, te_tensor_data(in[k]), 30u + (uint32_t)k,
			       te_tensor_nbytes(in[k])));
	}
	f.npos = 3;
	f.pos = in;
	DO(te_graph_forward(s.g, 0, st, &f));
	some_gave(&s, 30);
	some_destroy(&s);
}

/* what is wrong with inputs in one replay: names and tensors by index, -1: none */
enum odd { GOOD, NO_TENSOR, WIDER, DEEPER, FLOATS, FOREIGN };

static const struct {
	int npos;
	const char *name[4];
	enum odd odd; /* of the last one by name, or of the first by position */
	int code;
	const char *said;
} wrong[] = {
	{ 0, { NULL }, GOOD, -EINVAL, "the input x of many was captured and is not given" },
	{ 1, { "bias" }, GOOD, -EINVAL, "the input mask of many was captured and is not given" },
	{ 2, { NULL }, GOOD, -EINVAL, "the input bias of many was captured and is not given" },
	{ 0, { "mask", "bias" }, GOOD, -EINVAL, "the input x of many was captured and is not" },
	{ 3, { "scale" }, GOOD, -EINVAL, "many has no input scale" },
	{ 3, { "y" }, GOOD, -EINVAL, "many has no input y" },
	{ 3, { "" }, GOOD, -EINVAL, "many has no input " },
	{ 2, { "bias", "bias" }, GOOD, -EINVAL, "bias of many is given twice" },
	{ 3, { "x" }, GOOD, -EINVAL, "x of many is given by position and by name" },
	{ 2, { "bias", "mask" }, GOOD, -EINVAL, "mask of many is given by position and by name" },
	{ 4, { NULL }, GOOD, -EINVAL, "4 arguments by position, many takes 3" },
	{ 2, { "bias" }, NO_TENSOR, -EINVAL, "input bias of many was captured and is not given" },
	{ 2, { "bias" }, WIDER, -TE_ESHAPE, "bias of many is [2,4] int32, captured was [2,3]" },
	{ 2, { "bias" }, DEEPER, -TE_ESHAPE, "bias of many is [1,2,3] int32, captured was [2,3]" },
	{ 2, { "bias" }, FLOATS, -TE_EDTYPE, "bias of many is [2,3] fp32, captured was [2,3] int" },
	{ 2, { "bias" }, FOREIGN, -EINVAL, "bias of many belongs to another context" },
	{ 3, { NULL }, NO_TENSOR, -EINVAL, "the input x of many was captured and is not given" },
	{ 3, { NULL }, WIDER, -TE_ESHAPE, "x of many is [2,4] int32, captured was [2,3] int32" },
	{ 3, { NULL }, FLOATS, -TE_EDTYPE, "x of many is [2,3] fp32, captured was [2,3] int32" },
	{ 3, { NULL }, FOREIGN, -EINVAL, "x of many belongs to another context" },
};

TEST_EACH(arguments, wrong_arguments_are_named, TT_LEN(wrong))
{
	static const struct te_spec spec[] = {
		[WIDER] = { TE_DTYPE_INT32, 2, { 2, 4 } },
		[DEEPER] = { TE_DTYPE_INT32, 3, { 1, 2, 3 } },
		[FLOATS] = { TE_DTYPE_FP32, 2, { 2, 3 } },
		[FOREIGN] = { TE_DTYPE_INT32, 2, { 2, 3 } },
	};
	const enum odd odd = wrong[_i].odd;
	struct te_ctx *other = odd == FOREIGN ? new_ctx() : NULL, *own = ctx;
	struct te_tensor *t = NULL, *pos[4];
	struct te_replay f = TE_REPLAY_INIT;
	struct te_named named[4];
	struct some s;
	int n = 0;

	some_create(&s);
	if (other)
		ctx = other;
	if (odd > NO_TENSOR)
		DO(te_tensor_create(ctx, spec[odd].dtype, spec[odd].ndim, spec[odd].shape, NULL,
				    &t));
	ctx = own;
	for (int k = 0; k < 4; k++)
		pos[k] = s.in[k % 3];
	for (; n < 4 && wrong[_i].name[n]; n++) {
		const char *name = wrong[_i].name[n];

		named[n] = (struct te_named){ name, s.in[!strcmp(name, "mask") ? 1 :
							 !strcmp(name, "bias") ? 2 :
										 0] };
	}
	if (odd != GOOD && n)
		named[n - 1].tensor = t;
	else if (odd != GOOD)
		pos[0] = t;
	f.npos = wrong[_i].npos;
	f.pos = pos;
	f.nnamed = n;
	f.named = named;
	for (int k = 0; k < 3; k++)
		DO(te_fill_u32(st, te_tensor_data(te_graph_tensor(s.g, 0, many_in[k].name)), 77,
			       20));
	fails(te_graph_forward(s.g, 0, st, &f), wrong[_i].code, wrong[_i].said);
	/* nothing has been copied, and the step is still due */
	for (int k = 0; k < 3; k++)
		ck_assert_uint_eq(value_of(te_graph_tensor(s.g, 0, many_in[k].name)), 77);
	f.npos = 3;
	f.nnamed = 0;
	f.pos = s.in;
	DO(te_graph_forward(s.g, 0, st, &f));
	some_gave(&s, 10);
	some_destroy(&s);
	te_tensor_unref(t);
	te_ctx_unref(other);
}

TEST(arguments, wrong_gradients_are_named)
{
	struct te_replay b = TE_REPLAY_INIT, f = b;
	struct te_named named[2], kept[2];
	struct some s;

	some_create(&s);
	f.npos = 3;
	f.pos = s.in;
	DO(te_graph_forward(s.g, 0, st, &f));
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL,
	      "the output gradient y of many was captured and is not given");
	b.npos = 1;
	b.pos = s.dy;
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL,
	      "the output gradient z of many was captured and is not given");
	b.nnamed = 1;
	b.named = named;
	named[0] = (struct te_named){ "seen", s.dy[1] };
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL, "many has no output gradient seen");
	named[0] = (struct te_named){ "y", s.dy[0] };
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL,
	      "y of many is given by position and by name");
	named[0] = (struct te_named){ "z", s.dy[1] };
	fails(te_graph_backward(s.g, 0, st, &b), -TE_ESHAPE,
	      "z of many is [5] int32, captured was [2,3] int32");
	named[0].tensor = s.dy[2];
	b.nkept = 1;
	b.kept = kept;
	kept[0] = (struct te_named){ "mask", s.in[1] };
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL, "many computes no gradient of mask");
	kept[0] = (struct te_named){ "y", s.in[0] };
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL, "many computes no gradient of y");
	kept[0] = (struct te_named){ NULL, s.in[0] };
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL,
	      "many computes no gradient of an input without a name");
	kept[0] = (struct te_named){ "x", s.in[1] };
	fails(te_graph_backward(s.g, 0, st, &b), -TE_ESHAPE, "x of many is [5] int32");
	kept[0].tensor = NULL;
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL, "x of many is NULL");
	kept[0].tensor = s.kept[0];
	b.kept = NULL;
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL, "1 kept, and no list of them");
	b.kept = kept;
	b.npos = -1;
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL, "-1 arguments by position");
	b.npos = 1;
	DO(te_graph_backward(s.g, 0, st, &b));
	ck_assert_uint_eq(value_of(s.kept[0]), 22);
	some_destroy(&s);
}
