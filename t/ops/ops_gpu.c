/*
 * t/ops/ops_gpu.c - every op on a GPU against the host backend, through its table.
 *
 * FP32: both sides are within the case's bound of the exact value, so within twice that of
 * each other; GEMMs and attention sum in another order, which the bound allows for. BF16: each
 * side rounds to BF16 once more, by up to 2^-8 of the element; attention on a GPU also
 * rounds probabilities to BF16 before the second GEMM, and in backward dS too: 2^-8 of sums
 * that are a few times the largest result at most.
 */
#include "config.h"

#include <math.h>

#include <te/errno.h>

#include "op_cases.h"
#include "tt_num.h"

#define FP8_DEPTH 140 /* only the FP8 case has it */

static struct te_ctx *host, *gpu;

static void setup(void)
{
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;

	o.backend = "host";
	DO(te_ctx_create(&o, &host));
	o.backend = "cuda";
	DO(te_ctx_create(&o, &gpu));
}

static void teardown(void)
{
	host = te_ctx_unref(host);
	gpu = te_ctx_unref(gpu);
}

static void same_input(struct te_tensor *dst, const struct te_tensor *src)
{
	float *v;

	if (!dst)
		return;
	v = tt_tensor_get(src);
	tt_tensor_set(dst, v);
	free(v);
}

/*
 * FP8 tensor cores align the 32 products of an instruction and add them with 14 bits (DeepSeek-V3,
 * arXiv:2412.19437, section 3.3.2): each of K = 64 terms loses up to 2^-13 of the largest, which
 * is below half the largest result here: 2^-8 of that in all.
 */
static int fp8_product(const struct op_case *k)
{
	return k->depth == FP8_DEPTH;
}

static void ck_near(const struct op_case *k, const char *what, const struct te_tensor *got,
		    const struct te_tensor *want, int bf16)
{
	int attention = !strncmp(k->name, "attention", 9);
	size_t n = (size_t)te_tensor_nelems(want);
	float *a = tt_tensor_get(got), *b = tt_tensor_get(want);
	double most = 0, bound;

	for (size_t i = 0; i < n; i++)
		most = fmax(most, fabs((double)b[i]));
	bound = 2 * k->depth * ldexp(most, -24) + 1e-8;
	if (bf16 && attention)
		bound += ldexp(most, -6);
	if (fp8_product(k))
		bound += ldexp(most, -8);
	for (size_t i = 0; i < n; i++) {
		double own = bf16 ? ldexp(fabs((double)b[i]), -7) * 1.01 : 0;

		ck_assert_msg(fabs((double)a[i] - (double)b[i]) <= bound + own,
			      "%s: %s[%zu] is %.9g, on host %.9g", k->name, what, i, (double)a[i],
			      (double)b[i]);
	}
	free(a);
	free(b);
}

static void compare(const struct op_case *k, const char *recipe)
{
	int bf16 = strcmp(recipe, "fp32") != 0;
	struct te_op *op, *same; /* an op has constants of one context */
	struct op_run h, g;

	if (k->host_only)
		return;
	op = op_case_create(k);
	same = op_case_create(k);
	op_case_init(k, &h, host, op, recipe);
	op_case_init(k, &g, gpu, same, recipe);
	same_input(g.call.x.hp, h.call.x.hp);
	for (int i = 0; i < h.ops->nextra_in; i++)
		same_input(g.all.ex[i].hp, h.all.ex[i].hp);
	same_input(g.call.dy.hp, h.call.dy.hp);
	same_input(g.all.dey[0].hp, h.all.dey[0].hp);
	for (int i = 0; i < h.op->nweights; i++)
		same_input(g.call.master[i], h.call.master[i]);
	op_run_forward(&h);
	op_run_forward(&g);
	ck_near(k, "y", op_run_y(&g), op_run_y(&h), bf16 && h.inf.out[0].dtype == TE_DTYPE_BF16);
	/* backward from the same state, so that errors do not add up */
	same_input(g.call.y.hp, h.call.y.hp);
	for (int i = 0; i < h.inf.nsaved; i++) {
		ck_near(k, "saved", g.call.saved[i], h.call.saved[i], 0);
		same_input(g.call.saved[i], h.call.saved[i]);
	}
	op_run_backward(&h);
	op_run_backward(&g);
	if (!h.inf.no_dx)
		ck_near(k, "dx", op_run_dx(&g), op_run_dx(&h), bf16);
	for (int i = 0; i < h.ops->nextra_in; i++)
		if (h.inf.in[1 + i].dtype != TE_DTYPE_INT32)
			ck_near(k, "dex", op_run_dex(&g, i), op_run_dex(&h, i), bf16);
	op_run_dw(&h);
	op_run_dw(&g);
	for (int i = 0; i < h.op->nweights; i++)
		ck_near(k, h.op->decl[i].name, g.call.grad[i], h.call.grad[i], 0);
	op_run_fini(&h);
	op_run_fini(&g);
	te_op_unref(op);
	te_op_unref(same);
}

CASE(values, "gpu numeric", .setup = setup, .teardown = teardown);

TEST_EACH(values, agrees_with_host_in_fp32, op_ncases)
{
	compare(&op_cases[_i], "fp32");
}

TEST_EACH(values, agrees_with_host_in_bf16, op_ncases)
{
	compare(&op_cases[_i], "bf16");
}

/* the same codes and scales on both sides: GEMMs differ by the order of K = 64 FP32 sums */
TEST_EACH(values, linear_agrees_with_host_in_fp8, 3)
{
	struct op_case k = { .name = "linear",
			     .depth = FP8_DEPTH,
			     .in = { { TE_DTYPE_FP32, 3, { 2, 24, 64 } } } };
	struct te_linear_attrs a = TE_ATTRS(linear, 64, 80, 0.02f, 0, NULL);
	static const char *const recipes[] = { "fp8-delayed", "fp8-current", "fp8-block" };
	const char *recipe = recipes[_i];
	struct te_op *op;
	struct op_run h, g;

	DO(te_op_linear(&a, "linear", &op));
	op_case_init(&k, &h, host, op, recipe);
	op_case_init(&k, &g, gpu, op, recipe);
	same_input(g.call.x.hp, h.call.x.hp);
	same_input(g.call.dy.hp, h.call.dy.hp);
	same_input(g.call.master[0], h.call.master[0]);
	op_run_forward(&h);
	op_run_forward(&g);
	for (int col = 0; col < 2; col++) {
		float *p = op_run_get_fp8(g.call.x.q, col), *q = op_run_get_fp8(h.call.x.q, col);

		ck_assert_mem_eq(p, q, 48 * 64 * sizeof(*p));
		free(p);
		free(q);
	}
	ck_near(&k, "y", g.call.y.hp, h.call.y.hp, 1);
	op_run_backward(&h);
	op_run_backward(&g);
	ck_near(&k, "dx", g.call.dx.hp, h.call.dx.hp, 1);
	op_run_dw(&h);
	op_run_dw(&g);
	ck_near(&k, "weight", g.call.grad[0], h.call.grad[0], 0);
	op_run_fini(&h);
	op_run_fini(&g);
	te_op_unref(op);
}

TT_MAIN("ops/ops_gpu", TT_NEED_GPU)
