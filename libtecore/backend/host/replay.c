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
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/backend/host/host.h"

/* nodes whose dependencies have finished, in the order in which they became ready */
struct queue {
	uint32_t *v;
	uint32_t head, tail;
};

/* BLAS libraries use all cores for one GEMM and are slow when two threads call them */
enum { ANY, BLAS, NQUEUES };

struct host_replay {
	struct host_replay *prev, *next; /* in the device's list while the launch is executed */
	const struct host_graph *g;
	struct host_stream *s;
	const uint64_t *count; /* of the records inside the graph */
	pthread_cond_t ready;
	int waiting; /* the worker waits for ready */
	int blas_running;
	uint32_t nleft;	 /* nodes that have not finished */
	uint32_t failed; /* the lowest node that failed, or the number of nodes */
	int error;
	char detail[512];
	struct queue queue[NQUEUES];
	uint32_t ndeps[]; /* of each node: dependencies left; then the memory of both queues */
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

/* launches */

int host_replay_new(struct host_graph *g, struct host_replay **ret_replay)
{
	const uint32_t n = (uint32_t)g->nnodes;
	struct host_replay *r;

	if (!g->succ || g->run || g->dev->nthreads < 2) {
		*ret_replay = NULL;
		return 0;
	}
	r = te__malloc(sizeof(*r) + (1 + NQUEUES) * (size_t)n * sizeof(r->ndeps[0]));
	if (!r)
		return te__fail(-ENOMEM, "host: no memory to launch a graph of %u nodes", n);
	memset(r, 0, sizeof(*r));
	r->g = g;
	r->nleft = n;
	r->failed = n;
	for (int k = 0; k < NQUEUES; k++)
		r->queue[k].v = r->ndeps + (size_t)(1 + k) * n;
	*ret_replay = r;
	return 0;
}

static int calls_blas(const struct host_op *op)
{
#ifdef HAVE_CBLAS
	return op->kind == HOST_KERNEL && op->value == TE_K_GEMM &&
	       te__param_enum(TE_PARAM_GEMM_HOST) != TE__GEMM_HOST_REF;
#else
	(void)op;
	return 0;
#endif
}

static void push(struct host_replay *r, uint32_t node)
{
	struct queue *q = &r->queue[calls_blas(&r->g->node[node].op) ? BLAS : ANY];

	q->v[q->tail++] = node;
}

/* nodes that threads could begin now; with the pool's lock, as all below */
static uint32_t nready(const struct host_replay *r)
{
	const struct queue *any = &r->queue[ANY], *blas = &r->queue[BLAS];

	return any->tail - any->head + (!r->blas_running && blas->head < blas->tail);
}

static int take(struct host_replay *r, uint32_t *ret_node)
{
	struct queue *q = &r->queue[BLAS];

	if (r->blas_running || q->head == q->tail)
		q = &r->queue[ANY];
	else
		r->blas_running = 1;
	if (q->head == q->tail)
		return 0;
	*ret_node = q->v[q->head++];
	return 1;
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
	for (uint32_t i = 0; i < n && i < pool->nidle; i++)
		pthread_cond_signal(&pool->work);
}

static void finish(struct host_replay *r, uint32_t node, int error)
{
	const struct host_graph *g = r->g;

	if (error && node < r->failed) {
		r->failed = node;
		r->error = error;
		snprintf(r->detail, sizeof(r->detail), "%s", te_error_detail());
	}
	if (calls_blas(&g->node[node].op))
		r->blas_running = 0;
	for (uint32_t i = g->succ_first[node]; i < g->succ_first[node + 1]; i++)
		if (!--r->ndeps[g->succ[i]])
			push(r, g->succ[i]);
	r->nleft--;
}

/* execute ready nodes until there is none, or all have finished */
static void drain(struct host_pool *pool, struct host_replay *r)
{
	uint32_t node;

	while (take(r, &node)) {
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
	for (;;) {
		drain(pool, r);
		if (!r->nleft)
			break;
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

/* helper threads */

static void *help(void *arg)
{
	struct host_pool *pool = arg;

	pthread_mutex_lock(&pool->lock);
	while (!pool->quit) {
		struct host_replay *r = pool->replays;

		while (r && !nready(r))
			r = r->next;
		if (r) {
			drain(pool, r);
			continue;
		}
		pool->nidle++;
		pthread_cond_wait(&pool->work, &pool->lock);
		pool->nidle--;
	}
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

void host_pool_init(struct host_dev *dev)
{
	pthread_mutex_init(&dev->pool.lock, NULL);
	pthread_cond_init(&dev->pool.work, NULL);
}

void host_pool_destroy(struct host_dev *dev)
{
	struct host_pool *pool = &dev->pool;

	pthread_mutex_lock(&pool->lock);
	pool->quit = 1;
	pthread_cond_broadcast(&pool->work);
	pthread_mutex_unlock(&pool->lock);
	for (uint32_t i = 0; i < pool->nhelpers; i++)
		pthread_join(pool->helper[i], NULL);
	pthread_cond_destroy(&pool->work);
	pthread_mutex_destroy(&pool->lock);
}

static int start_helper(struct host_pool *pool)
{
	sigset_t all, old;
	int r;

	/* signals are delivered to the program's threads only */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = te__fault_point() ? EAGAIN :
				pthread_create(&pool->helper[pool->nhelpers], NULL, help, pool);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r)
		return te__fail(-EAGAIN, "host: no thread for the branches of a graph: %s",
				te_strerror(-r));
	pool->nhelpers++;
	return 0;
}

int host_pool_start(const struct host_graph *g)
{
	struct host_pool *pool = &g->dev->pool;
	int r = 0;

	if (!g->succ || g->run)
		return 0;
	pthread_mutex_lock(&pool->lock);
	while (!r && pool->nhelpers + 1 < g->dev->nthreads)
		r = start_helper(pool);
	pthread_mutex_unlock(&pool->lock);
	return r;
}
