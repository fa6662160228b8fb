/* control.c - the control page of a node's ranks, see control.h. */
#define TE_LOG_CATEGORY "comm/memory"
#include "config.h"

#include <stdio.h>
#include <time.h>

#include "libtecomm/pool/control.h"
#include "libtecore/base/private.h"

#define TELL_NS 100000 /* time between checks for an abort's reason; number of checks */
#define TELL_MOST 1000

_Static_assert(sizeof(struct te__control) <= TE__CONTROL_NBYTES, "the page holds it");

void te__control_abort(struct te__control *c, int code, const char *reason)
{
	uint32_t none = 0;

	if (!atomic_compare_exchange_strong(&c->abort, &none, 1))
		return;
	c->code = code;
	snprintf(c->reason, sizeof(c->reason), "%s", reason);
	atomic_store_explicit(&c->told, 1, memory_order_release);
	te__log_warn("aborted: %s", reason);
}

/*
 * 1: the reason is written. The rank that aborts writes it first, so that the others wait for it,
 * and have its code as well, but only for a limited time, because it may be killed in between.
 */
static int told(const struct te__control *c)
{
	const struct timespec pause = { .tv_nsec = TELL_NS };
	int n = 0;

	while (!atomic_load_explicit(&c->told, memory_order_acquire)) {
		if (n++ == TELL_MOST)
			return 0;
		nanosleep(&pause, NULL);
	}
	return 1;
}

const char *te__control_why(const struct te__control *c, int *ret_code)
{
	if (!atomic_load_explicit(&c->abort, memory_order_relaxed))
		return NULL;
	*ret_code = -TE_EABORT;
	if (!told(c))
		return "a rank has aborted the communicator";
	*ret_code = c->code < 0 ? c->code : -TE_EABORT;
	return c->reason;
}

int te__control_check(const struct te__control *c, const char *fn)
{
	int code;
	const char *why = te__control_why(c, &code);

	/* any process of the node may write to the page */
	return why ? te__fail(code, "%s: %.*s", fn, (int)sizeof(c->reason), why) : 0;
}
