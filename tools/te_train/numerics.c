/* numerics.c - see numerics.h. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numerics.h"
#include "profile.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"

struct watch {
	FILE *out; /* NULL: on other ranks */
	int64_t step;
	int failed;   /* an exit status */
	char bad[256]; /* the first value that is not finite, for people; "" */
};

static const char *pass_name(enum te_pass pass)
{
	return pass == TE_PASS_FORWARD ? "forward" : "backward";
}

static int write_line(struct watch *w, const struct te_plan_numerics *n)
{
	struct record rec;
	json_t *obj;
	char *text;

	record_begin(&rec);
	record_int(&rec, "step", w->step);
	record_text(&rec, "value", n->value);
	record_text(&rec, "pass", pass_name(n->pass));
	record_text(&rec, "dtype", te_dtype_name(n->dtype));
	record_int(&rec, "elements", n->nelems);
	record_int(&rec, "nan", n->nnan);
	record_int(&rec, "infinite", n->ninf);
	record_int(&rec, "zero", n->nzero);
	record_int(&rec, "saturated", n->nsaturated);
	record_int(&rec, "underflow", n->nunderflow);
	record_real(&rec, "amax", (double)n->amax);
	record_real(&rec, "scale_inv", (double)n->scale_inv);
	obj = record_end(&rec, "--numerics");
	text = obj ? record_to_text(obj, JSON_COMPACT, "--numerics") : NULL;
	json_decref(obj);
	if (text)
		fprintf(w->out, "%s\n", text);
	free(text);
	return text ? STATUS_OK : STATUS_FAILED;
}

static int see(void *arg, const struct te_plan_numerics *n)
{
	struct watch *w = arg;

	if (n->nnan + n->ninf && !*w->bad)
		snprintf(w->bad, sizeof(w->bad), "%s of the %s pass: %lld NaN and %lld infinite of "
			 "%lld elements",
			 n->value, pass_name(n->pass), (long long)n->nnan, (long long)n->ninf,
			 (long long)n->nelems);
	if (w->out && !w->failed)
		w->failed = write_line(w, n);
	return 0;
}

/* the memory of the sequence that passes modify, one region after another in at */
struct kept {
	struct te_stream *stream;
	char *at;
	size_t nbytes;
};

static int measure(void *arg, const struct te_region *region)
{
	struct kept *k = arg;

	k->nbytes += region->nbytes;
	return 0;
}

/* at: the region's bytes, after the bytes of the regions before it */
static int move(struct kept *k, const struct te_region *region, int back)
{
	char *at = k->at + k->nbytes;

	k->nbytes += region->nbytes;
	if (region->kind == TE_REGION_DEVICE)
		return te_copy(k->stream, back ? region->ptr : at, back ? at : region->ptr,
			       region->nbytes);
	memcpy(back ? region->ptr : at, back ? at : region->ptr, region->nbytes);
	return 0;
}

static int copy_out(void *arg, const struct te_region *region)
{
	return move(arg, region, 0);
}

static int copy_back(void *arg, const struct te_region *region)
{
	return move(arg, region, 1);
}

static int each(const struct trainer *t, struct kept *k, te_region_fn fn)
{
	int r;

	k->nbytes = 0;
	r = te_seq_regions(t->now.model.seq, fn, k);
	return r < 0 ? r : te_stream_sync(k->stream);
}

static int passes(const struct trainer *t, struct te_plan *plan, struct watch *w)
{
	int r = te_plan_watch(plan, see, w);

	if (r >= 0)
		r = te_plan_forward(plan, t->stream, 0);
	return r < 0 ? r : te_plan_backward(plan, t->stream);
}

/* the inputs of the plan have a micro-batch */
static int run(const struct trainer *t, struct te_plan *plan, struct watch *w)
{
	struct kept k = { .stream = t->stream };
	int te = each(t, &k, measure), back;

	k.at = te < 0 ? NULL : malloc(k.nbytes + 1);
	if (te >= 0)
		te = k.at ? each(t, &k, copy_out) : -ENOMEM;
	if (te >= 0) {
		te = passes(t, plan, w);
		back = each(t, &k, copy_back);
		te = te < 0 ? te : back;
	}
	free(k.at);
	return te < 0 ? say_te(te, "--numerics") : w->failed;
}

/* after an error of the file training continues */
static int finish(const struct trainer *t, const struct watch *w, struct te_plan *plan, int r)
{
	te_plan_unref(plan);
	if (!r && *w->bad)
		say_note("step %lld: the first value that is not finite is %s",
			 (long long)w->step, w->bad);
	if (!r && t->numerics && (fflush(t->numerics) || ferror(t->numerics))) {
		clearerr(t->numerics);
		say_failed("--numerics %s: %s; training continues, and lines are missing",
			   t->o->numerics, strerror(errno));
	}
	return r;
}

int numerics_write(struct trainer *t)
{
	struct watch w = { .out = t->numerics, .step = t->now.done.step };
	struct te_plan *plan = NULL;
	int r = profile_plan(t, TE_PLAN_NO_FUSION, &plan);

	if (!r)
		r = profile_draw(t, plan, w.step);
	if (!r)
		r = run(t, plan, &w);
	return finish(t, &w, plan, r);
}

int numerics_of_step(struct trainer *t, const struct slot *s)
{
	const int64_t n = t->B * trainer_own_tokens(t); /* documents are of whole sequences */
	struct rows rows = trainer_rows(t, s->tokens, t->now.accum * t->B);
	struct watch w = { .out = t->numerics, .step = s->step + 1 };
	struct te_plan *plan = NULL;
	int r = profile_plan(t, TE_PLAN_NO_FUSION, &plan);

	for (int64_t i = 0; i < t->now.accum && !r && !*w.bad; i++) {
		const int te = trainer_feed(t, &plan, &rows);

		r = te < 0 ? say_te(te, "--numerics") : run(t, plan, &w);
		rows.x += n;
		rows.y += n;
		if (rows.documents)
			rows.documents += t->B * t->T;
	}
	return finish(t, &w, plan, r);
}
