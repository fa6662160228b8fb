/*
 * t/comm/rank.c - a rank for the tests of launchers: creates communicators as the environment says,
 * and prints what it is.
 *
 * rank [COUNT [LATE [S]]]: COUNT communicators; the rank LATE sleeps for S s first, by default 3.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <te/comm.h>
#include <te/ctx.h>
#include <te/errno.h>

static int my_rank(void)
{
	const char *s = getenv("PMIX_RANK");

	if (!s)
		s = getenv("TE_COMM_RANK");
	return s ? atoi(s) : 0;
}

int main(int argc, char **argv)
{
	const int n = argc > 1 ? atoi(argv[1]) : 1, late = argc > 2 ? atoi(argv[2]) : -1;
	struct te_comm_info i = TE_COMM_INFO_INIT;
	struct te_comm *comm = NULL;
	struct te_ctx *ctx;

	if (my_rank() == late)
		sleep(argc > 3 ? (unsigned int)atoi(argv[3]) : 3);
	if (te_ctx_create(NULL, &ctx)) {
		fprintf(stderr, "%s\n", te_error_detail());
		return 1;
	}
	for (int k = 0; k < n; k++) {
		if (te_comm_create(ctx, NULL, &comm) || te_comm_info(comm, &i)) {
			printf("failed: %s\n", te_error_detail());
			te_ctx_unref(ctx);
			return 3;
		}
		printf("rank %d of %d by %s, local %d of %d, node %d of %d\n", i.rank, i.nranks,
		       i.bootstrap, i.local_rank, i.nlocal, i.node, i.nnodes);
		comm = te_comm_unref(comm);
	}
	te_ctx_unref(ctx);
	return 0;
}
