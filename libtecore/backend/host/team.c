/*
 * team.c - the threads of a device, and the functions of kernels/team.h.
 *
 * A pool of helper threads executes ready nodes of graphs (replay.c) and parts of kernels that a
 * thread splits by te__k_for(). That thread executes parts itself until none is left, so that it
 * needs no helper to finish, and nothing can deadlock when all helpers are busy. Helpers prefer
 * nodes: these are larger, and a kernel that gets no help still finishes.
 */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <errno.h>
#include <stdio.h>

#include "kernels/team.h"
#include "libtecore/backend/host/host.h"

/*
 * Time that an idle thread waits for work before it sleeps: about as long as waking it
 * costs. The kernels of a step follow each other within this time.
 */
#define SPIN_NS 50000

/* parts per thread: more even out threads that are slower, fewer cost less */
#define PARTS 4

/* the range of a te__k_for(), on the stack of its caller */
struct host_job {
	struct host_job *prev, *next; /* in the pool's list */
	te__k_part_fn *fn;
	void *arg;
	int64_t n, step;
	_Atomic int64_t begin; /* begin of the next part */
	/* with the pool's lock */
	pthread_cond_t left;
	_Atomic uint32_t nhelpers; /* in it */
	int error;		   /* error of a part that a helper executed */
	char detail[512];
};

/* ---- waiting ---- */

/* until the word is the value (is) or is not, for SPIN_NS at most */
static void spin_until(const _Atomic uint32_t *word, int is, uint32_t value)
{
	const uint64_t until = te__now_ns() + SPIN_NS;

	while ((atomic_load(word) == value) != is && te__now_ns() < until) {
#if defined(__x86_64__)
		__builtin_ia32_pause();
#elif defined(__aarch64__)
		__asm__ volatile("yield");
#endif
	}
}

/* ---- jobs ---- */

static void execute(struct host_job *j)
{
	int64_t begin;

	while ((begin = atomic_fetch_add(&j->begin, j->step)) < j->n)
		j->fn(j->arg, begin, j->n - begin < j->step ? j->n : begin + j->step);
}

int host_pool_help(struct host_pool *pool)
{
	struct host_job *j = pool->jobs;

	while (j && atomic_load(&j->begin) >= j->n)
		j = j->next;
	if (!j)
		return 0;
	j->nhelpers++;
	pthread_mutex_unlock(&pool->lock);
	host_running.error = 0;
	execute(j);
	pthread_mutex_lock(&pool->lock);
	if (host_running.error && !j->error) {
		j->error = host_running.error;
		snprintf(j->detail, sizeof(j->detail), "%s", te_error_detail());
	}
	if (!--j->nhelpers)
		pthread_cond_signal(&j->left);
	return 1;
}

int host_pool_spin(struct host_pool *pool)
{
	const uint32_t nposted = atomic_load(&pool->nposted);

	pool->nspinning++;
	pthread_mutex_unlock(&pool->lock);
	spin_until(&pool->nposted, 0, nposted);
	pthread_mutex_lock(&pool->lock);
	pool->nspinning--;
	return atomic_load(&pool->nposted) != nposted;
}

static void *help(void *arg)
{
	struct host_dev *dev = arg;
	struct host_pool *pool = &dev->pool;

	pthread_mutex_lock(&pool->lock);
	host_running.dev = dev;
	host_running.scratch = &pool->scratch[pool->nscratch++];
	while (!pool->quit) {
		if (pool->help_nodes(pool) || host_pool_help(pool) || host_pool_spin(pool))
			continue;
		pool->nidle++;
		pthread_cond_wait(&pool->work, &pool->lock);
		pool->nidle--;
	}
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

/* ---- the pool ---- */

uint8_t *host_scratch_new(uint32_t n)
{
	return te__aligned_alloc(64, n * TE__K_SCRATCH);
}

int host_pool_init(struct host_dev *dev)
{
	const uint32_t n = dev->nthreads - 1;
	uint8_t *mem = n ? host_scratch_new(n) : NULL;

	if (n && !mem)
		return te__fail(-ENOMEM, "host: no memory for kernels on %u threads", n);
	for (uint32_t i = 0; i < n; i++)
		dev->pool.scratch[i].mem = mem + i * TE__K_SCRATCH;
	pthread_mutex_init(&dev->pool.lock, NULL);
	pthread_cond_init(&dev->pool.work, NULL);
	return 0;
}

void host_pool_destroy(struct host_dev *dev)
{
	struct host_pool *pool = &dev->pool;

	pthread_mutex_lock(&pool->lock);
	pool->quit = 1;
	atomic_fetch_add(&pool->nposted, 1);
	pthread_cond_broadcast(&pool->work);
	pthread_mutex_unlock(&pool->lock);
	for (uint32_t i = 0; i < pool->nhelpers; i++)
		pthread_join(pool->helper[i], NULL);
	pthread_cond_destroy(&pool->work);
	pthread_mutex_destroy(&pool->lock);
	te__free(pool->scratch[0].mem);
}

/* with the pool's lock; an error number */
static int start_helper(struct host_dev *dev)
{
	struct host_pool *pool = &dev->pool;
	const int r = te__thread_create(&pool->helper[pool->nhelpers], "te-helper", help, dev);

	if (!r)
		host_pool_bind(pool, pool->nhelpers++);
	return r;
}

int host_pool_start(struct host_dev *dev)
{
	struct host_pool *pool = &dev->pool;
	int r = 0;

	pthread_mutex_lock(&pool->lock);
	while (!r && pool->nhelpers + 1 < dev->nthreads)
		r = te__fault_point() ? EAGAIN : start_helper(dev);
	pthread_mutex_unlock(&pool->lock);
	return r ? te__fail(-EAGAIN, "host: no thread for the branches of a graph: %s",
			    te_strerror(-r)) :
		   0;
}

uint32_t host_pool_wake(struct host_pool *pool, uint32_t n)
{
	atomic_fetch_add(&pool->nposted, 1);
	n -= n < pool->nspinning ? n : pool->nspinning;
	for (uint32_t idle = pool->nidle; n && idle; n--, idle--)
		pthread_cond_signal(&pool->work);
	return n;
}

/* ---- te__k_for ---- */

/* helpers for nparts parts: without a fault point, because the job needs none of them */
static void publish(struct host_dev *dev, struct host_job *j, int64_t nparts)
{
	struct host_pool *pool = &dev->pool;
	const uint32_t most = dev->nthreads - 1;
	const uint32_t want = nparts - 1 < most ? (uint32_t)(nparts - 1) : most;

	pthread_mutex_lock(&pool->lock);
	j->next = pool->jobs;
	if (j->next)
		j->next->prev = j;
	pool->jobs = j;
	pool->wake_nodes(pool, host_pool_wake(pool, want));
	while (pool->nhelpers < want && !start_helper(dev))
		;
	pthread_mutex_unlock(&pool->lock);
}

/* keep helpers from beginning another part, and wait for helpers that run one */
static void withdraw(struct host_pool *pool, struct host_job *j)
{
	pthread_mutex_lock(&pool->lock);
	if (j->prev)
		j->prev->next = j->next;
	else
		pool->jobs = j->next;
	if (j->next)
		j->next->prev = j->prev;
	if (j->nhelpers) {
		pthread_mutex_unlock(&pool->lock);
		spin_until(&j->nhelpers, 1, 0);
		pthread_mutex_lock(&pool->lock);
	}
	while (j->nhelpers)
		pthread_cond_wait(&j->left, &pool->lock);
	pthread_mutex_unlock(&pool->lock);
}

void te__k_for(int64_t n, int64_t grain, te__k_part_fn *fn, void *arg)
{
	struct host_dev *dev = host_running.dev;
	const int64_t ngrains = (n + grain - 1) / grain;
	struct host_job j = { .fn = fn, .arg = arg, .n = n };
	int64_t per_part;

	if (ngrains < 2 || !dev || dev->nthreads < 2) {
		if (n > 0)
			fn(arg, 0, n);
		return;
	}
	per_part = ngrains / (PARTS * dev->nthreads);
	per_part = per_part < 1 ? 1 : per_part;
	j.step = per_part * grain;
	pthread_cond_init(&j.left, NULL);
	publish(dev, &j, (ngrains + per_part - 1) / per_part);
	execute(&j);
	withdraw(&dev->pool, &j);
	pthread_cond_destroy(&j.left);
	if (j.error && !host_running.error) {
		te__fail(j.error, "%s", j.detail);
		te__k_fail(j.error);
	}
}

/* a thread that executes no commands allocates: it tests a function of kernels/ */
void *te__k_take(size_t nbytes)
{
	struct host_scratch *s = host_running.scratch;
	void *p;

	nbytes = (nbytes + 63) & ~(size_t)63;
	if (!s)
		return te__aligned_alloc(64, nbytes);
	p = s->mem + s->used;
	s->used += nbytes;
	return p;
}

void te__k_give(void *p)
{
	struct host_scratch *s = host_running.scratch;

	if (s)
		s->used = (size_t)((uint8_t *)p - s->mem);
	else
		te__free(p);
}

int te__k_nthreads(void)
{
	return host_running.dev ? (int)host_running.dev->nthreads : 1;
}
