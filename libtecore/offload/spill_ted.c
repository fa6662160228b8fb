/* spill_ted.c - asks ted(8) for the file of a spill; see daemon/ted.h for the messages. */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "libtecore/base/base.h"
#include "libtecore/base/wire.h"
#include "libtecore/offload/spill_io.h"

#define LIMIT_NS 10000000000

int te__spill_ted_grant(const char *path, uint64_t nbytes, int *ret_fd)
{
	struct te__wire hello = { .kind = TE__WIRE_HELLO, .rank = TE__WIRE_NO_RANK };
	struct te__wire grant = { .kind = TE__WIRE_GRANT, .nbytes = nbytes };
	struct te__wire_call c = {
		.who = "ted", .what = "spill: ask ted for a file", .late = "it does not answer",
		.deadline_ns = (int64_t)te__now_ns() + LIMIT_NS, .fd = -1,
	};
	int r;

	/* the file is a job of its own, and has no name for which another process could ask */
	if (getrandom(hello.key, sizeof(hello.key), 0) != (ssize_t)sizeof(hello.key))
		return te__fail(-errno, "spill: getrandom: %s", strerror(errno));
	r = te__wire_dial(path, "ted", c.deadline_ns, &c.sock);
	if (r)
		return r;
	r = te__wire_call(&c, &hello);
	c.wants_fd = 1;
	if (!r)
		r = te__wire_call(&c, &grant);
	/* a client that is no rank need not say BYE */
	close(c.sock);
	if (!r)
		*ret_fd = c.ret_fd;
	return r;
}
