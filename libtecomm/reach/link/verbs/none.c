/* none.c - replaces the transport over RDMA devices in a build without its header. */
#include "config.h"

#include <errno.h>

#include "libtecomm/reach/link/link.h"

static int probe(void)
{
	return te__fail(-EOPNOTSUPP, "verbs: this library was built without infiniband/verbs.h");
}

static int no_open(struct te__link *l)
{
	(void)l;
	return probe();
}

static void no_close(struct te__link *l)
{
	(void)l;
}

const struct te__link_ops te__link_verbs = {
	.name = "verbs",
	.probe = probe,
	.nbytes = sizeof(struct te__link),
	.open = no_open,
	.close = no_close,
};
