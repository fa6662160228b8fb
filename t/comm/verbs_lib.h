/*
 * t/comm/verbs_lib.h - ranks with links over the RDMA devices of the test, for t/comm/verbs*.c:
 * they are threads.
 */
#ifndef VERBS_LIB_H
#define VERBS_LIB_H

#include <pthread.h>

#include "libtecomm/reach/link/verbs/hello.h"
#include "libtecore/base/private.h"
#include "link_lib.h"
#include "tt.h"
#include "verbs_fake.h"

#define VB_RANKS 3
#define VB_MS INT64_C(1000000)
#define VB_BEAT_MS TT_SLOWER(100)

struct vb_rank {
	int rank, nranks;
	int (*fn)(struct vb_rank *r);
	pthread_t thread;
	struct te__boot *boot;
	struct te__link *link;
	uint8_t *mem;
	size_t nbytes;
	int result, opened, direct;
	double ms; /* of fn */
	char text[600];
};

/* before vb_run() */
extern int vb_nranks, vb_timeout_ms, vb_beat_ms;
extern size_t vb_mem_nbytes;
/* memory of a device by rank, at the end of these bytes, and its dma-buf or -1 */
extern size_t vb_device_nbytes[VB_RANKS];
extern int vb_device_fd;
/* not NULL: what rank 1, without devices, sends in place of its own hello */
extern void (*vb_hello)(struct te__verbs_hello *h);
/* of vb_exchange_all(): the size and the number of messages, and those under way at a time */
extern size_t vb_most;
extern int vb_count, vb_depth;

extern pthread_barrier_t vb_ready; /* of fn, for what happens to open links */
extern _Atomic int64_t vb_fault_ns; /* when it happened */

/* each rank, a thread, opens a link and calls fn; then nothing of them is left */
void vb_run(int (*fn)(struct vb_rank *r), struct vb_rank *r);
void vb_all_ok(const struct vb_rank *r);
/* the rank returned the code, with a message that has the text */
void vb_failed(const struct vb_rank *r, int code, const char *text);

/* functions of ranks: each pair in turn, while the others poll nothing */
int vb_exchange_all(struct vb_rank *r);
/* a few messages, with sleeps */
int vb_talk(struct vb_rank *r);
/* all ranks wait until rank 0 has set the bits */
void vb_happens(struct vb_rank *r, _Atomic int *bits, int value);

#endif
