/*
 * tt_ctx.h - what the test programs of the libraries share: calls that must not fail, calls that
 * must, and a context for each test.
 */
#ifndef TT_CTX_H
#define TT_CTX_H

#include "tt.h"

#include <te/ctx.h>
#include <te/errno.h>
#include <te/stream.h>

/* a call that returns 0 */
#define DO(call)                                                                        \
	do {                                                                            \
		int do_r = (call);                                                      \
		ck_assert_msg(do_r == 0, "%s: %d: %s", #call, do_r, te_error_detail()); \
	} while (0)

/*
 * A call that returns the code, with a sentence that holds the text. Where the sentence names a
 * function of libtegraph, it is the one that is called; those of schedules begin with it.
 */
#define fails(call, code, text) (te_error_clear(), tt_fails(#call, (call), (code), (text)))
void tt_fails(const char *call, int r, int code, const char *text);
/* the sentence of the latest failure holds the text */
void tt_said(const char *text);

/*
 * The fixture: a context on a backend, by default host, and its stream. A suite that runs on
 * several sets the name before its tests do.
 */
extern const char *backend;
extern struct te_ctx *ctx;
extern struct te_stream *st;

/* another context on that backend: what te_ctx_create returned */
int tt_ctx_new(struct te_ctx **ret_ctx);

void tt_setup(void);
/* nothing is left of the test in memory of the device or pinned memory */
void tt_teardown(void);

/* what memory of the device holds, once all before has run, in memory for free(3) */
void *tt_bytes(const void *device, size_t nbytes);

/* bytes of device memory that are in use, once all that is queued has run */
uint64_t tt_used(void);

#endif
