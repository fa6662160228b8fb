/* split.c - te_comm_split(3): groups of a communicator's ranks. */
#include "config.h"

#define TE_LOG_CATEGORY "comm"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libtecomm/collective/comm.h"
#include "libtecomm/meet/agree.h"

static const char fn[] = "te_comm_split";

/* exchanged record of each rank's arguments */
struct want {
	int32_t color, key;
};

/* exchanged offer of the first rank of each group; only the salt is used on one node */
struct offer {
	uint8_t salt[TE__KEY_NBYTES];
	struct te_comm_id id;
};

/* this rank's group: first is its lowest rank in the communicator */
struct group {
	int32_t rank, nranks, first;
};

static int comes_before(const struct want *all, int32_t a, int32_t b)
{
	return all[a].key != all[b].key ? all[a].key < all[b].key : a < b;
}

static int find_group(const struct te_comm *c, const struct want *all, struct group *ret_g)
{
	const int32_t n = te__boot_nranks(c->boot), me = te__boot_rank(c->boot);
	struct group g = { 0, 0, -1 };

	for (int32_t i = 0; i < n; i++) {
		if (all[i].color < 0)
			return te__fail(-EINVAL, "%s: %s: %s gave the color %d, expected 0 or more",
					fn, c->name, te__boot_peer(c->boot, i), all[i].color);
		if (all[i].color != all[me].color)
			continue;
		if (g.first < 0)
			g.first = i;
		g.nranks++;
		g.rank += comes_before(all, i, me);
	}
	*ret_g = g;
	return 0;
}

/* the ranks of the group in c, in the order of the group */
static void list_ranks(const struct te_comm *c, const struct want *all, int32_t *ret_ranks)
{
	const int32_t n = te__boot_nranks(c->boot), me = te__boot_rank(c->boot);

	for (int32_t i = 0; i < n; i++) {
		int32_t rank = 0;

		if (all[i].color != all[me].color)
			continue;
		for (int32_t k = 0; k < n; k++)
			rank += all[k].color == all[me].color && comes_before(all, k, i);
		ret_ranks[rank] = i;
	}
}

static int offer(struct te_comm *c, int local, struct offer *ret, struct te_comm_root **ret_root)
{
	int r = te__random(ret->salt, sizeof(ret->salt));

	return r || local ? r : te__id_split(c->boot, &ret->id, ret_root);
}

static int split(struct te_comm *c, struct te_comm_opts *o, int32_t color, int32_t key,
		 int32_t *ranks, struct te_comm **ret_comm)
{
	const int local = te__boot_nnodes(c->boot) == 1;
	struct te__boot_from from = { c->boot, ranks, fn, { 0 } };
	struct te_comm_root *root = NULL;
	char name[sizeof(c->name) + 16];
	struct want *wants, want = { color, key };
	struct offer *offers = NULL, own;
	struct group g = { 0 };
	int r = ranks ? 0 : te__fail(-ENOMEM, "%s: %s: not enough memory", fn, c->name);

	wants = te__gather(c->boot, &r, &want, sizeof(want), fn, 0);
	if (!r)
		r = find_group(c, wants, &g);
	if (r) {
		te__free(wants);
		return r;
	}
	memset(&own, 0, sizeof(own));
	if (g.first == te__boot_rank(c->boot))
		r = offer(c, local, &own, &root);
	offers = te__gather(c->boot, &r, &own, sizeof(own), fn, 0);
	if (!r) {
		snprintf(name, sizeof(name), "%s.%d", c->name, color);
		o->name = o->name ? o->name : name;
		o->rank = g.rank;
		o->nranks = g.nranks;
		o->id = local ? NULL : &offers[g.first].id;
		list_ranks(c, wants, ranks);
		memcpy(from.salt, offers[g.first].salt, sizeof(from.salt));
		te__log_info("%s: rank %d of %d with color %d", c->name, g.rank, g.nranks, color);
		r = te__comm_create(c->ctx, o, &from, ret_comm);
	}
	te_comm_root_unref(root);
	te__free(offers);
	te__free(wants);
	return r;
}

static int check(const struct te_comm *c, const struct te_comm_opts *o)
{
	if (o->rank || o->nranks || o->id || o->bootstrap)
		return te__fail(-EINVAL, "%s: %s: the options have %s, which follows from colors "
				"and keys", fn, c->name, o->id || o->bootstrap ?
				"an id or a bootstrap" : "a rank or nranks");
	return te__pool_check(c->pool, fn);
}

int te_comm_split(struct te_comm *comm, int32_t color, int32_t key, const struct te_comm_opts *opts,
		  struct te_comm **ret_comm)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	int32_t *ranks;
	int r = opts ? te__sized_in(fn, te_comm_opts, opts, &o) : 0;

	if (r)
		return r;
	if (!comm || !ret_comm)
		return te__fail(-EINVAL, "%s: %s is NULL", fn, comm ? "ret_comm" : "comm");
	r = check(comm, &o);
	if (r)
		return r;
	ranks = te__calloc((size_t)te__boot_nranks(comm->boot), sizeof(*ranks));
	r = split(comm, &o, color, key, ranks, ret_comm);
	te__free(ranks);
	return r;
}
