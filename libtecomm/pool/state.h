/* state.h - the state of a pool, shared by the files of pool/. */
#ifndef TE__POOL_STATE_H
#define TE__POOL_STATE_H

#include <pthread.h>

#include "libtecomm/pool/heap.h"
#include "libtecomm/pool/members.h"
#include "libtecomm/pool/pool.h"
#include "libtecomm/pool/watch.h"

#define TEXT_NBYTES 200

struct te__pool {
	struct te__boot *boot;
	struct te_ctx *ctx;
	int32_t rank, nranks, nlocal, local;
	int32_t nslots, own; /* number of mapped pools; number of this rank's pool among them */
	uint64_t nbytes;  /* size of each rank's pool */
	uint64_t packets; /* bytes before each pool */
	const char **name;
	struct te__watch *watch; /* NULL: there is one rank */
	int sign; /* te__members_sign() */
	struct te__control *control;
	void *control_ptr; /* address for the device; or NULL */
	struct te__window *window;
	void *stage; /* NULL: none */
	size_t stage_nbytes;
	int stage_registered;
	int debug;
	bool multicast, fabric;
	bool held; /* 1: te__pool_leave() failed */
	void (*look)(void *arg); /* te__pool_set_look() */
	void *look_arg;

	pthread_mutex_t order; /* one collective call at a time */
	pthread_mutex_t lock;  /* all below; never held while this rank waits for others */
	struct te__heap heap;
	uint64_t nallocs;
	uint64_t history; /* hash of all allocations */
	uint64_t nreclaims;
};

/* begin of the pool in a slot of the window */
static inline char *te__pool_base(const struct te__pool *p, int32_t slot)
{
	return (char *)te__window_slot(p->window, slot) + p->packets;
}

#endif
