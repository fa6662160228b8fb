/*
 * verbs_fake.h - RDMA devices for tests, in the place of libibverbs: reliable connections between
 * queue pairs of one process, whose ranks are threads, and faults that no device makes on request.
 */
#ifndef VERBS_FAKE_H
#define VERBS_FAKE_H

#include "libtecomm/reach/link/verbs/verbs.h"

/*
 * Two devices: fake0 with one active port of 10 Gbit/s, fake1 with a port that is down and one that
 * is active, of 100 Gbit/s.
 */
extern const struct te__verbs_lib verbs_fake_lib;

extern _Thread_local int verbs_fake_rank; /* of this thread; what it opens belongs to that rank */

extern struct verbs_fake {
	/* before threads start */
	const char *fail; /* the nth call of this member, by rank 0, fails */
	int fail_nth;
	int none;	     /* there are no devices */
	int infiniband;	     /* link layer */
	int short_poll;	     /* completions that one call returns at most; 0: no limit */
	int delay_us;	     /* messages take a random time up to this */
	uint32_t max_inline; /* that can be asked for */
	int wrong_rkey;	     /* rank 0 has other keys than it is told */
	int equal;	     /* fake0 is as fast as fake1 */
	int near[2];	     /* how near the devices are */
	int no_dmabuf;	     /* the kernel registers none */
	/* any time */
	_Atomic int cut;	/* bits of ranks that receive nothing, and acknowledge nothing */
	_Atomic int down;	/* bits of ranks whose ports are down, */
	_Atomic int down_device; /* those of one device, counted from 1, or, if 0, of all */
	_Atomic int unheard;	/* bits of ranks to which no acknowledgement comes */
	/* what was seen */
	_Atomic int nfired;	/* failures by `fail` */
	_Atomic int nlive;	/* objects that exist */
	/* queues that overflowed, objects in use destroyed, device data inline */
	_Atomic int nmisuse;
	_Atomic int nrnr;	/* messages for which no receive was posted */
	_Atomic int most_retries, ninline, ndmabuf, nsends, nunsignalled, ngid, nqps;
	_Atomic int traffic_class; /* traffic class of the latest queue pair */
	_Atomic int used;	/* bits of devices that have sent messages with data */
	char pci[32];		/* that nearness was asked for */
} verbs_fake;

/* raises an event on all devices of the rank */
void verbs_fake_event(int rank, enum ibv_event_type type);

#endif
