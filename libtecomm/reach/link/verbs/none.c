/* none.c - in the place of the transport over RDMA devices, in a build without its header. */
#include "config.h"

#include <errno.h>
#include <stdio.h>

#include "libtecomm/reach/link/link.h"

static int probe(char *ret_why, size_t nbytes)
{
	snprintf(ret_why, nbytes, "verbs: this library was built without infiniband/verbs.h");
	return -EOPNOTSUPP;
}

static int no_open(struct te__link *l)
{
	char why[100];

	return te__link_fail(l, probe(why, sizeof(why)), "%s", why);
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
