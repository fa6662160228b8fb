/* stage.c - see nodes.h: staging memory, the parts of a piece, waits and failures. */
#define TE_LOG_CATEGORY "comm/nodes"
#include "config.h"

#include <errno.h>
#include <stdio.h>

#include "libtecomm/collective/nodes/rail.h"

#define PAGE 4096
#define PIECE_MOST ((size_t)4 << 20)

static size_t round_up(size_t n)
{
	return (n + PAGE - 1) / PAGE * PAGE;
}

/* ---- staging memory ---- */

/* arrays of a piece in a slot: inputs of the node, of all ranks, the result, and FP32 sums of
 * elements of a byte */
static size_t narrays(int32_t nlocal, int32_t nranks)
{
	return (size_t)nlocal + (size_t)nranks + 1 + 4;
}

static size_t heads_nbytes(int32_t nlocal, int32_t nnodes)
{
	return round_up((size_t)nlocal * (size_t)nnodes * sizeof(struct te__piece));
}

static size_t members_nbytes(int32_t nlocal)
{
	return round_up((size_t)nlocal * sizeof(struct te__member));
}

/* ranks of the node with the most, and with the fewest */
static void count_ranks(const struct te__boot *b, int32_t *ret_most, int32_t *ret_fewest)
{
	int32_t count[4096] = { 0 };

	*ret_most = 0;
	*ret_fewest = INT32_MAX;
	for (int32_t r = 0; r < te__boot_nranks(b); r++)
		count[te__boot_node(b, r)]++;
	for (int32_t m = 0; m < te__boot_nnodes(b); m++) {
		*ret_most = *ret_most < count[m] ? count[m] : *ret_most;
		*ret_fewest = *ret_fewest > count[m] ? count[m] : *ret_fewest;
	}
}

int32_t te__nodes_most_local(const struct te__boot *b)
{
	int32_t most, fewest;

	count_ranks(b, &most, &fewest);
	return most;
}

int32_t te__nodes_nrails(const struct te__boot *b)
{
	int32_t most, fewest;

	count_ranks(b, &most, &fewest);
	return fewest;
}

size_t te__nodes_piece(const struct te__boot *b)
{
	const size_t n = narrays(te__nodes_most_local(b), te__boot_nranks(b));
	const size_t nbytes = te__param_size(TE_PARAM_COMM_STAGE) / TE__NODES_DEPTH / n / PAGE *
			      PAGE;

	return nbytes < PAGE ? PAGE : nbytes > PIECE_MOST ? PIECE_MOST : nbytes;
}

static size_t slot_nbytes(const struct te__boot *b, size_t piece)
{
	const int32_t nlocal = te__boot_nlocal(b);

	return narrays(nlocal, te__boot_nranks(b)) * piece +
	       heads_nbytes(nlocal, te__boot_nnodes(b));
}

size_t te__nodes_stage(const struct te__boot *b, size_t piece)
{
	return members_nbytes(te__boot_nlocal(b)) + TE__NODES_DEPTH * slot_nbytes(b, piece);
}

struct te__member *te__nodes_member(const struct te__nodes *n, int32_t local)
{
	return (struct te__member *)te__pool_stage(n->pool) + local;
}

char *te__nodes_in(const struct te__nodes *n, int32_t slot, int32_t local)
{
	return (char *)te__pool_stage(n->pool) + members_nbytes(n->nlocal) +
	       (size_t)slot * slot_nbytes(n->boot, n->piece) + (size_t)local * n->piece;
}

char *te__nodes_far(const struct te__nodes *n, int32_t slot, int32_t rank)
{
	return te__nodes_in(n, slot, n->nlocal + rank);
}

char *te__nodes_result(const struct te__nodes *n, int32_t slot)
{
	return te__nodes_far(n, slot, n->nranks);
}

float *te__nodes_sums(const struct te__nodes *n, int32_t slot)
{
	return (float *)(void *)(te__nodes_result(n, slot) + n->piece);
}

int te__nodes_contiguous(const struct te__boot *b)
{
	int yes = 1;

	/* nodes are numbered by their lowest ranks */
	for (int32_t r = 1; r < te__boot_nranks(b); r++)
		yes &= te__boot_node(b, r) >= te__boot_node(b, r - 1);
	return yes;
}

size_t te__nodes_common(const struct te__boot *b, size_t piece)
{
	return narrays(te__nodes_nrails(b), te__boot_nranks(b)) * piece;
}

/* ---- division of the work ---- */

int te__nodes_wants(const struct te__nodes *n, int32_t node, const struct te__piece *p, int64_t lo,
		    int64_t nelems)
{
	if (p->what != TE_K_COLL_REDUCE_SCATTER)
		return 1;
	for (int64_t r = lo / p->count; r <= (lo + nelems - 1) / p->count; r++)
		if (te__boot_node(n->boot, (int32_t)r) == node)
			return 1;
	return 0;
}

int64_t te__nodes_part(const struct te__nodes *n, const struct te__piece *p, int32_t rail,
		       int64_t *ret_lo)
{
	const int64_t least = TE__NODES_PART / (int64_t)te_dtype_nbytes((enum te_dtype)p->dtype);
	int64_t each = (p->n + n->nrails - 1) / n->nrails;

	/* whole cache lines: rails are threads of different processes */
	each = each < least ? least : (each + 63) / 64 * 64;
	*ret_lo = each * rail < p->n ? each * rail : p->n;
	return p->n - *ret_lo < each ? p->n - *ret_lo : each;
}

int32_t te__nodes_lowest(const struct te__nodes *n, const struct te__piece *p, int64_t lo,
			 int64_t nelems)
{
	int32_t m = 0;

	while (!te__nodes_wants(n, m, p, p->lo + lo, nelems))
		m++;
	return m;
}

struct te_k_comm_fold te__nodes_fold(const struct te__nodes *n, const struct te__piece *p,
				     int64_t nelems, const void *in, int64_t stride, float *sums,
				     void *out)
{
	return (struct te_k_comm_fold){
		.in = in,
		.stride = stride,
		.from = n->node ? sums : NULL,
		.sums = sums,
		.out = te__nodes_is_last(n) ? out : NULL,
		.n = nelems,
		.nin = n->nlocal,
		.nranks = n->nranks,
		.dtype = p->dtype,
		.op = p->op,
	};
}

/* ---- failure ---- */

void te__nodes_fail(struct te__nodes *n, int code, const char *why)
{
	char text[240];

	snprintf(text, sizeof(text), "%s", why);
	te__boot_note(n->boot, code, "%s", text);
	te__pool_abort(n->pool, code, text);
}

int te__nodes_closed(const struct te__nodes *n, int32_t local)
{
	return te__fail(-TE_EPEER, "%s has closed its communicator",
			te__boot_peer(n->boot, te__boot_local(n->boot, local)));
}

/* ---- waits ---- */

void te__nodes_wait(struct te__nodes *n, int (*ready)(struct te__nodes *n, uint64_t number),
		    uint64_t number)
{
	int64_t begin = te__boot_now(), last = begin, now;

	for (int k = 0; !te__pool_aborted(n->pool) && !ready(n, number); k++) {
		te__boot_pause(k);
		now = te__boot_now();
		if (now - last > n->timeout_ns / 2) /* this process was stopped */
			begin = now;
		last = now;
		/* rails and links have limits of their own, which name the rank at fault */
		if (now - begin > 2 * n->timeout_ns)
			te__nodes_fail(n, -ETIMEDOUT, "an operation between nodes has not ended "
				       "within two time-outs");
	}
	/* after a failure: wait until the rail does not write the result, which is copied next */
	for (int k = 0; n->running && te__pool_aborted(n->pool) &&
			!atomic_load_explicit(&n->left, memory_order_acquire);
	     k++)
		te__boot_pause(k);
}
