/*
 * loop.c - training.
 *
 * A step is one te_step_run(), and the CPU runs up to NSLOTS steps ahead. Tokens and
 * losses are copied through pinned memory; a loss is read when its slot is used again.
 */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <te/errno.h>

#include "answers.h"
#include "loop.h"
#include "numerics.h"
#include "progress.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"
#include "tools/lib/stop.h"

/* fraction of the fall from the peak to min_lr that is left; way: fraction of the steps */
static double height(const struct opts *o, double way)
{
	switch (*o->schedule) {
	case 'l': /* linear */
		return 1 - way;
	case 'w': /* wsd: warm-up, stable, decay */
		return fmin(1, (1 - way) / o->decay);
	default:
		return o->schedule[2] == 'n' ? 1 : 0.5 * (1 + cos(M_PI * way));
	}
}

/*
 * Learning rate of step 0, 1, ...: linear warm-up, then the fall of the schedule, down to min_lr at
 * the step after the last one, or at the time limit if that is earlier.
 */
static double lr_at(const struct trainer *t, int64_t step)
{
	const struct opts *o = t->o;
	double min_lr = isnan(o->min_lr) ? o->lr / 10 : o->min_lr, way, by_time;

	if (step < o->warmup)
		return o->lr * (double)(step + 1) / (double)o->warmup;
	way = t->steps > o->warmup ? (double)(step - o->warmup) / (double)(t->steps - o->warmup) :
				     1;
	by_time = isnan(o->time_limit) ? 0 : trainer_elapsed_s(t) / o->time_limit;
	way = fmin(1, fmax(way, by_time));
	return min_lr + height(o, way) * (o->lr - min_lr);
}

/* tokens to the micro-batches and losses back, in stream order */
static int copy_in(struct trainer *t, const struct slot *s)
{
	const struct step_graph *g = &t->now.graph;
	struct te_tensor *const *const input[] = { g->x, g->targets, g->documents };
	const int64_t accum = t->now.accum, all = accum * t->B * t->T;
	int r = 0;

	for (int64_t i = 0; i < trainer_ninputs(t) * accum && r >= 0; i++) {
		struct te_tensor *x = input[i / accum][i % accum];

		if (x)
			r = te_copy(t->stream, te_tensor_data(x),
				    s->tokens + i / accum * all + i % accum * te_tensor_nelems(x),
				    te_tensor_nbytes(x));
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
	const int64_t k = t->now.done.step, asked = say_closed() ? stop_after(k) : stop_requested();
	struct saver *saver = &t->now.saver;
	float x[NWORDS] = { 0 };

	if (asked < INT64_MAX && asked > k)
		x[WORD_STOP] = (float)(asked - k);
	if (saver->has_thread && atomic_load(&saver->done))
		x[WORD_SAVED] = (float)(1 + saver->status);
	x[WORD_ELAPSED] = (float)(now_s() - t->start_s);
	x[WORD_RETURN] = !t->ranks.rank && trainer_looks(t);
	return ranks_exchange(&t->ranks, t->stream, t->now.graph.loss, t->now.accum, x, NWORDS,
			      s->loss);
}

static int copy_out(struct trainer *t, const struct slot *s)
{
	int r = 0;

	if (t->ranks.comm)
		return exchange(t, s);
	for (int64_t i = 0; i < t->now.accum && r >= 0; i++) {
		r = te_copy(t->stream, s->loss + i, te_tensor_data(t->now.graph.loss[i]),
			    sizeof(*s->loss));
	}
	return r;
}

static int is_logged(const struct trainer *t, int64_t step)
{
	return (step + 1) % t->o->log_every == 0;
}

/* the mean over the micro-batches of all ranks, and what else they exchanged */
static double read_losses(struct trainer *t, const struct slot *s)
{
	const int64_t n = ranks_n(&t->ranks), block = t->now.accum + (t->ranks.comm ? NWORDS : 0);
	const int64_t nlosses = ranks_ndata(&t->ranks) * t->now.accum;
	const int64_t nparts = ranks_nparts(&t->ranks);
	const int64_t has = (t->now.model.nstages - 1) * t->now.model.nshards;
	int64_t nsaved = 0;
	int saved = 0;
	double loss = 0;

	for (int64_t i = 0; i < n; i++) {
		const float *x = s->loss + i * block;

		/* the ranks of a model have the same loss, or the last stage has it */
		for (int64_t m = 0; m < t->now.accum && i % nparts == has; m++)
			loss += x[m] / (double)nlosses;
		if (!t->ranks.comm)
			break;
		x += t->now.accum;
		if (x[WORD_STOP] > 0 && s->step + (int64_t)x[WORD_STOP] < t->now.ranks_stop)
			t->now.ranks_stop = s->step + (int64_t)x[WORD_STOP];
		t->now.ranks_s = fmax(t->now.ranks_s, x[WORD_ELAPSED]);
		nsaved += x[WORD_SAVED] > 0;
		saved = x[WORD_SAVED] > saved ? (int)x[WORD_SAVED] : saved;
		t->now.returning |= x[WORD_RETURN] > 0;
	}
	if (nsaved >= (t->now.saver.parts ? n : 1))
		t->now.saver.told = saved;
	return loss;
}

/* wait for the loss of a slot's step and read it */
static int collect(struct trainer *t, struct slot *s)
{
	double loss, end_s;
	char what[64];
	int r;

	if (s->step < 0)
		return STATUS_OK;
	r = te_event_sync(s->done);
	if (r >= 0)
		r = ranks_check(&t->ranks);
	t->now.lost |= r < 0;
	if (r < 0)
		return say_te(r, "step %lld", (long long)s->step + 1);
	end_s = trainer_busy_s(t);
	loss = read_losses(t, s);
	t->now.lost |= !isfinite(loss);
	if (t->now.lost) {
		if (t->o->numerics)
			(void)numerics_of_step(t, s);
		snprintf(what, sizeof(what), "the loss of step %lld", (long long)s->step + 1);
		return trainer_not_finite(t, what, loss, "it was not saved");
	}
	if (is_logged(t, s->step)) {
		end_s = s->end_s;
		t->now.grad_norm = s->stats.grad_norm;
		t->now.nskipped = s->stats.nskipped;
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
		r = collect(t, &t->now.slot[(t->now.done.step + i) % NSLOTS]);
	return r;
}

/* the rows of this rank in the next step */
static int draw(struct trainer *t, struct slot *s)
{
	const int64_t rows = t->now.accum * t->B, first = t->ranks.data_rank * rows;
	const uint64_t seed = (uint64_t)t->o->seed;
	const struct rows to = trainer_rows(t, s->tokens, rows);
	int r;

	r = t->chunks	? batch_take_chunks(t->chunks, t->now.done.drawn + first, &to) :
	    t->order	? batch_take_documents(t->order, t->now.done.drawn + first, &to) :
	    t->by_epoch ? batch_take(&t->train, seed, t->now.done.drawn + first, &to) :
			  batch_draw(&t->train, seed, t->now.done.step, first, &to);
	if (!r)
		trainer_cut(t, &to);
	return r;
}

static int step(struct trainer *t)
{
	int64_t k = t->now.done.step;
	struct slot *s = &t->now.slot[k % NSLOTS];
	int r = collect(t, s);

	if (!r)
		r = draw(t, s);
	if (r)
		return r;
	r = copy_in(t, s);
	if (r >= 0)
		r = te_adamw_set_lr(t->now.opt, t->stream, (float)lr_at(t, k));
	if (r >= 0)
		r = step_graph_run(&t->now.graph, t->stream);
	if (r >= 0)
		r = copy_out(t, s);
	if (r >= 0)
		r = te_event_record(s->done, t->stream);
	/* waits for the step: a later one replaces the norm */
	s->stats.size = sizeof(s->stats);
	if (r >= 0 && is_logged(t, k))
		r = te_adamw_stats(t->now.opt, &s->stats);
	s->end_s = trainer_busy_s(t);
	t->now.lost |= r < 0;
	if (r < 0)
		return say_te(r, "step %lld", (long long)k + 1);
	s->step = k;
	t->now.done.step++;
	if (t->by_epoch)
		t->now.done.drawn += t->micro_batches * t->B;
	if (t->chunks)
		t->now.done.chunks = chunks_at(t->chunks);
	s->epochs = trainer_epochs(t);
	return STATUS_OK;
}

/* first scales of a recipe that takes them from earlier steps, from the tokens of this step */
static int calibrate(struct trainer *t)
{
	struct slot *s = &t->now.slot[t->now.done.step % NSLOTS];
	int r = t->now.graph.pipeline ? STATUS_OK : draw(t, s);

	if (r || t->now.graph.pipeline)
		return r;
	r = copy_in(t, s);
	if (r >= 0)
		r = te_step_calibrate(t->now.graph.step, 0, t->stream);
	if (r >= 0)
		r = te_stream_sync(t->stream);
	t->now.lost |= r < 0;
	return r < 0 ? say_te(r, "the first scales") : STATUS_OK;
}

/* was the run asked to end at this step */
static int is_stopped(const struct trainer *t)
{
	if (t->ranks.comm)
		return t->now.done.step >= t->now.ranks_stop;
	return stop_at(t->now.done.step) || say_closed();
}

/* ranks that validate end at this step if one of them was asked to */
static int hear_stop(struct trainer *t)
{
	int any, te;

	if (!t->ranks.comm)
		return STATUS_OK;
	te = ranks_any(&t->ranks, t->stream, say_closed() || stop_requested() < INT64_MAX, &any);
	t->now.lost |= te < 0;
	if (te < 0)
		return say_te(te, "validation");
	if (any && t->now.done.step < t->now.ranks_stop)
		t->now.ranks_stop = t->now.done.step;
	return STATUS_OK;
}

/* mean loss over the fixed batches of a span; *ret_loss is NaN if the run was stopped */
static int evaluate(struct trainer *t, const struct span *s, const char *file, double *ret_loss)
{
	const int is_last = t->now.model.stage == t->now.model.nstages - 1;
	const struct rows rows = trainer_rows(t, t->now.eval_tokens, t->B);
	struct te_tensor *out = te_plan_output(t->now.eval_plan[t->now.model.nchunks - 1]);
	int64_t max = t->o->eval_batches;
	int64_t nbatches = eval_nbatches(s, t->B, t->T, max), total = 0;
	double sum = 0;

	*ret_loss = NAN;
	for (int64_t k = 0; k < nbatches; k++) {
		int64_t count;
		float loss = 0;
		int r = batch_eval(s, k, max, &rows, &count);

		if (!r)
			r = hear_stop(t);
		if (r || is_stopped(t))
			return r;
		progress_eval_batch(t, k, nbatches);
		trainer_cut(t, &rows);
		r = trainer_feed(t, t->now.eval_plan, &rows);
		if (r >= 0)
			r = pipeline_forward(&t->now.model, t->now.eval_plan, t->stream);
		if (r >= 0 && is_last)
			r = te_tensor_read(out, &loss, sizeof(loss));
		if (r >= 0 && t->now.model.nstages > 1)
			r = ranks_last(&t->ranks, t->stream, &loss);
		if (r < 0)
			return say_te(r, "validation");
		sum += (double)loss * (double)count;
		total += count;
	}
	if (!total)
		return say_bad("%s: no token of the validation data is a target",
			       file);
	*ret_loss = sum / (double)total;
	return STATUS_OK;
}

/* accuracies of --eval-choices; they stay as they are if the run was stopped */
static int answer(struct trainer *t)
{
	int64_t first, n;

	if (!t->now.decoder)
		return STATUS_OK;
	for (int64_t k = 0; answers_part(t, k, &first, &n); k++) {
		int r = hear_stop(t);

		if (r || is_stopped(t))
			return r;
		if (n)
			r = choices_score(&t->choices, t->now.decoder, answers_most(&t->choices),
					  first, n);
		if (r)
			return r;
	}
	return answers_count(t);
}

static int validate(struct trainer *t)
{
	const char *dir = trainer_folder(t);
	char what[64];
	double loss;
	int r = evaluate(t, &t->val, t->o->val ? t->o->val : "the held-out data", &loss);

	for (int i = 0; i < t->nvalid && !r && !is_stopped(t); i++)
		r = evaluate(t, &t->valid[i].span, t->valid[i].name, &t->now.valid_loss[i]);
	if (r || is_stopped(t))
		return r;
	t->now.lost |= !isfinite(loss);
	if (t->now.lost) {
		if (t->o->numerics)
			(void)numerics_write(t);
		snprintf(what, sizeof(what), "the validation loss of step %lld",
			 (long long)t->now.done.step);
		return trainer_not_finite(t, what, loss, "it was not saved");
	}
	r = answer(t);
	if (r || is_stopped(t))
		return r;
	t->now.val_loss = loss;
	t->now.done.eval_step = t->now.done.step;
	if (t->now.val_loss < t->now.done.best_val) {
		t->now.done.best_val = t->now.val_loss;
		t->now.done.best_step = t->now.done.step;
		if (t->o->save_best && dir) {
			if (trainer_save_files(t, dir, NULL))
				say_note("step %lld: the best weights were not saved; training "
					 "continues",
					 (long long)t->now.done.step);
			else
				t->drop_best = 0;
		}
	}
	return progress_eval(t);
}

/* one rank, after a failure between two steps: what was trained is saved */
static void save_rest(struct trainer *t)
{
	if (t->ranks.comm || !trainer_folder(t) || t->now.done.step == t->now.start_step ||
	    t->now.done.step == t->now.tried_step)
		return;
	if (!t->now.lost && !drain(t) && !trainer_save(t))
		say_note("step %lld was saved", (long long)t->now.done.step);
}

static int is_multiple(int64_t step, int64_t every)
{
	return every > 0 && step % every == 0;
}

static int is_over(const struct trainer *t)
{
	const struct opts *o = t->o;

	return t->now.done.step >= t->steps ||
	       (!isnan(o->time_limit) && trainer_elapsed_s(t) >= o->time_limit);
}

/* a resumed run does not repeat a validation */
static int is_eval_due(const struct trainer *t, int over)
{
	return over || (is_multiple(t->now.done.step, t->o->eval_every) &&
			t->now.done.eval_step != t->now.done.step);
}

static int is_save_due(const struct trainer *t)
{
	return (is_multiple(t->now.done.step, t->o->save_every) &&
		t->now.done.step != t->now.start_step) ||
	       (trainer_elapsed_s(t) >= t->now.retry_s && !t->now.saver.running);
}

/* last step after a signal: the step that all ranks have been told of by then, or this one */
static void set_phase(const struct trainer *t, enum stop_phase phase, int64_t step)
{
	const int saves = trainer_folder(t) != NULL;

	if (t->ranks.comm) {
		phase = STOP_RANKS;
		step = stop_after(t->now.done.step + 1);
	}
	stop_phase(phase, step, saves);
}

/* ranks wait to return, unless a save fails at present */
static int is_growth_due(struct trainer *t)
{
	if (!t->ranks.comm)
		t->now.returning = trainer_looks(t);
	return t->now.returning && !isfinite(t->now.retry_s) &&
	       t->now.done.step != t->now.start_step;
}

/*
 * What is due between two steps. The phase is told before stop conditions are looked at, so that a
 * signal is taken at the step that its message names. *ret_end: the run ends here.
 */
static int between_steps(struct trainer *t, int *ret_end)
{
	const int64_t k = t->now.done.step;
	const int over = is_over(t);
	const int eval = is_eval_due(t, over), grows = !over && is_growth_due(t);
	const int copies = is_multiple(k, t->o->copy_every) && k != t->now.start_step;
	int due, stop, r = STATUS_OK;
	double from;

	if (trainer_save_is_over(t))
		trainer_wait_save(t, 1);
	due = is_save_due(t);
	set_phase(t, eval ? STOP_VALIDATION : STOP_STEP, eval || over ? k : k + 1);
	stop = is_stopped(t) || (!over && t->o->stop_after >= 0 && k >= t->o->stop_after);
	if ((eval && !stop) || due || over || stop || grows || copies)
		r = drain(t);
	from = now_s();
	if (!r && eval && !stop)
		r = validate(t);
	if (!r && eval && t->o->numerics && !is_stopped(t))
		r = numerics_write(t);
	set_phase(t, STOP_STEP, over ? k : k + 1);
	stop |= is_stopped(t);
	if (!r && (copies || (grows && t->o->copy_every)))
		trainer_copy(t);
	if (!r && (stop || over)) {
		r = trainer_save(t);
	} else if (!r && grows) {
		r = t->o->copy_every ? STATUS_OK : trainer_save(t);
		t->now.grows = !r;
		if (r && !t->now.lost) {
			trainer_judge_save(t, r, k);
			r = STATUS_OK;
		}
	} else if (!r && due) {
		set_phase(t, STOP_SAVE, k);
		trainer_begin_save(t);
		r = t->now.lost ? STATUS_FAILED : STATUS_OK;
		set_phase(t, STOP_STEP, k + 1);
		stop |= is_stopped(t);
	}
	if (eval || due || copies)
		t->now.paused_s += now_s() - from;
	*ret_end = stop || over || t->now.grows;
	return r;
}

/* once all steps have run */
static int measure_bubble(struct trainer *t)
{
	enum { N = sizeof(struct part_times) / sizeof(float) };
	const int32_t n = t->now.model.nstages, nchunks = t->now.model.nchunks;
	const int32_t nshards = t->now.model.nshards;
	struct part_times own, all[MOST_RANKS], *times;
	int te = 0;

	if (!t->now.graph.pipeline || t->now.done.step == t->now.start_step)
		return STATUS_OK;
	times = calloc((size_t)(n * nchunks), sizeof(*times));
	if (!times)
		return say_failed("out of memory");
	for (int32_t c = 0; c < nchunks && te >= 0; c++) {
		te = pipeline_times(t->now.graph.pipeline, c, &own);
		if (te >= 0)
			te = ranks_all(&t->ranks, t->stream, (const float *)(void *)&own, N,
				       (float *)(void *)all);
		for (int32_t s = 0; s < n; s++)
			times[c * n + s] = all[(t->ranks.data_rank * n + s) * nshards];
	}
	if (te >= 0)
		te = pipeline_bubble(t->now.graph.pipeline, times, &t->bubble,
				     &t->predicted_bubble);
	free(times);
	return te < 0 ? say_te(te, "the times of the last step") : STATUS_OK;
}

int trainer_run(struct trainer *t)
{
	int end = 0, r;

	if (!t->start_s)
		t->start_s = now_s();
	t->now.paused_s = now_s() - t->start_s;
	t->now.start_step = t->now.line_step = t->now.done.step;
	t->now.tried_step = -1;
	t->now.shown_s = now_s();
	if (!t->now.from_copy)
		t->saved_step = t->from ? t->now.done.step : -1;
	t->now.ranks_stop = INT64_MAX;
	t->now.retry_s = INFINITY;
	set_phase(t, STOP_STEP, t->now.done.step);
	stop_on_signals();
	/* a request from before a failure: the first step that all ranks can end with */
	stop_again(t->ranks.comm ? stop_after(t->now.done.step) : t->now.done.step);
	r = progress_begin(t);
	if (!r)
		r = calibrate(t);
	while (!r) {
		r = between_steps(t, &end);
		if (r || end)
			break;
		r = step(t);
	}
	if (!r && !t->now.grows)
		r = measure_bubble(t);
	if (r)
		save_rest(t);
	trainer_wait_save(t, !r);
	t->now.interrupted = end && (t->ranks.comm ? is_stopped(t) : stop_at(t->now.done.step));
	t->now.closed = say_closed();
	return r;
}
