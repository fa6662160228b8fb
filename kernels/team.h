/*
 * team.h - the threads that a reference kernel may split its work over.
 *
 * A kernel puts the data that its parts share into a struct on the stack and calls te__k_for():
 *
 *	static void add_part(void *arg, int64_t begin, int64_t end)
 *	{
 *		const struct te_k_add *a = arg;
 *		... elements begin to end - 1, in chunks
 *	}
 *
 *	void te__h_add(const struct te_k_add *a)
 *	{
 *		te__k_for(a->n, 32 * TE__H_CHUNK, add_part, (void *)(uintptr_t)a);
 *	}
 *
 * The bits of a result must not depend on where the range is cut, because the number of threads
 * decides that. Elements that do not depend on each other may be cut anywhere. A sum is computed
 * as partial sums over pieces of a fixed size, added in ascending order by the caller after
 * te__k_for() has returned. Maxima may be folded atomically.
 *
 * A part uses its own stack for buffers of a few KiB and te__k_take() for larger ones, allocates
 * nothing, may call te__k_fail() and te__k_for(), and must not wait for another part: all of them
 * may run on one thread, in any order.
 */
#ifndef TE__TEAM_H
#define TE__TEAM_H

#include <stddef.h>
#include <stdint.h>

/* begin is a multiple of the grain, and so is end, unless it is n */
typedef void te__k_part_fn(void *arg, int64_t begin, int64_t end);

/*
 * Calls fn for disjoint parts that cover 0 to n - 1, on this thread and on others that are idle,
 * and returns when all of them have returned. grain: units that are worth handing to a thread,
 * which takes about 20 us, that is, some 50,000 FP32 operations or 50 KB of memory; a range of no
 * more than one grain runs on this thread. Defined by the host backend.
 */
void te__k_for(int64_t n, int64_t grain, te__k_part_fn *fn, void *arg);

/*
 * Memory of this thread, aligned to 64 bytes, given back in reverse order. TE__K_SCRATCH bytes hold
 * what any kernel takes at a time. Threads may have small stacks: a program's own that waits for a
 * stream executes kernels too.
 */
#define TE__K_SCRATCH ((size_t)1 << 20)
void *te__k_take(size_t nbytes);
void te__k_give(void *p);

/* maximum number of threads that share a range */
int te__k_nthreads(void);

#endif
