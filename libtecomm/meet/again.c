/*
 * again.c - ranks that had a bootstrap together meet: on several nodes at the addresses of their
 * lineage, on one node at the local sockets that they have had since then.
 */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include "libtecomm/meet/lineage.h"

/* rank and nranks are set from the options */
static int again_who(struct te__boot *b)
{
	(void)b;
	return 0;
}

static int again_meet(struct te__boot *b)
{
	int r;

	if (b->lineage)
		return te__lineage_addrs(b->lineage, b->addrs, &b->listen);
	te__free(b->addrs);
	b->addrs = NULL;
	r = te__listen_dup(&(struct te__listen){ 1, { b->from->old->again_fd } }, &b->listen);
	return r ? te__fail(r, "%s: no descriptor for a local socket: %s", b->name,
			    te_strerror(r)) : 0;
}

static void again_dial(const struct te__boot *b, int32_t rank, struct te__dial *d)
{
	const struct te__boot_from *f = b->from;

	if (!b->lineage)
		d->path_nbytes = te__local_address(f->old->again[f->ranks[rank]], &d->path);
}

const struct te__boot_provider te__boot_again = {
	.name = "recover",
	.who = again_who,
	.meet = again_meet,
	.dial = again_dial,
};
