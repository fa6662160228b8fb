/*
 * setup.c - creation of a run: objects of the process, and objects for the present ranks, from a
 * checkpoint or from initial weights.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <te/errno.h>

#include "answers.h"
#include "batch.h"
#include "loop.h"
#include "mem.h"
#include "order.h"
#include "recipes.h"
#include "returns.h"
#include "sample.h"
#include "tools/lib/device.h"
#include "tools/lib/model_path.h"
#include "tools/lib/option.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"
#include "tools/lib/tokens.h"
#include "tools/lib/weights.h"

/* NFSv4 servers keep the locks of a lost host for 90 s */
#define LOCK_WAIT_S 100

static int read_preset(const char *name, struct config *cfg)
{
	const struct preset *p = preset_find(name);
	json_t *obj = NULL;
	int r = record_parse(p->config, strlen(p->config), p->name, &obj);

	if (!r)
		r = config_parse(obj, p->name, cfg);
	json_decref(obj);
	return r;
}

/* the model of a folder must be the model of --model or --preset, if given */
static int check_given(const struct opts *o, const char *dir, const struct config *cfg)
{
	struct config given = { 0 };
	int r = o->model ? config_read(o->model, &given) : read_preset(o->preset, &given);

	/* a run with a longer --seq-len than the model's */
	if (!r && !cfg->learned && cfg->max_pos == o->seq_len &&
	    given.max_pos < cfg->max_pos)
		given.max_pos = cfg->max_pos;
	if (!r)
		r = config_same(&given, o->model ? o->model : o->preset, cfg, dir);
	config_free(&given);
	return r;
}

static int choose_config(const struct opts *o, struct config *cfg)
{
	const char *dir = o->resume ? o->resume : o->init;
	struct stat st;
	int r;

	if (o->resume && o->init)
		return say_bad("--init and --resume exclude each other");
	if (!dir && !o->model && !o->preset)
		return say_bad("no model: give --preset, --model, --init or --resume; see --help");
	if (o->resume && !stat(dir, &st) && !S_ISDIR(st.st_mode))
		return say_bad("%s: not a directory, expected a folder with a checkpoint", dir);
	r = o->init			 ? model_path_check(o->init) :
	    !o->resume && o->model ? model_path_check_hub(o->model) :
				     STATUS_OK;
	if (r)
		return r;
	if (dir)
		r = config_read(dir, cfg);
	else
		r = o->model ? config_read(o->model, cfg) : read_preset(o->preset, cfg);
	if (!r && dir && (o->model || o->preset))
		r = check_given(o, dir, cfg);
	if (!r && !isnan(o->dropout))
		cfg->drop_embd = cfg->drop_resid = cfg->drop_attn = o->dropout;
	if (!r)
		cfg->saved = *o->save_dtype == 'b' ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	return r;
}

/* adapters, and the model that they are for: of --init, or as the checkpoint names it */
static int choose_lora(struct trainer *t)
{
	const struct opts *o = t->o;
	int r;

	if (!o->lora)
		return STATUS_OK;
	r = lora_parse(o->lora, &t->cfg.lora);
	if (!r && o->resume)
		r = lora_base(o->resume, &t->base);
	if (!r && !o->resume && !(t->base = realpath(o->init, NULL)))
		r = say_bad("%s: %s", o->init, strerror(errno));
	t->cfg.lora.base = t->base;
	t->cfg.lora.digest = t->base_digest;
	return r;
}

static int choose_context(struct trainer *t)
{
	const struct config *cfg = &t->cfg;
	const struct opts *o = t->o;
	const char *field;
	const int64_t longest = config_longest(cfg, &field);
	const int64_t most = longest && longest < cfg->max_pos ? longest : cfg->max_pos;

	t->T = o->seq_len ? o->seq_len : most < 1024 ? most : 1024;
	t->B = o->batch;
	t->by_epoch = strcmp(o->order, "random") != 0;
	if (o->sequence_parallel && o->tensor == 1)
		return say_bad("--sequence-parallel needs --tensor");
	if (o->sequence_parallel && t->B % o->tensor && t->T % o->tensor)
		return say_bad("--sequence-parallel: %lld ranks can divide neither the %lld "
			       "sequences of --batch nor the %lld tokens of --seq-len",
			       (long long)o->tensor, (long long)t->B, (long long)t->T);
	if (o->context > 1 && t->T % o->context)
		return say_bad("--context: %lld ranks cannot divide the %lld tokens of --seq-len",
			       (long long)o->context, (long long)t->T);
	if (o->context > 1 && cfg->learned)
		return say_bad("--context: the model has a table of positions, expected rotary "
			       "positions");
	if (longest && t->T > longest)
		return say_bad("--seq-len %lld is beyond the model's %s %lld%s", (long long)t->T,
			       field, (long long)longest,
			       cfg->learned ? "" : ", and longer contexts are not implemented");
	return STATUS_OK;
}

/* each rank's share of the micro-batches of a step */
static int choose_accum(struct trainer *t)
{
	const int64_t n = ranks_ndata(&t->ranks);

	if (t->micro_batches % n)
		return say_bad("%s: %lld micro-batches in a step, which %lld ranks cannot share; "
			       "give --accum",
			       t->o->resume, (long long)t->micro_batches, (long long)n);
	t->now.accum = t->micro_batches / n;
	return STATUS_OK;
}

static int choose_graph(struct trainer *t)
{
	t->now.graph.ranks = &t->ranks;
	t->now.graph.accum = (int32_t)t->now.accum;
	t->now.graph.cfg = t->cfg;
	t->now.graph.recipe = t->recipe;
	t->now.graph.B = t->B;
	t->now.graph.T = trainer_own_tokens(t);
	return step_graph_plan(t->o, &t->now.graph);
}

static int check_names(const struct trainer *t)
{
	for (int i = 0; i < t->o->nfiles; i++)
		if (t->ranks.comm && !strcmp(t->o->file[i], "-"))
			return say_bad("-: only rank 0 has the standard input; give a file");
	return STATUS_OK;
}

static int open_device(struct trainer *t)
{
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;
	int r;

	co.backend = t->o->backend;
	co.mem_limit_nbytes = t->o->memory > 0 ? (uint64_t)t->o->memory : 0;
	co.device = t->o->device >= 0 ? (int32_t)t->o->device :
					te_comm_launch_device(t->o->backend);
	r = te_ctx_create(&co, &t->ctx);
	if (r < 0) {
		if (t->o->backend)
			return say_te(r, "--backend %s", t->o->backend);
		return say_te(r, "cannot open a device");
	}
	t->stream = te_ctx_stream(t->ctx);
	t->device.size = sizeof(t->device);
	r = te_ctx_device_info(t->ctx, &t->device);
	if (r < 0)
		return say_te(r, "the device");
	if (device_is_auto(t->o->backend))
		device_note_gpu(&t->device, co.device);
	return STATUS_OK;
}

static int make_eval_plan(struct trainer *t)
{
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	const struct model *m = &t->now.model;
	int r = 0;

	po.recipe = &t->recipe;
	t->now.eval_plan = calloc((size_t)m->nchunks, sizeof(struct te_plan *));
	if (!t->now.eval_plan)
		return say_failed("out of memory");
	for (int32_t c = 0; c < m->nchunks && r >= 0; c++)
		r = pipeline_plan(m, &po, c, t->B, trainer_own_tokens(t),
				  &t->now.eval_plan[c]);
	if (r == -ENOMEM) {
		return say_te(r, "--batch %lld with --seq-len %lld does not fit", (long long)t->B,
			      (long long)t->T);
	}
	return r < 0 ? say_te(r, "validation cannot be planned") : STATUS_OK;
}

static int make_optimizer(struct trainer *t)
{
	struct te_adamw_opts ao = opts_adamw(t->o);
	int r;

	ranks_optimizer(&t->ranks, t->o->zero, &ao);
	r = te_adamw_create(t->now.model.seq, &ao, &t->now.opt);
	return r < 0 ? say_te(r, ao.dir ? "--states-file" : "the optimizer") : STATUS_OK;
}

static int make_slots(struct trainer *t)
{
	const int64_t nloss =
		t->ranks.comm ? ranks_n(&t->ranks) * (t->now.accum + NWORDS) : t->now.accum;
	const size_t row = (size_t)(trainer_ninputs(t) * t->B * t->T) * sizeof(int32_t);
	int r = 0;

	t->now.eval_tokens = malloc(row);
	if (!t->now.eval_tokens)
		return say_failed("out of memory");
	for (int i = 0; i < NSLOTS && r >= 0; i++) {
		struct slot *s = &t->now.slot[i];

		s->step = -1;
		r = te_pinned_alloc(t->ctx, (size_t)t->now.accum * row, (void **)&s->tokens);
		if (r >= 0)
			r = te_pinned_alloc(t->ctx, (size_t)nloss * sizeof(float),
					    (void **)&s->loss);
		if (r >= 0)
			r = te_event_create(t->ctx, &s->done);
	}
	return r < 0 ? say_te(r, "a step's tokens") : STATUS_OK;
}

/* likewise, with --order chunks; same: the text is the one of the checkpoint */
static int take_chunks(struct trainer *t, int same)
{
	struct progress *p = &t->now.done;

	if (!same || !p->chunked) {
		p->drawn = 0;
		p->chunks = (struct chunks_at){ 0 };
	} else if (p->window != t->T || p->reordered) {
		p->chunks = (struct chunks_at){ .epoch = p->chunks.epoch + (p->drawn > 0) };
		p->drawn = 0;
	} else if (p->chunks.group >= chunks_ngroups(t->chunks)) {
		return say_bad("%s: damaged: there is no group %lld of chunks", t->from,
			       (long long)p->chunks.group);
	}
	chunks_seek(t->chunks, &p->chunks);
	return STATUS_OK;
}

/*
 * Position in the epochs after a checkpoint was loaded. Other data begins its first epoch. With
 * another order or length of windows a new epoch begins, because some tokens would be read twice.
 */
static int take_position(struct trainer *t)
{
	struct progress *p = &t->now.done;
	char digest[sizeof(p->data_digest)];

	trainer_digests(t, digest);
	if (t->chunks)
		return take_chunks(t, !strcmp(p->data_digest, digest));
	if (!t->by_epoch || p->ntrain != t->train.n || strcmp(p->data_digest, digest)) {
		p->drawn = 0;
	} else if (p->window && (p->window != t->T || p->reordered)) {
		const int64_t next = epoch_next(&t->train, p->drawn, p->window, t->T);

		if (next < 0)
			return say_bad("%s: has used %lld windows of %lld tokens, which are too "
				       "many epochs of the data", t->from, (long long)p->drawn,
				       (long long)p->window);
		p->drawn = next;
	}
	return STATUS_OK;
}

/* from the latest checkpoint, or the weights that the run begins with */
static int load(struct trainer *t)
{
	const struct opts *o = t->o;
	char digest[sizeof(t->now.done.data_digest)];
	struct ckpt_part own;
	int chunked;
	const char *weights = t->base ? t->base : !t->from ? o->init : NULL;
	int r = weights ? weights_read_folder(weights, NULL, &t->now.model) : STATUS_OK;

	if (t->chunks && !t->from)
		chunks_seek(t->chunks, &(struct chunks_at){ 0 });
	if (!r && t->now.opt)
		r = trainer_load_copy(t);
	if (!r && t->now.from_copy)
		return take_position(t);
	if (r || !t->from)
		return r;
	own = trainer_part(t, o->zero);
	r = ckpt_load(t->from, &t->now.model, o, t->now.opt, &own, &t->now.done);
	if (r || !t->now.opt)
		return r;
	chunked = t->now.done.chunked;
	r = take_position(t);
	if (r || o->files_given)
		return r;
	if (chunked != (t->chunks != NULL))
		return say_bad("%s: --order chunks cannot continue another order, nor another "
			       "order that one; to begin the first epoch, give the files again",
			       t->from);
	if (!t->chunks &&
	    (t->now.done.ntrain != t->train.n || t->now.done.nval != t->val.n)) {
		return say_bad("%s: %lld tokens to train on; the checkpoint's data had %lld",
			       trainer_data_name(t), (long long)t->train.n,
			       (long long)t->now.done.ntrain);
	}
	trainer_digests(t, digest);
	if (strcmp(t->now.done.data_digest, digest))
		return say_bad("%s: has other tokens than when %s was saved; to train on them, "
			       "give the files again",
			       trainer_data_name(t), t->from);
	return STATUS_OK;
}

/* does the run continue from the checkpoint in its folder? */
static int resumes_in(const struct opts *o, const char *dir)
{
	struct stat a, b;

	return o->resume && !stat(o->resume, &a) && !stat(dir, &b) && a.st_dev == b.st_dev &&
	       a.st_ino == b.st_ino;
}

static int drops_best(const struct opts *o)
{
	return o->overwrite && !resumes_in(o, o->out);
}

/* replace files of another run only on request */
static int check_out(const struct trainer *t, const char *dir)
{
	/* after a loss, what is there may be of this run */
	if (t->o->overwrite || resumes_in(t->o, dir) || (t->nrecovered && t->out_was_free))
		return STATUS_OK;
	return ckpt_check_free(dir);
}

static int open_out(struct trainer *t)
{
	const char *dir = trainer_folder(t);
	int r;

	if (!t->nrecovered)
		t->out_kept = ckpt_existing(dir);
	/* a rank that was lost had it locked, and may have been on another host */
	r = ckpt_folder(dir, t->nrecovered ? LOCK_WAIT_S : 0, &t->lock_fd);
	t->made_out = !t->nrecovered && t->lock_fd >= 0;

	if (!r)
		r = check_out(t, dir);
	/* a run that was killed before it kept the checkpoint that it goes on from */
	if (!r && resumes_in(t->o, dir))
		r = ckpt_keep(dir, t->o->keep);
	return r ? r : ckpt_check_room(dir, &t->now.model, opts_adamw(t->o).moments);
}

static int check_memory(const struct trainer *t, int train)
{
	const struct mem_run run = { t->o,  &t->now.model, &t->now.graph,
				     train, NULL,	   &t->choices };

	return t->o->pipeline > 1 ? STATUS_OK : mem_check(&run);
}

static int only_plans(const struct opts *o)
{
	return o->print_plan || o->estimate >= 0;
}

/* else samples, or a print of what would be trained */
static int trains(const struct opts *o)
{
	return !o->sample_only && !only_plans(o) && !o->profile;
}

/* are there questions? --eval-choices '' resumes a run without the questions of its checkpoint */
static int answers(const struct opts *o)
{
	return o->eval_choices && *o->eval_choices && !o->sample_only && !o->print_plan &&
	       !o->profile;
}

static int choose_recipes(struct trainer *t)
{
	int r;

	t->recipe = t->head_recipe = (struct te_recipe)TE_RECIPE_INIT;
	if (!strcmp(t->o->recipe, "auto")) {
		/* the device first, which other options need not */
		r = open_device(t);
		if (r)
			return r;
		say_note("--recipe auto is %s", te_recipe_for_device(&t->device, &t->recipe));
	} else {
		r = te_recipe_from_name(t->o->recipe, &t->recipe);
		if (r < 0)
			return say_te(r, "--recipe");
	}
	r = te_recipe_from_name(t->o->head_recipe, &t->head_recipe);
	if (r < 0)
		return say_te(r, "--head-recipe");
	return recipes_open(t);
}

static int choose_chunk(struct trainer *t)
{
	if (t->o->loss_chunk % 16)
		return say_bad("--loss-chunk %lld is not a multiple of 16",
			       (long long)t->o->loss_chunk);
	if (t->o->loss_chunk && t->head_recipe.kind != TE_RECIPE_NONE)
		return say_bad("--loss-chunk needs a head that is not in FP8, --head-recipe is %s",
			       t->o->head_recipe);
	if (t->o->loss_chunk && t->o->tensor > 1)
		return say_bad("--loss-chunk needs whole vocabularies, --tensor is %lld",
			       (long long)t->o->tensor);
	t->cfg.loss_chunk = t->o->loss_chunk;
	return STATUS_OK;
}

static int check_pipeline(const struct trainer *t)
{
	const int n = (int)t->o->pipeline, chunks = t->o->chunks ? (int)t->o->chunks : 1;

	if (n == 1)
		return STATUS_OK;
	if (t->cfg.tied)
		return say_bad("--pipeline: the model's head has the weight of its embedding, "
			       "which another rank has; expected an untied model");
	if (t->cfg.layers / n < chunks && chunks > 1)
		return say_bad("--pipeline %d --chunks %d: the model has %lld layers", n, chunks,
			       (long long)t->cfg.layers);
	if (t->cfg.layers < n)
		return say_bad("--pipeline %d: the model has %lld layers", n,
			       (long long)t->cfg.layers);
	return STATUS_OK;
}

static int choose_documents(struct trainer *t)
{
	if (!strcmp(t->o->documents, "off") || t->o->sample_only)
		return STATUS_OK;
	if (t->cfg.learned)
		return say_bad("--documents: the model has a table of positions, expected rotary "
			       "positions");
	t->cfg.documents = 1;
	return STATUS_OK;
}

/* a resumed run has the micro-batches of the saved run, on any number of ranks, and so have ranks
 * that are left after a failure, and ranks that return */
static void count_steps(struct trainer *t)
{
	const struct opts *o = t->o;

	t->micro_batches = o->accum * (o->accum_kept ? 1 : ranks_first_ndata(&t->ranks));
	t->steps = isnan(o->tokens) ? o->steps :
				      (int64_t)ceil(o->tokens / (double)trainer_step_tokens(t));
}

/*
 * te_run has started this rank again: it goes on from the others' checkpoint, or if all ranks were
 * lost from their latest, before which they begin as at first.
 */
static int come_back(struct trainer *t)
{
	int r, all = 0;

	if (!t->o->recover || !trainer_folder(t))
		return say_bad("this rank was started again, which needs %s",
			       t->o->recover ? "--out" : "--recover");
	r = ranks_return(t->ctx, &t->ranks, t->stream, &t->nrecovered, &all);
	t->out_was_free = 1;
	t->out_written_ns = returns_written();
	if ((!all && !t->o->copy_every) || trainer_has_saved(t))
		t->from = trainer_folder(t);
	t->drop_best = t->from == t->o->resume && drops_best(t->o);
	if (!r && all)
		say_note("all ranks were started again: %d train, %s", (int)ranks_n(&t->ranks),
			 t->from == t->o->resume ? "from the beginning" :
						   "from the latest checkpoint");
	count_steps(t);
	return r;
}

/* ranks with other options would wait for different messages, or train another model */
static int check_options(const struct trainer *t)
{
	int32_t own[OPTION_ROWS_MAX], rank = 0;
	const int n = opts_digests(t->o, own);
	int i, te;

	if (!t->ranks.comm)
		return STATUS_OK;
	te = ranks_differ(&t->ranks, t->stream, own, n, &i, &rank);
	if (te < 0)
		return say_te(te, "comparing the options of all ranks");
	if (i < 0)
		return STATUS_OK;
	if (!t->ranks.rank)
		say_bad("--%s: rank %d has another value than rank 0, expected the same on all "
			"ranks", opts_name(i), (int)rank);
	return ranks_refuse(&t->ranks);
}

int trainer_create(const struct opts *o, struct trainer *t)
{
	int r;

	memset(t, 0, sizeof(*t));
	t->o = o;
	t->lock_fd = -1;
	t->saved_step = -1;
	t->from = o->resume;
	r = choose_recipes(t);
	if (!r)
		r = choose_config(o, &t->cfg);
	if (!r)
		r = recipes_apply(t);
	if (!r)
		r = choose_lora(t);
	if (!r)
		r = choose_chunk(t);
	if (!r)
		r = trainer_open_tokenizer(t);
	if (!r)
		r = sample_check_prompt(o, t->tokenizer, &t->cfg);
	if (!r)
		r = choose_context(t);
	if (!r && !t->ctx)
		r = open_device(t);
	if (!r)
		r = check_pipeline(t);
	if (!r)
		r = choose_documents(t);
	if (!r)
		r = ranks_open(t->ctx, (int32_t)o->pipeline, (int32_t)o->tensor,
			       (int32_t)o->context, o->accum, &t->ranks);
	if (!r && returns_starts() > 0)
		return come_back(t);
	if (!r)
		r = check_options(t);
	if (!r && trains(o))
		r = check_names(t);
	t->out_was_free = o->out && ckpt_is_free(o->out);
	t->out_written_ns = o->out ? ckpt_written_ns(o->out) : 0;
	t->drop_best = drops_best(o);
	if (!r && !t->ranks.rank)
		r = returns_note_written(t->out_written_ns);
	count_steps(t);
	return r;
}

/* rotary positions have no table: a longer context is trained, and saved as what the model has,
 * unless rotations depend on what it has */
static void extend_context(struct trainer *t)
{
	if (t->T <= t->cfg.max_pos || t->cfg.rotary.kind == ROTARY_DYNAMIC)
		return;
	say_note("%s: warning: --seq-len %lld is beyond the model's max_position_embeddings %lld: "
		 "checkpoints will have %lld there", say_program(), (long long)t->T,
		 (long long)t->cfg.max_pos, (long long)t->T);
	t->cfg.max_pos = t->T;
}

static int open_model(struct trainer *t)
{
	const struct opts *o = t->o;
	struct model *m = &t->now.model;
	uint32_t flags =
		opts_masters(o, te_ctx_backend(t->ctx)) | opts_grads(o) | opts_copies(o) |
		opts_hosted(o);
	int r;

	if (opts_hosted(o) & TE_SEQ_HOST_GRADS && ranks_n(&t->ranks) > 1 && o->zero < 2)
		return say_bad("--states all: %d ranks share gradients, which are in device "
			       "memory, expected --states masters, --zero 2 or --zero 3",
			       (int)ranks_n(&t->ranks));
	if (opts_hosted(o) && ranks_n(&t->ranks) > 1 && (o->pipeline > 1 || o->context > 1))
		return say_bad("--states %s: ranks have all masters and moments, expected no "
			       "--pipeline and no --context", o->states);
	if (trains(o))
		extend_context(t);
	r = ranks_divide(&t->ranks);
	if (!r && o->pipeline > 1)
		r = model_build_stage(t->ctx, &t->cfg, t->ranks.model, ranks_shards(&t->ranks),
				      o->chunks ? (int32_t)o->chunks : 1, m);
	else if (!r && o->context > 1)
		r = model_build_context(t->ctx, &t->cfg, t->ranks.model, m);
	else if (!r)
		r = model_build_shard(t->ctx, &t->cfg, t->ranks.model,
				      !o->sequence_parallel	? DIVIDE_NOTHING :
				      t->B % o->tensor == 0 ? DIVIDE_SEQUENCES :
							      DIVIDE_TOKENS,
				      m);
	if (!r)
		r = model_freeze(m, o->freeze);
	if (!r && !m->ntrained && !o->sample_only)
		r = say_bad("--freeze: \"%s\" leaves no weight to train", o->freeze);
	if ((o->init || o->resume) && !m->whole)
		flags |= TE_SEQ_NO_DRAW; /* files have all weights */
	if (!r && !o->sample_only)
		r = ranks_bind(&t->ranks, m->seq, flags, trains(o), o->zero,
			       t->recipe.compute == TE_DTYPE_BF16);
	/* answers are chosen with BF16 weights */
	if (!r && o->lora && !o->sample_only && !(o->eval_choices && *o->eval_choices))
		r = model_store_codes(m, &t->recipe, TE_PLAN_TRAIN, t->B, t->T);
	return r;
}

int trainer_plan(struct trainer *t)
{
	int r = open_model(t);

	if (!r)
		r = choose_accum(t);
	if (!r)
		r = choose_graph(t);
	if (!r && answers(t->o) && !t->choices.nquestions)
		r = answers_read(t);
	return r ? r : step_graph_recompute(&t->now.graph, t->now.model.seq);
}

/* the steps, their tokens, and validation */
static int open_training(struct trainer *t)
{
	int r = make_optimizer(t);

	if (!r)
		r = ranks_reduce(&t->ranks, &t->now.model, t->now.opt);
	if (!r)
		r = step_graph_create(&t->now.graph, &t->now.model, t->now.opt);
	if (!r)
		r = make_eval_plan(t);
	if (!r && answers(t->o))
		r = answers_open(t);
	return r ? r : make_slots(t);
}

/* data and folder, which later attempts have too */
static int open_once(struct trainer *t)
{
	int r = t->data ? STATUS_OK : trainer_open_data(t, t->cfg.vocab);

	return r || !trainer_folder(t) || t->ranks.rank || t->lock_fd >= 0 ? r : open_out(t);
}

int trainer_open(struct trainer *t)
{
	const int train = trains(t->o), weights = !only_plans(t->o);
	struct attempt *a = &t->now;
	const struct mem_run run = { t->o,	 &a->model,  &a->graph, !t->o->sample_only,
				     t->offload, &t->choices };
	int r;

	a->done.eval_step = -1;
	a->done.best_val = INFINITY;
	a->train_loss = a->val_loss = a->peak_fraction = a->grad_norm = NAN;
	a->acc = a->acc_norm = NAN;
	for (int i = 0; i < MOST_VALID; i++)
		a->valid_loss[i] = NAN;
	r = trainer_plan(t);
	if (!r)
		r = mem_offload(&run, &a->graph);
	if (!r && train)
		r = open_once(t);
	if (!r && t->o->profile && !t->data)
		r = trainer_open_data(t, t->cfg.vocab);
	if (!r && weights && !t->o->profile)
		r = check_memory(t, train);
	if (!r && weights)
		r = model_init(&a->model, (uint64_t)t->o->seed);
	if (!r && train)
		r = open_training(t);
	if (!r && weights)
		r = load(t);
	a->done.ntrain = t->train.n;
	a->done.nval = t->val.n;
	a->done.window = t->by_epoch ? t->T : 0;
	a->done.chunked = t->chunks != NULL;
	if (t->data)
		trainer_digests(t, a->done.data_digest);
	return r;
}

void trainer_close(struct trainer *t)
{
	if (t->ctx)
		te_ctx_sync(t->ctx);
	step_graph_free(&t->now.graph);
	for (int i = 0; i < NSLOTS; i++) {
		if (t->now.slot[i].tokens)
			te_pinned_free(t->ctx, t->now.slot[i].tokens);
		if (t->now.slot[i].loss)
			te_pinned_free(t->ctx, t->now.slot[i].loss);
		te_event_unref(t->now.slot[i].done);
	}
	te_adamw_unref(t->now.opt);
	for (int32_t c = 0; t->now.eval_plan && c < t->now.model.nchunks; c++)
		te_plan_unref(t->now.eval_plan[c]);
	free(t->now.eval_plan);
	te_decoder_unref(t->now.decoder);
	model_free(&t->now.model);
	ranks_undivide(&t->ranks);
	free(t->now.eval_tokens);
	t->now = (struct attempt){ 0 };
}

void trainer_free(struct trainer *t)
{
	trainer_close(t);
	ranks_close(&t->ranks);
	te_offload_unref(t->offload);
	te_ctx_unref(t->ctx);
	for (int i = 0; i < t->nvalid; i++)
		data_close(t->valid[i].data);
	order_close(t->order);
	chunks_close(t->chunks);
	chat_free(&t->chat);
	recipes_close(t);
	free(t->split);
	data_close(t->val_data);
	data_close(t->data);
	choices_free(&t->choices);
	tokenizer_close(t->tokenizer);
	config_free(&t->cfg);
	ckpt_copy_free(t->copy);
	free(t->base);
	if (t->log)
		fclose(t->log);
	if (t->numerics)
		fclose(t->numerics);
	/* a run that is refused before its first step leaves no folder that it made */
	if (t->made_out)
		ckpt_unmake_folder(trainer_folder(t), t->out_kept);
	if (t->lock_fd >= 0)
		close(t->lock_fd);
}
