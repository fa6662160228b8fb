/* nvls.c - multicast memory of a communicator's pools, see nvls.h. */
#define TE_LOG_CATEGORY "comm/nvls"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "libtecomm/meet/agree.h"
#include "libtecomm/reach/nvls.h"

static int import(struct te__window *w, struct te__client *client, uint32_t item, uint64_t nbytes,
		  int64_t deadline)
{
	uint64_t got;
	int fd;
	int r = te__client_fetch(client, item, 0, &got, &fd, deadline);

	if (r)
		return r;
	r = got != nbytes ? te__fail(-TE_EMISMATCH, "te_comm_create: multicast memory of %llu "
				     "bytes was published, expected %llu",
				     (unsigned long long)got, (unsigned long long)nbytes) :
			    te__window_multicast_import(w, fd);
	close(fd);
	return r;
}

int te__nvls_join(struct te__window *w, struct te__client *client, int32_t local, uint32_t item,
		  uint64_t nbytes, int64_t deadline)
{
	int fd, r;

	if (local)
		return import(w, client, item, nbytes, deadline);
	r = te__window_multicast_create(w, &fd);
	if (r)
		return r;
	r = te__client_publish(client, item, nbytes, fd, deadline);
	close(fd);
	return r;
}

int te__nvls_map(struct te__window *w, struct te__boot *boot)
{
	int r = te__agree(boot, te__window_multicast_bind(w), "bind multicast memory");

	return r ? r : te__agree(boot, te__window_multicast_map(w), "map multicast memory");
}
