/*
 * threads.h - tests with several ranks that are threads of one process, each with a context of its
 * own, on either backend. They share the GPUs that there are.
 */
#ifndef TT_THREADS_H
#define TT_THREADS_H

#include <pthread.h>
#include <te/collective.h>
#include <te/comm.h>
#include <te/plan.h>

#include "libtecore/base/private.h"
#include "libtecore/base/splitmix64.h"
#include "tt.h"
#include "tt_ctx.h"

#define THREADS_MOST 8

extern int threads_n;
extern uint64_t threads_pool_nbytes;
extern int threads_timeout_ms; /* 0: 20 s */
extern void (*threads_begin)(int rank); /* NULL, or what a thread calls first */

struct thread_rank {
	int rank;
	int (*fn)(struct thread_rank *r);
	pthread_t thread;
	struct te_ctx *ctx;
	struct te_comm *comm;
	int result;
	char text[400];
};

/* the codes of a rank are checked by the thread of the test: assertions are for that one */
#define STEP(call)                       \
	do {                             \
		int step_r = (call);     \
		if (step_r)              \
			return step_r;   \
	} while (0)
#define HOLDS(expr)                                                           \
	do {                                                                  \
		if (!(expr))                                                  \
			return te_fail(-EPROTO, "line %d: not %s", __LINE__, #expr); \
	} while (0)

/* te_comm_explain() of the call with these members, .in = p and so on */
#define EXPLAIN(comm, ret, ...)                                                         \
	te_comm_explain((comm),                                                         \
			&(const struct te_comm_call){ .size = sizeof(struct te_comm_call), \
						      __VA_ARGS__ },                    \
			(ret))

/* a number below n, which all ranks draw alike */
static inline uint64_t threads_draw(uint64_t *state, uint64_t n)
{
	return te__splitmix64(state) % n;
}

/* random bits of element i, equal on all ranks */
static inline uint64_t threads_hash(uint64_t seed, int64_t i)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xbf58476d1ce4e5b9u;

	x ^= x >> 31;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 29;
}

/*
 * n, or as many ranks as there are GPUs. Where a rank's kernel waits for another rank, calls of
 * that one that synchronise a GPU which they share would wait for the kernel.
 */
int threads_apart(int n);
/* n ranks call fn; all return code, and a text is in their error messages, unless it is NULL */
void threads_run(int n, int (*fn)(struct thread_rank *r), int code, const char *text);
/* both passes of the plan */
int threads_queue(struct te_plan *plan, struct te_stream *s);

#endif
