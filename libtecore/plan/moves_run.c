/*
 * moves_run.c - the copies of a plan that offloads values.
 *
 * An eager pass queues copies on two streams of the te_offload, one each way, ordered with the
 * stream of the pass by events. In a capture they are queued on the stream of the pass itself: with
 * TE_CAPTURE_CONCURRENT their dependencies follow from the memory that they access, and they run
 * concurrently with the kernels.
 */
#define TE_LOG_CATEGORY "core/offload"
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <te/capture.h>
#include <te/errno.h>
#include <te/stream.h>

#include "libtecore/base/private.h"
#include "libtecore/plan/moves.h"
#include "libtecore/plan/offload.h"
#include "libtecore/tensor/ctx.h"

static char *buf_ptr(const struct te_plan *p, int buf)
{
	return p->span[p->buf[buf].span] + p->buf[buf].offset;
}

static char *slot_ptr(const struct te_plan *p, const struct te__move *v, int in)
{
	return (char *)p->moves->pinned + (in ? v->slot_in : v->slot);
}

/* ---- the file: calls in stream order ---- */

enum step { WRITE, WRITTEN, READ, READ_DONE };

struct job {
	void *slot;
	struct te__spill *spill;
	size_t nbytes;
	uint32_t file;
	enum step step;
};

/* a failure is the spill's, which te__offload_check() reports; what cannot be read is NaN */
static void run_job(void *arg)
{
	const struct job *j = arg;

	switch (j->step) {
	case WRITE:
		(void)te__spill_write(j->spill, j->file, j->slot, j->nbytes, NULL, 0);
		break;
	case WRITTEN:
		(void)te__spill_wait(j->spill, TE__SPILL_WRITE, j->file, -1);
		break;
	case READ:
		if (te__spill_read(j->spill, j->file, j->slot, j->nbytes, NULL, 0) < 0)
			memset(j->slot, 0xff, j->nbytes);
		break;
	case READ_DONE:
		(void)te__spill_wait(j->spill, TE__SPILL_READ, j->file, -1);
		break;
	}
}

/* In a recording the calls of a value have an order by its event, an address that nothing else
 * uses, and those of its slots by the slots. */
static int call(struct te_plan *p, struct te_stream *stream, struct te__move *v, enum step step)
{
	const struct job j = { slot_ptr(p, v, step >= READ), p->offload->spill, v->nbytes, v->file,
			       step };
	const struct te_access access[] = {
		{ j.slot, v->nbytes, TE_ACCESS_WRITE, offsetof(struct job, slot) },
		{ v, 1, TE_ACCESS_WRITE, -1 },
	};
	int r = te_capture_access(stream, 2, access), end;

	if (r)
		return r;
	r = te_host_call(stream, run_job, &j, sizeof(j));
	end = te_capture_access_end(stream);
	return r ? r : end;
}

static int is_capturing(struct te_stream *stream)
{
	return stream->ctx->ops->capture_active(stream->impl);
}

/* a copy on a stream of its own, after what the pass has queued and, unless NULL, the event */
static int copy(struct te_plan *p, struct te_stream *pass, struct te_stream *stream,
		struct te_event *after, void *dst, const void *src, size_t nbytes,
		struct te_event *done)
{
	int r = te_event_record(p->moves->point, pass);

	if (!r)
		r = te_event_wait(p->moves->point, stream);
	if (!r && after)
		r = te_event_wait(after, stream);
	if (!r)
		r = te_copy(stream, dst, src, nbytes);
	return r ? r : te_event_record(done, stream);
}

static int store(struct te_plan *p, struct te_stream *stream, struct te__move *v)
{
	struct te_offload *o = p->offload;
	int r;

	if (is_capturing(stream)) {
		r = te_copy(stream, slot_ptr(p, v, 0), buf_ptr(p, v->out_buf), v->nbytes);
		return r || !o->spill ? r : call(p, stream, v, WRITE);
	}
	r = copy(p, stream, o->out, NULL, slot_ptr(p, v, 0), buf_ptr(p, v->out_buf), v->nbytes,
		 v->out);
	v->leaving = !r;
	if (r || !o->spill)
		return r;
	v->writing = 1;
	return call(p, o->out, v, WRITE);
}

static int load(struct te_plan *p, struct te_stream *stream, struct te__move *v)
{
	struct te_offload *o = p->offload;
	int r = o->spill ? call(p, is_capturing(stream) ? stream : o->in, v, READ_DONE) : 0;

	if (r)
		return r;
	if (is_capturing(stream))
		return te_copy(stream, buf_ptr(p, v->in_buf), slot_ptr(p, v, 1), v->nbytes);
	return copy(p, stream, o->in, v->leaving ? v->out : NULL, buf_ptr(p, v->in_buf),
		    slot_ptr(p, v, 1), v->nbytes, v->in);
}

static int wait_out(struct te_stream *stream, struct te__move *v)
{
	int r;

	if (!v->leaving || is_capturing(stream))
		return 0;
	r = te_event_wait(v->out, stream);
	v->leaving = r != 0;
	return r;
}

static int act(struct te_plan *p, struct te_stream *stream, const struct te__act *a)
{
	struct te__move *v = &p->moves->v[a->move];
	struct te_offload *o = p->offload;
	int r;

	switch (a->kind) {
	case TE__ACT_LOAD:
	case TE__ACT_STORE:
		pthread_mutex_lock(&o->lock);
		r = a->kind == TE__ACT_LOAD ? load(p, stream, v) : store(p, stream, v);
		if (!r) {
			*(a->kind == TE__ACT_LOAD ? &o->nbytes_in : &o->nbytes_out) += v->nbytes;
			o->ncopies++;
		}
		pthread_mutex_unlock(&o->lock);
		return r;
	case TE__ACT_WAIT_IN:
		return is_capturing(stream) ? 0 : te_event_wait(v->in, stream);
	case TE__ACT_WAIT_OUT:
		return wait_out(stream, v);
	case TE__ACT_READ:
	case TE__ACT_WRITTEN:
		pthread_mutex_lock(&o->lock);
		r = call(p, is_capturing(stream) ? stream : o->out, v,
			 a->kind == TE__ACT_READ ? READ : WRITTEN);
		v->writing = 0;
		pthread_mutex_unlock(&o->lock);
		return r;
	}
	return 0;
}

int te__moves_run(struct te_plan *p, struct te_stream *stream, int t, int after)
{
	const struct te__moves *m = p->moves;
	int r = 0;

	for (int i = m->first_act[t]; i < m->nacts && m->act[i].group == t && !r; i++)
		if ((m->act[i].kind >= TE__ACT_STORE) == after)
			r = act(p, stream, &m->act[i]);
	return r;
}

int te__moves_drain(struct te_plan *p, int r)
{
	char detail[512];

	snprintf(detail, sizeof(detail), "%s", te_error_detail());
	if (te_stream_sync(p->offload->out) < 0 || te_stream_sync(p->offload->in) < 0)
		return te__fail(r, "%s", detail);
	return r;
}

int te__moves_begin(struct te_plan *p, struct te_stream *stream, int first)
{
	struct te__moves *m = p->moves;
	const int eager = !is_capturing(stream);
	int r = te__offload_check(p->offload);

	if (r)
		return r;
	if (first && m->eager && !eager)
		return te__fail(-TE_ESTATE, "the plan offloads values: its forward pass was not "
					    "captured, so its backward pass cannot be");
	if (first)
		return 0;
	m->eager = eager;
	pthread_mutex_lock(&p->offload->lock);
	p->offload->nforwards++;
	pthread_mutex_unlock(&p->offload->lock);
	/* of a forward pass without backward */
	for (int i = 0; i < m->n && !r; i++)
		r = !m->v[i].leaving ? 0 :
		    eager	     ? wait_out(stream, &m->v[i]) :
				       te_event_sync(m->v[i].out);
	for (int i = 0; i < m->n && !r; i++)
		if (m->v[i].writing) {
			r = call(p, p->offload->out, &m->v[i], WRITTEN);
			m->v[i].writing = 0;
		}
	return r;
}

/* slots, and room in the file */
static int bind_file(struct te_plan *p)
{
	struct te__moves *m = p->moves;
	int r = te__pinned_take(p->offload->slots, m->held, &m->pinned);

	for (int i = 0; i < m->n && !r; i++) {
		r = te__offload_take_file(p->offload, m->v[i].nbytes, &m->v[i].file);
		m->v[i].has_file = !r;
	}
	return r;
}

int te__moves_bind(struct te_plan *p)
{
	struct te__moves *m = p->moves;
	int r;

	if (!m || !m->n)
		return 0;
	te__offload_list(p->offload, p, 1);
	if (p->flags & TE_PLAN_NO_ALLOC)
		return 0;
	r = te_event_create(p->ctx, &m->point);
	for (int i = 0; i < m->n && !r; i++) {
		r = te_event_create(p->ctx, &m->v[i].out);
		if (!r)
			r = te_event_create(p->ctx, &m->v[i].in);
	}
	if (r)
		return r;
	return p->offload->spill ? bind_file(p) : te_pinned_alloc(p->ctx, m->nbytes, &m->pinned);
}

void te__moves_free(struct te_plan *p)
{
	struct te__moves *m = p->moves;

	if (m && m->pinned) {
		/* copies that no pass waits for any more, and those of the default stream */
		(void)te_stream_sync(p->offload->out);
		(void)te_stream_sync(p->offload->in);
		(void)te__stream_wait(te_ctx_stream(p->ctx), "te_plan_unref");
		if (p->offload->spill)
			te__pinned_give(p->offload->slots, m->pinned);
		else
			te_pinned_free(p->ctx, m->pinned);
	}
	if (m && m->listed)
		te__offload_list(p->offload, p, 0);
	for (int i = 0; m && m->v && i < m->n; i++) {
		te_event_unref(m->v[i].out);
		te_event_unref(m->v[i].in);
		if (m->v[i].has_file)
			te__offload_give_file(p->offload, m->v[i].file);
	}
	if (m) {
		te_event_unref(m->point);
		te__free(m->v);
		te__free(m->act);
		te__free(m->first_act);
		te__free(m->start);
		te__free(m->buf);
	}
	te__free(m);
	p->offload = te_offload_unref(p->offload);
}
