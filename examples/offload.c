/*
 * offload.c - trains a model in half of the memory that it takes.
 *
 * A first run without a limit shows how much device memory training takes. A second one gets half
 * of that, as TE_DEVICE_MEM_LIMIT would give it: without te_offload_create(3) the step does not
 * fit. With it, the values that wait for the backward pass do so in host memory, and the losses
 * equal the first run's to the last bit.
 *
 * Usage: offload
 * Prints the memory, the schedule of copies and the losses; exits 0 if the losses are the same.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <te/errno.h>
#include <te/offload.h>
#include <te/step.h>

#define VOCAB 32
#define WIDTH 32
#define LAYERS 8
#define BATCH 16
#define LENGTH 32
#define STEPS 3
#define TOKENS (BATCH * LENGTH)

/* ---- the model ---- */

/* r: of the call that made *op */
static int append(struct te_seq *seq, int r, struct te_op **op)
{
	if (r >= 0)
		r = te_seq_append(seq, *op);
	*op = te_op_unref(*op);
	return r;
}

static int add_layer(struct te_seq *seq, int l)
{
	struct te_linear_attrs la = TE_ATTRS(linear, WIDTH, WIDTH, 0.2f, 1, NULL);
	struct te_act_attrs aa = TE_ATTRS(act, TE_ACT_GELU, 0);
	struct te_norm_attrs na = TE_ATTRS(norm, WIDTH, 1e-5f, 0);
	struct te_op *op = NULL;
	char name[32];
	int r;

	snprintf(name, sizeof(name), "%d.norm", l);
	r = append(seq, te_op_layernorm(&na, name, &op), &op);
	snprintf(name, sizeof(name), "%d.linear", l);
	if (r >= 0)
		r = append(seq, te_op_linear(&la, name, &op), &op);
	snprintf(name, sizeof(name), "%d.gelu", l);
	if (r >= 0)
		r = append(seq, te_op_activation(&aa, name, &op), &op);
	return r;
}

static int make_model(struct te_ctx *ctx, struct te_seq **ret_seq)
{
	struct te_embedding_attrs ea = TE_ATTRS(embedding, VOCAB, WIDTH, 0, 0.5f);
	struct te_linear_attrs la = TE_ATTRS(linear, WIDTH, VOCAB, 0.2f, 1, NULL);
	struct te_cross_entropy_attrs ca = TE_ATTRS(cross_entropy, VOCAB, -100, 1.0f);
	struct te_op *op = NULL;
	int r = te_seq_create(ctx, ret_seq);

	if (r >= 0)
		r = append(*ret_seq, te_op_embedding(&ea, "emb", &op), &op);
	for (int l = 0; l < LAYERS && r >= 0; l++)
		r = add_layer(*ret_seq, l);
	if (r >= 0)
		r = append(*ret_seq, te_op_linear(&la, "head", &op), &op);
	if (r >= 0)
		r = te_seq_input(*ret_seq, "targets", TE_DTYPE_INT32, 0, NULL);
	if (r >= 0)
		r = te_op_cross_entropy(&ca, "loss", &op);
	if (r >= 0)
		r = te_op_take(op, 0, "targets");
	if (op)
		r = append(*ret_seq, r, &op);
	return r < 0 ? r : te_seq_init(*ret_seq, 1);
}

/* ---- a run ---- */

struct run {
	struct te_ctx *ctx;
	struct te_seq *seq;
	struct te_adamw *adamw;
	struct te_offload *offload;
	struct te_step *step;
};

static int make_step(struct run *run, uint32_t flags)
{
	struct te_step_opts so = TE_STEP_OPTS_INIT;

	so.flags = flags;
	so.x = (struct te_spec){ TE_DTYPE_INT32, 2, { BATCH, LENGTH } };
	so.offload = run->offload;
	return te_step_create(run->seq, run->adamw, &so, &run->step);
}

/* free memory without the copies of weights that plans make */
static int room(struct run *run, uint64_t *ret_nbytes)
{
	struct te_plan_memory pm = TE_PLAN_MEMORY_INIT;
	struct te_step_memory sm = TE_STEP_MEMORY_INIT;
	struct te_mem_info mi = TE_MEM_INFO_INIT;
	uint64_t other;
	int r = make_step(run, TE_STEP_NO_ALLOC);

	if (r >= 0)
		r = te_step_memory(run->step, &sm);
	if (r >= 0)
		r = te_plan_memory(te_step_plan(run->step, 0, 0), &pm);
	if (r >= 0)
		r = te_ctx_mem_info(run->ctx, &mi);
	run->step = te_step_unref(run->step);
	other = sm.plans_nbytes + pm.copies_nbytes + sm.workspace_nbytes + 16384;
	*ret_nbytes = mi.device_free_nbytes > other ? mi.device_free_nbytes - other : 1;
	return r;
}

static int run_create(struct run *run, uint64_t limit_nbytes)
{
	struct te_offload_opts oo = TE_OFFLOAD_OPTS_INIT;
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;
	char *text = NULL;
	int r;

	memset(run, 0, sizeof(*run));
	co.backend = "host";
	co.mem_limit_nbytes = limit_nbytes;
	r = te_ctx_create(&co, &run->ctx);
	if (r >= 0)
		r = make_model(run->ctx, &run->seq);
	if (r >= 0)
		r = te_adamw_create(run->seq, NULL, &run->adamw);
	if (r >= 0)
		r = te_adamw_set_lr(run->adamw, te_ctx_stream(run->ctx), 1e-2f);
	if (r < 0 || !limit_nbytes)
		return r < 0 ? r : make_step(run, 0);
	r = make_step(run, 0);
	if (r != -ENOMEM)
		return fprintf(stderr, "the step fits without offload\n"), -EINVAL;
	printf("without offload: %s\n", te_error_detail());
	r = room(run, &oo.target_nbytes);
	if (r >= 0)
		r = te_offload_create(run->ctx, &oo, &run->offload);
	if (r >= 0)
		r = make_step(run, 0);
	if (r >= 0)
		r = te_offload_print(run->offload, &text);
	if (r >= 0)
		fputs(text, stdout);
	free(text);
	return r;
}

static int train(struct run *run, double loss[STEPS])
{
	int32_t tokens[TOKENS], targets[TOKENS];
	int r = 0;

	/* the next token of a sequence is the present one times 5, plus 3 */
	for (int i = 0; i < TOKENS; i++) {
		tokens[i] = i % LENGTH ? targets[i - 1] : i / LENGTH;
		targets[i] = (tokens[i] * 5 + 3) % VOCAB;
	}
	for (int k = 0; k < STEPS && r >= 0; k++) {
		r = te_tensor_write(te_step_input(run->step, 0, 0, "x"), tokens, sizeof(tokens));
		if (r >= 0)
			r = te_tensor_write(te_step_input(run->step, 0, 0, "targets"), targets,
					    sizeof(targets));
		if (r >= 0)
			r = te_step_run(run->step, 0, te_ctx_stream(run->ctx));
		if (r >= 0)
			r = te_step_loss(run->step, &loss[k]);
	}
	return r;
}

static void run_destroy(struct run *run)
{
	te_step_unref(run->step);
	te_offload_unref(run->offload);
	te_adamw_unref(run->adamw);
	te_seq_unref(run->seq);
	te_ctx_unref(run->ctx);
}

int main(void)
{
	struct te_mem_info mi[2] = { TE_MEM_INFO_INIT, TE_MEM_INFO_INIT };
	double loss[2][STEPS] = { { 0 } };
	int r = 0, same = 1;

	for (int i = 0; i < 2 && r >= 0; i++) {
		struct run run;

		r = run_create(&run, mi[0].peak_nbytes / 2);
		if (r >= 0)
			r = train(&run, loss[i]);
		if (r >= 0)
			r = te_ctx_mem_info(run.ctx, &mi[i]);
		if (r < 0)
			fprintf(stderr, "%s\n", te_error_detail());
		run_destroy(&run);
	}
	printf("device memory: %.2f MiB, then %.2f MiB\n", (double)mi[0].peak_nbytes / (1 << 20),
	       (double)mi[1].peak_nbytes / (1 << 20));
	for (int k = 0; k < STEPS; k++) {
		printf("step %d: loss %.6f and %.6f\n", k, loss[0][k], loss[1][k]);
		same &= loss[0][k] == loss[1][k];
	}
	return r < 0 || !same || !(loss[0][STEPS - 1] < loss[0][0]);
}
