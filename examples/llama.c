/*
 * llama.c - a Llama model, trained in FP8 on bytes, saved, and loaded by a second run. A block is
 * attention with RoPE and a SwiGLU MLP, each after an RMSNorm and within a residual.
 *
 * Usage: llama
 * Writes llama.safetensors, and exits 0 if both runs then train with the same bits.
 */
#include <stdio.h>
#include <te/te.h>

enum { LAYERS = 2, WIDTH = 64, HEADS = 4, KV = 2, HEAD = WIDTH / HEADS, INNER = 128, VOCAB = 256 };
enum { QKV = (HEADS + 2 * KV) * HEAD }; /* queries, keys and values of all heads */
enum { BATCH = 4, LENGTH = 32, MICRO = 2, STEPS = 80, SAVED = 60 };
static const char file[] = "llama.safetensors";
static const wchar_t text[] = /* the tokens: INT32 on Linux */
	L"The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs. "
	"How vexingly quick daft zebras jump! Sphinx of black quartz, judge my vow.";

/* a failed call ends the function; main() prints the error message */
#define OK(call) do { int r_ = (call); if (r_ < 0) return r_; } while (0)

/* append te_op_OP() with members of struct te_KIND_attrs, whose others have defaults */
#define ADD(seq, op, kind, name, ...)                                      \
	do {                                                               \
		struct te_##kind##_attrs a_ = TE_ATTRS(kind, __VA_ARGS__); \
		struct te_op *op_;                                         \
		OK(te_op_##op(&a_, name, &op_));                           \
		OK(te_seq_append(seq, op_));                               \
		te_op_unref(op_); /* the sequence has a reference */       \
	} while (0)

/* the name of a layer's operation; weights are called after it */
static const char *in(int layer, const char *what)
{
	static char name[64];

	snprintf(name, sizeof(name), "layers.%d.%s", layer, what);
	return name;
}

static int add_block(struct te_seq *seq, int i)
{
	OK(te_seq_fork(seq, in(i, "attn")));
	ADD(seq, rmsnorm, norm, in(i, "attn_norm"), .width = WIDTH);
	ADD(seq, linear, linear, in(i, "qkv"), .in = WIDTH, .out = QKV, .init_std = 0.1f);
	ADD(seq, rope, rope, in(i, "rope"), .nheads = HEADS, .nkv = KV, .head_dim = HEAD);
	ADD(seq, attention, attention, in(i, "core"), .nheads = HEADS, .nkv = KV, .head_dim = HEAD);
	ADD(seq, linear, linear, in(i, "out"), .in = WIDTH, .out = WIDTH, .init_std = 0.05f);
	OK(te_seq_add(seq, in(i, "attn")));

	OK(te_seq_fork(seq, in(i, "mlp")));
	ADD(seq, rmsnorm, norm, in(i, "mlp_norm"), .width = WIDTH);
	ADD(seq, linear, linear, in(i, "up"), .in = WIDTH, .out = 2 * INNER, .init_std = 0.1f);
	ADD(seq, activation, act, in(i, "swiglu"), .act = TE_ACT_SILU, .gated = 1);
	ADD(seq, linear, linear, in(i, "down"), .in = INNER, .out = WIDTH, .init_std = 0.05f);
	return te_seq_add(seq, in(i, "mlp"));
}

static int add_model(struct te_seq *seq)
{
	ADD(seq, embedding, embedding, "embed", .vocab = VOCAB, .width = WIDTH, .init_std = 0.1f);
	for (int i = 0; i < LAYERS; i++)
		OK(add_block(seq, i));
	ADD(seq, rmsnorm, norm, "norm", .width = WIDTH);
	ADD(seq, linear, linear, "head", .in = WIDTH, .out = VOCAB, .init_std = 0.1f, .keep_hp = 1);
	ADD(seq, cross_entropy, cross_entropy, "loss", .nclasses = VOCAB);
	OK(te_op_take(te_seq_op(seq, te_seq_nops(seq) - 1), 0, "targets")); /* input of the loss */
	return te_seq_input(seq, "targets", TE_DTYPE_INT32, 0, NULL);
}

struct run {
	struct te_seq *seq;
	struct te_adamw *adamw;
	struct te_step *step;
};

static int create(struct te_ctx *ctx, uint64_t seed, struct run *run)
{
	struct te_step_opts opts = TE_STEP_OPTS_INIT;
	struct te_recipe recipe = TE_RECIPE_INIT;

	OK(te_seq_create(ctx, &run->seq));
	OK(add_model(run->seq));
	OK(te_seq_init(run->seq, seed));
	OK(te_adamw_create(run->seq, NULL, &run->adamw));
	OK(te_adamw_set_lr(run->adamw, te_ctx_stream(ctx), 3e-3f));
	OK(te_recipe_from_name("fp8-delayed", &recipe));
	opts.recipe = &recipe;
	opts.flags = TE_STEP_GRAPH;
	opts.micro_batches = MICRO;
	opts.x = (struct te_spec){ TE_DTYPE_INT32, 2, { BATCH, LENGTH } };
	return te_step_create(run->seq, run->adamw, &opts, &run->step);
}

/* steps `from` to `to` - 1; the data of a step depend on its number only */
static int train(struct te_ctx *ctx, struct run *run, int from, int to, double *ret_loss)
{
	const size_t nbytes = BATCH * LENGTH * sizeof(*text);

	for (int k = from; k < to; k++) {
		for (int i = 0; i < 2 * MICRO; i++) { /* tokens and targets of each micro-batch */
			const char *name = i % 2 ? "targets" : "x";

			OK(te_tensor_write(te_step_input(run->step, 0, i / 2, name),
					   text + 8 * ((k + i / 2) % 4) + i % 2, nbytes));
		}
		OK(te_step_run(run->step, 0, te_ctx_stream(ctx)));
		OK(te_step_loss(run->step, ret_loss));
		if (k % 20 == 0)
			printf("step %2d, loss %.3f\n", k, *ret_loss);
	}
	return 0;
}

static int run(struct te_ctx *ctx, struct run *first, struct run *second)
{
	double loss[2];
	int64_t nsteps;

	OK(create(ctx, 1, first));
	OK(train(ctx, first, 0, SAVED, &loss[0]));
	OK(te_checkpoint_save(first->seq, first->adamw, file));
	OK(train(ctx, first, SAVED, STEPS, &loss[0]));

	OK(create(ctx, 2, second)); /* as a program that is started again */
	OK(te_checkpoint_load(second->seq, second->adamw, file, 0, &nsteps));
	printf("%s is of step %d\n", file, (int)nsteps);
	OK(train(ctx, second, (int)nsteps, STEPS, &loss[1]));
	printf("loss %.6f without and %.6f with the file\n", loss[0], loss[1]);
	return loss[0] == loss[1] && loss[0] < 1 ? 0 : -1;
}

int main(void)
{
	struct run first = { NULL }, second = { NULL };
	struct te_ctx *ctx = NULL;
	int r = te_ctx_create(NULL, &ctx); /* a Hopper GPU, else the threads of the CPU */

	if (r >= 0)
		r = run(ctx, &first, &second);
	if (r < 0)
		fprintf(stderr, "llama: %s\n", te_error_detail());
	te_step_unref(first.step), te_adamw_unref(first.adamw), te_seq_unref(first.seq);
	te_step_unref(second.step), te_adamw_unref(second.adamw), te_seq_unref(second.seq);
	te_ctx_unref(ctx);
	return r < 0;
}
