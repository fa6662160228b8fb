/* capture.c - warm-up, capture, and restoring the memory that they changed. */
#define TE_LOG_CATEGORY "graph"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "graph_internal.h"
#include "libtecore/base/grow.h"

/* ---- snapshot ---- */

struct saved {
	struct te_region region;
	size_t offset; /* offset of its copy in snapshot.device or snapshot.host */
};

struct snapshot {
	const char *fn; /* for error messages */
	const struct te_seq *renewed;
	struct saved *v;
	size_t n, cap;
	size_t nalways; /* these are restored after a success, too */
	size_t nbytes[2]; /* by te_region_kind */
	void *device;
	int pinned; /* device is pinned host memory, because the device was full */
	char *host;
};

static int collect(void *arg, const struct te_region *region)
{
	struct snapshot *s = arg;
	struct saved *v;

	if (!region->nbytes || (s->renewed && te__seq_renews(s->renewed, region->ptr)))
		return 0;
	/* callables may share sequences and optimizers */
	for (size_t i = 0; i < s->n; i++)
		if (s->v[i].region.ptr == region->ptr && s->v[i].region.nbytes == region->nbytes)
			return 0;
	if (TE__GROW(s->v, s->cap, s->n))
		return te__graph_fail(s->fn, -ENOMEM, "no memory for regions");
	v = &s->v[s->n++];
	v->region = *region;
	v->offset = s->nbytes[region->kind];
	s->nbytes[region->kind] += (region->nbytes + 255) & ~(size_t)255;
	return 0;
}

/* calls fn for all memory that the functions of the graph write */
static int regions(struct te_graph *g, te_region_fn fn, void *arg)
{
	int r = 0;

	for (int32_t i = 0; i < g->ncallables && !r; i++)
		if (g->callable[i].c.regions)
			r = g->callable[i].c.regions(g->callable[i].c.self, fn, arg);
	if (!r && g->opts.regions)
		r = g->opts.regions(g->opts.arg, fn, arg);
	return r;
}

static int copy_regions(struct te_graph *g, struct snapshot *s, int back)
{
	int r = 0;

	for (size_t i = 0; i < s->n && !r; i++) {
		const struct te_region *region = &s->v[i].region;
		int host = region->kind == TE_REGION_HOST;
		char *copy = (host ? s->host : (char *)s->device) + s->v[i].offset;

		if (host)
			memcpy(back ? region->ptr : copy, back ? copy : region->ptr,
			       region->nbytes);
		else
			r = te_copy(g->stream, back ? region->ptr : copy, back ? copy : region->ptr,
				    region->nbytes);
	}
	return r ? r : te_stream_sync(g->stream);
}

static void snapshot_free(struct te_graph *g, struct snapshot *s)
{
	if (s->device && s->pinned) {
		/* after a failure copies may be queued still; a second try, as in restore() */
		if (te_stream_sync(g->stream))
			te_stream_sync(g->stream);
		te_pinned_free(g->ctx, s->device);
	} else if (s->device) {
		te_mem_free(g->stream, s->device);
	}
	te__free(s->host);
	te__free(s->v);
}

/* the memory that an update takes from the graph that it replaces */
static int collect_pool(struct te_graph *g, struct snapshot *s)
{
	const struct te_region pool = { "pool", TE_REGION_DEVICE, g->opts.pool,
					g->old ? (size_t)g->old->report.peak_nbytes : 0 };

	return pool.ptr ? collect(s, &pool) : 0;
}

static int snapshot_take(struct te_graph *g, struct snapshot *s)
{
	int r = regions(g, collect, s);

	s->nalways = s->n;
	if (!r)
		r = collect_pool(g, s);
	if (!r && s->nbytes[TE_REGION_DEVICE]) {
		/* little of a te_step, whose memory is known without it */
		r = s->renewed ? -ENOMEM :
				 te_mem_alloc(g->stream, s->nbytes[TE_REGION_DEVICE], &s->device);
		if (r == -ENOMEM) {
			r = te_pinned_alloc(g->ctx, s->nbytes[TE_REGION_DEVICE], &s->device);
			s->pinned = 1;
		}
	}
	if (!r && s->nbytes[TE_REGION_HOST]) {
		s->host = te__malloc(s->nbytes[TE_REGION_HOST]);
		if (!s->host)
			r = te__graph_fail(g->fn, -ENOMEM, "no memory for regions");
	}
	/* work queued on the context's stream may still write the regions */
	if (!r)
		r = te_stream_sync(te_ctx_stream(g->ctx));
	return r ? r : copy_regions(g, s, 0);
}

/* ---- steps ---- */

static void step_str(const struct te_graph *g, const struct te_sched_step *s, char *dst,
		     size_t nbytes)
{
	snprintf(dst, nbytes, "%s of %s (chunk %" PRId32 ", micro-batch %" PRId32 ")",
		 te__graph_pass(s->kind), g->callable[s->callable].c.name, s->chunk + 1,
		 s->micro + 1);
}

/* the error message of a function that failed, or the name of its code if it left none */
static const char *why(int code)
{
	return te_error_detail()[0] ? te_error_detail() : te_strerror(code);
}

int te__graph_step_failed(const struct te_graph *g, const struct te_sched_step *s, const char *fn,
			  const char *what, int code)
{
	char step[192];

	step_str(g, s, step, sizeof(step));
	return te__graph_fail(fn, code, "%s%s: %s", what, step, why(code));
}

int te__graph_call(struct te_graph *g, const struct te_sched_step *s, struct te_stream *stream)
{
	struct te__graph_callable *n = &g->callable[s->callable];
	te_callable_fn fn = s->kind == TE_SCHED_F ? n->c.forward :
			    s->kind == TE_SCHED_B ? n->c.backward :
						    n->c.backward_dw;
	struct te_plan *plan = s->kind == TE_SCHED_F ? te__callable_plan(&n->c) : NULL;
	int r;

	n->call.stream = stream;
	te_error_clear();
	if (plan)
		te_plan_set_rng(plan, n->rng_index, n->rng_advance);
	r = fn ? fn(n->c.self, &n->call) : 0;
	return r < 0 ? r : 0;
}

/* ---- hooks ---- */

/* the first failure of several calls, with its message: later calls overwrite the thread's */
struct failure {
	int code;
	char detail[512];
};

static void failure_note(struct failure *f, int r)
{
	if (r >= 0 || f->code)
		return;
	f->code = r;
	snprintf(f->detail, sizeof(f->detail), "%s", te_error_detail());
}

/* 0, or the failure as the calling thread's latest */
static int failure_result(const struct failure *f)
{
	return f->code ? te__fail(f->code, "%s", f->detail) : 0;
}

/* of: name of the pass or warm-up around which the hook is called, for the error message */
static int hook_call(struct te_graph *g, enum te_hook h, int32_t callable, const char *of)
{
	const int after = h == TE_HOOK_POST_WARMUP || h == TE_HOOK_FORWARD || h == TE_HOOK_BACKWARD;
	int r;

	if (!g->opts.hook)
		return 0;
	te_error_clear();
	r = g->opts.hook(g->opts.arg, h, callable, g->stream);
	if (r >= 0)
		return 0;
	return te__graph_fail(g->fn, r, "the hook %s %s: %s", after ? "after" : "before", of,
			      why(r));
}

/*
 * Run a step between its hooks. Hooks come in pairs: once the hook before the step has succeeded,
 * the hook after it is called even if the step fails. Weight gradients have no hooks.
 */
static int hooked_step(struct te_graph *g, const struct te_sched_step *s, const char *what,
		       int (*run)(struct te_graph *g, const struct te_sched_step *s))
{
	const enum te_hook pre = s->kind == TE_SCHED_F ? TE_HOOK_FORWARD_PRE : TE_HOOK_BACKWARD_PRE;
	const enum te_hook post = s->kind == TE_SCHED_F ? TE_HOOK_FORWARD : TE_HOOK_BACKWARD;
	struct failure f = { 0 };
	char of[224], step[192];
	int r;

	step_str(g, s, step, sizeof(step));
	snprintf(of, sizeof(of), "%s%s", what, step);
	r = s->kind == TE_SCHED_W ? 0 : hook_call(g, pre, s->callable, of);
	if (r)
		return r;
	r = run(g, s);
	if (r < 0)
		failure_note(&f, te__graph_step_failed(g, s, g->fn, what, r));
	if (s->kind != TE_SCHED_W)
		failure_note(&f, hook_call(g, post, s->callable, of));
	return failure_result(&f);
}

/* ---- warm-up and capture ---- */

int te__graph_edge(struct te_graph *g, int last, const char *fn, struct te_stream *stream)
{
	int (*call)(void *arg, struct te_stream *s) = last ? g->opts.last : g->opts.first;
	int r;

	te_error_clear();
	r = call ? call(g->opts.arg, stream) : 0;
	if (r >= 0)
		return 0;
	return te__graph_fail(fn, r, "the %s function: %s", last ? "last" : "first", why(r));
}

/* run one step in warm-up */
static int warm_up_step(struct te_graph *g, const struct te_sched_step *s)
{
	return te__graph_call(g, s, g->stream);
}

static int warm_up_once(struct te_graph *g)
{
	int r = te__graph_edge(g, 0, g->fn, g->stream);

	for (int32_t k = 0; k < g->nsteps && !r; k++)
		if (!g->nwarm_micro || g->step[k].micro < g->nwarm_micro)
			r = hooked_step(g, &g->step[k], "warm-up of ", warm_up_step);
	return r || g->renewed ? r : te__graph_edge(g, 1, g->fn, g->stream);
}

static int warm_up(struct te_graph *g)
{
	struct failure f = { 0 };
	int r = hook_call(g, TE_HOOK_PRE_WARMUP, -1, "warm-up");

	if (r)
		return r;
	for (int32_t i = 0; i < g->opts.nwarmup && !f.code; i++)
		failure_note(&f, warm_up_once(g));
	failure_note(&f, te_stream_sync(g->stream));
	failure_note(&f, hook_call(g, TE_HOOK_POST_WARMUP, -1, "warm-up"));
	return failure_result(&f);
}

/* End the capture after r. With an old recording, update it: it is the result. A failure leaves r,
 * or its own code if r is 0. */
static int capture_end(struct te_graph *g, int r, struct te_recording *old,
		       struct te_recording **ret_rec)
{
	struct te_recording *rec = NULL;
	struct failure f = { 0 };
	enum te_update how;
	int e;

	if (r >= 0 && old) {
		e = te_capture_update(g->stream, old, &how);
		if (e)
			return e;
		if (*ret_rec != old)
			*ret_rec = te_recording_ref(old);
		*(how == TE_UPDATE_IN_PLACE ? &g->change.nin_place : &g->change.ninstantiated) += 1;
		return 0;
	}
	failure_note(&f, r);
	e = te_capture_end(g->stream, &rec);
	if (r >= 0) {
		*ret_rec = rec;
		return e;
	}
	te_recording_unref(rec);
	return failure_result(&f);
}

static int begin(struct te_graph *g)
{
	int r = te_capture_begin(g->stream);

	if (r || g->opts.flags & TE_GRAPH_SERIAL)
		return r;
	return te_capture_edges(g->stream, TE_CAPTURE_CONCURRENT | TE_CAPTURE_PDL);
}

/* the first backward pass in a capture that leaves a gradient unwritten; step NULL: none does */
struct gap {
	const struct te_sched_step *step;
	struct te__grad_gap grad;
};

/* a backward pass within a capture */
static int record_backward(struct te_graph *g, const struct te_sched_step *s, struct gap *gap)
{
	const struct te__graph_callable *n = &g->callable[s->callable];
	struct te__writes writes = { 0 };
	int r = te__capture_writes(g->stream, &writes);

	if (!r)
		r = te__graph_call(g, s, g->stream);
	if (!r)
		r = te__capture_writes(g->stream, NULL);
	else
		te__capture_writes(g->stream, NULL);
	if (!r && !gap->step && te__graph_grad_gap(n, &writes, &gap->grad))
		gap->step = s;
	te__free(writes.v);
	return r;
}

/* Opaque nodes may write anything, and only the finished recording knows whether there are any: so
 * a gap is reported after the capture has ended. */
static int check_gap(const struct te_graph *g, const struct te_recording *rec,
		     const struct gap *gap)
{
	const struct te__graph_callable *n = gap->step ? &g->callable[gap->step->callable] : NULL;

	if (!n || te__recording_opaque(rec))
		return 0;
	return te__fail(-EINVAL,
			"backward writes %zu of the %zu bytes of the gradient of %s, expected all, "
			"since the input is declared with TE_ARG_GRAD",
			gap->grad.nbytes_written, te_tensor_nbytes(n->in_grad[gap->grad.in]),
			n->c.in[gap->grad.in].name);
}

static int record_step(struct te_graph *g, const struct te_sched_step *s)
{
	struct te_recording **rec = &g->callable[s->callable].rec[s->kind];
	struct te_recording *old = g->old ? g->old->callable[s->callable].rec[s->kind] : NULL;
	struct gap gap = { 0 };
	int r;

	if (s->kind == TE_SCHED_W && !g->callable[s->callable].c.backward_dw)
		return 0;
	r = begin(g);
	if (r)
		return r;
	r = s->kind == TE_SCHED_B ? record_backward(g, s, &gap) : te__graph_call(g, s, g->stream);
	r = capture_end(g, r, old, rec);
	return r ? r : check_gap(g, *rec, &gap);
}

static int capture_steps(struct te_graph *g)
{
	int r = 0;

	for (int32_t k = 0; k < g->nsteps && !r; k++)
		r = hooked_step(g, &g->step[k], "capture of ", record_step);
	return r;
}

static int capture_whole(struct te_graph *g)
{
	struct gap gap = { 0 };
	int r = begin(g);

	if (r)
		return r;
	r = te__graph_edge(g, 0, g->fn, g->stream);
	for (int32_t k = 0; k < g->nsteps && !r; k++) {
		const struct te_sched_step *s = &g->step[k];

		r = s->kind == TE_SCHED_B ? record_backward(g, s, &gap) :
					    te__graph_call(g, s, g->stream);
		if (r)
			r = te__graph_step_failed(g, s, g->fn, "capture of ", r);
	}
	if (!r)
		r = te__graph_edge(g, 1, g->fn, g->stream);
	r = capture_end(g, r, g->old ? g->old->whole : NULL, &g->whole);
	if (r)
		return r;
	r = check_gap(g, g->whole, &gap);
	return r ? te__graph_step_failed(g, gap.step, g->fn, "capture of ", r) : 0;
}

/* restore the snapshot after r; returns r, or the failure of restoring if r is 0 */
static int restore(struct te_graph *g, struct snapshot *s, int r)
{
	struct failure f = { 0 };
	int back;

	failure_note(&f, r);
	if (!f.code)
		s->n = s->nalways;
	back = copy_regions(g, s, 1);
	failure_note(&f, back);
	/* try again: otherwise weights are lost, and a lack of memory may be temporary */
	if (back)
		copy_regions(g, s, 1);
	snapshot_free(g, s);
	return failure_result(&f);
}

static int capture(struct te_graph *g)
{
	return g->opts.flags & TE_GRAPH_WHOLE ? capture_whole(g) : capture_steps(g);
}

int te__graph_capture(struct te_graph *g)
{
	/* only if anything may write regions: a snapshot may be as large as weights and moments */
	const int runs = g->opts.nwarmup || g->opts.hook || !(g->opts.flags & TE_GRAPH_EAGER);
	struct snapshot s = { .fn = g->fn, .renewed = g->renewed };
	int r = runs ? snapshot_take(g, &s) : 0;

	if (r) {
		snapshot_free(g, &s);
		return r;
	}
	r = te_fill(g->stream, g->pool, 0, (size_t)g->report.peak_nbytes);
	if (!r)
		r = te_stream_sync(g->stream);
	if (!r)
		r = warm_up(g);
	if (!r && !(g->opts.flags & TE_GRAPH_EAGER))
		r = capture(g);
	return restore(g, &s, r);
}

int te__graph_recapture(struct te_graph *g)
{
	struct snapshot s = { .fn = g->fn, .renewed = g->renewed };
	int r = snapshot_take(g, &s);

	if (r) {
		snapshot_free(g, &s);
		return r;
	}
	g->old = g; /* update the graph's own recordings */
	r = capture(g);
	g->old = NULL;
	return restore(g, &s, r);
}
