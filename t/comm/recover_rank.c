/*
 * t/comm/recover_rank.c - one of several ranks, which the environment names, that add up arrays and
 * go on without those that are lost: for tests in virtual machines, and by hand.
 *
 * recover_rank LEFT MS: until LEFT ranks have added up SUMS arrays, each of which is compared with
 * the sum of a loop. A line is printed after half of them and after all. te_comm_recover(3) waits
 * for MS milliseconds.
 * Exit status: 0; 1 there is no communicator; 3 it was not recovered; 5 a wrong sum.
 */
#include "config.h"

#include <te/collective.h>
#include <te/comm.h>
#include <te/ctx.h>
#include <te/errno.h>

#include "libtecomm/meet/bootstrap.h"
#include "nodes_lib.h"

#define SUMS 20

/* equal on all ranks, and another in each run */
static uint64_t seed_of(const char *text)
{
	uint64_t h = 14695981039346656037u;

	for (; text && *text; text++)
		h = (h ^ (uint8_t)*text) * 0x100000001b3u;
	return h;
}

static void print_state(const struct joined *j, int nsums)
{
	struct te_comm_info info = TE_COMM_INFO_INIT;

	(void)te_comm_info(j->comm, &info);
	printf("ranks");
	for (int i = 0; i < info.nranks; i++)
		printf(" %d", j->was[i]);
	printf(" on %d nodes by %s: %d sums\n", info.nnodes, info.nnodes > 1 ? info.transport :
	       "memory", nsums);
}

/* until the communicator fails, with its code, or as many ranks as were asked for have the sums */
static int reduce(struct joined *j, int nleft)
{
	const int64_t begin = te__boot_now();
	int64_t last = begin;
	int r = 0;

	for (int n = 1; !r && (n <= SUMS || te_comm_nranks(j->comm) > nleft); n++) {
		r = nodes_reduce(j, 0);
		if (!r) {
			last = te__boot_now();
			if (n == SUMS / 2 || n == SUMS)
				print_state(j, n);
		}
	}
	if (r)
		printf("after %.0f ms: %s\n", (double)(te__boot_now() - last) * 1e-6,
		       te_error_detail());
	return r;
}

static int recover(struct joined *j, int ms)
{
	struct te_comm_recover_opts o = TE_COMM_RECOVER_OPTS_INIT;
	const int64_t begin = te__boot_now();
	int32_t ranks[RANKS_MAX];
	struct te_comm *next;
	int r = -TE_EPEER;

	o.timeout_ms = ms;
	for (int tries = 0; r && r != -TE_ESTATE && tries < 3; tries++)
		r = te_comm_recover(j->comm, &o, ranks, &next);
	if (r) {
		printf("not recovered: %s\n", te_error_detail());
		return r;
	}
	nodes_succeed(j, next, ranks);
	printf("recovered in %.0f ms\n", (double)(te__boot_now() - begin) * 1e-6);
	return 0;
}

int main(int argc, char **argv)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct joined j;
	int r, status;

	if (argc != 3) {
		fprintf(stderr, "usage: recover_rank LEFT MS\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	nodes_init(&j, 0, seed_of(getenv("TE_COMM_ID")), 4);
	r = nodes_create(&j, NULL, &o);
	if (r) {
		printf("%s\n", te_error_detail());
		return 1;
	}
	j.who = te_comm_rank(j.comm);
	do
		r = reduce(&j, atoi(argv[1]));
	while (te_comm_error(j.comm) && !recover(&j, atoi(argv[2])));
	status = te_comm_error(j.comm) ? 3 : r ? 5 : 0;
	te_comm_unref(j.comm);
	te_ctx_unref(j.ctx);
	return status;
}
