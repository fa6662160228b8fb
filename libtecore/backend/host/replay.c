/*
 * replay.c - launches of host graphs that have independent branches.
 *
 * The worker of the stream executes the graph, and helper threads of the device execute other
 * nodes that are ready concurrently. The worker needs no helper to finish, so a launch cannot
 * deadlock when all helpers are busy with other launches. A graph that is one chain is executed by
 * the worker alone, as is one that TE_HOST_SHUFFLE has drawn an order for.
 *
 * The first failure is the one that executing the nodes in order would report: when a node fails,
 * nodes with lower numbers still run, and nodes with higher numbers that have not begun do not.
 */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/backend/host/host.h"

/* nodes whose dependencies have finished, in the order in which they became ready */
struct queue {
	uint32_t *v;
	uint32_t head, tail;
};

struct host_replay {
	struct host_replay *prev, *next; /* in the device's list while the launch is executed */
	const struct host_graph *g;
	struct host_stream *s;
	const uint64_t *count; /* counts of the records inside the graph */
	pthread_cond_t ready;
	int waiting; /* the worker waits for ready */
	uint32_t nleft;	 /* nodes that have not finished */
	uint32_t failed; /* the lowest node that failed, or the number of nodes */
	int error;
	char detail[512];
	struct queue queue;
	uint32_t ndeps[]; /* by node: dependencies left; then the memory of the queue */
};

/* graphs */

static int is_chain(const struct host_graph *g)
{
	for (uint64_t i = 1; i < g->nnodes; i++) {
		const uint32_t end = i + 1 < g->nnodes ? g->first.v[i + 1] : g->dep.n;

		/* dependencies are ascending */
		if (end == g->first.v[i] || g->dep.v[end - 1] != i - 1)
			return 0;
	}
	return 1;
}

/* successors of each node: the transpose of the dependencies */
int host_graph_branches(struct host_graph *g)
{
	const uint32_t n = (uint32_t)g->nnodes;
	uint32_t *first, *succ;

	if (is_chain(g))
		return 0;
	first = te__calloc((size_t)n + 2, sizeof(*first));
	succ = te__malloc(g->dep.n * sizeof(*succ));
	if (!first || !succ) {
		te__free(first);
		te__free(succ);
		return te__fail(-ENOMEM, "host: no memory for the branches of a graph");
	}
	/* after the sums first[i + 2] is the end of node i, first[i + 1] its start, until filled */
	for (uint32_t d = 0; d < g->dep.n; d++)
		first[g->dep.v[d] + 2]++;
	for (uint32_t i = 2; i < n + 2; i++)
		first[i] += first[i - 1];
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t end = i + 1 < n ? g->first.v[i + 1] : g->dep.n;

		for (uint32_t d = g->first.v[i]; d < end; d++)
			succ[first[g->dep.v[d] + 1]++] = i;
	}
	g->succ_first = first;
	g->succ = succ;
	return 0;
}

/* nodes */

/* number of records before this node: a launch has their counts in this order */
static uint64_t records_before(const struct host_graph *g, uint64_t number)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < number; i++)
		n += g->node[i].op.kind == HOST_RECORD;
	return n;
}

int host_run_node(struct host_stream *s, const struct host_graph *g, uint64_t number,
		  const uint64_t *count)
{
	const struct host_cmd *node = &g->node[number];

	host_running.error = 0;
	if (node->op.kind == HOST_RECORD) {
		/* its waiters continue while later nodes run */
		host_event_reach(node->op.obj, count[records_before(g, number)]);
		host_stream_progress(s);
	} else {
		host_run(node);
	}
	return host_running.error;
}

/* launches */

int host_replay_new(struct host_graph *g, struct host_replay **ret_replay)
{
	const uint32_t n = (uint32_t)g->nnodes;
	struct host_replay *r;

	if (!g->succ || g->run || g->dev->nthreads < 2) {
		*ret_replay = NULL;
		return 0;
	}
	r = te__malloc(sizeof(*r) + 2 * (size_t)n * sizeof(r->ndeps[0]));
	if (!r)
		return te__fail(-ENOMEM, "host: no memory to launch a graph of %u nodes", n);
	memset(r, 0, sizeof(*r));
	r->g = g;
	r->nleft = n;
	r->failed = n;
	r->queue.v = r->ndeps + n;
	*ret_replay = r;
	return 0;
}

static void push(struct host_replay *r, uint32_t node)
{
	r->queue.v[r->queue.tail++] = node;
}

/* nodes that threads could begin now; with the pool's lock, as all below */
static uint32_t nready(const struct host_replay *r)
{
	return r->queue.tail - r->queue.head;
}

/* the calling thread takes one ready node itself; wake a thread for each of the others */
static void wake(struct host_pool *pool, struct host_replay *r)
{
	uint32_t n = nready(r);

	n -= n != 0;
	if (r->waiting && (n || !r->nleft)) {
		pthread_cond_signal(&r->ready);
		n -= n != 0;
	}
	if (n || !r->nleft)
		host_pool_wake(pool, n);
}

static void finish(struct host_replay *r, uint32_t node, int error)
{
	const struct host_graph *g = r->g;

	if (error && node < r->failed) {
		r->failed = node;
		r->error = error;
		snprintf(r->detail, sizeof(r->detail), "%s", te_error_detail());
	}
	for (uint32_t i = g->succ_first[node]; i < g->succ_first[node + 1]; i++)
		if (!--r->ndeps[g->succ[i]])
			push(r, g->succ[i]);
	r->nleft--;
}

/* 1: the node waits for a word that is not set yet */
static int would_wait(const struct host_op *op)
{
	return op->kind == HOST_WORD_TAKE &&
	       !atomic_load_explicit((_Atomic uint32_t *)op->dst, memory_order_relaxed);
}

/* the next ready node; one that would wait is the next only if all would */
static uint32_t pop(struct host_replay *r)
{
	uint32_t *const v = r->queue.v, head = r->queue.head++;

	for (uint32_t i = head; i < r->queue.tail; i++) {
		const uint32_t node = v[i];

		if (would_wait(&r->g->node[node].op))
			continue;
		v[i] = v[head];
		v[head] = node;
		break;
	}
	return v[head];
}

/* execute ready nodes until there is none, or all have finished */
static void drain(struct host_pool *pool, struct host_replay *r)
{
	while (nready(r)) {
		const uint32_t node = pop(r);
		const int skip = node > r->failed;
		int error = 0;

		pthread_mutex_unlock(&pool->lock);
		if (!skip)
			error = host_run_node(r->s, r->g, node, r->count);
		pthread_mutex_lock(&pool->lock);
		finish(r, node, error);
		wake(pool, r);
	}
}

int host_replay_run(struct host_replay *r, struct host_stream *s, const uint64_t *count)
{
	const struct host_graph *g = r->g;
	const uint32_t n = (uint32_t)g->nnodes;
	struct host_pool *pool = &s->dev->pool;

	r->s = s;
	r->count = count;
	for (uint32_t i = 0; i < n; i++) {
		r->ndeps[i] = (i + 1 < n ? g->first.v[i + 1] : g->dep.n) - g->first.v[i];
		if (!r->ndeps[i])
			push(r, i);
	}
	pthread_cond_init(&r->ready, NULL);
	pthread_mutex_lock(&pool->lock);
	r->next = pool->replays;
	if (r->next)
		r->next->prev = r;
	pool->replays = r;
	wake(pool, r);
	for (drain(pool, r); r->nleft; drain(pool, r)) {
		/* parts of the kernels that other threads run, but no node of another launch: a
		 * host call may wait for this stream */
		if (host_pool_help(pool) || host_pool_spin(pool))
			continue;
		r->waiting = 1;
		pthread_cond_wait(&r->ready, &pool->lock);
		r->waiting = 0;
	}
	if (r->prev)
		r->prev->next = r->next;
	else
		pool->replays = r->next;
	if (r->next)
		r->next->prev = r->prev;
	pthread_mutex_unlock(&pool->lock);
	pthread_cond_destroy(&r->ready);
	return r->error ? te__fail(r->error, "%s", r->detail) : 0;
}

int host_replay_help(struct host_pool *pool)
{
	struct host_replay *r = pool->replays;

	while (r && !nready(r))
		r = r->next;
	if (!r)
		return 0;
	drain(pool, r);
	return 1;
}

void host_replay_wake(struct host_pool *pool, uint32_t n)
{
	for (struct host_replay *r = pool->replays; r && n; r = r->next)
		if (r->waiting) {
			pthread_cond_signal(&r->ready);
			n--;
		}
}

int host_replay_start(const struct host_graph *g)
{
	return !g->succ || g->run ? 0 : host_pool_start(g->dev);
}
