/* collective.c - the state of a communicator's collective operations, see collective.h. */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libtecomm/collective/collective.h"
#include "libtecomm/meet/agree.h"

#define WORD_AT 64 /* from ctl to the word of barriers */
#define ALONE_AT 128 /* to the ctl of kernels without other ranks, whose epochs differ */
#define CTL_NBYTES 192
/* on a GPU two ranks send 21 MiB in one launch; the host gains nothing from more than 16 MiB */
#define PACKETS_NBYTES ((int64_t)64 << 20)

_Static_assert(sizeof(struct te_k_comm_ctl) <= WORD_AT, "the word follows it");

int32_t te__coll_most(const char *backend)
{
	return strcmp(backend, "host") ? TE_K_COMM_RANKS : TE_K_COMM_HOST_RANKS;
}

int64_t te__coll_buffer_nbytes(const char *backend, int32_t nranks)
{
	const int32_t all = te__coll_most(backend);
	const int32_t n = nranks < TE_K_COMM_RANKS ? TE_K_COMM_RANKS : nranks < all ? nranks : all;
	const int64_t asked = (int64_t)te__param_size(TE_PARAM_COMM_PACKETS);
	/* more ranks of a host share what 8 have */
	const int64_t nbytes = asked			  ? asked :
			       strcmp(backend, "host") ? PACKETS_NBYTES :
							 PACKETS_NBYTES / 4 * TE_K_COMM_RANKS / n;
	const int64_t ll = te_k_comm_buffer_nbytes(TE_K_COMM_LL, n, 4096);
	const int64_t staged = te_k_comm_buffer_nbytes(TE_K_COMM_STAGED, n, 4096);
	const int64_t least = n > TE_K_COMM_RANKS && staged > ll ? staged : ll;
	const int64_t each =
		(nbytes - TE_K_COMM_FLAGS_NBYTES) / TE_K_COMM_BUFFERS & ~(int64_t)127;

	return each > least ? each : least;
}

size_t te__coll_packets(const struct te__coll_terms *t, const struct te__boot *b)
{
	const int32_t n = te__boot_nranks(b);
	const int32_t most = t->host ? TE_K_COMM_HOST_RANKS : TE_K_COMM_RANKS;
	const int64_t each = t->nlanes ? te_k_comm_channel_nbytes(t->buffer_nbytes, t->nlanes) : 0;

	return (size_t)(te_k_comm_region_nbytes(t->buffer_nbytes) +
			(n < most ? n : most) * each);
}

/* initialise packets, ctl and status as kernels/comm/comm.h describes */
static int reset(struct te__coll *c)
{
	struct te_ctx *ctx = te__pool_ctx(c->pool);
	const size_t n = te__coll_packets(&c->terms, c->boot);
	int r = te__ctx_fill_u32(ctx, te__pool_packets(c->pool, te__boot_rank(c->boot)),
				 UINT32_MAX, n);

	memset(c->status, 0, sizeof(*c->status));
	return r ? r : te__ctx_fill_u32(ctx, c->ctl, 0, CTL_NBYTES);
}

static int init(struct te__coll *c)
{
	struct te_ctx *ctx = te__pool_ctx(c->pool);
	void *p;
	int r = te__mem_get(ctx, CTL_NBYTES, &p);

	if (r)
		return r;
	c->ctl = p;
	r = te_pinned_alloc(ctx, sizeof(*c->status), &p);
	if (r)
		return r;
	c->status = p;
	r = te_event_create(ctx, &c->order);
	/* threads: no rank launches a kernel that waits before all kernels are loaded */
	if (!r && c->terms.shared)
		r = te__ctx_load_shared(ctx);
	return r ? r : reset(c);
}

static void look(void *arg);

int te__coll_init(struct te__coll *c, struct te__boot *boot, struct te__pool *pool,
		  const char *name, const struct te__coll_terms *terms)
{
	int r;

	c->boot = boot;
	c->pool = pool;
	c->name = name;
	c->terms = *terms;
	c->deadline_ns = (uint64_t)te__boot_timeout_ms(boot) * 1000000;
	/* no rank sends before the packets of all are empty */
	r = te__agree(boot, init(c), "start of collective operations");
	if (!r)
		te__pool_set_look(pool, look, c);
	return r;
}

void te__coll_fini(struct te__coll *c)
{
	if (c->pool)
		te__pool_set_look(c->pool, NULL, NULL);
	c->queued = te_stream_unref(c->queued);
	c->captured = te_stream_unref(c->captured);
	c->order = te_event_unref(c->order);
	te__free(c->list);
	te__free(c->heads);
	c->group.stream = te_stream_unref(c->group.stream);
	if (c->status)
		(void)te_pinned_free(te__pool_ctx(c->pool), c->status);
	if (c->ctl)
		te__mem_put(te__pool_ctx(c->pool), c->ctl);
}

/* ---- failure ---- */

static const char *const op_names[TE_K_COMM_OPS] = {
	"a sum", "an average", "a minimum", "a maximum",
};

/* text of a header: te_k_comm_signature() and the collective */
static void operation_text(uint64_t s, char *ret, size_t nbytes)
{
	static const char *const name[] = {
		[TE_K_COLL_ALLREDUCE_NORM] = "a sum and norm",
		[TE_K_COLL_REDUCE_SCATTER] = "a reduce-scatter",
		[TE_K_COLL_ALL_GATHER] = "an all-gather",
		[TE_K_COLL_BROADCAST] = "a broadcast",
	};
	const unsigned o = s >> 44 & 15, algorithm = s >> 48 & 15, what = s >> 60;
	const int nbits = what == TE_K_COLL_BROADCAST ? 37 : 40;
	const char *by = te__coll_kernel_name((int32_t)algorithm);
	char from[24] = "";

	if (what == TE_K_COLL_ALLREDUCE && o == (TE_COMM_MAX | TE_K_COMM_BARRIER)) {
		snprintf(ret, nbytes, "a barrier");
		return;
	}
	if (what == TE_K_COLL_BROADCAST)
		snprintf(from, sizeof(from), " from rank %d", te_k_comm_root(s));
	if (what >= sizeof(name) / sizeof(name[0]) || !by ||
	    (what == TE_K_COLL_ALLREDUCE && o >= TE_K_COMM_OPS))
		snprintf(ret, nbytes, "operation %016llx", (unsigned long long)s);
	else
		snprintf(ret, nbytes, "%s of %llu %s by %s%s",
			 what == TE_K_COLL_ALLREDUCE ? op_names[o] : name[what],
			 (unsigned long long)(s & (((uint64_t)1 << nbits) - 1)),
			 te_dtype_name((enum te_dtype)(s >> 40 & 15)), by, from);
}

void te__message_text(uint64_t s, char *ret, size_t nbytes)
{
	static const char *const kind[TE_K_COMM_KINDS] = {
		[TE_K_COMM_POINT] = "from one rank to another",
		[TE_K_COMM_ALLTOALL] = "of an all-to-all",
		[TE_K_COMM_GATHER] = "of a gather",
		[TE_K_COMM_SCATTER] = "of a scatter",
		[TE_K_COMM_REDUCE] = "of ",
	};
	const unsigned k = s >> 48 & 15, op = s >> 44 & 15, blocks = s >> 52 & 255;
	char by[32] = "";

	if (blocks)
		snprintf(by, sizeof(by), " with max_blocks %u", blocks);
	snprintf(ret, nbytes, "%llu %s %s%s%s",
		 (unsigned long long)(s & (((uint64_t)1 << 40) - 1)),
		 te_dtype_name((enum te_dtype)(s >> 40 & 15)),
		 k < TE_K_COMM_KINDS ? kind[k] : "of another version",
		 k == TE_K_COMM_REDUCE && op < TE_K_COMM_OPS ? op_names[op] : "", by);
}

/* for all ranks to read; rank found it */
static void mismatch_text(const struct te_k_comm_status *s, const char *peer, int32_t rank,
			  char *ret, size_t nbytes)
{
	const uint64_t epoch = ((uint64_t)1 << 40) - 1; /* bits of the epoch in a head */
	const uint64_t blocks = (uint64_t)255 << 52;	/* bits of max_blocks in a message's */
	char mine[96], theirs[96];

	if (s->code == TE_K_COMM_MISMATCH_AT && ((s->expected ^ s->got) & epoch)) {
		snprintf(ret, nbytes, "%s is at operation %llu, rank %d at %llu", peer,
			 (unsigned long long)(s->got & epoch), rank,
			 (unsigned long long)(s->expected & epoch));
		return;
	}
	if (s->code == TE_K_COMM_MISMATCH_AT) {
		snprintf(ret, nbytes, "operation %llu of %s has arrays at other offsets of "
			 "symmetric memory than on rank %d", (unsigned long long)s->epoch, peer,
			 rank);
		return;
	}
	if (s->phase == TE_K_COMM_RECEIVE) {
		const uint64_t shown = (s->expected ^ s->got) & blocks ? ~(uint64_t)0 : ~blocks;

		te__message_text(s->expected & shown, mine, sizeof(mine));
		te__message_text(s->got & shown, theirs, sizeof(theirs));
		snprintf(ret, nbytes, "message %llu of %s is %s, expected %s",
			 (unsigned long long)s->epoch, peer, theirs, mine);
		return;
	}
	operation_text(s->expected, mine, sizeof(mine));
	operation_text(s->got, theirs, sizeof(theirs));
	snprintf(ret, nbytes, "operation %llu of %s is %s, of rank %d %s",
		 (unsigned long long)s->epoch, peer, theirs, rank, mine);
}

/* "rank 2 (...)", or "rank 2 (...), ranks 3, 5" */
static void missing_text(const struct te__coll *c, const struct te_k_comm_status *s, char *ret,
			 size_t nbytes)
{
	const int32_t n = te__boot_nranks(c->boot);
	const char *between = ", and neither rank ";
	size_t at;

	snprintf(ret, nbytes, "%s", te__boot_peer(c->boot, s->peer));
	for (int32_t r = s->peer + 1; r < n; r++) {
		at = strlen(ret);
		if (!(s->missing >> r & 1))
			continue;
		snprintf(ret + at, nbytes - at, "%s%d", between, r);
		between = ", ";
	}
}

/* report a failure that a kernel has described, once; the control page has it for all ranks */
static void tell(struct te__coll *c)
{
	const struct te_k_comm_status s = *c->status;
	char text[240], who[160];

	c->told = 1;
	if (s.code == TE_K_COMM_ABORTED)
		return;
	if (s.peer < 0) {
		snprintf(text, sizeof(text), "%s: other kernels have kept multiprocessors from "
			 "blocks of operation %llu for %llu ms",
			 te__boot_peer(c->boot, te__boot_rank(c->boot)),
			 (unsigned long long)s.epoch,
			 (unsigned long long)(c->deadline_ns / 1000000));
		te__pool_abort(c->pool, -ETIMEDOUT, text);
		return;
	}
	if (s.code >= TE_K_COMM_MISMATCH) {
		mismatch_text(&s, te__boot_peer(c->boot, s.peer), te__boot_rank(c->boot), text,
			      sizeof(text));
		te__pool_abort(c->pool, -TE_EMISMATCH, text);
		return;
	}
	if (te__pool_has_left(c->pool, s.peer)) {
		snprintf(text, sizeof(text), "%s has released its communicator before %s %llu of "
			 "%s", te__boot_peer(c->boot, s.peer),
			 s.phase < TE_K_COMM_SEND ? "operation" : "message",
			 (unsigned long long)s.epoch,
			 te__boot_peer(c->boot, te__boot_rank(c->boot)));
		te__pool_abort(c->pool, -TE_EPEER, text);
		return;
	}
	missing_text(c, &s, who, sizeof(who));
	snprintf(text, sizeof(text), "%s has not %s %llu %s %s within %llu ms", who,
		 s.phase == TE_K_COMM_SEND    ? "received message" :
		 s.phase >= TE_K_COMM_RECEIVE ? "sent message" :
						"taken part in operation",
		 (unsigned long long)s.epoch, s.phase >= TE_K_COMM_RECEIVE ? "to" : "of",
		 te__boot_peer(c->boot, te__boot_rank(c->boot)),
		 (unsigned long long)(c->deadline_ns / 1000000));
	te__pool_abort(c->pool, -ETIMEDOUT, text);
}

static void look(void *arg)
{
	struct te__coll *c = arg;

	if (!c->told && __atomic_load_n(&c->status->complete, __ATOMIC_ACQUIRE))
		tell(c);
}

/* rails detect it if there are several nodes */
static int check_peers(const struct te__coll *c, const char *fn)
{
	char text[200];

	for (int32_t i = 0; !c->nodes && i < te__boot_nranks(c->boot); i++)
		if (i != te__boot_rank(c->boot) && te__pool_has_left(c->pool, i)) {
			snprintf(text, sizeof(text), "%s has released its communicator",
				 te__boot_peer(c->boot, i));
			te__pool_abort(c->pool, -TE_EPEER, text);
		}
	return te__pool_check(c->pool, fn);
}

/* ---- queueing ---- */

int te__coll_group_open(const struct te__coll *c, const char *fn)
{
	return te__fail(-EBUSY, "%s: %s: a group of messages is open, te_comm_group_end() ends it",
			fn, c->name);
}

/* the program orders launches of recordings, so a capture orders only its own operations */
int te__coll_begin(struct te__coll *c, const char *fn, struct te_stream *stream)
{
	const int captured = te__stream_not_capturing(stream, NULL) < 0;
	struct te_stream **last = captured ? &c->captured : &c->queued;
	int r = check_peers(c, fn);

	if (!r && c->group.open)
		r = te__coll_group_open(c, fn);
	if (r || *last == stream)
		return r;
	if (*last && !captured) {
		r = te__stream_follow(stream, *last);
	} else if (*last && te__stream_same_capture(*last, stream)) {
		r = te_event_record(c->order, *last);
		if (!r)
			r = te_event_wait(c->order, stream);
	}
	if (r)
		return r;
	te_stream_unref(*last);
	*last = te_stream_ref(stream);
	return 0;
}

void *te__coll_word(const struct te__coll *c)
{
	return (char *)c->ctl + WORD_AT;
}

struct te_k_comm te__coll_args(const struct te__coll *c)
{
	return (struct te_k_comm){
		.slots = te__pool_packets(c->pool, 0),
		.ctl = c->ctl,
		.abort = te__pool_abort_word(c->pool),
		.status = c->status,
		.multicast = te__pool_multicast(c->pool),
		.stride = (int64_t)te__pool_stride(c->pool),
		.buffer_nbytes = c->terms.buffer_nbytes,
		.deadline_ns = c->deadline_ns,
		.nranks = te__boot_nranks(c->boot),
		.rank = te__boot_rank(c->boot),
		.max_blocks = c->terms.max_blocks,
	};
}

struct te_k_comm te__coll_args_alone(const struct te__coll *c)
{
	struct te_k_comm k = te__coll_args(c);

	k.ctl = (struct te_k_comm_ctl *)(void *)((char *)c->ctl + ALONE_AT);
	k.nranks = 1;
	k.rank = 0;
	k.max_blocks = TE_K_COMM_CTAS;
	return k;
}
