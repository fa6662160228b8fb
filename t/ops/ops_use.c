/* t/ops/ops_use.c - attributes and shapes that ops refuse, what ops declare, failed allocations. */
#include "config.h"

#include <math.h>
#include <stddef.h>

#include <te/errno.h>

#include "libtecore/base/private.h"
#include "op_cases.h"
#include "tt_ctx.h"

/* ---- attributes and shapes ---- */

struct bad {
	int (*create)(const struct op_case *k, struct te_op **ret_op);
	const char *words[2]; /* that the message contains */
	union op_attrs a;
};

#define MAKE(op)                                                            \
	static int bad_##op(const struct op_case *k, struct te_op **ret_op) \
	{                                                                   \
		return te_op_##op((const void *)&k->a, "odd", ret_op);      \
	}
MAKE(embedding)
MAKE(linear)
MAKE(bias)
MAKE(layernorm)
MAKE(rmsnorm)
MAKE(activation)
MAKE(qk_norm)
MAKE(rope)
MAKE(attention)
MAKE(dropout)
MAKE(scale)
MAKE(reshape)
MAKE(quantize)
MAKE(cross_entropy)

static const struct bad bad[] = {
	{ bad_embedding, { "embedding odd", "vocab is 0" }, .a.embedding = TE_ATTRS(embedding, 0, 4,
								0, 1, 0) },
	{ bad_embedding, { "embedding odd", "vocab" }, .a.embedding = TE_ATTRS(embedding, 1ll << 31,
								4, 0, 1, 0) },
	{ bad_embedding, { "embedding odd", "width is -1" }, .a.embedding = TE_ATTRS(embedding, 4,
								-1, 0, 1, 0) },
	{ bad_embedding, { "embedding odd", "max_pos is -2" }, .a.embedding = TE_ATTRS(embedding, 4,
								4, -2, 1, 0) },
	{ bad_embedding, { "embedding odd", "init_std" }, .a.embedding = TE_ATTRS(embedding, 4, 4,
								0, -1, 0) },
	{ bad_linear, { "linear odd", "in is 0" }, .a.linear = TE_ATTRS(linear, 0, 4, 1, 0, NULL) },
	{ bad_linear, { "linear odd", "out is 0" }, .a.linear = TE_ATTRS(linear, 4, 0, 1, 0,
								NULL) },
	{ bad_linear, { "linear odd", "init_std is nan" }, .a.linear = TE_ATTRS(linear, 4, 4, NAN,
								0, NULL) },
	{ bad_linear, { "linear odd", "keep_hp is 2" }, .a.linear = TE_ATTRS(linear, 4, 4, 1, 2,
								NULL) },
	{ bad_bias, { "bias odd", "width is 0" }, .a.bias = TE_ATTRS(bias, 0) },
	{ bad_layernorm, { "layernorm odd", "width is 0" }, .a.norm = TE_ATTRS(norm, 0, 1e-5f, 0) },
	{ bad_layernorm, { "layernorm odd", "eps is -1" }, .a.norm = TE_ATTRS(norm, 4, -1, 0) },
	{ bad_rmsnorm, { "rmsnorm odd", "eps is inf" }, .a.norm = TE_ATTRS(norm, 4, INFINITY, 0) },
	{ bad_rmsnorm, { "rmsnorm odd", "flags 0x4" }, .a.norm = TE_ATTRS(norm, 4, 1e-5f, 4) },
	{ bad_activation, { "activation odd", "act is 8" }, .a.act = TE_ATTRS(act, TE_ACT_COUNT,
								0) },
	{ bad_activation, { "activation odd", "gated is 3" }, .a.act = TE_ATTRS(act, TE_ACT_SILU,
								3) },
	{ bad_qk_norm, { "qk_norm odd", "nheads is 0" }, .a.qk_norm = TE_ATTRS(qk_norm, 0, 1, 4) },
	{ bad_qk_norm, { "qk_norm odd", "nkv is -1" }, .a.qk_norm = TE_ATTRS(qk_norm, 1, -1, 4) },
	{ bad_qk_norm, { "qk_norm odd", "head_dim is 0" },
	  .a.qk_norm = TE_ATTRS(qk_norm, 1, 1, 0) },
	{ bad_qk_norm, { "qk_norm odd", "whole is 2" },
	  .a.qk_norm = TE_ATTRS(qk_norm, 1, 1, 4, 2) },
	{ bad_qk_norm, { "qk_norm odd", "eps is nan" },
	  .a.qk_norm = TE_ATTRS(qk_norm, 1, 1, 4, .eps = NAN) },
	{ bad_qk_norm, { "qk_norm odd", "flags 0x2" },
	  .a.qk_norm = TE_ATTRS(qk_norm, 1, 1, 4, .flags = 2) },
	{ bad_rope, { "rope odd", "nheads is 0" }, .a.rope = TE_ATTRS(rope, 0, 1, 4, 1e4f) },
	{ bad_rope, { "rope odd", "nkv is 0" }, .a.rope = TE_ATTRS(rope, 1, 0, 4, 1e4f) },
	{ bad_rope, { "rope odd", "head_dim is 5" }, .a.rope = TE_ATTRS(rope, 1, 1, 5, 1e4f) },
	{ bad_rope, { "rope odd", "head_dim is 258" }, .a.rope = TE_ATTRS(rope, 1, 1, 258, 1e4f) },
	{ bad_rope, { "rope odd", "theta is 0" }, .a.rope = TE_ATTRS(rope, 1, 1, 4, 0) },
	{ bad_rope, { "rope odd", "inv_freq 1 is inf" },
	  .a.rope = TE_ATTRS(rope, 1, 1, 4, 0, (const float[]){ 1, INFINITY }) },
	{ bad_attention, { "attention odd", "nheads is 0" }, .a.attention = TE_ATTRS(attention, 0,
								1, 4, 0, 0, 0, 0, 0) },
	{ bad_attention, { "attention odd", "no multiple" }, .a.attention = TE_ATTRS(attention, 4,
								3, 4, 0, 0, 0, 0, 0) },
	{ bad_attention, { "attention odd", "nkv 0" }, .a.attention = TE_ATTRS(attention, 4, 0, 4,
								0, 0, 0, 0, 0) },
	{ bad_attention, { "attention odd", "head_dim is 257" },
	  .a.attention = TE_ATTRS(attention, 1, 1, 257, 0, 0, 0, 0, 0) },
	{ bad_attention, { "attention odd", "scale is -1" }, .a.attention = TE_ATTRS(attention, 1,
								1, 4, -1, 0, 0, 0, 0) },
	{ bad_attention, { "attention odd", "dropout is 1" }, .a.attention = TE_ATTRS(attention, 1,
								1, 4, 0, 1, 0, 0, 0) },
	{ bad_attention, { "attention odd", "4 heads from number 1 on, of 4" },
	  .a.attention = TE_ATTRS(attention, 4, 2, 4, 0, 0, 0, 1, 0) },
	{ bad_attention, { "attention odd", "4 heads from number 5 on, of 8" },
	  .a.attention = TE_ATTRS(attention, 4, 2, 4, 0, 0, 0, 5, 8) },
	{ bad_attention, { "attention odd", "4 heads from number -1 on, of 8" },
	  .a.attention = TE_ATTRS(attention, 4, 2, 4, 0, 0, 0, -1, 8) },
	{ bad_attention, { "attention odd", "window is -1" },
	  .a.attention = TE_ATTRS(attention, 4, 2, 4, 0, 0, 0, 0, 0, -1) },
	{ bad_attention, { "attention odd", "softcap is -1" },
	  .a.attention = TE_ATTRS(attention, 4, 2, 4, 0, 0, 0, 0, 0, 0, -1) },
	{ bad_attention, { "attention odd", "documents is 2" },
	  .a.attention = TE_ATTRS(attention, 4, 2, 4, .documents = 2) },
	{ bad_attention, { "attention odd", "full is 2" },
	  .a.attention = TE_ATTRS(attention, 4, 2, 4, .full = 2) },
	{ bad_attention, { "attention odd", "right is 2, not 0, but full is 0" },
	  .a.attention = TE_ATTRS(attention, 4, 2, 4, .right = 2) },
	{ bad_attention, { "attention odd", "sinks is -1" },
	  .a.attention = TE_ATTRS(attention, 4, 2, 4, .sinks = -1) },
	{ bad_rope, { "rope odd", "dynamic_positions is -1" },
	  .a.rope = TE_ATTRS(rope, 1, 1, 4, 1e4f, .dynamic_positions = -1) },
	{ bad_rope, { "rope odd", "dynamic_factor is 0" },
	  .a.rope = TE_ATTRS(rope, 1, 1, 4, 1e4f, .dynamic_positions = 7) },
	{ bad_rope, { "rope odd", "2 elements of a head turn, too few for dynamic_positions" },
	  .a.rope = TE_ATTRS(rope, 1, 1, 4, 0, (const float[]){ 1, 0 }, .dynamic_positions = 7,
			     .dynamic_factor = 2) },
	{ bad_rope, { "rope odd", "documents is -1" },
	  .a.rope = TE_ATTRS(rope, 1, 1, 4, 1e4f, NULL, -1) },
	{ bad_attention, { "attention odd", "tag is -1" },
	  .a.attention = TE_ATTRS(attention, 4, 2, 4, 0, 0, -1, 0, 8) },
	{ bad_dropout, { "dropout odd", "tag is 2147483648" },
	  .a.dropout = TE_ATTRS(dropout, 0.5f, INT64_C(1) << 31, 0, 0, 0) },
	{ bad_dropout, { "dropout odd", "part 3 of 3" },
	  .a.dropout = TE_ATTRS(dropout, 0.5f, 0, 0, 3, 3) },
	{ bad_dropout, { "dropout odd", "part 1 of 1" },
	  .a.dropout = TE_ATTRS(dropout, 0.5f, 0, 0, 0, 1) },
	{ bad_dropout, { "dropout odd", "axis is 8, not 0 to 7" },
	  .a.dropout = TE_ATTRS(dropout, 0.5f, 0, 8, 2, 1) },
	{ bad_dropout, { "dropout odd", "p is 1" }, .a.dropout = TE_ATTRS(dropout, .p = 1) },
	{ bad_dropout, { "dropout odd", "p is 0.999999" },
	  .a.dropout = TE_ATTRS(dropout, .p = 0.999999f) },
	{ bad_scale, { "scale odd", "factor is nan" }, .a.scale = TE_ATTRS(scale, NAN) },
	{ bad_scale, { "scale odd", "factor is -inf" }, .a.scale = TE_ATTRS(scale, -INFINITY) },
	{ bad_reshape, { "reshape odd", "ndim is -1" }, .a.reshape = TE_ATTRS(reshape, -1, { 1 }) },
	{ bad_reshape, { "reshape odd", "ndim is 9" }, .a.reshape = TE_ATTRS(reshape, 9, { 1 }) },
	{ bad_reshape, { "reshape odd", "extent 1 is 0" }, .a.reshape = TE_ATTRS(reshape, 2,
								{ 4, 0 }) },
	{ bad_reshape, { "reshape odd", "extent 0 is -2" }, .a.reshape = TE_ATTRS(reshape, 1,
								{ -2 }) },
	{ bad_reshape, { "reshape odd", "2 extents are -1" }, .a.reshape = TE_ATTRS(reshape, 3,
								{ -1, 2, -1 }) },
	{ bad_quantize, { "fake_quantize odd", "forward is 2" }, .a.quantize = TE_ATTRS(quantize, 2,
								1) },
	{ bad_quantize, { "fake_quantize odd", "backward is -1" }, .a.quantize = TE_ATTRS(quantize,
								0, -1) },
	{ bad_dropout, { "dropout odd", "p is -0.1" }, .a.dropout = TE_ATTRS(dropout, .p = -0.1f) },
	{ bad_dropout, { "dropout odd", "p is nan" }, .a.dropout = TE_ATTRS(dropout, .p = NAN) },
	{ bad_dropout, { "dropout odd", "p is inf" },
	  .a.dropout = TE_ATTRS(dropout, .p = INFINITY) },
	{ bad_cross_entropy, { "cross_entropy odd", "nclasses is 0" },
	  .a.ce = TE_ATTRS(cross_entropy, 0, 0, 1) },
	{ bad_cross_entropy, { "cross_entropy odd", "grad_scale is inf" },
	  .a.ce = TE_ATTRS(cross_entropy, 4, 0, INFINITY) },
	{ bad_cross_entropy, { "cross_entropy odd", "grad_scale is 0" },
	  .a.ce = TE_ATTRS(cross_entropy, 4, .grad_scale = 0) },
	{ bad_cross_entropy, { "cross_entropy odd", "chunk is 24" },
	  .a.ce = TE_ATTRS(cross_entropy, 4, .chunk = 24) },
	{ bad_cross_entropy, { "cross_entropy odd", "chunk is -16" },
	  .a.ce = TE_ATTRS(cross_entropy, 4, .chunk = -16) },
};

/* TE_ATTRS has the defaults of the INIT macros, in static structs, whose padding is 0 */
#define ATTRS(op, OP, member)                                                                \
	do {                                                                                 \
		static const struct te_##op##_attrs init = TE_##OP##_ATTRS_INIT;             \
		static const struct te_##op##_attrs named = TE_ATTRS(op, .member = 0);       \
		static const struct te_##op##_attrs placed = TE_ATTRS(op, 0);                \
		static struct te_##op##_attrs other;                                         \
		other = init;                                                                \
		other.member = 0;                                                            \
		ck_assert_mem_eq(&named, &other, sizeof(init));                              \
		if (offsetof(struct te_##op##_attrs, member) == sizeof(size_t))              \
			ck_assert_mem_eq(&placed, &named, sizeof(init));                     \
	} while (0)

CASE(shapes, "host");
CASE(attributes, "host");

TEST(attributes, attributes_that_are_not_given_have_their_defaults)
{
	ATTRS(embedding, EMBEDDING, vocab);
	ATTRS(embedding, EMBEDDING, init_std);
	ATTRS(linear, LINEAR, in);
	ATTRS(linear, LINEAR, init_std);
	ATTRS(bias, BIAS, width);
	ATTRS(norm, NORM, width);
	ATTRS(norm, NORM, eps);
	ATTRS(act, ACT, act);
	ATTRS(qk_norm, QK_NORM, nheads);
	ATTRS(qk_norm, QK_NORM, eps);
	ATTRS(rope, ROPE, nheads);
	ATTRS(rope, ROPE, theta);
	ATTRS(attention, ATTENTION, nheads);
	ATTRS(dropout, DROPOUT, p);
	ATTRS(scale, SCALE, factor);
	ATTRS(reshape, RESHAPE, ndim);
	ATTRS(quantize, QUANTIZE, forward);
	ATTRS(quantize, QUANTIZE, backward);
	ATTRS(cross_entropy, CROSS_ENTROPY, nclasses);
	ATTRS(cross_entropy, CROSS_ENTROPY, ignore_index);
	ATTRS(cross_entropy, CROSS_ENTROPY, grad_scale);
}

TEST_EACH(attributes, names_the_op_and_the_attribute_at_fault, TT_LEN(bad))
{
	struct op_case k = { 0 };
	struct te_op *op = (void *)&k;

	memcpy(&k.a, &bad[_i].a, sizeof(bad[_i].a));
	ck_assert_int_eq(bad[_i].create(&k, &op), -EINVAL);
	ck_assert_ptr_eq(op, (void *)&k); /* outputs are written on success only */
	tt_said(bad[_i].words[0]);
	tt_said(bad[_i].words[1]);
}

TEST(attributes, needs_attributes_and_a_name)
{
	struct te_bias_attrs a = TE_ATTRS(bias, 3);
	struct te_op *op;

	ck_assert_int_eq(te_op_bias(NULL, "b", &op), -EINVAL);
	ck_assert_int_eq(te_op_bias(&a, NULL, &op), -EINVAL);
	ck_assert_int_eq(te_op_bias(&a, "", &op), -EINVAL);
	ck_assert_int_eq(te_op_bias(&a, "b", NULL), -EINVAL);
	ck_assert_int_eq(te_op_fork(NULL, &op), -EINVAL);
}

/* a good op asked about inputs that do not fit it */
static const struct {
	const char *name; /* of the case */
	struct te_spec in[2];
	int code;
	const char *words;
} misfit[] = {
	{ "embedding", { { TE_DTYPE_FP32, 2, { 2, 3 } } }, -TE_EDTYPE, "tokens are fp32" },
	{ "embedding with positions", { { TE_DTYPE_INT32, 2, { 2, 9 } } }, -TE_ESHAPE,
	  "max_pos is 8" },
	{ "embedding", { { TE_DTYPE_INT32, 8, { 1, 1, 1, 1, 1, 1, 1, 1 } } }, -TE_ESHAPE,
	  "8 extents" },
	{ "linear", { { TE_DTYPE_FP32, 2, { 2, 12 } } }, -TE_ESHAPE, "12 wide" },
	{ "linear", { { TE_DTYPE_BF16, 2, { 2, 11 } } }, -TE_EDTYPE, "input is bf16" },
	{ "bias", { { TE_DTYPE_FP32, 2, { 9, 2 } } }, -TE_ESHAPE, "2 wide" },
	{ "layernorm", { { TE_DTYPE_FP32, 2, { 2, 12 } } }, -TE_ESHAPE, "takes 13" },
	{ "rmsnorm", { { TE_DTYPE_INT32, 2, { 2, 13 } } }, -TE_EDTYPE, "input is int32" },
	{ "gated silu", { { TE_DTYPE_FP32, 2, { 2, 7 } } }, -TE_ESHAPE, "odd number" },
	{ "gelu", { { TE_DTYPE_FP16, 2, { 2, 7 } } }, -TE_EDTYPE, "input is fp16" },
	{ "qk_norm", { { TE_DTYPE_FP32, 2, { 4, 34 } } }, -TE_ESHAPE, "takes 35" },
	{ "rope", { { TE_DTYPE_FP32, 1, { 30 } } }, -TE_ESHAPE, "1 extents" },
	{ "rope", { { TE_DTYPE_FP32, 2, { 4, 24 } } }, -TE_ESHAPE, "takes 30" },
	{ "rope of documents", { { TE_DTYPE_FP32, 3, { 2, 9, 30 } },
				 { TE_DTYPE_FP32, 2, { 2, 9 } } }, -TE_EDTYPE,
	  "documents are fp32, not int32" },
	{ "rope of positions", { { TE_DTYPE_FP32, 3, { 2, 9, 30 } },
				 { TE_DTYPE_INT32, 2, { 9, 1 } } }, -TE_ESHAPE,
	  "9 positions, for 18 rows" },
	{ "attention of documents", { { TE_DTYPE_FP32, 3, { 2, 9, 30 } },
				      { TE_DTYPE_INT32, 2, { 2, 8 } } }, -TE_ESHAPE,
	  "16 first tokens of documents, for 18 rows" },
	{ "attention", { { TE_DTYPE_FP32, 1, { 30 } } }, -TE_ESHAPE, "1 extents" },
	{ "attention", { { TE_DTYPE_FP32, 2, { 4, 31 } } }, -TE_ESHAPE, "takes 30" },
	{ "attention with dropout", { { TE_DTYPE_FP32, 2, { 65537, 24 } } }, -TE_ESHAPE,
	  "65537 positions" },
	{ "dropout", { { TE_DTYPE_INT32, 2, { 4, 3 } } }, -TE_EDTYPE, "input is int32" },
	{ "scale", { { TE_DTYPE_INT32, 2, { 4, 3 } } }, -TE_EDTYPE, "input is int32" },
	{ "identity", { { TE_DTYPE_FP16, 2, { 4, 3 } } }, -TE_EDTYPE, "input is fp16" },
	{ "reshape", { { TE_DTYPE_FP32, 2, { 4, 3 } } }, -TE_ESHAPE, "its input is [4,3]" },
	{ "reshape", { { TE_DTYPE_FP32, 2, { 3, 1 } } }, -TE_ESHAPE, "its input is [3,1]" },
	{ "fork", { { TE_DTYPE_INT32, 2, { 4, 3 } } }, -TE_EDTYPE, "fork fork" },
	{ "add", { { TE_DTYPE_FP32, 2, { 4, 3 } }, { TE_DTYPE_FP32, 2, { 3, 4 } } }, -TE_ESHAPE,
	  "[3,4]" },
	{ "add", { { TE_DTYPE_FP32, 2, { 4, 3 } }, { TE_DTYPE_BF16, 2, { 4, 3 } } }, -TE_ESHAPE,
	  "[4,3] bf16" },
	{ "cross_entropy", { { TE_DTYPE_FP32, 2, { 4, 12 } }, { TE_DTYPE_INT32, 1, { 4 } } },
	  -TE_ESHAPE, "nclasses is 13" },
	{ "cross_entropy", { { TE_DTYPE_FP32, 2, { 4, 13 } }, { TE_DTYPE_INT32, 1, { 5 } } },
	  -TE_ESHAPE, "5 targets for 4 rows" },
	{ "cross_entropy", { { TE_DTYPE_FP32, 2, { 4, 13 } }, { TE_DTYPE_FP32, 1, { 4 } } },
	  -TE_EDTYPE, "targets are fp32" },
};

static const struct op_case *find_case(const char *name)
{
	for (int i = 0; i < op_ncases; i++)
		if (!strcmp(op_cases[i].name, name))
			return &op_cases[i];
	ck_abort_msg("no case %s", name);
}

TEST_EACH(shapes, names_the_input_that_does_not_fit, TT_LEN(misfit))
{
	struct te_op *op = op_case_create(find_case(misfit[_i].name));
	struct te_recipe rec = op_run_recipe("fp32");
	struct te_op_infer inf;

	ck_assert_int_eq(te__infer(op, &rec, TE_INFER_TRAIN, misfit[_i].in, &inf),
			 misfit[_i].code);
	tt_said(te_op_name(op));
	tt_said(misfit[_i].words);
	te__infer_free(&inf);
	te_op_unref(op);
}

/* extents of a reshape, and those that it gives to 12 elements; none: it is refused */
static const struct {
	struct te_reshape_attrs a;
	struct te_spec want;
} reshaped[] = {
	{ TE_ATTRS(reshape, 2, { 3, -1 }), { TE_DTYPE_FP32, 2, { 3, 4 } } },
	{ TE_ATTRS(reshape, 3, { -1, 2, 3 }), { TE_DTYPE_FP32, 3, { 2, 2, 3 } } },
	{ TE_ATTRS(reshape, 1, { 12 }), { TE_DTYPE_FP32, 1, { 12 } } },
	{ TE_ATTRS(reshape, 0, { 0 }), { TE_DTYPE_FP32, 1, { 12 } } },
	{ TE_ATTRS(reshape, 2, { 5, -1 }), { TE_DTYPE_FP32, 0, { 0 } } },
	{ TE_ATTRS(reshape, 2, { -1, 8 }), { TE_DTYPE_FP32, 0, { 0 } } },
	{ TE_ATTRS(reshape, 2, { 2, 5 }), { TE_DTYPE_FP32, 0, { 0 } } },
	{ TE_ATTRS(reshape, 2, { 13, -1 }), { TE_DTYPE_FP32, 0, { 0 } } },
	{ TE_ATTRS(reshape, 2, { 5, 3 }), { TE_DTYPE_FP32, 0, { 0 } } },
};

TEST_EACH(shapes, reshape_keeps_the_number_of_elements, TT_LEN(reshaped))
{
	const struct te_spec x = { TE_DTYPE_FP32, 2, { 6, 2 } };
	const struct te_recipe rec = op_run_recipe("fp32");
	const struct te_spec *want = &reshaped[_i].want;
	struct te_op_infer inf;
	struct te_op *op;
	int r;

	DO(te_op_reshape(&reshaped[_i].a, "r", &op));
	r = te__infer(op, &rec, TE_INFER_TRAIN, &x, &inf);
	if (want->ndim) {
		ck_assert_msg(!r, "%s", te_error_detail());
		ck_assert_int_eq(inf.out[0].ndim, want->ndim);
		for (int i = 0; i < want->ndim; i++)
			ck_assert_int_eq(inf.out[0].shape[i], want->shape[i]);
	} else {
		ck_assert_int_eq(r, -TE_ESHAPE);
		tt_said("reshape r: its input is [6,2]");
	}
	te__infer_free(&inf);
	te_op_unref(op);
}

/* ---- declarations ---- */

static const struct {
	const char *name, *weight[2];
	enum te_init init[2];
	uint32_t flags[2];
} decls[] = {
	{ "embedding", { "weight" }, { TE_INIT_NORMAL }, { TE_WEIGHT_DECAY | TE_WEIGHT_STORED } },
	{ "embedding with positions", { "weight", "position" }, { TE_INIT_NORMAL, TE_INIT_NORMAL },
	  { TE_WEIGHT_DECAY | TE_WEIGHT_STORED, TE_WEIGHT_DECAY | TE_WEIGHT_STORED } },
	{ "linear", { "weight" }, { TE_INIT_NORMAL },
	  { TE_WEIGHT_DECAY | TE_WEIGHT_COMPUTE | TE_WEIGHT_GEMM } },
	{ "bias", { "bias" }, { TE_INIT_ZERO }, { TE_WEIGHT_COMPUTE } },
	{ "layernorm", { "weight", "bias" }, { TE_INIT_ONE, TE_INIT_ZERO }, { 0, 0 } },
	{ "rmsnorm", { "weight" }, { TE_INIT_ONE }, { 0 } },
	{ "rmsnorm, zero-centered", { "weight" }, { TE_INIT_ZERO }, { 0 } },
};

TEST_EACH(attributes, declares_its_weights, TT_LEN(decls))
{
	struct te_op *op = op_case_create(find_case(decls[_i].name));
	const struct te_weight_decl *d = op->decl;

	ck_assert_int_eq(op->nweights, decls[_i].weight[1] ? 2 : 1);
	for (int i = 0; i < op->nweights; i++) {
		ck_assert_str_eq(d[i].name, decls[_i].weight[i]);
		ck_assert_int_eq(d[i].init, decls[_i].init[i]);
		ck_assert_uint_eq(d[i].flags, decls[_i].flags[i]);
		ck_assert_ptr_null(d[i].tied_op);
	}
	te_op_unref(op);
}

TEST_EACH(attributes, describes_itself_in_one_line, op_ncases)
{
	struct te_op *op = op_case_create(&op_cases[_i]);
	const struct te_op_ops *ops = te_op_table(op);
	char text[256] = "", cut[4] = "zz";

	if (ops->describe) {
		ck_assert_int_gt(ops->describe(op, text, sizeof(text)), 0);
		ck_assert_msg(strlen(text) > 2 && !strchr(text, '\n'), "%s", text);
		ck_assert_int_eq(ops->describe(op, cut, sizeof(cut)), (int)strlen(text));
		ck_assert_uint_eq(strlen(cut), 3);
	} else {
		ck_assert_uint_eq(ops->attrs_nbytes, 0);
	}
	te_op_unref(op);
}

static int create_tied(void)
{
	struct te_embedding_attrs e = TE_ATTRS(embedding, 12, 6, 0, 0.02f, 0);
	struct te_linear_attrs a = TE_ATTRS(linear, 6, 12, 0.02f, 1, NULL);
	struct te_op *emb, *op = NULL;
	int r = te_op_embedding(&e, "emb", &emb);

	if (r < 0)
		return r;
	a.tied_op = emb;
	r = te_op_linear(&a, "head", &op);
	te_op_unref(emb);
	te_op_unref(op);
	return r;
}

TEST(attributes, survives_every_failed_allocation)
{
	ck_assert_int_ge(tt_fault_each(create_tied), 6);
}
