/* ranks.c - the ranks of a run: communicators, and agreement. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <te/errno.h>
#include <te/param.h>

#include "ranks.h"
#include "returns.h"
#include "tools/lib/say.h"
#include "tools/lib/shard.h"

/* Rank 0 saves and takes samples while the others wait, so ranks may be apart for minutes. One that
 * ends is seen immediately. */
#define TIMEOUT_MS 600000
#define RETURN_MS 60000 /* for ranks that return, which have said that they wait */
#define MOST_WORDS 16 /* numbers of a rank, in addition to its losses */
/* words of the communicator come in multiples, so that ranks meet whose numbers of losses differ */
#define WORDS ((int64_t)1 << 16)
#define PIECE ((size_t)1 << 20) /* bytes of weights that are compared or sent together */
#define NCOMMS 4 /* communicators of a rank, at most */

int32_t ranks_n(const struct ranks *r)
{
	return r->others + 1;
}

static int is_set(const char *name)
{
	struct te_param_info p = TE_PARAM_INFO_INIT;

	for (size_t i = 0; i < te_param_count(); i++)
		if (!te_param_info(i, &p) && !strcmp(p.name, name))
			return !strcmp(p.source, "environment");
	return 0;
}

int32_t ranks_nparts(const struct ranks *r)
{
	return r->nparts ? r->nparts : 1;
}

int32_t ranks_ndata(const struct ranks *r)
{
	return ranks_n(r) / ranks_nparts(r);
}

int32_t ranks_first_ndata(const struct ranks *r)
{
	return (r->nfirst ? r->nfirst : 1) / ranks_nparts(r);
}

/* number of the set of ranks with equal weights that has rank i */
static int32_t weights_of(const struct ranks *r, int32_t i)
{
	return r->context ? 0 : i % ranks_nparts(r);
}

static struct te_comm_opts comm_opts(const char *name, uint64_t nbytes)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;

	o.name = name;
	o.timeout_ms = is_set("TE_COMM_TIMEOUT_MS") ? 0 : TIMEOUT_MS;
	/* blocks begin at multiples of 2 MiB within the pool */
	o.pool_nbytes = nbytes + ((uint64_t)4 << 20);
	return o;
}

/* memory for exchanges of the ranks; one rank needs no communicator */
static int begin(struct ranks *r)
{
	void *p = NULL;
	int te = 0;

	r->rank = te_comm_rank(r->comm);
	r->others = te_comm_nranks(r->comm) - 1;
	if (r->others)
		te = te_comm_alloc(r->comm, (size_t)r->nwords * sizeof(float), &p);
	else
		r->comm = te_comm_unref(r->comm);
	r->words = p;
	return te;
}

static int join(struct te_ctx *ctx, struct ranks *r)
{
	const struct te_comm_opts o = comm_opts("te_train", (size_t)r->nwords * sizeof(float));
	int te = te_comm_create(ctx, &o, &r->comm);

	if (te < 0)
		return te;
	r->nfirst = te_comm_nranks(r->comm);
	if (r->nfirst > MOST_RANKS)
		return te_fail(-EINVAL, "%d ranks, at most %d can train", (int)r->nfirst,
			       MOST_RANKS);
	for (int32_t i = 0; i < r->nfirst; i++)
		r->number[i] = i;
	return begin(r);
}

/* before anything is trained: collectives refuse too many ranks of one node */
static int check_number(const struct ranks *r)
{
	struct te_comm_choice c = TE_COMM_CHOICE_INIT;
	struct te_comm_call call = TE_COMM_CALL_INIT;

	call.in = call.out = r->words;
	call.count = r->nwords;
	return r->comm ? te_comm_explain(r->comm, &call, &c) : 0;
}

/* all ranks wait: when the first ends, te_run ends the others, maybe before they print an error */
int ranks_refuse(const struct ranks *r)
{
	(void)te_comm_reclaim(r->comm); /* a meeting */
	return STATUS_BAD;
}

int ranks_open(struct te_ctx *ctx, int32_t nstages, int32_t nshards, int32_t ncontext,
	       int64_t naccum, struct ranks *ret_r)
{
	int te;

	ret_r->nparts = nstages * nshards * ncontext;
	ret_r->nshards = nshards;
	ret_r->context = ncontext > 1;
	if (!te_comm_launched())
		return STATUS_OK;
	ret_r->nwords = (MOST_RANKS * (naccum + MOST_WORDS) + WORDS - 1) / WORDS * WORDS;
	if (returns_starts() > 0)
		return STATUS_OK;
	if (returns_train())
		return STATUS_FAILED;
	te = join(ctx, ret_r);
	if (te < 0)
		return say_te(te, "joining the ranks");
	say_only_failures(ret_r->rank > 0);
	te = check_number(ret_r);
	if (te < 0) {
		if (!ret_r->rank)
			say_te(te, "the ranks cannot train");
		return ranks_refuse(ret_r);
	}
	return STATUS_OK;
}

struct te_comm *ranks_shards(const struct ranks *r)
{
	return r->nparts == r->nshards ? r->model : r->stage;
}

/* the ranks of a model are neighbours, and so are the ranks of a stage */
int ranks_divide(struct ranks *r)
{
	const struct te_comm_opts o = comm_opts("model", 0), s = comm_opts("stage", 0);
	const int32_t n = r->nparts, nshards = r->nshards;
	int te = 0;

	if (ranks_n(r) % n) {
		if (!r->rank)
			say_bad("--%s %d: %d rank%s cannot be divided into models; start "
				"te_train with te_run -n %d, for example",
				r->context ? "context" : n > nshards ? "pipeline" : "tensor",
				(int)(n > nshards ? n / nshards : n), (int)ranks_n(r),
				ranks_n(r) == 1 ? "" : "s", (int)n);
		return ranks_refuse(r);
	}
	if (n > 1)
		te = te_comm_split(r->comm, r->rank / n, 0, &o, &r->model);
	if (te >= 0 && nshards > 1 && n > nshards)
		te = te_comm_split(r->comm, r->rank / nshards, 0, &s, &r->stage);
	if (te < 0)
		return say_te(te, "the ranks of a model");
	r->data_rank = r->rank / n;
	return STATUS_OK;
}

int ranks_share(struct ranks *r, size_t nbytes)
{
	const struct te_comm_opts o = comm_opts("data", nbytes);
	const int te = te_comm_split(r->comm, weights_of(r, r->rank), 0, &o, &r->data);

	r->taken_nbytes = te >= 0 && nbytes ? o.pool_nbytes : 0;
	return te;
}

void ranks_undivide(struct ranks *r)
{
	te_comm_reducer_unref(r->reducer);
	te_comm_reducer_unref(r->amaxes);
	if (r->data)
		te_comm_free(r->data, r->taken);
	r->met = te_event_unref(r->met);
	free(r->divided);
	te_comm_unref(r->data);
	te_comm_unref(r->stage);
	te_comm_unref(r->model);
	r->reducer = r->amaxes = NULL;
	r->data = r->model = r->stage = NULL;
	r->taken = r->grads = r->weights = NULL;
	r->weights_nbytes = 0;
	r->mapped = 0;
	r->divided = NULL;
	r->seq = NULL;
	r->taken_nbytes = 0;
}

static void leave(struct ranks *r)
{
	if (r->comm)
		te_comm_free(r->comm, r->words);
	r->words = NULL;
	r->comm = te_comm_unref(r->comm);
}

void ranks_close(struct ranks *r)
{
	ranks_undivide(r);
	leave(r);
	memset(r, 0, sizeof(*r));
}

/* ---- exchanges ---- */

/*
 * The communicator of the gradients or of a model, if it has all ranks: after a time-out in a step,
 * nothing waits for a time-out of another communicator.
 */
static struct te_comm *of_all(const struct ranks *r)
{
	if (r->data && (!r->model || r->context))
		return r->data;
	return r->model && !r->data ? r->model : r->comm;
}

/* each rank has zeros except in its own block, so the sum has the blocks of all, bit for bit */
static int add_up(const struct ranks *r, struct te_stream *stream, int64_t n, enum te_dtype dtype)
{
	return te_comm_allreduce(of_all(r), stream, r->words, r->words, n, dtype, TE_COMM_SUM,
				 NULL);
}

int ranks_exchange(const struct ranks *r, struct te_stream *stream, struct te_tensor *const *loss,
		   int64_t naccum, const float *x, int n, float *all)
{
	const int64_t block = naccum + n, nwords = ranks_n(r) * block;
	const int64_t at = r->rank * block;
	int te;

	memset(all, 0, (size_t)nwords * sizeof(*all));
	memcpy(all + at + naccum, x, (size_t)n * sizeof(*x));
	te = te_copy(stream, r->words, all, (size_t)nwords * sizeof(*all));
	for (int64_t i = 0; i < naccum && te >= 0; i++)
		te = loss[i] ? te_copy(stream, r->words + at + i, te_tensor_data(loss[i]),
				       sizeof(*all)) : 0;
	if (te >= 0)
		te = add_up(r, stream, nwords, TE_DTYPE_FP32);
	return te < 0 ? te : te_copy(stream, all, r->words, (size_t)nwords * sizeof(*all));
}

/* one rank has fewer */
static int all_of(const struct ranks *r, struct te_comm *ret_comm[NCOMMS])
{
	struct te_comm *const all[NCOMMS] = { r->model, r->stage, r->data, r->comm };
	int n = 0;

	for (int i = 0; i < NCOMMS; i++)
		if (all[i])
			ret_comm[n++] = all[i];
	return n;
}

int ranks_check(const struct ranks *r)
{
	struct te_comm *comm[NCOMMS];
	const int n = all_of(r, comm);
	int te = 0;

	for (int i = 0; i < n && te >= 0; i++)
		te = te_comm_error(comm[i]);
	return te;
}

void ranks_abort(const struct ranks *r, const char *why)
{
	struct te_comm *comm[NCOMMS];
	const int n = all_of(r, comm);

	for (int i = 0; i < n; i++)
		te_comm_abort(comm[i], why);
}

/* all: n of each rank, in rank order; waits */
static int gather(const struct ranks *r, struct te_stream *stream, const int32_t *own, int n,
		  int32_t *all)
{
	const size_t nbytes = (size_t)(ranks_n(r) * n) * sizeof(*all);
	int te;

	memset(all, 0, nbytes);
	memcpy(all + r->rank * n, own, (size_t)n * sizeof(*own));
	te = te_copy(stream, r->words, all, nbytes);
	if (te >= 0)
		te = add_up(r, stream, ranks_n(r) * n, TE_DTYPE_INT32);
	if (te >= 0)
		te = te_copy(stream, all, r->words, nbytes);
	te = settle(stream, te);
	return te < 0 ? te : te_comm_error(of_all(r));
}

int ranks_any(const struct ranks *r, struct te_stream *stream, int x, int *ret_any)
{
	int32_t all[MOST_RANKS], own = x;
	int te = gather(r, stream, &own, 1, all);

	*ret_any = 0;
	for (int32_t i = 0; i < ranks_n(r) && te >= 0; i++)
		*ret_any |= all[i] != 0;
	return te;
}

int ranks_first(const struct ranks *r, struct te_stream *stream, int *x)
{
	int32_t all[MOST_RANKS], own = *x;
	int te = r->comm ? gather(r, stream, &own, 1, all) : 0;

	if (te >= 0 && r->comm)
		*x = all[0];
	return te;
}

int ranks_all(const struct ranks *r, struct te_stream *stream, const float *own, int n, float *all)
{
	int32_t bits[MOST_RANKS * MOST_WORDS], mine[MOST_WORDS];
	int te;

	memcpy(mine, own, (size_t)n * sizeof(*own));
	te = gather(r, stream, mine, n, bits);
	if (te >= 0)
		memcpy(all, bits, (size_t)(ranks_n(r) * n) * sizeof(*all));
	return te;
}

int ranks_differ(const struct ranks *r, struct te_stream *stream, const int32_t *own, int n,
		 int *ret_i, int32_t *ret_rank)
{
	int32_t all[MOST_RANKS * MOST_WORDS];
	int te = 0;

	*ret_i = -1;
	for (int at = 0, len; at < n && te >= 0 && *ret_i < 0; at += len) {
		len = n - at < MOST_WORDS ? n - at : MOST_WORDS;
		te = gather(r, stream, own + at, len, all);
		for (int k = len; k < len * ranks_n(r) && te >= 0 && *ret_i < 0; k++) {
			if (all[k] == all[k % len])
				continue;
			*ret_i = at + k % len;
			*ret_rank = k / len;
		}
	}
	return te;
}

int ranks_last(const struct ranks *r, struct te_stream *stream, float *x)
{
	float all[MOST_RANKS];
	int te = ranks_all(r, stream, x, 1, all);

	if (te >= 0)
		*x = all[(r->rank / r->nparts + 1) * r->nparts - 1];
	return te;
}

int ranks_newest(const struct ranks *r, struct te_stream *stream, int64_t step, int32_t *ret_rank,
		 int64_t *ret_step, int *ret_all)
{
	int32_t own[2], bits[2 * MOST_RANKS];
	int64_t all[MOST_RANKS] = { step };
	int te = 0;

	memcpy(own, &step, sizeof(own));
	if (r->comm) {
		te = gather(r, stream, own, 2, bits);
		memcpy(all, bits, (size_t)ranks_n(r) * sizeof(*all));
	}
	*ret_rank = 0;
	*ret_all = 1;
	for (int32_t i = 1; i < ranks_n(r) && te >= 0; i++) {
		*ret_all &= all[i] == all[0];
		if (all[i] > all[*ret_rank])
			*ret_rank = i;
	}
	*ret_step = all[*ret_rank];
	return te;
}

int ranks_send(const struct ranks *r, struct te_stream *stream, int32_t root, void *p,
	       size_t nbytes)
{
	void *piece = NULL;
	int te = te_mem_alloc(stream, PIECE, &piece);

	for (size_t i = 0; i < nbytes && te >= 0; i += PIECE) {
		const size_t n = nbytes - i < PIECE ? nbytes - i : PIECE;
		char *at = (char *)p + i;

		te = r->rank == root ? te_copy(stream, piece, at, n) : 0;
		if (te >= 0)
			te = te_comm_broadcast(of_all(r), stream, piece, (int64_t)n,
					       TE_DTYPE_UINT8, root, NULL);
		if (te >= 0 && r->rank != root)
			te = te_copy(stream, at, piece, n);
		te = settle(stream, te);
		if (te >= 0)
			te = te_comm_error(of_all(r));
	}
	if (piece)
		te_mem_free(stream, piece);
	return te < 0 ? say_te(te, "the state of rank %d", (int)r->number[root]) : STATUS_OK;
}

int ranks_status(const struct ranks *r, struct te_stream *stream, int status)
{
	int te = ranks_first(r, stream, &status);

	return te < 0 ? say_te(te, "rank 0 saves") : status;
}

/* ---- recovery ---- */

/* was: ranks in the failed communicator of the remaining ranks */
static void succeed(struct ranks *r, struct te_comm *next, const int32_t *was)
{
	for (int32_t i = 0; i < ranks_n(r); i++)
		if (r->state[r->number[i]] == RANK_TRAINS)
			r->state[r->number[i]] = RANK_LOST;
	leave(r);
	r->comm = next;
	r->rank = te_comm_rank(next);
	r->others = te_comm_nranks(next) - 1;
	for (int32_t i = 0; i < ranks_n(r); i++) {
		r->number[i] = r->number[was[i]]; /* was[i] >= i */
		r->state[r->number[i]] = RANK_TRAINS;
	}
}

/* 1: the ranks of a model begin at rank i, and all of them remain */
static int is_whole(const struct ranks *r, int32_t i)
{
	const int32_t last = r->nparts - 1;

	return r->number[i] % r->nparts == 0 && i + last < ranks_n(r) &&
	       r->number[i + last] == r->number[i] + last;
}

/* models keep their ranks, so that these remain on one node; returns the number of models */
static int32_t choose(struct ranks *r, int64_t nmicro)
{
	int32_t nwhole = 0, n;

	for (int32_t i = 0; i < ranks_n(r); i++)
		nwhole += is_whole(r, i);
	for (n = nwhole; n && nmicro % n;)
		n--;
	nwhole = 0;
	for (int32_t i = 0; n && i < ranks_n(r);) {
		const int goes_on = is_whole(r, i) && nwhole++ < n;
		const int32_t k = goes_on ? r->nparts : 1;

		for (int32_t end = i + k; i < end; i++)
			r->state[r->number[i]] = goes_on ? RANK_TRAINS : RANK_IDLE;
	}
	return n;
}

int ranks_recover(struct ranks *r, struct te_stream *stream, int64_t nmicro, const int32_t *own,
		  int n, int32_t *all)
{
	int32_t was[MOST_RANKS], nmodels;
	struct te_comm *next;
	int te;

	/*
	 * Ranks that are left over release the communicator, and the other ranks recover it again:
	 * so all agree on who does, whoever is lost meanwhile. They exchange something
	 * first, because a rank may return from te_comm_recover() while another one is in it, and
	 * would be lost if the communicator failed then.
	 */
	do {
		te = te_comm_recover(r->comm, NULL, was, &next);
		if (te < 0)
			return te;
		succeed(r, next, was);
		say_only_failures(r->rank > 0);
		memcpy(all, own, (size_t)n * sizeof(*all));
		te = begin(r);
		if (te >= 0 && r->comm)
			te = gather(r, stream, own, n, all);
		nmodels = choose(r, nmicro);
		if (!nmodels)
			return te_fail(-EINVAL, "--%s %d: no model has all its ranks",
				       r->context ? "context" : "tensor", (int)r->nparts);
	} while (!ranks_is_idle(r) && nmodels * r->nparts < ranks_n(r));
	return ranks_is_idle(r) ? 0 : te;
}

/* ---- ranks that return ---- */

/* rank: this one's number in the offer */
static int meet(struct te_ctx *ctx, const struct offer *o, int32_t rank, int64_t nwords,
		struct te_comm **ret_comm)
{
	const struct te_comm_opts work = comm_opts("te_train", (size_t)nwords * sizeof(float));
	struct te_comm_opts first = comm_opts("return", 0);
	struct te_comm *comm = NULL;
	int te;

	first.rank = rank;
	first.nranks = o->n;
	first.id = &o->id;
	if (first.timeout_ms)
		first.timeout_ms = RETURN_MS;
	te = te_comm_create(ctx, &first, &comm);
	/* with the time limit of training */
	if (te >= 0)
		te = te_comm_split(comm, 0, 0, &work, ret_comm);
	te_comm_unref(comm);
	return te;
}

/* the ranks of the offer have met */
static int begin_offered(struct ranks *r, struct te_stream *stream, const struct offer *o,
			 struct te_comm *comm)
{
	int any, te;

	leave(r);
	r->comm = comm;
	for (int32_t i = 0; i < o->n; i++) {
		r->number[i] = o->rank[i];
		r->state[o->rank[i]] = RANK_TRAINS;
	}
	te = begin(r);
	/* a rank may return from the split while another one is in it */
	return te < 0 ? te : ranks_any(r, stream, 0, &any);
}

int ranks_grow(struct te_ctx *ctx, struct ranks *r, struct te_stream *stream, int64_t nmicro,
	       int64_t nrecovered)
{
	struct te_comm_root *root = NULL;
	struct te_comm *comm = NULL;
	struct offer o = { 0 };
	int failed = 0, te = 0, ready = 0;

	if (!r->rank && returns_look(r, nmicro, &o)) {
		o.nrecovered = nrecovered;
		te = te_comm_id_create(&o.id, &root);
		if (te >= 0)
			te = returns_write(&o);
		ready = te >= 0;
		failed = !ready;
		if (failed)
			say_te(te, "an id for ranks that return");
	}
	te = ranks_first(r, stream, &ready);
	if (te >= 0 && ready) {
		failed = (r->rank && returns_read(&o)) ||
			 meet(ctx, &o, r->rank, r->nwords, &comm) < 0;
		te = r->comm ? ranks_any(r, stream, failed, &failed) : 0;
	}
	for (int32_t i = o.nold; i < o.n && failed; i++)
		r->absent[o.rank[i]] = o.start[i];
	te_comm_root_unref(root);
	if (te < 0 || !ready || failed) {
		te_comm_unref(comm);
		return te < 0 ? te : 0;
	}
	te = begin_offered(r, stream, &o, comm);
	return te < 0 ? te : 1;
}

/* all ranks wait, and this is the first of them */
static int offer_all(struct offer *o, struct te_comm_root **ret_root)
{
	int te = te_comm_id_create(&o->id, ret_root);

	o->nrecovered = 1;
	return te < 0 ? te : returns_write(o);
}

int ranks_return(struct te_ctx *ctx, struct ranks *r, struct te_stream *stream,
		 int64_t *ret_nrecovered, int *ret_all)
{
	const char *number = getenv("TE_COMM_RANK"), *nranks = getenv("TE_COMM_NRANKS");
	struct te_comm_root *root = NULL;
	struct te_comm *comm = NULL;
	struct offer o;
	int32_t rank = 0;
	int te;

	r->nfirst = nranks ? atoi(nranks) : 0;
	if (!number || r->nfirst < 1 || r->nfirst > MOST_RANKS)
		return say_bad("TE_COMM_NRANKS is %s: expected 1 to %d",
			       nranks ? nranks : "not set", MOST_RANKS);
	memset(r->state, RANK_LOST, sizeof(r->state));
	te = returns_wait(atoi(number), r->nfirst, &o, &rank);
	if (te < 0 || returns_train())
		return STATUS_FAILED;
	te = te ? offer_all(&o, &root) : 0;
	if (te >= 0)
		te = meet(ctx, &o, rank, r->nwords, &comm);
	if (te >= 0)
		te = begin_offered(r, stream, &o, comm);
	te_comm_root_unref(root);
	*ret_nrecovered = o.nrecovered;
	*ret_all = !o.nold;
	if (te < 0)
		return say_te(te, "joining the ranks that train");
	say_only_failures(r->rank > 0);
	return STATUS_OK;
}

int ranks_is_idle(const struct ranks *r)
{
	return r->state[r->number[r->rank]] == RANK_IDLE;
}

int ranks_name(const struct ranks *r, const struct ranks *before, enum rank_state state,
	       char ret_text[RANKS_TEXT])
{
	char *p = ret_text + sizeof("ranks") - 1;
	int n = 0;

	for (int32_t i = 0; i < r->nfirst; i++)
		if (r->state[i] == state && before->state[i] != state)
			p += sprintf(p, n++ ? ", %d" : " %d", (int)i);
	memcpy(ret_text, "ranks", sizeof("ranks") - 1);
	if (n == 1)
		memmove(ret_text + 4, ret_text + 5, strlen(ret_text + 5) + 1);
	return n;
}

static int digest_weights(const struct te_seq *seq, struct te_stream *stream, char *ret_text)
{
	const struct te_tensor *w = te_seq_masters(seq);
	const char *p = te_tensor_data(w);
	const size_t nbytes = te_tensor_nbytes(w);
	struct digest d = { 0 };
	char *piece = malloc(PIECE);
	int te = 0;

	if (!piece)
		return say_failed("out of memory");
	for (size_t i = 0; i < nbytes && te >= 0; i += PIECE) {
		const size_t n = nbytes - i < PIECE ? nbytes - i : PIECE;

		te = te_copy(stream, piece, p + i, n);
		if (te >= 0)
			te = te_stream_sync(stream);
		digest_add(&d, piece, n);
	}
	free(piece);
	digest_end(&d, ret_text);
	return te < 0 ? say_te(te, "reading the weights") : STATUS_OK;
}

int ranks_compare(const struct ranks *r, struct te_stream *stream, const struct te_seq *seq)
{
	int32_t own[4], all[4 * MOST_RANKS];
	char text[DIGEST_NBYTES];
	int te;

	/* a rank that has a part of them is the only one */
	if (!r->comm || te_tensor_nelems(te_seq_masters(seq)) < te_seq_nelems(seq))
		return STATUS_OK;
	te = digest_weights(seq, stream, text);
	if (te)
		return te;
	memcpy(own, text, sizeof(own)); /* 16 digits */
	te = gather(r, stream, own, 4, all);
	if (te < 0)
		return say_te(te, "comparing the weights of all ranks");
	for (int32_t i = 0; i < ranks_n(r); i++) {
		const int32_t k = weights_of(r, i);

		if (memcmp(all + 4 * i, all + 4 * k, sizeof(own)))
			return say_failed("the weights of rank %d differ from rank %d; they are "
					  "not saved", (int)i, (int)k);
	}
	return STATUS_OK;
}
