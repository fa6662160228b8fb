/* trainer.c - progress of a run, for its loop, its reports and its setup; see loop.h. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <te/errno.h>

#include "loop.h"
#include "tools/lib/say.h"

double trainer_busy_s(const struct trainer *t)
{
	return now_s() - t->start_s - t->now.paused_s;
}

/* all ranks have the same time */
double trainer_elapsed_s(const struct trainer *t)
{
	return t->ranks.comm ? t->now.ranks_s : now_s() - t->start_s;
}

const char *trainer_folder(const struct trainer *t)
{
	return t->o->out ? t->o->out : t->o->resume;
}

int trainer_has_saved(const struct trainer *t)
{
	const char *dir = trainer_folder(t);
	const int64_t ns = dir ? ckpt_written_ns(dir) : 0;

	return dir && (t->from == dir || (ns && ns != t->out_written_ns));
}

int trainer_ninputs(const struct trainer *t)
{
	return t->cfg.documents ? 3 : 2;
}

struct rows trainer_rows(const struct trainer *t, int32_t *tokens, int64_t nrows)
{
	const int64_t n = nrows * t->T;

	return (struct rows){
		.nrows = nrows,
		.T = t->T,
		.x = tokens,
		.y = tokens + n,
		.documents = t->cfg.documents ? tokens + 2 * n : NULL,
	};
}

int trainer_feed(const struct trainer *t, struct te_plan *const *plan, const struct rows *rows)
{
	static const char *const name[] = { "x", MODEL_TARGETS, MODEL_DOCUMENTS };
	const struct model *m = &t->now.model;
	const int32_t *const src[] = {
		m->stage ? NULL : rows->x,
		m->stage == m->nstages - 1 ? rows->y : NULL,
		rows->documents,
	};
	int te = 0;

	for (int i = 0; i < 3 && te >= 0; i++) {
		/* stages have no documents */
		struct te_plan *reader = plan[i ? m->nchunks - 1 : 0];
		struct te_tensor *x = src[i] ? te_plan_input(reader, name[i]) : NULL;

		if (x)
			te = te_tensor_write(x, src[i], te_tensor_nbytes(x));
	}
	return te;
}

int64_t trainer_own_tokens(const struct trainer *t)
{
	return t->T / t->o->context;
}

void trainer_cut(const struct trainer *t, const struct rows *rows)
{
	const int64_t n = trainer_own_tokens(t), first = t->ranks.rank % t->o->context * n;

	for (int64_t i = 0; i < rows->nrows && n < t->T; i++) {
		memmove(rows->x + i * n, rows->x + i * t->T + first, (size_t)n * sizeof(*rows->x));
		memmove(rows->y + i * n, rows->y + i * t->T + first, (size_t)n * sizeof(*rows->y));
	}
}

int64_t trainer_step_tokens(const struct trainer *t)
{
	return t->micro_batches * t->B * t->T;
}

double trainer_tokens_per_s(const struct trainer *t)
{
	double s = trainer_busy_s(t);
	int64_t tokens = (t->now.done.step - t->now.start_step) * trainer_step_tokens(t);

	return s > 0 ? (double)tokens / s : 0;
}

double trainer_epochs(const struct trainer *t)
{
	const int64_t drawn = t->now.done.drawn;

	if (t->chunks)
		return chunks_epochs(t->chunks, drawn);
	return t->by_epoch ? (double)drawn / (double)epoch_nwindows(&t->train, t->T) : NAN;
}

json_t *trainer_options(const struct trainer *t)
{
	struct opts o = *t->o;

	o.accum = t->micro_batches;
	return opts_to_json(&o);
}

/* the first element that is not finite; -1: there is none, or it cannot be read */
static int64_t find_not_finite(const struct te_tensor *t, float *ret_x)
{
	const int64_t n = te_tensor_nelems(t);
	float *x = malloc((size_t)n * sizeof(*x));
	int64_t i = 0, r = x ? te_tensor_read(t, x, te_tensor_nbytes(t)) : -ENOMEM;

	for (int64_t k = n; k-- > 0 && te_tensor_dtype(t) == TE_DTYPE_BF16 && r >= 0;)
		x[k] = te_bf16_decode(((const uint16_t *)(const void *)x)[k]);
	while (r >= 0 && i < n && isfinite(x[i]))
		i++;
	if (r >= 0 && i < n)
		*ret_x = x[i];
	free(x);
	return r >= 0 && i < n ? i : -1;
}

int trainer_not_finite(const struct trainer *t, const char *what, double value, const char *then)
{
	for (int i = 0; i < te_seq_nweights(t->now.model.seq); i++) {
		struct te_weight_info w = TE_WEIGHT_INFO_INIT;
		int64_t at;
		float x;

		if (te_seq_weight(t->now.model.seq, i, &w) < 0)
			continue;
		/* with --zero 3 each rank has a part of the weights */
		at = w.master && t->o->zero < 3 ? find_not_finite(w.master, &x) : -1;
		if (at >= 0)
			return say_failed("%s is not finite (%g): element %lld of the weight %s is "
					  "%g; %s", what, value, (long long)at, w.name, (double)x,
					  then);
	}
	return say_failed("%s is not finite (%g)%s; %s", what, value,
			  t->o->zero < 3 ? ", and all weights are" : "", then);
}
