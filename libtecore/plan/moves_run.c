/*
 * moves_run.c - the copies of a plan that offloads values.
 *
 * An eager pass queues copies on two streams of the te_offload, one each way, ordered with the
 * stream of the pass by events. In a capture they are queued on the stream of the pass itself: with
 * TE_CAPTURE_CONCURRENT their dependencies follow from the memory that they access, and they run
 * concurrently with the kernels. In a capture, too, an event between consecutive copies keeps each
 * direction in order: otherwise a driver may run them in any order, and the pass would wait for the
 * first while later ones run.
 *
 * Requests to the file are host calls on these streams. In a capture they are operations on words,
 * four for each move, which are 0 between launches: the graph sets a start word, and takes the done
 * word that the I/O thread sets. If the device has no such operations, they are host calls too.
 */
#define TE_LOG_CATEGORY "core/offload"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/capture.h>
#include <te/errno.h>
#include <te/stream.h>

#include "libtecore/base/private.h"
#include "libtecore/plan/moves.h"
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

/* te__offload_check() reports failures, which the spill keeps; unreadable values are NaN */
static void run_job(void *arg)
{
	const struct job *j = arg;
	int r;

	switch (j->step) {
	case WRITE:
		r = te__spill_write(j->spill, j->file, j->slot, j->nbytes, NULL, 0);
		if (r)
			te__spill_refuse(j->spill, TE__SPILL_WRITE, j->file, r);
		break;
	case WRITTEN:
		(void)te__spill_wait(j->spill, TE__SPILL_WRITE, j->file, -1);
		break;
	case READ:
		r = te__spill_read(j->spill, j->file, j->slot, j->nbytes, NULL, 0);
		if (r) {
			te__spill_refuse(j->spill, TE__SPILL_READ, j->file, r);
			memset(j->slot, 0xff, j->nbytes);
		}
		break;
	case READ_DONE:
		(void)te__spill_wait(j->spill, TE__SPILL_READ, j->file, -1);
		break;
	}
}

static int is_capturing(struct te_stream *stream)
{
	return stream->ctx->ops->capture_active(stream->impl);
}

/* a word of a move: start or end of the write or of the read */
static _Atomic uint32_t *word_of(const struct te_plan *p, const struct te__move *v, enum step step)
{
	return te__pinned_word(p->offload->slots, 4 * v->file + (uint32_t)step);
}

static int use_word(struct te_plan *p, struct te_stream *stream, struct te__move *v, enum step step)
{
	void *word = te__pinned_device_ptr(p->offload->slots, (void *)word_of(p, v, step));

	return step == WRITE || step == READ ? te__word_set(stream, word) :
					       te__word_take(stream, word);
}

/* In a recording requests of a value are ordered by accesses to its struct te__move, and requests
 * of a slot by accesses to the slot. */
static int request(struct te_plan *p, struct te_stream *stream, struct te__move *v, enum step step)
{
	const struct job j = { slot_ptr(p, v, step >= READ), p->offload->spill, v->nbytes, v->file,
			       step };
	const int words = p->offload->words && is_capturing(stream);
	const struct te_access access[] = {
		{ j.slot, v->nbytes, TE_ACCESS_WRITE,
		  words ? -1 : (int)offsetof(struct job, slot) },
		{ v, 1, TE_ACCESS_WRITE, -1 },
	};
	int r = te_capture_access(stream, 2, access), end;

	if (r)
		return r;
	r = words ? use_word(p, stream, v, step) : te_host_call(stream, run_job, &j, sizeof(j));
	end = te_capture_access_end(stream);
	return r ? r : end;
}

/* a copy on a separate stream, after the work that the pass has queued */
static int copy(struct te_plan *p, struct te_stream *pass, struct te_stream *stream, void *dst,
		const void *src, size_t nbytes, struct te_event *done)
{
	int r = te_event_record(p->moves->point, pass);

	if (!r)
		r = te_event_wait(p->moves->point, stream);
	if (!r)
		r = te_copy(stream, dst, src, nbytes);
	return r ? r : te_event_record(done, stream);
}

/* A capture records events as nodes, which depend on writers of the declared memory, and
 * precede accesses to the memory that they are declared to write. */
static int record_declared(struct te_event *event, struct te_stream *stream, int n,
			   const struct te_access *access)
{
	int r = te_capture_access(stream, n, access), end;

	if (r)
		return r;
	r = te_event_record_external(event, stream);
	end = te_capture_access_end(stream);
	return r ? r : end;
}

/* Record an event after the copy of n bytes to dst and before the next copy, which accesses
 * next_slot; NULL: there is no next one. */
static int end_copy(struct te_stream *stream, struct te_event *done, const void *dst, size_t n,
		    const void *next_slot)
{
	const struct te_access access[] = { { dst, n, 0, -1 },
					    { next_slot, 1, TE_ACCESS_WRITE, -1 } };

	return record_declared(done, stream, next_slot ? 2 : 1, access);
}

static int store(struct te_plan *p, struct te_stream *stream, struct te__move *v)
{
	struct te_offload *o = p->offload;
	const struct te__move *next = v->next_out < 0 ? NULL : &p->moves->v[v->next_out];
	int r;

	if (is_capturing(stream)) {
		r = te_copy(stream, slot_ptr(p, v, 0), buf_ptr(p, v->out_buf), v->nbytes);
		if (!r)
			r = end_copy(stream, v->out, slot_ptr(p, v, 0), v->nbytes,
				     next ? slot_ptr(p, next, 0) : NULL);
		return r || !o->spill ? r : request(p, stream, v, WRITE);
	}
	r = copy(p, stream, o->out, slot_ptr(p, v, 0), buf_ptr(p, v->out_buf), v->nbytes, v->out);
	v->leaving = !r;
	if (r || !o->spill)
		return r;
	v->writing = 1;
	return request(p, o->out, v, WRITE);
}

static int load(struct te_plan *p, struct te_stream *stream, struct te__move *v)
{
	struct te_offload *o = p->offload;
	/* values from a file arrive in order, and slower than on the link */
	const struct te__move *next = v->next_in < 0 || o->spill ? NULL : &p->moves->v[v->next_in];
	int r = o->spill ? request(p, is_capturing(stream) ? stream : o->in, v, READ_DONE) : 0;

	if (r)
		return r;
	v->reading = 0;
	if (is_capturing(stream)) {
		r = te_copy(stream, buf_ptr(p, v->in_buf), slot_ptr(p, v, 1), v->nbytes);
		return r ? r : end_copy(stream, v->in, buf_ptr(p, v->in_buf), v->nbytes,
					next ? slot_ptr(p, next, 1) : NULL);
	}
	return copy(p, stream, o->in, buf_ptr(p, v->in_buf), slot_ptr(p, v, 1), v->nbytes, v->in);
}

/* wait for the write; eagerly, before the stream of copies out continues */
static int written(struct te_plan *p, struct te_stream *stream, struct te__move *v)
{
	struct te_offload *o = p->offload;
	int r;

	if (is_capturing(stream))
		return request(p, stream, v, WRITTEN);
	r = request(p, o->out, v, WRITTEN);
	v->writing = 0;
	return r ? r : te_event_record(v->filed, o->out);
}

/* read after the move's write, and after writes of moves that used the slot before */
static int start_read(struct te_plan *p, struct te_stream *stream, struct te__move *v)
{
	struct te_offload *o = p->offload;
	int r;

	if (is_capturing(stream))
		return request(p, stream, v, READ);
	r = te_event_wait(p->moves->v[v->read_after].filed, o->in);
	if (!r)
		r = request(p, o->in, v, READ);
	v->reading = !r;
	return r;
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

/* ---- timed waits ---- */

/* Ranges of the plan's memory that group t reads, except returning values: at most TE_ACCESS_MAX
 * ranges. */
static int read_by(const struct te_plan *p, int t, struct te_access *ret)
{
	const struct te__group *g = &p->group[t];
	int n = 0;

	for (int k = 0; k < g->n; k++) {
		const struct te__step *s = &p->step[g->first + k];

		for (int i = 0; i < s->nrefs; i++) {
			const struct te__ref *ref = &s->ref[i];
			const struct te__value *v = &p->value[ref->value];
			const uint32_t forms = ref->write ? 0 : te__ref_forms(s, ref);
			const int bufs[] = { forms & TE_FORM_HP ? v->hp : -1,
					     forms & TE_FORM_ROW ? v->row : -1,
					     forms & TE_FORM_COL ? v->col : -1 };

			for (int b = 0; b < 3 && n < TE_ACCESS_MAX; b++) {
				const struct te__buf *buf = bufs[b] < 0 ? NULL : &p->buf[bufs[b]];

				if (buf && buf->first >= 0 && buf->back < 0)
					ret[n++] = (struct te_access){ buf_ptr(p, bufs[b]),
								       buf->nbytes, 0, -1 };
			}
		}
	}
	return n;
}

/* Before the first group that reads a move: all else that it reads is there. A group that reads
 * nothing else runs after those before it. */
static int record_ready(struct te_plan *p, struct te_stream *stream, const struct te__move *v)
{
	struct te_access access[TE_ACCESS_MAX];
	int n = 0;

	if (!is_capturing(stream))
		return te_event_record(v->ready, stream);
	for (int t = v->needed; t >= p->fwd_groups && !n; t--)
		n = read_by(p, t, access);
	return record_declared(v->ready, stream, n, access);
}

double te__move_waited_ms(const struct te__move *v)
{
	double ms = 0;

	/* fails while a pass runs, and before the first one */
	if (v->ready && te_event_elapsed_ms(v->ready, v->in, &ms) < 0)
		te_error_clear();
	return ms > 0 ? ms : 0;
}

struct wait {
	double from, to; /* milliseconds */
};

static int by_from(const void *a, const void *b)
{
	const struct wait *x = a, *y = b;

	return (x->from > y->from) - (x->from < y->from);
}

/* the waits of a pass; returns their number, or less than 0 if unknown */
static int find_waits(const struct te__moves *m, struct wait *ret)
{
	int n = 0;

	for (int i = 0; i < m->n; i++) {
		struct te_event *first = m->v[0].ready;
		struct wait w;

		if (!first || te_event_elapsed_ms(first, m->v[i].ready, &w.from) < 0 ||
		    te_event_elapsed_ms(first, m->v[i].in, &w.to) < 0) {
			te_error_clear();
			return -1;
		}
		if (w.to > w.from)
			ret[n++] = w;
	}
	return n;
}

/* waits of groups that could run concurrently count once */
double te__moves_waited_ms(const struct te__moves *m)
{
	struct wait *w = te__malloc(((size_t)m->n + 1) * sizeof(*w));
	const int n = w ? find_waits(m, w) : -1;
	double sum = 0, end;

	if (n > 0) {
		qsort(w, (size_t)n, sizeof(*w), by_from);
		end = w[0].from;
		for (int i = 0; i < n; i++) {
			if (w[i].to > end)
				sum += w[i].to - (w[i].from > end ? w[i].from : end);
			end = w[i].to > end ? w[i].to : end;
		}
	}
	te__free(w);
	return sum;
}

static int time_waits(struct te_plan *p)
{
	struct te__moves *m = p->moves;
	int r = 0;

	for (int i = 0; i < m->n && !r; i++) {
		int k = 0;

		while (m->v[k].needed != m->v[i].needed)
			k++;
		m->v[i].records_ready = k == i;
		if (k < i)
			m->v[i].ready = te_event_ref(m->v[k].ready);
		else
			r = te_event_create(p->ctx, &m->v[i].ready);
	}
	return r;
}

static int wait_in(struct te_plan *p, struct te_stream *stream, struct te__move *v)
{
	int r = v->records_ready ? record_ready(p, stream, v) : 0;

	return r || is_capturing(stream) ? r : te_event_wait(v->in, stream);
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
		return wait_in(p, stream, v);
	case TE__ACT_WAIT_OUT:
		return wait_out(stream, v);
	case TE__ACT_READ:
	case TE__ACT_WRITTEN:
		pthread_mutex_lock(&o->lock);
		r = a->kind == TE__ACT_READ ? start_read(p, stream, v) : written(p, stream, v);
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

/* end requests of a forward pass without backward: later copies out reuse the slots */
static int end_requests(struct te_plan *p, struct te__move *v)
{
	struct te_offload *o = p->offload;
	int r = 0;

	if (v->writing)
		r = written(p, o->out, v);
	if (r || !v->reading)
		return r;
	r = request(p, o->in, v, READ_DONE);
	v->reading = r != 0;
	if (!r)
		r = te_event_record(v->in, o->in);
	return r ? r : te_event_wait(v->in, o->out);
}

/* from its first capture on the I/O thread polls the words of a plan */
static int arm(struct te_plan *p)
{
	struct te__moves *m = p->moves;
	struct te_offload *o = p->offload;

	if (!o->words || m->armed)
		return 0;
	pthread_mutex_lock(&o->lock);
	m->armed = 1;
	if (!o->narmed++)
		te__spill_arm(o->spill, 1);
	pthread_mutex_unlock(&o->lock);
	return 0;
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
	/* end requests of a forward pass without backward */
	for (int i = 0; i < m->n && !r; i++)
		r = !m->v[i].leaving ? 0 :
		    eager	     ? wait_out(stream, &m->v[i]) :
				       te_event_sync(m->v[i].out);
	for (int i = 0; i < m->n && !r; i++)
		r = end_requests(p, &m->v[i]);
	return r || eager ? r : arm(p);
}

/* bound: let its words make requests, or not any more */
static int bind_words(struct te_plan *p, const struct te__move *v, int bound)
{
	struct te__spill *spill = p->offload->spill;
	int r;

	for (int i = 0; i < 4; i++)
		atomic_store(word_of(p, v, (enum step)i), 0);
	r = te__spill_bind(spill, TE__SPILL_WRITE, v->file, bound ? slot_ptr(p, v, 0) : NULL,
			   v->nbytes, word_of(p, v, WRITE), word_of(p, v, WRITTEN));
	return r ? r :
		   te__spill_bind(spill, TE__SPILL_READ, v->file,
				  bound ? slot_ptr(p, v, 1) : NULL, v->nbytes, word_of(p, v, READ),
				  word_of(p, v, READ_DONE));
}

/* slots, and room in the file */
static int bind_file(struct te_plan *p)
{
	struct te__moves *m = p->moves;
	int r = te__pinned_take(p->offload->slots, m->held, &m->pinned);

	for (int i = 0; i < m->n && !r; i++) {
		struct te__move *v = &m->v[i];

		r = te__offload_take_file(p->offload, v->nbytes, v->name, &v->file);
		v->has_file = !r;
		if (!r)
			r = te_event_create(p->ctx, &v->filed);
		if (!r && p->offload->words)
			r = bind_words(p, v, 1);
	}
	return r;
}

static void unbind_file(struct te_plan *p)
{
	struct te_offload *o = p->offload;
	struct te__moves *m = p->moves;

	for (int i = 0; i < m->n; i++) {
		struct te__move *v = &m->v[i];

		te_event_unref(v->filed);
		if (!v->has_file)
			continue;
		if (o->words)
			(void)bind_words(p, v, 0);
		te__offload_give_file(o, v->file);
	}
	if (!m->armed)
		return;
	pthread_mutex_lock(&o->lock);
	if (!--o->narmed)
		te__spill_arm(o->spill, 0);
	pthread_mutex_unlock(&o->lock);
}

static void list(struct te_offload *o, struct te_plan *p, int add)
{
	struct te_plan **at = &o->plans;

	pthread_mutex_lock(&o->lock);
	while (*at && *at != p)
		at = &(*at)->moves->next;
	if (add)
		*at = p;
	else if (*at)
		*at = p->moves->next;
	o->filed_nbytes += add ? p->moves->filed : -p->moves->filed;
	o->pinned_nbytes += add ? p->moves->held : -p->moves->held;
	p->moves->listed = add;
	pthread_mutex_unlock(&o->lock);
}

int te__moves_bind(struct te_plan *p)
{
	struct te__moves *m = p->moves;
	int r;

	if (!m || !m->n)
		return 0;
	list(p->offload, p, 1);
	if (p->flags & TE_PLAN_NO_ALLOC)
		return 0;
	r = te_event_create(p->ctx, &m->point);
	for (int i = 0; i < m->n && !r; i++) {
		r = te_event_create(p->ctx, &m->v[i].out);
		if (!r)
			r = te_event_create(p->ctx, &m->v[i].in);
	}
	if (!r && p->offload->opts.timed)
		r = time_waits(p);
	if (r)
		return r;
	return p->offload->spill ? bind_file(p) : te_pinned_alloc(p->ctx, m->nbytes, &m->pinned);
}

void te__moves_free(struct te_plan *p)
{
	struct te__moves *m = p->moves;

	if (m && m->pinned) {
		/* wait for copies that no pass waits for, and for the default stream */
		(void)te_stream_sync(p->offload->out);
		(void)te_stream_sync(p->offload->in);
		(void)te__stream_wait(te_ctx_stream(p->ctx), "te_plan_unref");
	}
	if (m && m->v && p->offload->spill)
		unbind_file(p);
	if (m && m->pinned) {
		if (p->offload->spill)
			te__pinned_give(p->offload->slots, m->pinned);
		else
			te_pinned_free(p->ctx, m->pinned);
	}
	if (m && m->listed)
		list(p->offload, p, 0);
	for (int i = 0; m && m->v && i < m->n; i++) {
		te_event_unref(m->v[i].out);
		te_event_unref(m->v[i].in);
		te_event_unref(m->v[i].ready);
	}
	if (m) {
		te_event_unref(m->point);
		te__free(m->v);
		te__free(m->act);
		te__free(m->first_act);
		te__free(m->start);
		te__free(m->inuse);
		te__free(m->buf);
	}
	te__free(m);
	p->offload = te_offload_unref(p->offload);
}
