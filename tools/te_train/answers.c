/*
 * answers.c - answers to the multiple-choice questions of --eval-choices.
 *
 * A decoder reads the weights that are trained, in the compute type of the recipe without FP8, as
 * te_generate reads a checkpoint. Ranks answer different questions.
 */
#include "config.h"

#include <string.h>

#include <te/errno.h>

#include "answers.h"
#include "mem.h"
#include "tools/lib/say.h"

#define MOST_SEQS 32 /* endings at a time */
#define CHUNK 128    /* tokens of a pass */
#define PAGE 64	     /* tokens of a page of the cache */
#define ARGMAX_NBYTES 512 /* device memory for the largest logits of a sequence */
#define ROUND 16     /* questions of a rank until it hears whether the run is to end */

int answers_read(struct trainer *t)
{
	const int64_t positions = config_positions(&t->cfg);
	const int64_t most = positions < t->T ? t->T : positions;
	struct choices *c = &t->choices;

	if (t->cfg.head_recipe)
		return say_bad("--eval-choices needs a head that is not in FP8, --head-recipe is "
			       "%s", t->o->head_recipe);
	c->tokenizer = t->tokenizer;
	c->vocab = t->cfg.vocab;
	c->context = most < DEFAULT_CONTEXT ? most : DEFAULT_CONTEXT;
	return choices_read(c, t->o->eval_choices);
}

int64_t answers_most(const struct choices *c)
{
	const int64_t most = c->longest < MOST_SEQS ? c->longest : MOST_SEQS;

	return c->nendings < most ? c->nendings : most;
}

/* ret_recipe: the recipe that the options point to */
static struct te_decoder_opts options(const struct choices *c, const struct te_recipe *recipe,
				      struct te_recipe *ret_recipe)
{
	struct te_decoder_opts o = TE_DECODER_OPTS_INIT;

	*ret_recipe = (struct te_recipe)TE_RECIPE_INIT;
	ret_recipe->compute = recipe->compute;
	o.recipe = ret_recipe;
	o.max_tokens = (int32_t)c->longest;
	o.max_seqs = (int32_t)answers_most(c);
	o.page = PAGE;
	/* rows of a pass, of which a table of positions has no more */
	o.chunk = o.max_tokens < CHUNK ? o.max_tokens : CHUNK;
	o.ntokens = c->vocab;
	return o;
}

int answers_open(struct trainer *t)
{
	struct te_recipe recipe;
	const struct te_decoder_opts o = options(&t->choices, &t->recipe, &recipe);
	const int te = te_decoder_create(t->now.model.seq, &o, &t->now.decoder);

	return te < 0 ? say_te(te, "--eval-choices") : STATUS_OK;
}

/* plans for 1, 2, 4 and so on to most rows */
static int plans_nbytes(const struct model *m, int64_t most, struct te_plan_opts *po,
			struct te_plan_memory *pm, uint64_t *nbytes)
{
	int64_t rows = 1;
	int te = 0;

	while (te >= 0) {
		struct te_plan *plan = NULL;

		po->x.shape[1] = rows < most ? rows : most;
		po->flags = TE_PLAN_NO_ALLOC;
		te = te_plan_create(m->seq, po, &plan);
		if (te >= 0)
			te = te_plan_memory(plan, pm);
		te_plan_unref(plan);
		*nbytes += pm->arena_nbytes + pm->own_nbytes;
		if (rows >= most)
			break;
		rows *= 2;
	}
	return te;
}

static uint64_t tensor_nbytes(uint64_t nbytes)
{
	return (nbytes + 255) / 256 * 256;
}

int answers_nbytes(const struct choices *c, const struct model *m, const struct te_recipe *recipe,
		   uint64_t *ret_nbytes, uint64_t *ret_copies)
{
	const struct config *cfg = &m->cfg;
	struct te_recipe plain;
	const struct te_decoder_opts o = options(c, recipe, &plain);
	const uint64_t pages = (uint64_t)((o.max_tokens + PAGE - 1) / PAGE * o.max_seqs);
	struct te_plan_memory pm = TE_PLAN_MEMORY_INIT;
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	uint64_t nbytes = 0;
	int te;

	po.recipe = &plain;
	po.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 1, 1 } };
	po.stop_before = MODEL_HEAD;
	te = plans_nbytes(m, o.chunk, &po, &pm, &nbytes);
	po.x = (struct te_spec){ plain.compute, 3, { 1, 1, cfg->width } };
	po.start_at = MODEL_HEAD;
	po.stop_before = MODEL_LOSS;
	if (te >= 0)
		te = plans_nbytes(m, o.max_seqs, &po, &pm, &nbytes);
	if (te < 0)
		return te;
	/*
	 * Keys and values; sequences, positions and tokens of rows, tables of pages, a word, and
	 * the largest logits of sequences
	 */
	nbytes += 2 * (uint64_t)cfg->layers *
		  tensor_nbytes(pages * PAGE * (uint64_t)(cfg->kv_heads * cfg->head_dim) *
				te_dtype_nbytes(plain.compute));
	nbytes += 3 * tensor_nbytes((uint64_t)o.chunk * sizeof(int32_t)) +
		  tensor_nbytes(pages * sizeof(int32_t)) + tensor_nbytes(sizeof(int32_t)) +
		  (uint64_t)o.max_seqs * ARGMAX_NBYTES;
	*ret_nbytes = nbytes;
	/* plans of one recipe share the copies of weights */
	*ret_copies = 0;
	if (recipe->kind != TE_RECIPE_NONE) {
		po.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 1, 1 } };
		po.start_at = NULL;
		po.flags = TE_PLAN_NO_ALLOC;
		te = plans_nbytes(m, 1, &po, &pm, &nbytes);
		*ret_copies = pm.copies_nbytes;
	}
	return te;
}

int answers_part(const struct trainer *t, int64_t k, int64_t *ret_first, int64_t *ret_n)
{
	const int64_t all = t->choices.nquestions, first = k * ranks_n(&t->ranks) * ROUND;
	const int64_t own = first + t->ranks.rank * ROUND, left = all - own;

	*ret_first = own;
	*ret_n = left < 0 ? 0 : left < ROUND ? left : ROUND;
	return first < all;
}

int answers_count(struct trainer *t)
{
	float own[2] = { 0 }, all[2 * MOST_RANKS];
	double right[2] = { 0 };
	int64_t first, n;
	int te;

	for (int64_t k = 0; answers_part(t, k, &first, &n); k++)
		for (int i = 0; i < 2; i++)
			own[i] += (float)choices_nright(&t->choices, i, first, n);
	memcpy(all, own, sizeof(own));
	te = t->ranks.comm ? ranks_all(&t->ranks, t->stream, own, 2, all) : 0;
	if (te < 0)
		return say_te(te, "--eval-choices");
	for (int i = 0; i < 2 * ranks_n(&t->ranks); i++)
		right[i % 2] += (double)all[i];
	t->now.acc = right[0] / (double)t->choices.nquestions;
	t->now.acc_norm = right[1] / (double)t->choices.nquestions;
	return STATUS_OK;
}
