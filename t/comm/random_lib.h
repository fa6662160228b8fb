/*
 * random_lib.h - random faults of ranks on several nodes, of nodes_random.c (processes) and
 * verbs_random.c (threads): each rank gets right results or a named error in time, and the ranks
 * that are left get one communicator by te_comm_recover(3).
 *
 * TE_TEST_FAULTS=1000 makes so many; each prints its seed if it fails, which TT_SEED repeats alone.
 */
#ifndef TT_RANDOM_LIB_H
#define TT_RANDOM_LIB_H

#include "nodes_lib.h"

#define RANDOM_TIMEOUT_MS TT_SLOWER(750)
#define RANDOM_BEAT_MS TT_SLOWER(500)

struct random_outcome {
	int created, code; /* code of the failure; 0: none */
	double ms;	   /* from the fault to the failure */
	int signal;	   /* that ended the process; 0: none */
	int recovered;	   /* code of the last attempt; 1: there was none */
	int too_few;
	uint32_t members; /* ranks of the communicator at the end */
	char text[400], why[400];
};

struct random_trial {
	uint64_t seed;
	const char *fault;
	int n;
	char nodes[8]; /* a letter for each rank */
	int victim, fault_op;
	int early;		   /* the fault may happen before the communicator is there */
	_Atomic int64_t at_ns;	   /* time of the fault */
	_Atomic uint32_t absent;   /* ranks that no other waits for: dead or stopped */
	_Atomic uint32_t finished; /* ranks with a communicator, or that get none */
	_Atomic int nrecovering;
	struct random_outcome out[RANKS_MAX];
};

/* calls trial for TE_TEST_FAULTS seeds, by default ndefault */
void random_trials(void (*trial)(uint64_t seed), int ndefault);
int random_count(int ndefault);
/* the seed, and a layout of nodes that ret_x, the state of te__splitmix64(), draws */
void random_draw(struct random_trial *t, uint64_t seed, uint64_t *ret_x);
void random_print(const struct random_trial *t);
/* all ranks that are not absent have finished */
int random_all_finished(const struct random_trial *t);
/* in a rank, whose last call returned r: notes it */
void random_ended(struct random_trial *t, const struct joined *j, int r);
/* in a rank after that: recovers, if there was a failure, and releases what it has */
void random_finish(struct random_trial *t, struct joined *j, int timeout_ms);
/* whether the failure came later than the library promises */
int random_is_late(const struct random_outcome *out);
/* ranks that go on have one communicator, which has them */
void random_check_members(const struct random_trial *t);

#define RANDOM_EXPECT(expr, t, i)                                                                  \
	ck_assert_msg(expr, "%s of rank %d of %s%s, operation %d, TT_SEED=%llu: rank %d: signal "  \
		      "%d, created %d, %d after %.0f ms: %s; recover %d, ranks 0x%x: %s",          \
		      (t)->fault, (t)->victim, (t)->nodes, (t)->early ? ", early" : "",            \
		      (t)->fault_op, (unsigned long long)(t)->seed, i, (t)->out[i].signal,         \
		      (t)->out[i].created, (t)->out[i].code, (t)->out[i].ms, (t)->out[i].text,     \
		      (t)->out[i].recovered, (t)->out[i].members, (t)->out[i].why)

#endif
