/* profile.c - see profile.h. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "profile.h"
#include "tools/lib/say.h"

int profile_plan(const struct trainer *t, uint32_t flags, struct te_plan **ret_plan)
{
	const struct step_graph *g = &t->now.graph;
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	int r;

	po.recipe = &t->recipe;
	po.flags = flags | TE_PLAN_TRAIN | (g->costly ? TE_PLAN_RECOMPUTE_COSTLY : 0);
	po.x = (struct te_spec){ TE_DTYPE_INT32, 2, { t->B, trainer_own_tokens(t) } };
	po.offload = g->offload;
	po.nrecompute = g->nrecompute;
	po.recompute = (const char *const *)g->recompute;
	r = te_plan_create(t->now.model.seq, &po, ret_plan);
	if (r == -ENOMEM)
		return say_te(r, "--batch %lld with --seq-len %lld does not fit", (long long)t->B,
			      (long long)t->T);
	return r < 0 ? say_te(r, "the model cannot be planned") : STATUS_OK;
}

int profile_draw(const struct trainer *t, struct te_plan *plan, int64_t step)
{
	const size_t n = (size_t)(trainer_ninputs(t) * t->B * t->T);
	int32_t *tokens = malloc(n * sizeof(*tokens));
	const struct rows rows = trainer_rows(t, tokens, t->B);
	const int64_t first = t->ranks.data_rank * t->B;
	int te = 0, r;

	r = !tokens   ? say_failed("out of memory") :
	    t->chunks ? batch_take_chunks(t->chunks, t->now.done.drawn + first, &rows) :
			batch_draw(&t->train, (uint64_t)t->o->seed, step, first, &rows);

	if (!r) {
		trainer_cut(t, &rows);
		te = trainer_feed(t, &plan, &rows);
	}
	free(tokens);
	return te < 0 ? say_te(te, "the tokens of a micro-batch") : r;
}

int profile_print(const struct trainer *t)
{
	const enum te_plan_format format = *t->o->profile == 'j' ? TE_PLAN_JSON : TE_PLAN_TEXT;
	struct te_plan *plan = NULL;
	char *text = NULL;
	int te = 0, r = profile_plan(t, 0, &plan);

	if (!r)
		r = profile_draw(t, plan, 0);
	if (!r)
		te = te_plan_profile(plan, t->stream, NULL, NULL);
	if (!r && te >= 0 && !t->ranks.rank)
		te = te_plan_profile_print(plan, format, &text);
	if (text)
		fputs(text, stdout);
	free(text);
	te_plan_unref(plan);
	return te < 0 ? say_te(te, "the profile") : r;
}
