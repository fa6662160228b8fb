/* ranks.h - tests with several ranks: each is a process of its own. */
#ifndef TT_RANKS_H
#define TT_RANKS_H

#include <sys/types.h>
#include <te/comm.h>

#include "tt.h"

#define RANKS_MAX 33

/* what became of a process */
struct ranks_result {
	int r;	      /* what its function returned */
	int signal;   /* that ended it; or 0 */
	int nleft_fd; /* descriptors that it opened and did not close, and allocations */
	int nleft_alloc;
	double ms;	/* from the start of all to its end */
	char text[600]; /* its error message */
};

/* a function of one rank; its results are a code and te_error_detail() */
typedef int ranks_fn(int rank, void *arg);

/*
 * Forks n processes, of which each calls fn, and waits for them. Before the first call the process
 * must not have used a parameter, so that the ranks can set the environment.
 */
void ranks_run(int n, ranks_fn *fn, void *arg, struct ranks_result *ret);
/* the same in two steps */
void ranks_start(int n, ranks_fn *fn, void *arg);
void ranks_wait(struct ranks_result *ret);
pid_t ranks_pid(int rank);
/* between the two: waits for the end of a process by that signal, and starts it again */
void ranks_again(int rank, int signal, ranks_fn *fn, void *arg);

/* until the ranks have counted to n; for 90 s at most, because they may have failed */
void ranks_await(const _Atomic int *count, int n);

/* all of them returned 0 and left nothing */
void ranks_ok(int n, const struct ranks_result *res);
/* the same after te__fault_set(fault); may_fail: some returned an error with a message */
void ranks_ok_after(int fault, int n, const struct ranks_result *res, int may_fail);
/* that one returned the code with a message that has the text, within ms, and left nothing */
void ranks_failed(const struct ranks_result *res, int code, const char *text, double ms);

/* in a rank: it can open n descriptors more */
void ranks_limit_files(int n);

/* mappings of shared memory that the process has */
int ranks_nmaps(void);
/* memory that all processes share, zeroed; until the test ends */
void *ranks_shared(size_t nbytes);
/* a new folder in $TMPDIR, for this user; ranks_rmdir() removes it with its contents */
const char *ranks_mkdir(void);
void ranks_rmdir(void);

/* how ranks meet */
enum meet { MEET_ID, MEET_ID_ENV, MEET_DIR, MEET_CALLBACK, MEET_END };

/* before ranks_run(), in the parent, for nranks of them */
void ranks_meet(enum meet how, int nranks);
/* after ranks_wait() */
void ranks_part(void);
/* ranks_meet(), ranks_run() and ranks_part() */
void ranks_meet_run(enum meet how, int n, ranks_fn *fn, void *arg, struct ranks_result *ret);
/* in a rank: the options; they are valid for the life of the process */
struct te_comm_opts ranks_opts(int rank);
/* another number of ranks in the same place */
void ranks_count(int nranks);
/* the id of MEET_ID and MEET_ID_ENV */
const struct te_comm_id *ranks_id(void);
const char *ranks_dir(void);

#endif
