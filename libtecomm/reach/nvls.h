/*
 * nvls.h - multicast memory of a communicator's pools, for the algorithms nvls and nvls-oneshot.
 *
 * Off unless TE_COMM_NVLS=on on all ranks, and declined if the environment of a rank refuses
 * multicast (te__multicast_check()). Otherwise no multicast function of the driver is called.
 *
 * Creation has three steps, and no rank begins a step before all ranks have completed the previous
 * one: the lowest rank creates the multicast object and all add their devices; all bind their
 * memory; all map it. If a rank fails, te_comm_create() fails on all ranks. No rank unbinds its
 * memory before the kernels of all ranks have ended (te__pool_leave()).
 */
#ifndef TE__NVLS_H
#define TE__NVLS_H

#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/reach/broker.h"

struct te__window;

/* the first step, which passes the object through the broker; item: an unused item number */
int te__nvls_join(struct te__window *window, struct te__client *client, int32_t local,
		  uint32_t item, uint64_t nbytes, int64_t deadline);
/* the other steps, after all ranks have joined */
int te__nvls_map(struct te__window *window, struct te__boot *boot);

#endif
