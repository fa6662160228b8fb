/* nodes_lib.h - ranks as processes of several nodes, which TE_COMM_NODE simulates. */
#ifndef TT_NODES_LIB_H
#define TT_NODES_LIB_H

#include <te/comm.h>

#include "ranks.h"

struct joined {
	int who; /* the rank at first */
	uint64_t seed;
	int nfew; /* one operation of so many may be large */
	struct te_ctx *ctx;
	struct te_comm *comm;
	struct te_stream *s;
	int nops;
	int32_t was[RANKS_MAX]; /* `who` of each rank */
};

void nodes_init(struct joined *j, int who, uint64_t seed, int nfew);
/*
 * A context on that backend, a communicator with the other ranks, and a barrier; j->comm is NULL if
 * there is none.
 */
int nodes_create(struct joined *j, const char *on, const struct te_comm_opts *o);
/*
 * The environment of a rank of a test; node: a letter. A process that has not ended within two
 * minutes is ended by SIGALRM. TE_COMM_STAGE is 256K if the test has not set it.
 */
void nodes_begin(char node, int heartbeat_ms, uint64_t seed);
/* nodes_init(), nodes_begin() and nodes_create() */
int nodes_join(struct joined *j, int rank, char node, int timeout_ms, int heartbeat_ms,
	       uint64_t seed, int nfew);
/* releases both; returns r, with its error message */
int nodes_leave(struct joined *j, int r);
/* what rank `who` has as element i in operation op */
float nodes_input(const struct joined *j, int who, int op, int64_t i);
/*
 * One sum, with another size in each operation, compared with that of a loop; -EPROTO: they differ.
 * Between nodes some sums are for one rank, and some by te_comm_alltoallv(3) or groups.
 * With more, this rank has so many elements more than the others, 8 at most.
 */
int nodes_reduce(struct joined *j, int64_t more);
/* the new communicator takes the place of the failed one; ranks: of te_comm_recover(3) */
void nodes_succeed(struct joined *j, struct te_comm *next, const int32_t *ranks);
/* the ranks of the communicator, as they were at first: a bit each */
uint32_t nodes_members(const struct joined *j);
/* nodes: a letter for each rank. The rank's number on its node */
int nodes_local(const char *nodes, int rank);
/* only ranks that each node has exchange messages with other nodes */
int nodes_has_rail(const char *nodes, int rank);
/* this process kills itself so long after it logs a message, of level info, that has the text */
void nodes_die_at(const char *text, int ms);

#endif
