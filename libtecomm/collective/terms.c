/* terms.c - values that the ranks of a communicator agree on when they create it. */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <te/ctx.h>

#include "libtecomm/collective/collective.h"
#include "libtecomm/meet/agree.h"

/* choices of TE_COMM_SUMS */
enum { SUMS_AUTO, SUMS_HOST, SUMS_DEVICE };

/* values that must be equal on all ranks */
enum { BACKEND, PACKETS, TRANSPORT, NVLS, SUMS, PIECE, NTERMS };

static const char *const term_names[NTERMS] = {
	[BACKEND] = "the backend",
	[PACKETS] = "a third of TE_COMM_PACKETS",
	[TRANSPORT] = "TE_COMM_TRANSPORT",
	[NVLS] = "TE_COMM_NVLS",
	[SUMS] = "TE_COMM_SUMS",
	[PIECE] = "a piece of TE_COMM_STAGE",
};

/* the one record that ranks exchange */
struct record {
	char term[NTERMS][24];
	char pci_address[24]; /* two ranks may share a GPU */
	int32_t nprocs;
	uint64_t block_smem_nbytes; /* 0: a host */
	struct te__reach_offer reach;
	/* TE_COMM_TABLE: its name and its rows */
	char table_path[200];
	uint64_t table_hash;
};

/* the blocks of all ranks on a device are resident together, so each gets a part of it */
static int32_t max_blocks(const struct te__boot *b, const struct record *all)
{
	const int32_t n = te__boot_nranks(b);
	int32_t least = TE_K_COMM_CTAS;

	for (int32_t i = 0; i < n; i++) {
		int32_t nshare = 0;

		for (int32_t j = 0; j < n && all[i].pci_address[0]; j++)
			nshare += te__boot_node(b, i) == te__boot_node(b, j) &&
				  !strncmp(all[i].pci_address, all[j].pci_address,
					   sizeof(all[i].pci_address));
		if (nshare && all[i].nprocs / nshare < least)
			least = all[i].nprocs / nshare;
	}
	return least > 0 ? least : 1;
}

/* a kernel that all ranks launch has a block that fits the smallest device */
static uint64_t block_smem(const struct te__boot *b, const struct record *all)
{
	uint64_t least = all->block_smem_nbytes;

	for (int32_t i = 1; i < te__boot_nranks(b); i++)
		if (all[i].block_smem_nbytes < least)
			least = all[i].block_smem_nbytes;
	return least;
}

static int two_on_a_gpu(const struct te__boot *b, const struct record *all)
{
	const int32_t n = te__boot_nranks(b);

	for (int32_t i = 0; i < n; i++)
		for (int32_t j = 0; j < i; j++)
			if (!strncmp(all[i].pci_address, all[j].pci_address,
				     sizeof(all[i].pci_address)))
				return 1;
	return 0;
}

static int read_table(struct te__table *table, struct record *ret)
{
	const char *path = te__param_str(TE_PARAM_COMM_TABLE);
	int r = path[0] ? te__table_read(path, table) : 0;

	ret->table_hash = table->hash;
	snprintf(ret->table_path, sizeof(ret->table_path), "%s", path[0] ? path : "none");
	return r;
}

/* each rank compares the same bytes, so all come to the same end */
static int compare(const struct te__boot *b, const char *name, const struct record *all)
{
	for (int32_t i = 1; i < te__boot_nranks(b); i++) {
		const struct record *x = &all[i];

		for (int k = 0; k < NTERMS; k++)
			if (strncmp(x->term[k], all->term[k], sizeof(x->term[k])))
				return te__fail(-TE_EMISMATCH, "te_comm_create: %s: %s is %.23s "
						"for %s, and %.23s for %s", name, term_names[k],
						x->term[k], te__boot_peer(b, i), all->term[k],
						te__boot_peer(b, 0));
		if (x->table_hash != all->table_hash)
			return te__fail(-TE_EMISMATCH, "te_comm_create: %s: TE_COMM_TABLE of %s, "
					"%.199s, has other rows than %s, %.199s", name,
					te__boot_peer(b, i), x->table_path, te__boot_peer(b, 0),
					all->table_path);
	}
	return 0;
}

static void set(struct record *o, int term, const char *format, ...) TE_PRINTF(3, 4);
static void set(struct record *o, int term, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(o->term[term], sizeof(o->term[term]), format, args);
	va_end(args);
}

static void set_all(struct record *o, const char *backend, bool nodes, int64_t buffer_nbytes,
		    const struct te__boot *b)
{
	static const char *const sums[] = { "auto", "host", "device" };
	const int wanted = nodes ? te__reach_wanted() : -1;

	set(o, BACKEND, "%.16s", backend);
	set(o, PACKETS, "%lld bytes", (long long)buffer_nbytes);
	set(o, TRANSPORT, "%s", wanted < 0 ? "auto" : te__reach_name(wanted));
	set(o, NVLS, "%s", te__param_bool(TE_PARAM_COMM_NVLS) ? "on" : "off");
	set(o, SUMS, "%s", sums[te__param_enum(TE_PARAM_COMM_SUMS)]);
	set(o, PIECE, "%zu bytes", nodes ? te__nodes_piece(b) : 0);
}

int te__coll_agree(struct te_ctx *ctx, struct te__boot *b, const char *name,
		   struct te__table *ret_table, struct te__coll_terms *ret_terms)
{
	const char *backend = te_ctx_backend(ctx);
	struct te__coll_terms t = {
		.buffer_nbytes = te__coll_buffer_nbytes(backend, te__boot_nranks(b)),
		.nlanes = strcmp(backend, "host") ? TE_K_COMM_LANES : 1,
		.host = !strcmp(backend, "host"),
	};
	const bool nodes = te__boot_nnodes(b) > 1;
	const int sums = te__param_enum(TE_PARAM_COMM_SUMS);
	struct te_device_info d = TE_DEVICE_INFO_INIT;
	struct record mine = { .nprocs = 0 }, *all;
	int r = te_ctx_device_info(ctx, &d);

	snprintf(mine.pci_address, sizeof(mine.pci_address), "%s", r ? "" : d.pci_address);
	mine.nprocs = d.nprocs;
	mine.block_smem_nbytes = d.block_smem_nbytes;
	set_all(&mine, backend, nodes, t.buffer_nbytes, b);
	te__reach_offer(b, ctx, &mine.reach);
	r = read_table(ret_table, &mine);
	all = te__gather(b, &r, &mine, sizeof(mine), "te_comm_create", 0);
	if (!r)
		r = compare(b, name, all);
	if (!r)
		r = te__reach_agree(b, &all->reach, sizeof(*all), &t.reach);
	if (!r) {
		const char *no_fabric = t.reach.why[TE__REACH_FABRIC];
		char *no_nvls = t.reach.why[TE__REACH_NVLS];

		t.fabric = !no_fabric[0];
		t.device_sums = sums == SUMS_DEVICE || (sums == SUMS_AUTO && !t.host &&
							!t.reach.why[TE__REACH_VERBS][0]);
		t.max_blocks = max_blocks(b, all);
		t.block_smem_nbytes = block_smem(b, all);
		if (nodes && !t.fabric)
			te__log_info("%s: memory of other nodes is not mapped: %s", name,
				     no_fabric);
		t.shared = !t.host && two_on_a_gpu(b, all);
		if (!no_nvls[0] && t.shared)
			snprintf(no_nvls, TE__REACH_WHY, "two ranks share a GPU");
		*ret_terms = t;
	}
	te__free(all);
	return r;
}
