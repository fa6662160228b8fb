/* t/plan/weights_pair.c - a model twice, whose weights have different memory and the same bits. */
#include "config.h"

#include <te/errno.h>
#include <te/optim.h>

#include "tt_ctx.h"
#include "weights_pair.h"

struct te_plan_opts pair_opts(const struct model_shape *m, const struct te_recipe *recipe,
			      uint32_t flags)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;

	o.recipe = recipe;
	o.flags = flags;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { m->batch, m->seqlen } };
	return o;
}

void pair_free(struct pair *q)
{
	for (int i = 0; i < 2; i++) {
		te_adamw_unref(q->opt[i]);
		tt_drop(q->p[i], q->s[i]);
	}
}

/* the same tokens, and arenas without anything of an earlier pass */
void pair_feed(const struct pair *q, const struct model_shape *m)
{
	model_feed(q->p[0], m);
	for (int i = 0; i < 2; i++) {
		const char *name = i ? "targets" : "x";
		const struct te_tensor *t = te_plan_input(q->p[0], name);

		DO(te_copy(st, te_tensor_data(te_plan_input(q->p[1], name)), te_tensor_data(t),
			   te_tensor_nbytes(t)));
		DO(te_fill(st, q->p[i]->arena, 0xff, q->p[i]->arena_nbytes));
	}
}

void pair_queue_pass(struct te_plan *p)
{
	DO(te_plan_forward(p, st, 0));
	DO(te_plan_backward(p, st));
	if (te_plan_flags(p) & TE_PLAN_DELAY_DW)
		DO(te_plan_backward_dw(p, st));
}

void pair_same(const struct pair *q)
{
	DO(te_stream_sync(st));
	model_same(te_plan_output(q->p[0]), te_plan_output(q->p[1]), "losses");
	model_same(te_seq_grads(q->s[0]), te_seq_grads(q->s[1]), "gradients");
	model_same(te_seq_masters(q->s[0]), te_seq_masters(q->s[1]), "masters");
}

void pair_queue_step(const struct pair *q, int i)
{
	DO(te_seq_zero_grads(q->s[i], st));
	for (int micro = 0; micro < 2; micro++)
		pair_queue_pass(q->p[i]);
	DO(te_adamw_step(q->opt[i], st));
}

uint64_t pair_measured(void)
{
	struct te_mem_info m = TE_MEM_INFO_INIT;

	DO(te_ctx_sync(ctx));
	DO(te_ctx_mem_info(ctx, &m));
	return m.measured_nbytes - m.workspace_nbytes;
}
