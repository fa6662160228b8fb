/* local.c - see local.h. */
#include "config.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "libtecomm/meet/local.h"
#include "libtecore/base/private.h"

#define AT (offsetof(struct sockaddr_un, sun_path) + 1) /* after the zero byte of abstract names */

int te__local_listen(int type, int backlog, int *ret_fd, char ret_name[TE__LOCAL_NAME])
{
	int fd = te__fault_point() ? (errno = EMFILE, -1) :
				     socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	socklen_t len = sizeof(sa);
	int r = 0;

	/* an address with a family only requests a free name: five digits */
	if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa.sun_family)) ||
	    listen(fd, backlog) || getsockname(fd, (struct sockaddr *)&sa, &len))
		r = -errno;
	else if (len <= AT || len - AT >= TE__LOCAL_NAME)
		r = -EADDRNOTAVAIL;
	if (r) {
		if (fd >= 0)
			close(fd);
		return r;
	}
	memset(ret_name, 0, TE__LOCAL_NAME);
	memcpy(ret_name, sa.sun_path + 1, len - AT);
	*ret_fd = fd;
	return 0;
}

socklen_t te__local_address(const char *name, struct sockaddr_un *ret)
{
	const size_t n = strnlen(name, TE__LOCAL_NAME);

	*ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
	memcpy(ret->sun_path + 1, name, n);
	return (socklen_t)(AT + n);
}
