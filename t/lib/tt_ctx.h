/*
 * tt_ctx.h - shared by the test programs of the libraries: calls that must succeed, calls that
 * must fail, and a context for each test; on a GPU consecutive tests share one.
 */
#ifndef TT_CTX_H
#define TT_CTX_H

#include "tt.h"

#include <te/ctx.h>
#include <te/errno.h>
#include <te/plan.h>
#include <te/stream.h>

/* a call that returns 0 */
#define DO(call)                                                                        \
	do {                                                                            \
		int do_r = (call);                                                      \
		ck_assert_msg(do_r == 0, "%s: %d: %s", #call, do_r, te_error_detail()); \
	} while (0)

/*
 * A call that returns the code, with an error message that contains the text. If the message names
 * a function of libtegraph, it must be the called one; messages about schedules must begin with it.
 */
#define fails(call, code, text) (te_error_clear(), tt_fails(#call, (call), (code), (text)))
void tt_fails(const char *call, int r, int code, const char *text);
/* the error message of the latest failure must contain the text */
void tt_said(const char *text);

/*
 * The fixture: a context on a backend, by default host, and its stream. A TT_PAIR_SUITE() sets the
 * name; another suite for cuda does so before its tests run.
 */
extern const char *backend;
extern struct te_ctx *ctx;
extern struct te_stream *st;

/*
 * On a GPU, keeps a context until the process ends: without one, each test that creates a context
 * loads all kernels, which takes 0.4 s. Tests of many ranks on one GPU do not call this, because
 * its streams and theirs are more than the 32 queues of a GPU, and ranks wait for each other.
 */
void tt_hold_kernels(void);

/* creates another context on that backend; returns the result of te_ctx_create */
int tt_ctx_new(struct te_ctx **ret_ctx);

void tt_setup(void);
/* replaces the context by a new one, for tests of its counters */
void tt_renew(void);
/* fails unless all device memory and pinned memory has been freed */
void tt_teardown(void);
/* a case with this fixture, after tt_hold_kernels() */
#define CTX_CASE(case_, tags_, ...) \
	CASE(case_, tags_, .setup = tt_hold_and_setup, .teardown = tt_teardown, ##__VA_ARGS__)
void tt_hold_and_setup(void);
/* 1: the tests run on the host backend */
#define ON_HOST (!strcmp(backend, "host"))

/* appends the op and releases the reference of the test */
void tt_append(struct te_seq *seq, struct te_op *op);

/* the recipe of that name */
struct te_recipe tt_recipe(const char *name);
/* a plan with these options, and the others by default */
struct te_plan *tt_plan(struct te_seq *seq, const struct te_recipe *recipe, uint32_t flags,
			struct te_spec x);

/* releases a plan and its sequence; two of each */
void tt_drop(struct te_plan *plan, struct te_seq *seq);
void tt_drop_both(struct te_plan *const plan[2], struct te_seq *const seq[2]);

/* waits for all queued work and returns a copy of device memory, to be released by free(3) */
void *tt_bytes(const void *device, size_t nbytes);

/* waits for all queued work and returns the number of allocated bytes of device memory */
uint64_t tt_used(void);

#endif
