/*
 * device.c - chains whose sums are computed by devices, see nodes.h: staging memory of a device,
 * and operations for a part of a piece.
 *
 * A slot has the input and the result of this rank, and the sums of the part of its rail. The
 * device of a rail reads the inputs of all ranks of the node, and stores the result at all of them.
 *
 * All operations are on the program's stream, between host calls in which the thread of the rail
 * gives the turn to the device and gets it back. The thread launches nothing itself: the driver may
 * block it until the stream has room, which may depend on the thread's next action. For the same
 * reason no host call is on another stream: a GPU runs one host call at a time.
 */
#define TE_LOG_CATEGORY "comm/nodes"
#include "config.h"

#include "kernels/launch.h"
#include "libtecomm/collective/nodes/rail.h"

/* ---- staging memory ---- */

static size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

/*
 * Input and result of a piece are at most half of what host staging memory has for the sums and the
 * result, and sums of a part at most 4 / 5 of it, by the rails: of elements of 4 bytes, and of one.
 */
static size_t sums_nbytes(size_t common, int32_t nrails)
{
	const size_t part = round_up(common / 5 / (size_t)nrails + 1, 64);

	return 4 * (part < TE__NODES_PART ? TE__NODES_PART : part);
}

static size_t slot_nbytes(size_t common, int32_t nrails)
{
	return round_up(common + sums_nbytes(common, nrails), TE__NODES_ALIGN);
}

size_t te__nodes_device(const struct te__boot *b, size_t piece)
{
	return TE__NODES_DEPTH * slot_nbytes(te__nodes_common(b, piece), te__nodes_nrails(b));
}

int64_t te__device_each(const struct te__nodes *n, int64_t es)
{
	return (int64_t)n->common / (es + 4) / 64 * 64;
}

char *te__device_in(const struct te__nodes *n, int32_t slot, int32_t local)
{
	char *p = te__pool_packets(n->pool, te__boot_local(n->boot, local));

	return p + n->device_at + (size_t)slot * slot_nbytes(n->common, n->nrails);
}

char *te__device_result(const struct te__nodes *n, int32_t slot, int32_t local)
{
	return te__device_in(n, slot, local) + n->common / 2;
}

/* sums of this rank, at element 0 of its part */
static float *sums_of(const struct te__nodes *n, int32_t slot)
{
	return (float *)(void *)(te__device_in(n, slot, n->local) + n->common);
}

float *te__device_wire_sums(const struct te__nodes *n, const struct te__piece *p, int64_t lo)
{
	return n->link->direct ? sums_of(n, p->slot) :
				 (float *)(void *)te__nodes_in(n, p->slot, 0) + lo;
}

char *te__device_wire_result(const struct te__nodes *n, const struct te__piece *p, int64_t lo)
{
	const int64_t es = (int64_t)te_dtype_nbytes((enum te_dtype)p->dtype);

	if (n->link->direct)
		return te__device_result(n, p->slot, n->local) + lo * es;
	return te__nodes_in(n, p->slot, 0) + 4 * te__device_each(n, es) + lo * es;
}

/* ---- turns ---- */

struct turn {
	struct te__nodes *n;
	int64_t k; /* piece of the operation */
};

static int has_turn(struct te__nodes *n, uint64_t number)
{
	return te__job_is_devices(te__nodes_job(n, number));
}

static void take(void *arg)
{
	const struct turn *t = arg;

	struct te__job *j = te__nodes_job(t->n, t->n->first_piece + (uint64_t)t->k);

	te__nodes_wait(t->n, has_turn, t->n->first_piece + (uint64_t)t->k);
	j->taken = te__boot_now();
	if (te__job_is_devices(j)) /* false after a failure */
		atomic_store_explicit(&j->devices, TE__TAKEN, memory_order_release);
}

static void give(void *arg)
{
	const struct turn *t = arg;
	struct te__job *j = te__nodes_job(t->n, t->n->first_piece + (uint64_t)t->k);

	atomic_store_explicit(&j->devices, 0, memory_order_release);
	t->n->link->ops->wake(t->n->link);
}

/* operations of a turn, and its part of the piece */
struct work {
	struct te__nodes *n;
	struct te_stream *stream;
	const struct te__piece *p;
	int64_t lo, nelems, es;
};

static int in_turn(struct te__nodes *n, struct te_stream *stream, const struct te__piece *p,
		   int64_t k, int (*queue)(const struct work *w))
{
	const struct turn t = { n, k };
	struct work w = { n, stream, p, 0, 0, (int64_t)te_dtype_nbytes((enum te_dtype)p->dtype) };
	int r;

	w.nelems = n->local < n->nrails ? te__nodes_part(n, p, n->local, &w.lo) : 0;
	if (!w.nelems)
		return 0;
	r = te_host_call(stream, take, &t, sizeof(t));
	if (!r)
		r = queue(&w);
	return r ? r : te_host_call(stream, give, &t, sizeof(t));
}

/* ---- work ---- */

/* copy it from the buffer that the transport wrote; if they are one, adapters wrote it */
static int copy_in(const struct work *w, void *dst, const void *wire, int64_t nbytes)
{
	return dst == wire ? te__adapter_flush(w->stream) :
			     te_copy(w->stream, dst, wire, (size_t)nbytes);
}

/* copy it to the buffer that the transport reads */
static int copy_out(const struct work *w, void *wire, const void *src, int64_t nbytes)
{
	return wire == src ? 0 : te_copy(w->stream, wire, src, (size_t)nbytes);
}

static char *result_at(const struct work *w, int32_t local)
{
	return te__device_result(w->n, w->p->slot, local) + w->lo * w->es;
}

/* 1: the rank has elements of the part in its result */
static int takes(const struct work *w, int32_t rank)
{
	const int64_t lo = w->p->lo + w->lo, count = w->p->count;

	return w->p->what != TE_K_COLL_REDUCE_SCATTER ||
	       (lo < (rank + 1) * count && lo + w->nelems > rank * count);
}

/* copy this rank's result to the other ranks' results */
static int share(const struct work *w)
{
	const struct te__nodes *n = w->n;
	int r = 0;

	for (int32_t i = 0; i < n->nlocal && !r; i++)
		if (i != n->local && takes(w, te__boot_local(n->boot, i)))
			r = te_copy(w->stream, result_at(w, i), result_at(w, n->local),
				    (size_t)(w->nelems * w->es));
	return r;
}

static int add(const struct work *w)
{
	const struct te__nodes *n = w->n;
	float *sums = sums_of(n, w->p->slot);
	float *wire = te__device_wire_sums(n, w->p, w->lo);
	const struct te_k_comm_fold fold =
		te__nodes_fold(n, w->p, w->nelems,
			       te__device_in(n, w->p->slot, 0) + w->lo * w->es,
			       (int64_t)te__pool_stride(n->pool), sums, result_at(w, n->local));
	int r = n->node ? copy_in(w, sums, wire, w->nelems * 4) : 0;

	if (!r)
		r = TE__LAUNCH(w->stream, COMM_FOLD, &fold);
	if (!r && !te__nodes_is_last(n))
		return copy_out(w, wire, sums, w->nelems * 4);
	if (!r && te__nodes_lowest(n, w->p, w->lo, w->nelems) < n->node)
		r = copy_out(w, te__device_wire_result(n, w->p, w->lo), result_at(w, n->local),
			     w->nelems * w->es);
	return r ? r : share(w);
}

static int spread(const struct work *w)
{
	const struct te__nodes *n = w->n;
	int r = copy_in(w, result_at(w, n->local), te__device_wire_result(n, w->p, w->lo),
			w->nelems * w->es);

	return r ? r : share(w);
}

int te__device_add(struct te__nodes *n, struct te_stream *stream, const struct te__piece *p,
		   int64_t k)
{
	return in_turn(n, stream, p, k, add);
}

int te__device_spread(struct te__nodes *n, struct te_stream *stream, const struct te__piece *p,
		      int64_t k)
{
	int64_t lo, nelems = n->local < n->nrails ? te__nodes_part(n, p, n->local, &lo) : 0;

	/* the last node had the result when it added */
	if (!nelems || te__nodes_is_last(n) || !te__nodes_wants(n, n->node, p, p->lo + lo, nelems))
		return 0;
	return in_turn(n, stream, p, k, spread);
}
