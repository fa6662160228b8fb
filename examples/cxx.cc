/*
 * cxx.cc - a linear layer from C++11, with the library's references held by std::unique_ptr.
 *
 * The headers are C: unref functions are deleters, the INIT macros initialise options, and a
 * failing call becomes an exception with the error message.
 *
 * Usage: cxx
 * Prints the plan, an error message and one row of results, and exits 0 if the results are right.
 */
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <vector>

#include <te/te.h>

template <typename T, T *(*unref)(T *)> struct deleter {
	void operator()(T *p) const
	{
		unref(p);
	}
};

typedef std::unique_ptr<te_ctx, deleter<te_ctx, te_ctx_unref>> ctx_ptr;
typedef std::unique_ptr<te_op, deleter<te_op, te_op_unref>> op_ptr;
typedef std::unique_ptr<te_plan, deleter<te_plan, te_plan_unref>> plan_ptr;
typedef std::unique_ptr<te_seq, deleter<te_seq, te_seq_unref>> seq_ptr;

static void ok(int r)
{
	if (r < 0)
		throw std::runtime_error(te_error_detail());
}

static ctx_ptr create_ctx(const char *backend)
{
	te_ctx_opts opts = TE_CTX_OPTS_INIT;
	te_ctx *ctx;

	opts.backend = backend;
	ok(te_ctx_create(&opts, &ctx));
	return ctx_ptr(ctx);
}

static op_ptr create_linear(int64_t in, int64_t out)
{
	te_linear_attrs attrs = TE_LINEAR_ATTRS_INIT;
	te_op *op;

	attrs.in = in;
	attrs.out = out;
	ok(te_op_linear(&attrs, "linear", &op));
	return op_ptr(op);
}

static plan_ptr create_plan(te_seq *seq, int64_t rows, int64_t width)
{
	te_plan_opts opts = TE_PLAN_OPTS_INIT;
	te_recipe recipe = TE_RECIPE_INIT;
	te_plan *plan;

	ok(te_recipe_from_name("fp32", &recipe));
	opts.recipe = &recipe;
	opts.x.dtype = TE_DTYPE_FP32;
	opts.x.ndim = 2;
	opts.x.shape[0] = rows;
	opts.x.shape[1] = width;
	ok(te_plan_create(seq, &opts, &plan));
	return plan_ptr(plan);
}

static int run()
{
	const int64_t rows = 2, in = 8, out = 4;
	ctx_ptr ctx = create_ctx("host");
	te_seq *raw;
	ok(te_seq_create(ctx.get(), &raw));
	seq_ptr seq(raw);
	ok(te_seq_append(seq.get(), create_linear(in, out).get()));
	ok(te_seq_init(seq.get(), 1));

	/* every weight is 0.5: results are half the sum of a row */
	te_weight_info weight = TE_WEIGHT_INFO_INIT;
	std::vector<float> w(in * out, 0.5f), x, y(rows * out);
	ok(te_seq_weight(seq.get(), 0, &weight));
	ok(te_tensor_write(weight.master, w.data(), w.size() * sizeof(float)));
	ok(te_seq_weights_changed(seq.get(), te_ctx_stream(ctx.get())));
	for (int i = 0; i < rows * in; i++)
		x.push_back(static_cast<float>(i));

	plan_ptr plan = create_plan(seq.get(), rows, in);
	char *text;
	ok(te_plan_print(plan.get(), TE_PLAN_TEXT, &text));
	std::fputs(text, stdout);
	std::free(text);

	try {
		create_ctx("abacus");
	} catch (const std::runtime_error &e) {
		std::printf("as expected: %s\n", e.what());
	}

	ok(te_tensor_write(te_plan_input(plan.get(), "x"), x.data(), x.size() * sizeof(float)));
	ok(te_plan_forward(plan.get(), te_ctx_stream(ctx.get()), 0));
	ok(te_tensor_read(te_plan_output(plan.get()), y.data(), y.size() * sizeof(float)));
	std::printf("%g %g %g %g\n", static_cast<double>(y[0]), static_cast<double>(y[1]),
		    static_cast<double>(y[2]), static_cast<double>(y[3]));
	for (int i = 0; i < rows * out; i++)
		if (y[i] != (i < out ? 14.0f : 46.0f))
			return 1;
	return 0;
}

int main()
{
	try {
		return run();
	} catch (const std::exception &e) {
		std::fprintf(stderr, "%s\n", e.what());
		return 1;
	}
}
