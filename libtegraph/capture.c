/* capture.c - warm-up and capture, after which everything is as it was before. */
#define TE_LOG_CATEGORY "graph"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "graph_internal.h"

/* ---- what must be as before ---- */

struct saved {
	struct te_region region;
	size_t offset; /* of its copy: in device or in host memory */
};

struct snapshot {
	const char *fn; /* for its sentences */
	struct saved *v;
	size_t n, cap;
	size_t nbytes[2]; /* by te_region_kind */
	void *device;
	int pinned; /* the device regions' copies lie in pinned memory: the device was full */
	char *host;
};

static int collect(void *arg, const struct te_region *region)
{
	struct snapshot *s = arg;
	struct saved *v;

	if (!region->nbytes)
		return 0;
	/* callables share what they change: sequences, optimizers */
	for (size_t i = 0; i < s->n; i++)
		if (s->v[i].region.ptr == region->ptr && s->v[i].region.nbytes == region->nbytes)
			return 0;
	if (s->n == s->cap) {
		size_t cap = s->cap ? 2 * s->cap : 64;

		v = te__realloc(s->v, cap * sizeof(*v));
		if (!v)
			return te__graph_fail(s->fn, -ENOMEM, "no memory for regions");
		s->v = v;
		s->cap = cap;
	}
	v = &s->v[s->n++];
	v->region = *region;
	v->offset = s->nbytes[region->kind];
	s->nbytes[region->kind] += (region->nbytes + 255) & ~(size_t)255;
	return 0;
}

int te__graph_regions(struct te_graph *g, te_region_fn fn, void *arg)
{
	int r = 0;

	for (int32_t i = 0; i < g->nnodes && !r; i++)
		if (g->node[i].c.regions)
			r = g->node[i].c.regions(g->node[i].c.self, fn, arg);
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
	if (s->device && s->pinned)
		te_pinned_free(g->ctx, s->device);
	else if (s->device)
		te_mem_free(g->stream, s->device);
	te__free(s->host);
	te__free(s->v);
}

static int snapshot_take(struct te_graph *g, struct snapshot *s)
{
	int r = te__graph_regions(g, collect, s);

	if (!r && s->nbytes[TE_REGION_DEVICE]) {
		r = te_mem_alloc(g->stream, s->nbytes[TE_REGION_DEVICE], &s->device);
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
	/* work that was queued on the context's stream may still change them */
	if (!r)
		r = te_stream_sync(te_ctx_stream(g->ctx));
	return r ? r : copy_regions(g, s, 0);
}

/* ---- running and recording ---- */

static void step_str(const struct te_graph *g, const struct te_sched_step *s, char *dst,
		     size_t nbytes)
{
	snprintf(dst, nbytes, "%s of %s (chunk %" PRId32 ", micro-batch %" PRId32 ")",
		 te__graph_pass(s->kind), g->node[s->callable].c.name, s->chunk + 1, s->micro + 1);
}

int te__graph_step_failed(const struct te_graph *g, const struct te_sched_step *s, const char *fn,
			  const char *what, int code)
{
	char step[192], detail[512];

	/* a function may have returned a code without a sentence */
	snprintf(detail, sizeof(detail), "%s",
		 te_error_detail()[0] ? te_error_detail() : te_strerror(code));
	step_str(g, s, step, sizeof(step));
	return te__graph_fail(fn, code, "%s%s: %s", what, step, detail);
}

int te__graph_set_cached(struct te_graph *g, int cached, struct te_stream *stream)
{
	const float one = 1.0f;
	uint32_t word = 0;
	int r;

	if (!g->cached || g->cached_now == cached)
		return 0;
	if (cached)
		memcpy(&word, &one, sizeof(word));
	r = te_fill_u32(stream, g->cached, word, sizeof(word));
	g->cached_now = r ? -1 : cached;
	return r;
}

int te__graph_call(struct te_graph *g, const struct te_sched_step *s, struct te_stream *stream)
{
	struct te__node *n = &g->node[s->callable];
	te_callable_fn fn = s->kind == TE_SCHED_F ? n->c.forward :
			    s->kind == TE_SCHED_B ? n->c.backward :
						    n->c.backward_dw;

	n->call.stream = stream;
	te_error_clear();
	return fn ? fn(n->c.self, &n->call) : 0;
}

/* the hook before (after 0) or behind a step; weight gradients have none */
static int hook(struct te_graph *g, const struct te_sched_step *s, int after)
{
	enum te_hook h = (s->kind == TE_SCHED_F ? TE_HOOK_FORWARD_PRE : TE_HOOK_BACKWARD_PRE);

	if (!g->opts.hook || s->kind == TE_SCHED_W)
		return 0;
	te_error_clear();
	return g->opts.hook(g->opts.arg, (enum te_hook)((int)h + after), s->callable, g->stream);
}

static int phase_hook(struct te_graph *g, enum te_hook h)
{
	int r;

	if (!g->opts.hook)
		return 0;
	te_error_clear();
	r = g->opts.hook(g->opts.arg, h, -1, g->stream);
	return r >= 0 ? 0 :
			te__graph_fail(g->fn, r, "the hook %s warm-up returned %d",
				       h == TE_HOOK_PRE_WARMUP ? "before" : "after", r);
}

int te__graph_edge(struct te_graph *g, int last, const char *fn, struct te_stream *stream)
{
	int (*call)(void *arg, struct te_stream *s) = last ? g->opts.last : g->opts.first;
	char detail[512];
	int r;

	te_error_clear();
	r = call ? call(g->opts.arg, stream) : 0;
	if (r >= 0)
		return 0;
	snprintf(detail, sizeof(detail), "%s",
		 te_error_detail()[0] ? te_error_detail() : te_strerror(r));
	return te__graph_fail(fn, r, "the %s function: %s", last ? "last" : "first", detail);
}

/* one step in warm-up, or within the capture of a whole graph */
static int plain_step(struct te_graph *g, const struct te_sched_step *s)
{
	int r = 0;

	if (s->kind == TE_SCHED_F)
		r = te__graph_set_cached(g, s->micro > 0, g->stream);
	return r < 0 ? r : te__graph_call(g, s, g->stream);
}

static int warm_up(struct te_graph *g)
{
	int r = phase_hook(g, TE_HOOK_PRE_WARMUP);

	for (int32_t i = 0; i < g->opts.nwarmup && !r; i++) {
		r = te__graph_edge(g, 0, g->fn, g->stream);
		for (int32_t k = 0; k < g->nsteps && !r; k++) {
			r = hook(g, &g->step[k], 0);
			if (r >= 0)
				r = plain_step(g, &g->step[k]);
			if (r >= 0)
				r = hook(g, &g->step[k], 1);
			r = r < 0 ? te__graph_step_failed(g, &g->step[k], g->fn, "warm-up of ", r) :
				    0;
		}
		if (!r)
			r = te__graph_edge(g, 1, g->fn, g->stream);
	}
	if (!r)
		r = te_stream_sync(g->stream);
	return r ? r : phase_hook(g, TE_HOOK_POST_WARMUP);
}

/* ends the capture whatever came before; the first failure is what counts. With an old recording
 * it takes over the new nodes, and is the result */
static int capture_end(struct te_graph *g, int r, struct te_recording *old,
		       struct te_recording **ret_rec)
{
	struct te_recording *rec = NULL;
	enum te_update how;
	char detail[512];
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
	if (r < 0)
		snprintf(detail, sizeof(detail), "%s", te_error_detail());
	e = te_capture_end(g->stream, &rec);
	if (r >= 0) {
		*ret_rec = rec;
		return e;
	}
	te_recording_unref(rec);
	return te__fail(r, "%s", detail);
}

static int begin(struct te_graph *g)
{
	int r = te_capture_begin(g->stream);

	if (r || g->opts.flags & TE_GRAPH_IN_ORDER)
		return r;
	return te_capture_edges(g->stream, TE_CAPTURE_BY_DATA | TE_CAPTURE_EARLY);
}

static int capture_step(struct te_graph *g, const struct te_sched_step *s)
{
	struct te_recording **rec = &g->node[s->callable].rec[s->kind];
	struct te_recording *old = g->old ? g->old->node[s->callable].rec[s->kind] : NULL;
	int r = hook(g, s, 0);

	if (s->kind == TE_SCHED_W && !g->node[s->callable].c.backward_dw)
		return 0;
	if (r >= 0)
		r = begin(g);
	if (r >= 0)
		r = capture_end(g, te__graph_call(g, s, g->stream), old, rec);
	if (r >= 0)
		r = hook(g, s, 1);
	return r < 0 ? te__graph_step_failed(g, s, g->fn, "capture of ", r) : 0;
}

static int capture_steps(struct te_graph *g)
{
	int r = 0;

	for (int32_t k = 0; k < g->nsteps && !r; k++)
		r = capture_step(g, &g->step[k]);
	return r;
}

static int capture_whole(struct te_graph *g)
{
	int r = begin(g);

	if (r)
		return r;
	g->cached_now = -1; /* each launch begins with the word as the launch before left it */
	r = te__graph_edge(g, 0, g->fn, g->stream);
	for (int32_t k = 0; k < g->nsteps && !r; k++) {
		r = plain_step(g, &g->step[k]);
		if (r < 0)
			r = te__graph_step_failed(g, &g->step[k], g->fn, "capture of ", r);
		else
			r = 0;
	}
	if (!r)
		r = te__graph_edge(g, 1, g->fn, g->stream);
	return capture_end(g, r, g->old ? g->old->whole : NULL, &g->whole);
}

/* restores what the snapshot holds, and passes on the code and sentence of what failed first */
static int put_back(struct te_graph *g, struct snapshot *s, int r)
{
	char detail[512];
	int back;

	if (r)
		snprintf(detail, sizeof(detail), "%s", te_error_detail());
	back = copy_regions(g, s, 1);
	if (back && !r) {
		r = back;
		snprintf(detail, sizeof(detail), "%s", te_error_detail());
	}
	/* weights hang on it: what failed may have been short of memory for a moment */
	if (back)
		copy_regions(g, s, 1);
	snapshot_free(g, s);
	g->cached_now = -1;
	return r ? te__fail(r, "%s", detail) : 0;
}

static int capture(struct te_graph *g)
{
	return g->opts.flags & TE_GRAPH_WHOLE ? capture_whole(g) : capture_steps(g);
}

int te__graph_capture(struct te_graph *g)
{
	/* a snapshot may take as much memory as weights and moments do */
	const int runs = g->opts.nwarmup || g->opts.hook || !(g->opts.flags & TE_GRAPH_EAGER);
	struct snapshot s = { .fn = g->fn };
	int r = runs ? snapshot_take(g, &s) : 0;

	if (r) {
		snapshot_free(g, &s);
		return r;
	}
	r = warm_up(g);
	if (!r && !(g->opts.flags & TE_GRAPH_EAGER))
		r = capture(g);
	return put_back(g, &s, r);
}

int te__graph_recapture(struct te_graph *g)
{
	struct snapshot s = { .fn = g->fn };
	int r = snapshot_take(g, &s);

	if (r) {
		snapshot_free(g, &s);
		return r;
	}
	g->old = g; /* each recording takes its own nodes again */
	r = capture(g);
	g->old = NULL;
	return put_back(g, &s, r);
}
