/*
 * optim_file.c - TE_ADAMW_FILE: moments in a file, of which pinned memory has some chunks.
 *
 * The file has two records of each chunk. A step reads the current records and writes the others,
 * which are current after all have been written. So a step that fails leaves the current moments as
 * they were. Records also have the weights and remainders that the step replaced, by which a failed
 * step is undone: records of the last chunks are still in pinned memory, earlier records in the
 * file.
 *
 * The calling thread waits for the file: a chunk is read while the one before it is updated and two
 * others are written. So a step cannot be captured.
 */
#define TE_LOG_CATEGORY "core/optim"
#include <stdio.h>
#include <string.h>

#include <te/stream.h>

#include "libtecore/base/private.h"
#include "libtecore/offload/spill.h"
#include "libtecore/offload/spill_impl.h"
#include "libtecore/plan/optim.h"
#include "libtecore/plan/seq.h"
#include "libtecore/tensor/ctx.h"

#define NSLOTS 4 /* one is read, one is updated, two are written */

struct te__adamw_file {
	struct te_adamw *opt;
	struct te__spill *spill;
	struct te__adamw_chunks kept; /* layout of a record */
	size_t nbytes;		      /* size of a slot */
	int64_t nchunks, nfirst;      /* nfirst: chunks of the part, before chunks of the rest */
	struct te_k_adamw_state *saved; /* pinned: the state before the step */
	struct te_event *updated[NSLOTS];
	int current; /* record of each chunk that has the moments, 0 or 1 */
	int broken;  /* code of a step that could not be undone */
	/* a step that is not complete: chunks whose reads have begun, that were updated, and whose
	 * writes have begun */
	int running;
	int64_t nread, nupdated, nwritten;
};

struct piece {
	int64_t at, m_at, n; /* first element in weights and in moments, elements */
};

static struct piece piece_of(const struct te__adamw_file *f, int64_t k)
{
	const struct te__adamw_part *own = &f->opt->own;
	const int tail = k >= f->nfirst;
	const int64_t c = f->kept.nelems, i = (tail ? k - f->nfirst : k) * c;
	const int64_t left = (tail ? own->ntail : own->nelems) - i;

	return (struct piece){
		.at = (tail ? own->tail : own->first) + i,
		.m_at = (tail ? own->nelems : 0) + i,
		.n = left < c ? left : c,
	};
}

static uint32_t record_of(const struct te__adamw_file *f, int64_t k, int current)
{
	return (uint32_t)(2 * k + (current ? f->current : !f->current));
}

static char *slot_of(const struct te__adamw_file *f, int64_t k)
{
	return (char *)te__pinned_base(f->opt->pinned) + (size_t)(k % NSLOTS) * f->nbytes;
}

static int start_read(struct te__adamw_file *f, int64_t k, int current)
{
	return te__spill_read(f->spill, record_of(f, k, current), slot_of(f, k), f->nbytes, NULL,
			      0);
}

static int read_record(struct te__adamw_file *f, int64_t k, int current)
{
	int r = start_read(f, k, current);

	return r ? r : te__spill_wait(f->spill, TE__SPILL_READ, record_of(f, k, current), -1);
}

static int start_write(struct te__adamw_file *f, int64_t k)
{
	return te__spill_write(f->spill, record_of(f, k, 0), slot_of(f, k), f->nbytes, NULL, 0);
}

static int written(struct te__adamw_file *f, int64_t k)
{
	return te__spill_wait(f->spill, TE__SPILL_WRITE, record_of(f, k, 0), -1);
}

static void flip(struct te__adamw_file *f)
{
	f->current = !f->current;
}

/* ---- a step ---- */

/* begin to read chunks before number `end`, whose slots have been written */
static int read_ahead(struct te__adamw_file *f, int64_t end)
{
	int r = 0;

	for (; f->nread < end && f->nread < f->nchunks && !r; f->nread += !r) {
		if (f->nread >= NSLOTS)
			r = written(f, f->nread - NSLOTS);
		if (!r)
			r = start_read(f, f->nread, 1);
	}
	return r;
}

static int store(struct te__adamw_file *f)
{
	const int64_t k = f->nwritten;
	int r = te_event_sync(f->updated[k % NSLOTS]);

	if (!r)
		r = start_write(f, k);
	f->nwritten += !r;
	return r;
}

static int update_chunk(struct te__adamw_file *f, struct te_stream *stream,
			const struct te__adamw *a, int64_t k)
{
	const struct piece p = piece_of(f, k);
	int r = te__spill_wait(f->spill, TE__SPILL_READ, record_of(f, k, 1), -1);

	if (!r)
		r = te__adamw_keep(stream, a, p.at, p.m_at, p.n, &f->kept, slot_of(f, k), 0);
	if (r)
		return r;
	f->nupdated++; /* even if some of its work fails */
	r = te__adamw_chunk(stream, a, p.at, p.m_at, p.n, &f->kept, slot_of(f, k));
	return r < 0 ? r : te_event_record(f->updated[k % NSLOTS], stream);
}

static int update(struct te__adamw_file *f, struct te_stream *stream, const struct te__adamw *a)
{
	int r = 0;

	for (int64_t k = 0; k < f->nchunks && !r; k++) {
		r = read_ahead(f, k + 2);
		if (!r)
			r = update_chunk(f, stream, a, k);
		if (!r && k)
			r = store(f);
	}
	if (!r)
		r = store(f);
	for (int64_t k = f->nchunks > NSLOTS ? f->nchunks - NSLOTS : 0; k < f->nchunks && !r; k++)
		r = written(f, k);
	if (r)
		return r;
	flip(f);
	f->running = 0;
	return 0;
}

/* copy what chunk k replaced back from its slot, to which it is read if a later one has used it */
static int restore(struct te__adamw_file *f, struct te_stream *stream, const struct te__adamw *a,
		   int64_t k)
{
	const struct piece p = piece_of(f, k);
	int r = k + NSLOTS < f->nread ? read_record(f, k, 0) : 0;

	if (!r)
		r = te__adamw_keep(stream, a, p.at, p.m_at, p.n, &f->kept, slot_of(f, k), 1);
	return r ? r : te_stream_sync(stream);
}

static int undo(struct te__adamw_file *f, struct te_stream *stream, const struct te__adamw *a)
{
	const int64_t first = f->nwritten > NSLOTS ? f->nwritten - NSLOTS : 0;
	int r = te_stream_sync(stream);

	/* requests end first; a read that failed has changed its slot only */
	for (int64_t k = first; k < f->nwritten; k++)
		(void)written(f, k);
	for (int64_t k = f->nupdated; k < f->nread; k++)
		(void)te__spill_wait(f->spill, TE__SPILL_READ, record_of(f, k, 1), -1);
	for (int64_t k = f->nupdated; k-- > 0 && !r;)
		r = restore(f, stream, a, k);
	if (!r)
		r = te_copy(stream, f->opt->state, f->saved, sizeof(*f->saved));
	if (!r)
		r = te_stream_sync(stream);
	return r ? r : te__adamw_groups_follow(f->opt, f->saved);
}

static int check(const char *fn, const struct te__adamw_file *f)
{
	return f->broken ? te__fail(f->broken, "%s: a step that failed could not be undone: load a "
				    "checkpoint into a new optimizer", fn) : 0;
}

int te__adamw_file_step(struct te__adamw_file *f, struct te_stream *stream, struct te__adamw *a)
{
	char detail[512];
	int r = check("te_adamw_step", f);

	if (!r)
		r = te__stream_not_capturing(stream, "te_adamw_step: moments in a file");
	if (!r)
		r = te_copy(stream, f->saved, f->opt->state, sizeof(*f->saved));
	if (r)
		return r;
	f->running = 1;
	f->nread = f->nupdated = f->nwritten = 0;
	a->file = f;
	a->update_file = update;
	r = read_ahead(f, NSLOTS);
	if (r >= 0)
		r = te__adamw_step(stream, a);
	if (r >= 0 || !f->running)
		return r;
	snprintf(detail, sizeof(detail), "%s", te_error_detail());
	f->running = 0;
	if (undo(f, stream, a)) {
		te__log_error("a step that failed could not be undone: %s", te_error_detail());
		f->broken = r;
	}
	te__spill_clear(f->spill);
	return te__fail(r, "%s", detail);
}

/* ---- moments of this part, as in memory ---- */

/* copy a moment of chunk k between its slot and `own`, a moment of all chunks */
static void copy_moment(const struct te__adamw_file *f, int64_t k, int second, char *own, int in)
{
	const enum te_moments moments = f->opt->opts.moments;
	const int64_t n = f->opt->own.nelems + f->opt->own.ntail;
	const int fp8 = moments == TE_MOMENTS_FP8;
	const struct piece p = piece_of(f, k);

	for (int exps = 0; exps <= fp8; exps++) {
		char *slot = te__adamw_slot_moment(&f->kept, moments, slot_of(f, k), second, exps);
		const int64_t unit = exps ? TE_K_ALIGN_WEIGHT : 1;
		const size_t size = fp8 ? 1 : (size_t)te_k_moment_nbytes((int32_t)moments, 1);
		char *at = own + (size_t)(exps * n + p.m_at / unit) * size;
		const size_t nbytes = (size_t)(p.n / unit) * size;

		memcpy(in ? slot : at, in ? at : slot, nbytes);
	}
}

int te__adamw_file_get(struct te__adamw_file *f, const char *fn, int second, void *own)
{
	int r = check(fn, f);

	for (int64_t k = 0; k < f->nchunks && !r; k++) {
		r = read_record(f, k, 1);
		if (!r)
			copy_moment(f, k, second, own, 0);
	}
	return r;
}

int te__adamw_file_set(struct te__adamw_file *f, const char *fn, int second, const void *own)
{
	int r = check(fn, f);

	for (int64_t k = 0; k < f->nchunks && !r; k++) {
		r = read_record(f, k, 1);
		if (!r) {
			copy_moment(f, k, second, (char *)(uintptr_t)own, 1);
			r = start_write(f, k);
		}
		if (!r)
			r = written(f, k);
	}
	if (!r)
		flip(f);
	else
		te__spill_clear(f->spill);
	return r;
}

/* ---- life ---- */

/* chunk: the layout of buffers in device memory; sets all but the optimizer */
static struct te__adamw_file layout(const struct te_seq *seq, const struct te_adamw_opts *o,
				    const struct te__adamw_part *own, int64_t chunk)
{
	const uint32_t bf16 = seq->binding.flags & TE_SEQ_BF16_MASTERS;
	struct te__adamw_file f = { .kept = {
		.nelems = chunk,
		.rest = (seq->binding.flags & TE_SEQ_REMAINDERS) != 0,
		.w = bf16 ? 2 : 4,
	} };

	f.nfirst = (own->nelems + chunk - 1) / chunk;
	f.nchunks = f.nfirst + (own->ntail + chunk - 1) / chunk;
	f.nbytes = te__spill_rounded(te__adamw_buf_nbytes(o->moments, &f.kept));
	return f;
}

uint64_t te__adamw_file_size(const struct te_seq *seq, const struct te_adamw_opts *o,
			     const struct te__adamw_part *own, int64_t chunk, uint64_t *ret_pinned)
{
	const struct te__adamw_file f = layout(seq, o, own, chunk);

	*ret_pinned = NSLOTS * f.nbytes + sizeof(*f.saved);
	return 2 * (uint64_t)f.nchunks * f.nbytes;
}

/* moments are zeros, as pinned memory is */
static int write_zeros(struct te__adamw_file *f)
{
	int r = 0;

	for (uint32_t i = 0; i < 2 * (uint32_t)f->nchunks && !r; i++)
		r = te__spill_reserve(f->spill, i, f->nbytes);
	for (int64_t k = 0; k < f->nchunks && !r; k++) {
		r = start_write(f, k);
		if (!r)
			r = written(f, k);
	}
	if (!r)
		flip(f);
	return r;
}

int te__adamw_file_open(struct te_adamw *opt)
{
	struct te__adamw_file *f = te__calloc(1, sizeof(*f));
	struct te__spill_opts so = { .dir = opt->opts.dir };
	uint64_t pinned;
	int r;

	if (!f)
		return te__no_memory("te_adamw_create");
	*f = layout(opt->seq, &opt->opts, &opt->own, opt->chunks.nelems);
	f->opt = opt;
	opt->file = f;
	so.quota_nbytes = te__adamw_file_size(opt->seq, &opt->opts, &opt->own, opt->chunks.nelems,
					      &pinned);
	so.ngroups = 2 * (uint32_t)f->nchunks;
	r = te__pinned_create(opt->ctx, pinned, &opt->pinned);
	if (r)
		return r;
	f->saved = (void *)((char *)te__pinned_base(opt->pinned) + NSLOTS * f->nbytes);
	for (int i = 0; i < NSLOTS && !r; i++)
		r = te_event_create(opt->ctx, &f->updated[i]);
	if (!r)
		r = te__spill_create(opt->pinned, &so, &f->spill);
	return r ? r : write_zeros(f);
}

struct te__spill *te__adamw_file_spill(const struct te_adamw *opt)
{
	return opt->file->spill;
}

void te__adamw_file_close(struct te__adamw_file *f)
{
	if (!f)
		return;
	te__spill_destroy(f->spill);
	for (int i = 0; i < NSLOTS; i++)
		te_event_unref(f->updated[i]);
	te__free(f);
}
