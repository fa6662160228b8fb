/* wire.c - where the broker of a node listens, and who may be at the other end of a connection. */
#define TE_LOG_CATEGORY "comm/broker"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "libtecomm/memory/broker.h"
#include "libtecore/base/private.h"

size_t te__wire_address(const struct te__node_info *info, struct sockaddr_un *ret)
{
	char *at = ret->sun_path + 1; /* the name begins with a zero byte: it is abstract */
	int n;

	memset(ret, 0, sizeof(*ret));
	ret->sun_family = AF_UNIX;
	n = sprintf(at, "te-comm-%d-", info->node);
	/* all users see it: the other half is not in it */
	for (int i = 0; i < TE__KEY_NBYTES / 2; i++)
		n += sprintf(at + n, "%02x", info->key[i]);
	return offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n;
}
