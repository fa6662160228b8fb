/* reach.c - see reach.h; and te_transport_info(3), which shows the table. */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <te/comm.h>
#include <te/ctx.h>

#include "kernels/te_k.h"
#include "libtecomm/reach/reach.h"

/* ---- memory ---- */

static int probe_fd(struct te_ctx *ctx, struct te__reach_offer *o)
{
	size_t unit;

	(void)o;
	return te__window_unit(ctx, &unit);
}

static int probe_fabric(struct te_ctx *ctx, struct te__reach_offer *o)
{
	return te__fabric_probe(ctx, &o->domain);
}

/* two devices and 2 MiB: the number of ranks does not matter to the driver's answer */
static int probe_nvls(struct te_ctx *ctx, struct te__reach_offer *o)
{
	size_t unit;

	(void)o;
	return te__window_multicast_unit(ctx, 2, (size_t)2 << 20, &unit);
}

/* register memory without a dma-buf */
static int by_address(const struct te_ctx *ctx)
{
	if (!strcmp(te_ctx_backend(ctx), "host"))
		return te__fail(-EOPNOTSUPP, "the memory of the host backend is no GPU memory");
	return access("/sys/module/nvidia_peermem", F_OK) ?
		       te__fail(-EOPNOTSUPP, "the driver exports no dma-buf of memory of the GPU, "
				"and the module nvidia-peermem is not loaded") : 0;
}

/* try to register one unit of device memory with network adapters */
static int probe_adapter(struct te_ctx *ctx, struct te__reach_offer *o)
{
	struct te__window *w = NULL;
	char why[256];
	size_t unit;
	int fd = -1;
	int r = te__window_unit(ctx, &unit);

	(void)o;
	if (!r)
		r = te__window_create(ctx, 1, 0, unit, &w);
	if (!r)
		r = te__adapter_export(ctx, te__window_slot(w, 0), unit, &fd);
	if (!r && fd < 0)
		r = by_address(ctx);
	if (fd >= 0)
		close(fd);
	if (r) /* destroying the window may record another message */
		snprintf(why, sizeof(why), "%s", te_error_detail());
	te__window_destroy(w);
	return r ? te__fail(r, "%s", why) : 0;
}

/* ---- the table ---- */

static const struct reach {
	const char *name;
	bool offered; /* all ranks must be able to use it */
	bool nodes;   /* serves between nodes: a choice of TE_COMM_TRANSPORT, in this order */
	/* rows of memory; errors are recorded */
	int (*probe)(struct te_ctx *ctx, struct te__reach_offer *ret);
	/* rows of messages */
	const struct te__link_ops *link;
} table[TE__REACH_ROWS] = {
	[TE__REACH_FD] = { "fd", false, false, probe_fd, NULL },
	[TE__REACH_FABRIC] = { "fabric", true, true, probe_fabric, NULL },
	[TE__REACH_NVLS] = { "nvls", true, false, probe_nvls, NULL },
	[TE__REACH_GPUDIRECT] = { "gpudirect", false, false, probe_adapter, NULL },
	[TE__REACH_VERBS] = { "verbs", true, true, NULL, &te__link_verbs },
	[TE__REACH_TCP] = { "tcp", true, true, NULL, &te__link_tcp },
};

static int probe(struct te_ctx *ctx, int row, struct te__reach_offer *o)
{
	return table[row].link ? table[row].link->probe() : table[row].probe(ctx, o);
}

int te__reach_wanted(void)
{
	int k = te__param_enum(TE_PARAM_COMM_TRANSPORT), row = -1; /* 0: auto */

	while (k && ++row < TE__REACH_ROWS)
		k -= table[row].nodes;
	return row;
}

const char *te__reach_name(int row)
{
	return table[row].name;
}

const struct te__link_ops *te__reach_link(int row)
{
	return table[row].link;
}

const struct te__link_ops *te__reach_link_of(const char *name)
{
	for (int k = 0; k < TE__REACH_ROWS; k++)
		if (!strcmp(table[k].name, name))
			return table[k].link;
	return NULL;
}

/* ---- offers ---- */

/* 1: no rank uses the row, for a reason that is equal on all ranks: ret_why */
static bool is_excluded(const struct te__boot *b, int row, char *ret_why)
{
	const int32_t nranks = te__boot_nranks(b), nnodes = te__boot_nnodes(b);
	const int wanted = te__reach_wanted();
	const char *why = "";

	if (table[row].nodes && nnodes == 1)
		why = "the ranks are on one node";
	else if (table[row].nodes && wanted >= 0 && wanted != row)
		why = "TE_COMM_TRANSPORT names another transport";
	else if (row == TE__REACH_NVLS && !te__param_bool(TE_PARAM_COMM_NVLS))
		why = "TE_COMM_NVLS is off";
	else if (row == TE__REACH_NVLS && nranks < 2)
		why = "there is one rank";
	else if (row == TE__REACH_NVLS && nnodes > 1)
		why = "the ranks are on several nodes";
	snprintf(ret_why, TE__REACH_WHY, "%s", why);
	if (row == TE__REACH_FABRIC && nnodes > 1 && nranks > TE_K_COMM_RANKS && !why[0])
		snprintf(ret_why, TE__REACH_WHY, "there are %d ranks, at most %d can map each "
			 "other's memory", nranks, TE_K_COMM_RANKS);
	return ret_why[0];
}

void te__reach_offer(const struct te__boot *b, struct te_ctx *ctx, struct te__reach_offer *ret)
{
	char why[TE__REACH_WHY];

	memset(ret, 0, sizeof(*ret));
	for (int k = 0; k < TE__REACH_ROWS; k++)
		if (table[k].offered && !is_excluded(b, k, why) && probe(ctx, k, ret))
			snprintf(ret->why[k], sizeof(ret->why[k]), "%s", te_error_detail());
}

static const struct te__reach_offer *offer_of(const void *all, size_t stride, int32_t rank)
{
	return (const void *)((const char *)all + (size_t)rank * stride);
}

/* the first rank that cannot, and why; with fabric handles, all must be in one domain */
static void agree_on(const struct te__boot *b, const void *all, size_t stride, int row,
		     char *ret_why)
{
	const struct te__reach_offer *first = offer_of(all, stride, 0), *o;

	for (int32_t i = 0; i < te__boot_nranks(b); i++) {
		o = offer_of(all, stride, i);
		if (o->why[row][0]) {
			snprintf(ret_why, TE__REACH_WHY, "%s: %.99s", te__boot_peer(b, i),
				 o->why[row]);
			return;
		}
		if (row == TE__REACH_FABRIC &&
		    memcmp(&o->domain, &first->domain, sizeof(o->domain))) {
			snprintf(ret_why, TE__REACH_WHY, "%s is in another NVLink domain than %s",
				 te__boot_peer(b, i), te__boot_peer(b, 0));
			return;
		}
	}
}

int te__reach_none(const struct te__boot *b, const struct te__reach_choice *c)
{
	const int wanted = te__reach_wanted();
	char why[600] = "";
	size_t at = 0;

	for (int k = 0; k < TE__REACH_ROWS && at < sizeof(why); k++)
		if (table[k].nodes && c->why[k][0] && (wanted < 0 || wanted == k))
			at += (size_t)snprintf(why + at, sizeof(why) - at, "%s%s: %s",
					       at ? "; " : "", table[k].name, c->why[k]);
	return te__fail(-EOPNOTSUPP, "te_comm_create: no transport between %d nodes: %s",
			te__boot_nnodes(b), why);
}

int te__reach_agree(const struct te__boot *b, const void *all, size_t stride,
		    struct te__reach_choice *ret)
{
	bool found = te__boot_nnodes(b) == 1;

	memset(ret, 0, sizeof(*ret));
	for (int k = 0; k < TE__REACH_ROWS; k++) {
		if (table[k].offered && !is_excluded(b, k, ret->why[k]))
			agree_on(b, all, stride, k, ret->why[k]);
		found |= table[k].nodes && !ret->why[k][0];
	}
	return found ? 0 : te__reach_none(b, ret);
}

/* ---- te_transport_info(3) ---- */

int te_transport_count(void)
{
	return TE__REACH_ROWS;
}

int te_transport_info(struct te_ctx *ctx, int index, struct te_transport_info *ret_info)
{
	struct te_transport_info info = TE_TRANSPORT_INFO_INIT;
	struct te__reach_offer offer;
	int r = te__sized_check("te_transport_info", te_transport_info, ret_info);

	if (r)
		return r;
	if (!ctx || index < 0 || index >= TE__REACH_ROWS)
		return te__fail(-EINVAL, "te_transport_info: index %d of %d transports%s", index,
				TE__REACH_ROWS, ctx ? "" : ", ctx is NULL");
	snprintf(info.name, sizeof(info.name), "%s", table[index].name);
	info.available = !probe(ctx, index, &offer);
	if (!info.available)
		snprintf(info.reason, sizeof(info.reason), "%s", te_error_detail());
	te__sized_out(te_transport_info, &info, ret_info);
	return 0;
}
