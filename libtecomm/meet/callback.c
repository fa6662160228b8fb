/* callback.c - ranks meet by the program's own allgather: it carries the id of rank 0. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <string.h>

#include "libtecomm/meet/boot.h"

/* b->rank and b->nranks are set from the options */
static int callback_who(struct te__boot *b)
{
	struct te_comm_bootstrap own = TE_COMM_BOOTSTRAP_INIT;
	int r = te__sized_in("te_comm_create", te_comm_bootstrap, b->opts.bootstrap, &own);

	if (!r && !own.allgather)
		return te__create_fail(b, -EINVAL, "the bootstrap has no allgather");
	return r;
}

static int callback_meet(struct te__boot *b)
{
	struct te_comm_bootstrap own = TE_COMM_BOOTSTRAP_INIT;
	struct te_comm_id mine = { { 0 } }, none = { { 0 } }, *all;
	uint64_t nfails;
	int r = te__sized_in("te_comm_create", te_comm_bootstrap, b->opts.bootstrap, &own);

	if (!r && !b->rank)
		r = te__id_make(b, &mine);
	if (r)
		return r;
	all = te__calloc((size_t)b->nranks, sizeof(mine));
	if (!all)
		return te__create_fail(b, -ENOMEM, "not enough memory");
	nfails = te__nfails();
	r = own.allgather(own.user, &mine, all, sizeof(mine));
	if (r < 0)
		r = te__callback_failed(nfails, r,
					"te_comm_create: %s: the allgather of the bootstrap",
					b->name);
	else if (!memcmp(&all[0], &none, sizeof(none)))
		r = te__create_fail(b, -EINVAL, "the allgather of the bootstrap has not written "
				    "the bytes of rank 0 where recv begins");
	else
		r = te__id_meet(b, &all[0]);
	te__free(all);
	return r;
}

const struct te__boot_provider te__boot_callback = {
	.name = "callback",
	.who = callback_who,
	.meet = callback_meet,
};
