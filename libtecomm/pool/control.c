/* control.c - the control page of a node's ranks, see control.h. */
#define TE_LOG_CATEGORY "comm/memory"
#include "config.h"

#include <stdio.h>
#include <string.h>
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

int te__control_why(const struct te__control *c, char ret_reason[TE__CONTROL_REASON])
{
	int32_t code = 0;

	if (!atomic_load_explicit(&c->abort, memory_order_relaxed))
		return 0;
	if (!ret_reason)
		return -TE_EABORT;
	if (told(c)) {
		/* any process of the node may write to the page: the text may have no end */
		code = *(const volatile int32_t *)&c->code;
		memcpy(ret_reason, c->reason, TE__CONTROL_REASON - 1);
		ret_reason[TE__CONTROL_REASON - 1] = 0;
	} else {
		snprintf(ret_reason, TE__CONTROL_REASON, "a rank has aborted the communicator");
	}
	return code < 0 ? code : -TE_EABORT;
}

int te__control_check(const struct te__control *c, const char *fn)
{
	char why[TE__CONTROL_REASON];
	const int code = te__control_why(c, why);

	return code ? te__fail(code, "%s: %s", fn, why) : 0;
}
