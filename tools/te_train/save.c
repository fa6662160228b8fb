/* save.c - checkpoints of a run: now, or by another thread while training goes on. */
#include "config.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "loop.h"
#include "tools/lib/gguf.h"
#include "tools/lib/say.h"
#include "tools/lib/tokenizer.h"

#define RETRY_MAX_S 600 /* longest wait until a failed save is tried again */

/* once for each folder; the checkpoint is saved also if they fail */
static void copy_tokenizer(struct trainer *t, const char *dir, int best)
{
	const char *from = t->o->tokenizer   ? t->o->tokenizer :
			   t->o->init	     ? t->o->init :
			   t->o->resume	     ? t->o->resume :
					       t->tokenizer_from;

	if (from && !t->o->tokenizer && gguf_is(from))
		from = t->tokenizer_from; /* may lack a tokenizer */
	if (!(t->now.copied & 1u << best))
		tokenizer_copy(from, dir, best ? "best" : NULL, t->o->overwrite != 0);
	t->now.copied |= 1u << best;
}

/* files that a checkpoint in the folder is followed by; best: it is of the best weights */
static void after_save(struct trainer *t, const char *dir, int best)
{
	copy_tokenizer(t, dir, best);
	if (!best && ckpt_keep(dir, t->o->keep))
		say_note("%s: this checkpoint replaces the one before it; training continues", dir);
}

static int take(struct trainer *t, const char *dir, struct te_adamw *opt, struct ckpt_flat *flat,
		struct ckpt_copy **ret_copy)
{
	json_t *options = trainer_options(t);
	int r = t->drop_best && !t->ranks.rank ? ckpt_drop_others(dir) : STATUS_OK;

	if (!r)
		r = ckpt_take(&t->now.model, opt, flat, options, &t->now.done, ret_copy);
	json_decref(options);
	return r;
}

/* the moments of which each rank has a part, in rank 0, or in the ranks of its model */
static int gather_moments(struct trainer *t, struct ckpt_flat *flat)
{
	const struct model *m = &t->now.model;
	int r, te;

	if (!t->o->zero || !t->ranks.comm)
		return STATUS_OK;
	r = ckpt_gather_moments(m, t->now.opt, !(m->whole ? t->ranks.data_rank : t->ranks.rank),
				flat);
	te = ranks_check(&t->ranks);
	return r || te >= 0 ? r : say_te(te, "the moments of all ranks");
}

/* the weights of which each rank has a part, in rank 0 */
static int gather_weights(struct trainer *t, struct ckpt_flat *flat)
{
	int r, te;

	if (t->o->zero < 3 || !t->ranks.comm)
		return STATUS_OK;
	r = ckpt_gather_weights(&t->now.model, !t->ranks.rank, flat);
	te = ranks_check(&t->ranks);
	return r || te >= 0 ? r : say_te(te, "the weights of all ranks");
}

/*
 * All ranks send their part of the moments and weights, and then the ranks that have one model with
 * rank 0 send it their shards. opt NULL: weights only.
 */
static int gather(struct trainer *t, struct te_adamw *opt, struct ckpt_flat *flat)
{
	int r = opt ? gather_moments(t, flat) : STATUS_OK;

	if (!r)
		r = gather_weights(t, flat);

	if (!r && !t->ranks.data_rank && t->now.model.whole)
		r = ckpt_gather(&t->now.model, opt, flat);
	return r;
}

/* ---- with --sharded ---- */

struct ckpt_part trainer_part(const struct trainer *t, int64_t zero)
{
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;

	ranks_optimizer(&t->ranks, zero, &o);
	return (struct ckpt_part){ .n = o.nparts > 1 ? o.nparts : 0, .k = o.part };
}

/* the part that this rank saves; n 0: rank 0 saves all */
static struct ckpt_part part_of(const struct trainer *t)
{
	return trainer_part(t, t->o->sharded ? t->o->zero : 0);
}

/* a status on all ranks: of the first rank that has failed */
static int all_status(struct trainer *t, int status)
{
	const float own = (float)status;
	float all[MOST_RANKS];
	const int te = ranks_all(&t->ranks, t->stream, &own, 1, all);

	if (te < 0)
		return say_te(te, "all ranks save");
	for (int32_t i = 0; i < ranks_n(&t->ranks); i++) {
		if (all[i] != 0 && !t->ranks.rank)
			say_failed("rank %d has not written its part of the checkpoint; its "
				   "message says why", (int)t->ranks.number[i]);
		if (all[i] != 0)
			return (int)all[i];
	}
	return STATUS_OK;
}

/* all ranks take their parts; each has its status */
static int take_part(struct trainer *t, const char *dir, struct ckpt_part part,
		     struct ckpt_copy **ret_copy)
{
	int digits = t->ranks.rank ? 0 : ckpt_next_digits(dir), r;
	const int te = ranks_first(&t->ranks, t->stream, &digits);
	struct ckpt_flat flat = { 0 };

	if (te < 0)
		return say_te(te, "rank 0 names the files of a checkpoint");
	part.digits = digits;
	r = digits ? ckpt_read_part(&t->now.model, t->now.opt, &part, &flat) : STATUS_FAILED;
	if (!r)
		r = take(t, dir, t->now.opt, &flat, ret_copy);
	ckpt_flat_free(&flat);
	return r;
}

/* after all ranks have written their parts, or have failed: rank 0 makes them the checkpoint */
static int join_parts(struct trainer *t, const char *dir, const struct ckpt_copy *copy, int status)
{
	const int r = all_status(t, status);

	return r || t->ranks.rank ? r : ckpt_write(dir, &t->now.model, copy);
}

static int save_parts(struct trainer *t, const char *dir, struct ckpt_part part)
{
	struct ckpt_copy *copy = NULL;
	int r = take_part(t, dir, part, &copy);

	if (!r)
		r = ckpt_write_part(dir, &t->now.model, copy);
	r = join_parts(t, dir, copy, r);
	ckpt_copy_free(copy);
	if (!r && !t->ranks.rank)
		after_save(t, dir, 0);
	return r;
}

/* rank 0 writes all before it returns */
int trainer_save_files(struct trainer *t, const char *dir, struct te_adamw *opt)
{
	const struct ckpt_part part = part_of(t);
	struct ckpt_copy *copy = NULL;
	struct ckpt_flat flat = { 0 };
	int r;

	if (opt && part.n)
		return save_parts(t, dir, part);
	r = gather(t, opt, &flat);
	if (!r && !t->ranks.rank && opt) {
		r = take(t, dir, opt, &flat, &copy);
		if (!r)
			r = ckpt_write(dir, &t->now.model, copy);
		ckpt_copy_free(copy);
	} else if (!r && !t->ranks.rank) {
		r = ckpt_save_best(dir, &t->now.model, &flat);
	}
	if (!r && !t->ranks.rank)
		after_save(t, dir, !opt);
	ckpt_flat_free(&flat);
	return r;
}

static void set_saved(struct trainer *t, const char *dir, int64_t step)
{
	t->saved_step = step;
	t->from = dir;
	t->drop_best = 0;
}

/* a save during training: after a failure training continues, and the save is tried again */
void trainer_judge_save(struct trainer *t, int failed, int64_t step)
{
	const int failed_before = isfinite(t->now.retry_s);

	if (failed) {
		if (t->now.lost)
			return;
		t->now.tried_step = -1;
		t->now.retry_wait_s =
			failed_before ? fmin(2 * t->now.retry_wait_s, RETRY_MAX_S) : 1;
		t->now.retry_s = trainer_elapsed_s(t) + t->now.retry_wait_s;
		say_note("step %lld was not saved; training continues, and the next try is in "
			 "%.0f s",
			 (long long)step, t->now.retry_wait_s);
		return;
	}
	if (failed_before)
		say_note("step %lld was saved", (long long)step);
	t->now.retry_s = INFINITY;
}

static void *write_copy(void *arg)
{
	struct saver *s = arg;

	s->status = s->parts ? ckpt_write_part(s->dir, s->model, s->copy) :
			       ckpt_write(s->dir, s->model, s->copy);
	atomic_store(&s->done, 1);
	return NULL;
}

/* signals are taken by the thread that trains */
static int start_writing(struct saver *s)
{
	sigset_t all, old;
	int e;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	e = pthread_create(&s->thread, NULL, write_copy, s);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	s->has_thread = !e;
	return e ? say_failed("the thread that saves cannot be started: %s", strerror(e)) :
		   STATUS_OK;
}

/* the copy remains */
static int end_thread(struct saver *s)
{
	if (s->has_thread)
		pthread_join(s->thread, NULL);
	s->has_thread = 0;
	return s->status;
}

static int join(struct saver *s)
{
	const int status = end_thread(s);

	ckpt_copy_free(s->copy);
	s->copy = NULL;
	return status;
}

/* the save of the other thread has ended, on all ranks with this status */
static void end_save(struct trainer *t, int status)
{
	struct saver *s = &t->now.saver;

	join(s);
	s->running = 0;
	if (!status && !t->ranks.rank)
		after_save(t, s->dir, 0);
	if (!status)
		set_saved(t, s->dir, s->step);
	trainer_judge_save(t, status, s->step);
}

void trainer_wait_save(struct trainer *t, int together)
{
	struct saver *s = &t->now.saver;
	int status;

	if (!s->running)
		return;
	if (!together && (t->ranks.rank || s->parts)) {
		join(s);
		s->running = 0;
		return;
	}
	if (s->parts)
		status = join_parts(t, s->dir, s->copy, end_thread(s));
	else
		status = s->told ? s->told - 1 : join(s);
	if (s->parts || (!s->told && together)) {
		status = ranks_status(&t->ranks, t->stream, status);
		t->now.lost |= ranks_check(&t->ranks) < 0;
	}
	end_save(t, status);
}

/* has the other thread ended, as far as all ranks know */
int trainer_save_is_over(const struct trainer *t)
{
	const struct saver *s = &t->now.saver;

	return s->running && (t->ranks.comm ? s->told : atomic_load(&s->done));
}

int trainer_save(struct trainer *t)
{
	const char *dir = trainer_folder(t);
	int r;

	if (!dir)
		return STATUS_OK;
	trainer_wait_save(t, 1);
	t->now.tried_step = t->now.done.step;
	r = ranks_compare(&t->ranks, t->stream, t->now.model.seq);
	t->now.lost |= r != STATUS_OK;
	if (r)
		return r;
	r = trainer_save_files(t, dir, t->now.opt);
	r = ranks_status(&t->ranks, t->stream, r);
	t->now.lost |= ranks_check(&t->ranks) < 0;
	if (!r)
		set_saved(t, dir, t->now.done.step);
	return r;
}

/* as trainer_begin_save(); all learn whether the threads have begun */
static int begin_save(struct trainer *t, const char *dir)
{
	const struct ckpt_part part = part_of(t);
	struct ckpt_flat flat = { 0 };
	struct saver *s = &t->now.saver;
	int r = ranks_compare(&t->ranks, t->stream, t->now.model.seq);

	t->now.lost |= r != STATUS_OK;
	if (r)
		return r;
	*s = (struct saver){ .dir = dir, .model = &t->now.model, .step = t->now.done.step,
			     .parts = part.n };
	r = part.n ? take_part(t, dir, part, &s->copy) : gather(t, t->now.opt, &flat);
	if (!r && part.n) {
		r = start_writing(s);
		if (r)
			join(s);
	} else if (!r && !t->ranks.rank) {
		r = take(t, dir, t->now.opt, &flat, &s->copy);
		if (!r)
			r = start_writing(s);
		if (r)
			join(s);
	}
	ckpt_flat_free(&flat);
	r = part.n ? all_status(t, r) : ranks_status(&t->ranks, t->stream, r);
	t->now.lost |= ranks_check(&t->ranks) < 0;
	s->running = !r || s->has_thread;
	if (r)
		trainer_wait_save(t, 0);
	return r;
}

void trainer_begin_save(struct trainer *t)
{
	const char *dir = trainer_folder(t);
	int r;

	if (!dir)
		return;
	trainer_wait_save(t, 1);
	if (t->now.lost)
		return;
	t->now.tried_step = t->now.done.step;
	r = begin_save(t, dir);
	if (r)
		trainer_judge_save(t, r, t->now.done.step);
}
