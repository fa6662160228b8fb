/*
 * loop.c - training.
 *
 * A step is one te_step_run(), and the CPU runs up to NSLOTS steps ahead. Tokens and
 * losses are copied through pinned memory; a loss is read when its slot is used again.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <te/errno.h>

#include "batch.h"
#include "lock.h"
#include "loop.h"
#include "mem.h"
#include "progress.h"
#include "record.h"
#include "say.h"
#include "stop.h"

/* what a rank adds to the losses that are exchanged */
enum { WORD_STOP, WORD_ELAPSED, NWORDS };

#define RETRY_MAX_S 600 /* longest wait until a failed save is tried again */

double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* ---- setting up ---- */

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

/* the model of a folder is that of --model or --preset, if there is one */
static int check_given(const struct opts *o, const char *dir, const struct config *cfg)
{
	struct config given = { 0 };
	int r = o->model ? config_read(o->model, &given) : read_preset(o->preset, &given);

	if (!r)
		r = config_same(&given, o->model ? o->model : o->preset, cfg, dir);
	config_free(&given);
	return r;
}

static int choose_config(const struct opts *o, struct config *cfg)
{
	const char *dir = o->resume ? o->resume : o->init;
	int r;

	if (o->resume && o->init)
		return say_bad("--init and --resume exclude each other");
	if (!dir && !o->model && !o->preset)
		return say_bad("no model: give --preset, --model, --init or --resume; see --help");
	if (dir)
		r = config_read(dir, cfg);
	else
		r = o->model ? config_read(o->model, cfg) : read_preset(o->preset, cfg);
	if (!r && dir && (o->model || o->preset))
		r = check_given(o, dir, cfg);
	if (!r && !isnan(o->dropout))
		cfg->drop_embd = cfg->drop_resid = cfg->drop_attn = o->dropout;
	return r;
}

static int choose_context(struct trainer *t, const struct config *cfg)
{
	const struct opts *o = t->o;

	t->T = o->seq_len ? o->seq_len : cfg->max_pos < 1024 ? cfg->max_pos : 1024;
	t->B = o->batch;
	if (o->sequence_parallel && o->tensor == 1)
		return say_bad("--sequence-parallel needs --tensor");
	if (o->sequence_parallel && t->T % o->tensor)
		return say_bad("--sequence-parallel: %lld ranks cannot divide the %lld tokens of "
			       "--seq-len", (long long)o->tensor, (long long)t->T);
	if (cfg->family == FAMILY_GPT2 && t->T > cfg->max_pos)
		return say_bad("--seq-len %lld is beyond the model's n_positions %lld",
			       (long long)t->T, (long long)cfg->max_pos);
	return STATUS_OK;
}

/* a resumed run has the micro-batches of the one that was saved, whatever their ranks */
static int choose_accum(struct trainer *t)
{
	const int64_t n = t->o->accum_kept ? ranks_ndata(&t->ranks) : 1;

	if (t->o->accum % n)
		return say_bad("%s: %lld micro-batches in a step, which %lld ranks cannot share; "
			       "give --accum",
			       t->o->resume, (long long)t->o->accum, (long long)n);
	t->accum = t->o->accum / n;
	return STATUS_OK;
}

static int choose_graph(struct trainer *t, const struct config *cfg)
{
	t->graph.ranks = &t->ranks;
	t->graph.accum = (int32_t)t->accum;
	t->graph.cfg = *cfg;
	t->graph.recipe = t->recipe;
	t->graph.B = t->B;
	t->graph.T = t->T;
	return step_graph_plan(t->o, &t->graph);
}

static int open_files(struct trainer *t, int64_t vocab)
{
	const struct opts *o = t->o;
	enum data_type type = data_type_find(o->data_type);
	int r = data_open(o->file, o->nfiles, type, vocab, &t->data);

	if (!r && o->val)
		r = data_open(&o->val, 1, type, vocab, &t->val_data);
	if (!r && o->val && data_is_bytes(t->data) != data_is_bytes(t->val_data))
		r = say_bad("%s: token files and text cannot be mixed", o->val);
	return r;
}

/* for messages */
static const char *data_name(const struct trainer *t)
{
	return t->o->nfiles ? t->o->file[0] : "--random-tokens";
}

static void data_digests(const struct trainer *t, char ret_text[2 * DIGEST_NBYTES])
{
	snprintf(ret_text, 2 * DIGEST_NBYTES, "%s%s%s", data_digest(t->data),
		 t->val_data ? "+" : "", t->val_data ? data_digest(t->val_data) : "");
}

static int open_data(struct trainer *t, int64_t vocab)
{
	const struct opts *o = t->o;
	int64_t n, nval;
	int r;

	if (o->random_tokens && (o->nfiles || o->val))
		return say_bad("--random-tokens and files exclude each other");
	if (!o->nfiles && !o->random_tokens)
		return say_bad("no training data: give one file or more; see te_train --help");
	r = o->random_tokens ? data_random(vocab, &t->data) : open_files(t, vocab);
	if (r)
		return r;
	for (int i = 0; i < o->nfiles; i++)
		if (t->ranks.comm && !strcmp(o->file[i], "-"))
			return say_bad("-: only rank 0 has the standard input; give a file");
	n = data_ntokens(t->data);
	if (o->val) {
		t->train = (struct span){ t->data, 0, n };
		t->val = (struct span){ t->val_data, 0, data_ntokens(t->val_data) };
	} else {
		nval = (int64_t)((double)n * o->val_fraction);
		t->train = (struct span){ t->data, 0, n - nval };
		t->val = (struct span){ t->data, n - nval, nval };
	}
	if (t->train.n < t->T + 1) {
		return say_bad("%s: %lld tokens to train on; a context of %lld needs at least %lld",
			       data_name(t), (long long)t->train.n, (long long)t->T,
			       (long long)t->T + 1);
	}
	if (t->val.n < 2) {
		return say_bad("%s: %lld tokens to validate on; at least 2 are needed",
			       o->val ? o->val : data_name(t), (long long)t->val.n);
	}
	return o->dump_val && !t->ranks.rank ? span_dump(&t->val, o->dump_val) : STATUS_OK;
}

static int open_device(struct trainer *t)
{
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;
	int r;

	co.backend = t->o->backend;
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
	return r < 0 ? say_te(r, "the device") : STATUS_OK;
}

static int make_eval_plan(struct trainer *t)
{
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	int r;

	po.recipe = &t->recipe;
	po.x = (struct te_spec){ TE_DTYPE_INT32, 2, { t->B, t->T } };
	r = te_plan_create(t->model.seq, &po, &t->eval_plan);
	if (r == -ENOMEM) {
		return say_te(r, "--batch %lld with --seq-len %lld does not fit", (long long)t->B,
			      (long long)t->T);
	}
	return r < 0 ? say_te(r, "validation cannot be planned") : STATUS_OK;
}

static int make_optimizer(struct trainer *t)
{
	struct te_adamw_opts ao = TE_ADAMW_OPTS_INIT;
	int r;

	ao.beta1 = (float)t->o->beta1;
	ao.beta2 = (float)t->o->beta2;
	ao.weight_decay = (float)t->o->weight_decay;
	ao.max_grad_norm = (float)t->o->clip;
	r = te_adamw_create(t->model.seq, &ao, &t->opt);
	return r < 0 ? say_te(r, "the optimizer") : STATUS_OK;
}

static int make_slots(struct trainer *t)
{
	const int64_t nloss = t->ranks.comm ? ranks_n(&t->ranks) * (t->accum + NWORDS) : t->accum;
	size_t ntokens = (size_t)(2 * t->accum * t->B * t->T);
	int r = 0;

	t->eval_tokens = malloc(2 * (size_t)(t->B * t->T) * sizeof(int32_t));
	if (!t->eval_tokens)
		return say_failed("out of memory");
	for (int i = 0; i < NSLOTS && r >= 0; i++) {
		struct slot *s = &t->slot[i];

		s->step = -1;
		r = te_pinned_alloc(t->ctx, ntokens * sizeof(int32_t), (void **)&s->tokens);
		if (r >= 0)
			r = te_pinned_alloc(t->ctx, (size_t)nloss * sizeof(float),
					    (void **)&s->loss);
		if (r >= 0)
			r = te_event_create(t->ctx, &s->done);
	}
	return r < 0 ? say_te(r, "a step's tokens") : STATUS_OK;
}

static int load(struct trainer *t)
{
	const struct opts *o = t->o;
	char digest[sizeof(t->done.data_digest)];
	int r;

	if (o->init && !o->resume)
		return ckpt_load_weights(o->init, &t->model);
	if (!o->resume)
		return STATUS_OK;
	r = ckpt_load(o->resume, &t->model, t->opt, &t->done);
	if (r || !t->opt || o->files_given)
		return r;
	if (t->done.ntrain != t->train.n || t->done.nval != t->val.n) {
		return say_bad("%s: %lld tokens to train on; the checkpoint's data had %lld",
			       data_name(t), (long long)t->train.n, (long long)t->done.ntrain);
	}
	data_digests(t, digest);
	if (strcmp(t->done.data_digest, digest))
		return say_bad("%s: has other tokens than when %s was saved; to train on them, "
			       "give the files again",
			       data_name(t), o->resume);
	return STATUS_OK;
}

/* where checkpoints are saved, or NULL */
static const char *out_folder(const struct opts *o)
{
	return o->out ? o->out : o->resume;
}

/* locked before a save that was interrupted there is completed */
static int open_out(struct trainer *t, const char *dir)
{
	int r = lock_folder(dir, &t->lock_fd);
	int there = t->lock_fd >= 0;

	if (!r)
		r = ckpt_folder(dir);
	return r || there ? r : lock_folder(dir, &t->lock_fd);
}

static int check_memory(const struct trainer *t, int train)
{
	const struct mem_run run = { t->o, &t->model, &t->graph, train, NULL };

	return mem_check(&run);
}

int trainer_create(const struct opts *o, struct trainer *t)
{
	int only_plans = o->print_plan || o->estimate >= 0;
	int train = !o->sample_only && !only_plans, r;
	struct config cfg = { 0 };

	memset(t, 0, sizeof(*t));
	t->o = o;
	t->lock_fd = -1;
	t->done.eval_step = -1;
	t->done.best_val = INFINITY;
	t->train_loss = t->val_loss = t->peak_fraction = t->grad_norm = NAN;
	if (o->preset && o->model)
		return say_bad("--preset and --model exclude each other");
	if (o->sample_only && !o->resume && !o->init)
		return say_bad("--sample-only needs --resume or --init");
	t->recipe = (struct te_recipe)TE_RECIPE_INIT;
	r = te_recipe_from_name(o->recipe, &t->recipe);
	if (r < 0)
		return say_te(r, "--recipe");
	r = choose_config(o, &cfg);
	if (!r)
		r = choose_context(t, &cfg);
	if (!r)
		r = open_device(t);
	if (!r)
		r = ranks_open(t->ctx, (int32_t)o->tensor, o->accum, &t->ranks);
	if (!r)
		r = model_build_shard(t->ctx, &cfg, t->ranks.model, (int)o->sequence_parallel,
				      &t->model);
	if (!r)
		r = model_freeze(&t->model, o->freeze);
	if (!r && !t->model.ntrained && !o->sample_only)
		r = say_bad("--freeze: \"%s\" leaves no weight to train", o->freeze);
	if (!r && train)
		r = ranks_bind(&t->ranks, t->model.seq);
	if (!r)
		r = choose_accum(t);
	if (!r)
		r = choose_graph(t, &cfg);
	if (!r)
		r = step_graph_recompute(&t->graph, t->model.seq);
	if (!r)
		r = mem_offload(&(struct mem_run){ o, &t->model, &t->graph, !o->sample_only,
						   NULL },
				&t->graph);
	if (!r && train)
		r = open_data(t, cfg.vocab);
	if (!r && train && out_folder(o) && !t->ranks.rank)
		r = open_out(t, out_folder(o));
	if (!r && !only_plans)
		r = check_memory(t, train);
	if (!r && !only_plans)
		r = model_init(&t->model, (uint64_t)o->seed);
	if (!r && train)
		r = make_optimizer(t);
	if (!r && train)
		r = ranks_reduce(&t->ranks, &t->model, t->opt);
	if (!r && train)
		r = step_graph_create(&t->graph, t->model.seq, t->opt);
	if (!r && train)
		r = make_eval_plan(t);
	if (!r && train)
		r = make_slots(t);
	if (!r && !only_plans)
		r = load(t);
	t->done.ntrain = t->train.n;
	t->done.nval = t->val.n;
	if (t->data)
		data_digests(t, t->done.data_digest);
	config_free(&cfg);
	return r;
}

void trainer_free(struct trainer *t)
{
	if (t->ctx)
		te_ctx_sync(t->ctx);
	step_graph_free(&t->graph);
	for (int i = 0; i < NSLOTS; i++) {
		if (t->slot[i].tokens)
			te_pinned_free(t->ctx, t->slot[i].tokens);
		if (t->slot[i].loss)
			te_pinned_free(t->ctx, t->slot[i].loss);
		te_event_unref(t->slot[i].done);
	}
	te_adamw_unref(t->opt);
	te_plan_unref(t->eval_plan);
	model_free(&t->model);
	ranks_close(&t->ranks);
	te_ctx_unref(t->ctx);
	free(t->eval_tokens);
	data_close(t->val_data);
	data_close(t->data);
	if (t->log)
		fclose(t->log);
	if (t->lock_fd >= 0)
		close(t->lock_fd);
}

/* ---- steps ---- */

/* all ranks have the same time */
static double elapsed_s(const struct trainer *t)
{
	return t->ranks.comm ? t->ranks_s : now_s() - t->start_s;
}

/*
 * Learning rate of step 0, 1, ...: linear warm-up, then half a cosine down to min_lr at the
 * step after the last one, or at the time limit if that is earlier.
 */
static double lr_at(const struct trainer *t, int64_t step)
{
	const struct opts *o = t->o;
	double min_lr = isnan(o->min_lr) ? o->lr / 10 : o->min_lr, way, by_time;

	if (step < o->warmup)
		return o->lr * (double)(step + 1) / (double)o->warmup;
	way = o->steps > o->warmup ? (double)(step - o->warmup) / (double)(o->steps - o->warmup) :
				     1;
	by_time = isnan(o->time_limit) ? 0 : elapsed_s(t) / o->time_limit;
	way = fmin(1, fmax(way, by_time));
	return min_lr + 0.5 * (1 + cos(M_PI * way)) * (o->lr - min_lr);
}

/* tokens to the micro-batches and losses back, in stream order */
static int copy_in(struct trainer *t, const struct slot *s)
{
	const int64_t n = t->B * t->T;
	int r = 0;

	for (int64_t i = 0; i < t->accum && r >= 0; i++) {
		struct te_tensor *x = te_step_input(t->graph.step, 0, (int32_t)i, "x");
		struct te_tensor *y = te_step_input(t->graph.step, 0, (int32_t)i, MODEL_TARGETS);

		r = te_copy(t->stream, te_tensor_data(x), s->tokens + i * n, te_tensor_nbytes(x));
		if (r >= 0)
			r = te_copy(t->stream, te_tensor_data(y), s->tokens + (t->accum + i) * n,
				    te_tensor_nbytes(y));
	}
	return r;
}

/* the number of steps after which all ranks have read what this one sends with the step k */
static int64_t stop_after(int64_t k)
{
	return k + NSLOTS + 1;
}

static int exchange(struct trainer *t, const struct slot *s)
{
	const int64_t k = t->done.step, asked = say_closed() ? stop_after(k) : stop_requested();
	float x[NWORDS] = { 0 };

	if (asked < INT64_MAX && asked > k)
		x[WORD_STOP] = (float)(asked - k);
	x[WORD_ELAPSED] = (float)(now_s() - t->start_s);
	return ranks_exchange(&t->ranks, t->stream, t->graph.step, t->accum, x, NWORDS, s->loss);
}

static int copy_out(struct trainer *t, const struct slot *s)
{
	int r = 0;

	if (t->ranks.comm)
		return exchange(t, s);
	for (int64_t i = 0; i < t->accum && r >= 0; i++) {
		struct te_tensor *loss = te_step_output(t->graph.step, 0, (int32_t)i);

		r = te_copy(t->stream, s->loss + i, te_tensor_data(loss), sizeof(*s->loss));
	}
	return r;
}

/* of training: without validations and saves */
static double busy_s(const struct trainer *t)
{
	return now_s() - t->start_s - t->paused_s;
}

static int is_logged(const struct trainer *t, int64_t step)
{
	return (step + 1) % t->o->log_every == 0;
}

/* the mean over the micro-batches of all ranks, and what else they exchanged */
static double read_losses(struct trainer *t, const struct slot *s)
{
	const int64_t n = ranks_n(&t->ranks), block = t->accum + (t->ranks.comm ? NWORDS : 0);
	const int64_t nlosses = ranks_ndata(&t->ranks) * t->accum;
	double loss = 0;

	for (int64_t i = 0; i < n; i++) {
		const float *x = s->loss + i * block;

		/* the ranks of a model have the same loss */
		for (int64_t m = 0; m < t->accum && i % ranks_nshards(&t->ranks) == 0; m++)
			loss += x[m] / (double)nlosses;
		if (!t->ranks.comm)
			break;
		x += t->accum;
		if (x[WORD_STOP] > 0 && s->step + (int64_t)x[WORD_STOP] < t->ranks_stop)
			t->ranks_stop = s->step + (int64_t)x[WORD_STOP];
		t->ranks_s = fmax(t->ranks_s, x[WORD_ELAPSED]);
	}
	return loss;
}

/* wait for the loss of a slot's step and read it */
static int collect(struct trainer *t, struct slot *s)
{
	double loss, end_s;
	int r;

	if (s->step < 0)
		return STATUS_OK;
	r = te_event_sync(s->done);
	if (r >= 0)
		r = ranks_check(&t->ranks);
	t->lost |= r < 0;
	if (r < 0)
		return say_te(r, "step %lld", (long long)s->step + 1);
	end_s = busy_s(t);
	loss = read_losses(t, s);
	t->lost |= !isfinite(loss);
	if (t->lost)
		return say_failed("the loss of step %lld is not finite; it was not saved",
				  (long long)s->step + 1);
	if (is_logged(t, s->step)) {
		end_s = s->end_s;
		t->grad_norm = s->stats.grad_norm;
		t->nskipped = s->stats.nskipped;
	}
	progress_step(t, s->step + 1, end_s, loss, lr_at(t, s->step));
	s->step = -1;
	return STATUS_OK;
}

/* wait for all steps queued */
static int drain(struct trainer *t)
{
	int r = STATUS_OK;

	for (int i = 0; i < NSLOTS && !r; i++)
		r = collect(t, &t->slot[(t->done.step + i) % NSLOTS]);
	return r;
}

static int step(struct trainer *t)
{
	int64_t k = t->done.step, rows = t->accum * t->B;
	struct slot *s = &t->slot[k % NSLOTS];
	int r = collect(t, s);

	if (!r)
		r = batch_draw(&t->train, (uint64_t)t->o->seed, k, t->ranks.data_rank * rows, rows,
			       t->T, s->tokens, s->tokens + rows * t->T);
	if (r)
		return r;
	r = copy_in(t, s);
	if (r >= 0)
		r = te_adamw_set_lr(t->opt, t->stream, (float)lr_at(t, k));
	if (r >= 0)
		r = te_step_run(t->graph.step, 0, t->stream);
	if (r >= 0)
		r = copy_out(t, s);
	if (r >= 0)
		r = te_event_record(s->done, t->stream);
	/* waits for the step: a later one replaces the norm */
	s->stats.size = sizeof(s->stats);
	if (r >= 0 && is_logged(t, k))
		r = te_adamw_stats(t->opt, &s->stats);
	s->end_s = busy_s(t);
	t->lost |= r < 0;
	if (r < 0)
		return say_te(r, "step %lld", (long long)k + 1);
	s->step = k;
	t->done.step++;
	return STATUS_OK;
}

/* was the run asked to end at this step */
static int is_stopped(const struct trainer *t)
{
	if (t->ranks.comm)
		return t->done.step >= t->ranks_stop;
	return stop_at(t->done.step) || say_closed();
}

/* mean loss over the fixed batches of the held-out text; *ret_loss is NaN if the run was stopped */
static int evaluate(struct trainer *t, double *ret_loss)
{
	struct te_tensor *x = te_plan_input(t->eval_plan, "x");
	struct te_tensor *y = te_plan_input(t->eval_plan, MODEL_TARGETS);
	struct te_tensor *out = te_plan_output(t->eval_plan);
	int64_t n = t->B * t->T, max = t->o->eval_batches;
	int64_t nbatches = eval_nbatches(&t->val, t->B, t->T, max), total = 0;
	double sum = 0;

	*ret_loss = NAN;
	for (int64_t k = 0; k < nbatches; k++) {
		size_t nbytes = (size_t)n * sizeof(int32_t);
		int64_t count;
		float loss;
		int r = batch_eval(&t->val, k, max, t->B, t->T, t->eval_tokens, t->eval_tokens + n,
				   &count);

		if (r || is_stopped(t))
			return r;
		r = te_tensor_write(x, t->eval_tokens, nbytes);
		if (r >= 0)
			r = te_tensor_write(y, t->eval_tokens + n, nbytes);
		if (r >= 0)
			r = te_plan_forward(t->eval_plan, t->stream, 0);
		if (r >= 0)
			r = te_tensor_read(out, &loss, sizeof(loss));
		if (r < 0)
			return say_te(r, "validation");
		sum += (double)loss * (double)count;
		total += count;
	}
	*ret_loss = sum / (double)total;
	return STATUS_OK;
}

/*
 * Rank 0 saves, and the ranks that have one model with it send their shards. opt NULL: weights
 * only.
 */
static int save_files(struct trainer *t, const char *dir, struct te_adamw *opt)
{
	struct ckpt_flat flat = { 0 };
	int r = STATUS_OK;

	if (t->ranks.data_rank)
		return STATUS_OK;
	if (t->model.whole)
		r = ckpt_gather(&t->model, opt, &flat);
	if (!r && !t->ranks.rank && opt) {
		json_t *options = trainer_options(t);

		r = ckpt_save(dir, &t->model, opt, &flat, options, &t->done);
		json_decref(options);
	} else if (!r && !t->ranks.rank) {
		r = ckpt_save_weights(dir, &t->model, &flat);
	}
	ckpt_flat_free(&flat);
	return r;
}

static int validate(struct trainer *t)
{
	const char *dir = out_folder(t->o);
	char best[4096];
	double loss;
	int r = evaluate(t, &loss);

	if (r || is_stopped(t))
		return r;
	t->val_loss = loss;
	t->done.eval_step = t->done.step;
	if (t->val_loss < t->done.best_val) {
		t->done.best_val = t->val_loss;
		t->done.best_step = t->done.step;
		if (t->o->save_best && dir) {
			snprintf(best, sizeof(best), "%s/best", dir);
			if (save_files(t, best, NULL))
				say_note("step %lld: the best weights were not saved; training "
					 "continues",
					 (long long)t->done.step);
		}
	}
	return progress_eval(t);
}

static int save(struct trainer *t)
{
	const char *dir = out_folder(t->o);
	int r;

	if (!dir)
		return STATUS_OK;
	t->tried_step = t->done.step;
	r = ranks_compare(&t->ranks, t->stream, t->model.seq);
	t->lost |= r != STATUS_OK;
	if (r)
		return r;
	r = save_files(t, dir, t->opt);
	r = ranks_status(&t->ranks, t->stream, r);
	if (!r)
		t->saved_step = t->done.step;
	return r;
}

/* a save during training: after a failure training continues, and the save is tried again */
static void save_or_retry(struct trainer *t)
{
	int failed_before = isfinite(t->retry_s);

	if (save(t)) {
		if (t->lost)
			return;
		t->tried_step = -1;
		t->retry_wait_s = failed_before ? fmin(2 * t->retry_wait_s, RETRY_MAX_S) : 1;
		t->retry_s = elapsed_s(t) + t->retry_wait_s;
		say_note("step %lld was not saved; training continues, and the next try is in "
			 "%.0f s",
			 (long long)t->done.step, t->retry_wait_s);
		return;
	}
	if (failed_before)
		say_note("step %lld was saved", (long long)t->done.step);
	t->retry_s = INFINITY;
}

/* the run failed between two steps: what was trained is saved */
static void save_rest(struct trainer *t)
{
	if (t->ranks.comm) {
		/* the others may have made more steps, or fewer */
		ranks_abort(&t->ranks, "a rank has failed; its message says why");
		if (out_folder(t->o) && t->saved_step >= 0)
			say_note("the checkpoint of step %lld is the latest",
				 (long long)t->saved_step);
		return;
	}
	if (!out_folder(t->o) || t->done.step == t->start_step || t->done.step == t->tried_step)
		return;
	if (!t->lost && !drain(t) && !save(t))
		say_note("step %lld was saved", (long long)t->done.step);
}

int64_t trainer_step_tokens(const struct trainer *t)
{
	return ranks_ndata(&t->ranks) * t->accum * t->B * t->T;
}

json_t *trainer_options(const struct trainer *t)
{
	struct opts o = *t->o;

	o.accum = ranks_ndata(&t->ranks) * t->accum;
	return opts_to_json(&o);
}

double trainer_tokens_per_s(const struct trainer *t)
{
	double s = busy_s(t);
	int64_t tokens = (t->done.step - t->start_step) * trainer_step_tokens(t);

	return s > 0 ? (double)tokens / s : 0;
}

static int is_multiple(int64_t step, int64_t every)
{
	return every > 0 && step % every == 0;
}

static int is_over(const struct trainer *t)
{
	const struct opts *o = t->o;

	return t->done.step >= o->steps ||
	       (!isnan(o->time_limit) && elapsed_s(t) >= o->time_limit);
}

/* a resumed run does not repeat a validation */
static int is_eval_due(const struct trainer *t, int over)
{
	return over ||
	       (is_multiple(t->done.step, t->o->eval_every) && t->done.eval_step != t->done.step);
}

static int is_save_due(const struct trainer *t)
{
	return (is_multiple(t->done.step, t->o->save_every) && t->done.step != t->start_step) ||
	       elapsed_s(t) >= t->retry_s;
}

/* what a signal ends: the step that all ranks have been told of by then, or this one */
static void set_phase(const struct trainer *t, enum stop_phase phase, int64_t step)
{
	const int saves = out_folder(t->o) != NULL;

	if (t->ranks.comm) {
		phase = STOP_RANKS;
		step = stop_after(t->done.step + 1);
	}
	stop_phase(phase, step, saves);
}

/*
 * What is due between two steps. The phase is told before stop conditions are looked at, so that a
 * signal is taken at the step that its message names. *ret_end: the run ends here.
 */
static int between_steps(struct trainer *t, int *ret_end)
{
	const int64_t k = t->done.step;
	const int over = is_over(t);
	const int eval = is_eval_due(t, over), due = is_save_due(t);
	int stop, r = STATUS_OK;
	double from;

	set_phase(t, eval ? STOP_VALIDATION : STOP_STEP, eval || over ? k : k + 1);
	stop = is_stopped(t) || (t->o->stop_after >= 0 && k >= t->o->stop_after);
	if ((eval && !stop) || due || over || stop)
		r = drain(t);
	from = now_s();
	if (!r && eval && !stop)
		r = validate(t);
	set_phase(t, STOP_STEP, over ? k : k + 1);
	stop |= is_stopped(t);
	if (!r && (stop || over))
		r = save(t);
	else if (!r && due) {
		set_phase(t, STOP_SAVE, k);
		save_or_retry(t);
		r = t->lost ? STATUS_FAILED : STATUS_OK;
		set_phase(t, STOP_STEP, k + 1);
		stop |= is_stopped(t);
	}
	if (eval || due)
		t->paused_s += now_s() - from;
	*ret_end = stop || over;
	return r;
}

int trainer_run(struct trainer *t)
{
	int end = 0, r;

	t->start_s = now_s();
	t->start_step = t->line_step = t->done.step;
	t->tried_step = -1;
	t->saved_step = t->o->resume ? t->done.step : -1;
	t->ranks_stop = INT64_MAX;
	t->retry_s = INFINITY;
	set_phase(t, STOP_STEP, t->done.step);
	stop_on_signals();
	r = progress_begin(t);
	while (!r) {
		r = between_steps(t, &end);
		if (r || end)
			break;
		r = step(t);
	}
	if (r)
		save_rest(t);
	t->interrupted = end && (t->ranks.comm ? is_stopped(t) : stop_at(t->done.step));
	t->closed = say_closed();
	return r;
}
