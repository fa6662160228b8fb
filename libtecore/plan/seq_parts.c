/*
 * seq_parts.c - masters and gradients of which each rank has a part: te_seq_binding.nparts.
 *
 * A flat buffer has equal parts, one for each rank, and a tail that all ranks have: the elements
 * that remain and, among masters, frozen ones. This rank's memory is its part, then the tail.
 *
 * Masters of other ranks are read in place, by te_seq_binding.fetch, or with TE_SEQ_HOST_MASTERS
 * are sent by the ranks that have them in their own pinned memory. They are written by
 * te_adamw_step, which depends on the sums of all ranks, and so on all reads of the passes before;
 * a forward pass begins with a barrier, so that reads come after all writes.
 */
#define TE_LOG_CATEGORY "core/seq"
#include <errno.h>

#include <te/stream.h>

#include "libtecore/base/private.h"
#include "libtecore/plan/seq.h"
#include "libtecore/tensor/ctx.h"

#define PIECE ((int64_t)1 << 22) /* masters that are gathered to host memory at a time */

struct te__part te__part_of(int32_t nparts, int32_t part, int64_t n)
{
	struct te__part p = { .nelems = n, .tail = n };

	if (nparts > 1) {
		p.nelems = n / TE_K_ALIGN_WEIGHT / nparts * TE_K_ALIGN_WEIGHT;
		p.first = part * p.nelems;
		p.tail = nparts * p.nelems;
		p.ntail = n - p.tail;
	}
	return p;
}

struct te__part te__seq_part(const struct te_seq *seq)
{
	return te__part_of(seq->binding.nparts, seq->binding.part, te__flat_nelems(seq->ngrads));
}

int64_t te__seq_own_masters(const struct te_seq *seq)
{
	const struct te__part own = te__seq_part(seq);
	const int64_t n = te__flat_nelems(seq->nelems);

	return te__seq_divides_masters(seq) ? own.nelems + n - own.tail : n;
}

int te__weight_is_divided(const struct te_seq *seq, const struct te__weight *w)
{
	return te__seq_divides_masters(seq) && !w->value &&
	       w->offset_nelems < te__seq_part(seq).tail;
}

int64_t te__weight_own_offset(const struct te_seq *seq, const struct te__weight *w)
{
	const struct te__part own = te__seq_part(seq);

	return w->offset_nelems - (te__seq_divides_masters(seq) ? own.tail - own.nelems : 0);
}

/* elements of the masters in one part, or in the tail */
struct range {
	int64_t from, to; /* from is not below to: there are none */
	int64_t own;	  /* offset of the first one in the memory of a rank that has it */
};

/* the elements in part i, or in the tail after all parts, of n from the first one on */
static struct range range_in(const struct te_seq *seq, int32_t i, int64_t first, int64_t n)
{
	const struct te__part own = te__seq_part(seq);
	const int is_tail = i == seq->binding.nparts;
	const int64_t begin = i * own.nelems;
	const int64_t end = is_tail ? te__flat_nelems(seq->nelems) : begin + own.nelems;
	struct range r = { first > begin ? first : begin, first + n < end ? first + n : end, 0 };

	r.own = r.from - begin + (is_tail ? own.nelems : 0);
	return r;
}

static int has_part(const struct te_seq *seq, int32_t i)
{
	return i == seq->binding.nparts || i == seq->binding.part;
}

/* bytes of the masters, at a multiple of the alignment */
static size_t masters_nbytes(const struct te_seq *seq)
{
	const size_t n = (size_t)te__seq_own_masters(seq) * (te__seq_is_split(seq) ? 2 : 4);

	return (n + TE__SEQ_ALIGN - 1) / TE__SEQ_ALIGN * TE__SEQ_ALIGN;
}

size_t te__parts_nbytes(const struct te_seq *seq)
{
	const struct te__part own = te__seq_part(seq);

	return masters_nbytes(seq) +
	       (te__seq_copies_part(seq) ? 2 * (size_t)(own.nelems + own.ntail) : 0);
}

int te__parts_alloc(struct te_seq *seq, void **ret_masters)
{
	const struct te_seq_binding *b = &seq->binding;
	const uint64_t nfails = te__nfails();
	void *p = NULL;
	int r = b->alloc(b->parts_arg, te__parts_nbytes(seq), &p);

	if (r < 0)
		return te__callback_failed(nfails, r, "the memory of a part: alloc returned %d", r);
	if (!p || (uintptr_t)p % TE__SEQ_ALIGN)
		return te__fail(-EINVAL, "te_seq_init: alloc returned %p, expected memory that is "
				"aligned to %d bytes", p, TE__SEQ_ALIGN);
	seq->part_copy = te__seq_copies_part(seq) ? (char *)p + masters_nbytes(seq) : NULL;
	*ret_masters = p;
	return 0;
}

int te__parts_meet(const struct te_seq *seq, struct te_stream *stream)
{
	const struct te_seq_binding *b = &seq->binding;
	const uint64_t nfails = te__nfails();
	const int r = te__seq_divides_masters(seq) ? b->barrier(b->parts_arg, stream) : 0;

	return r < 0 ? te__callback_failed(nfails, r, "the meeting of the ranks returned %d", r) :
		       0;
}

static int fetch(const struct te_seq *seq, struct te_stream *stream, void *dst, const void *src,
		 size_t nbytes, int32_t from)
{
	const struct te_seq_binding *b = &seq->binding;
	const uint64_t nfails = te__nfails();
	const int r = b->fetch(b->parts_arg, stream, dst, src, nbytes, from);

	return r < 0 ? te__callback_failed(nfails, r, "the fetch of masters from part %d returned "
					   "%d", from, r) : 0;
}

/* this rank's memory, and bytes of an element */
static char *memory_of(const struct te_seq *seq, int copies, size_t *ret_size)
{
	*ret_size = copies ? 2 : te_dtype_nbytes(te_tensor_dtype(seq->masters));
	return copies ? seq->part_copy : te_tensor_data(seq->masters);
}

void *te__parts_own(const struct te_seq *seq, int copies, int64_t first, int64_t n)
{
	const struct range a = range_in(seq, seq->binding.part, first, n);
	size_t size;
	char *own = memory_of(seq, copies, &size);

	if (seq->binding.flags & TE_SEQ_HOST_MASTERS || a.from != first || a.to != first + n)
		return NULL;
	return own + a.own * (int64_t)size;
}

int te__parts_gather(const struct te_seq *seq, struct te_stream *stream, int copies, int64_t first,
		     int64_t n, void *dst)
{
	size_t size;
	const char *own = memory_of(seq, copies, &size);
	int r = 0;

	for (int32_t i = 0; i <= seq->binding.nparts && !r; i++) {
		const struct range a = range_in(seq, i, first, n);
		const size_t nbytes = a.from < a.to ? (size_t)(a.to - a.from) * size : 0;
		const char *src = own + a.own * (int64_t)size;
		char *x = (char *)dst + (a.from - first) * (int64_t)size;

		if (nbytes)
			r = i == seq->binding.nparts ? te_copy(stream, x, src, nbytes) :
						       fetch(seq, stream, x, src, nbytes, i);
	}
	return r;
}

int te__parts_get(const struct te_seq *seq, int64_t first, int64_t n, float *dst)
{
	const int64_t most = n < PIECE ? n : PIECE;
	const size_t size = te_dtype_nbytes(te_tensor_dtype(seq->masters));
	struct te_stream *stream = te_ctx_stream(seq->ctx);
	void *all;
	int r = te__mem_get(seq->ctx, (size_t)most * size + 1, &all);

	if (!r)
		r = te__parts_meet(seq, stream);
	for (int64_t at = 0, len; at < n && !r; at += len) {
		const struct te__values v = { seq->ctx, te__seq_is_split(seq), all, NULL, 0,
					      n - at < most ? n - at : most };

		len = v.n;
		r = te__parts_gather(seq, stream, 0, first + at, len, all);
		if (!r)
			r = te_stream_sync(stream);
		if (!r && dst)
			r = te__values_read(&v, dst + at);
	}
	te__mem_put(seq->ctx, all);
	return r;
}

int te__parts_set(const struct te_seq *seq, int64_t first, int64_t n, const float *src)
{
	const struct te__values all = { seq->ctx, te__seq_is_split(seq),
					te_tensor_data(seq->masters), NULL, 0,
					te__seq_own_masters(seq) };
	int r = 0;

	for (int32_t i = 0; i <= seq->binding.nparts && !r; i++) {
		const struct range a = range_in(seq, i, first, n);
		struct te__values v;

		if (a.from >= a.to || !has_part(seq, i))
			continue;
		v = te__values_from(&all, a.own, a.to - a.from);
		r = te__values_write(&v, src + (a.from - first));
	}
	return r;
}

int te__parts_has(const struct te_seq *seq, int64_t first, int64_t n)
{
	int has = 0;

	for (int32_t i = 0; i <= seq->binding.nparts; i++) {
		const struct range a = range_in(seq, i, first, n);

		has |= a.from < a.to && has_part(seq, i);
	}
	return has;
}
