/* addr.c - see addr.h. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libtecomm/bootstrap/addr.h"
#include "libtecore/base/private.h"

#define BACKLOG 1024 /* the system's limit may be lower */

/* whether a comma separated list has the name; an empty list has all */
static int listed(const char *list, const char *name)
{
	size_t n = strlen(name);

	if (!*list)
		return 1;
	for (;; list++) {
		size_t len = strcspn(list, ",");

		if (len == n && !memcmp(list, name, n))
			return 1;
		list += len;
		if (!*list)
			return 0;
	}
}

/* 1: the address was added; link-local ones need the name of an interface and are left out */
static int add(struct te__addrs *l, const struct sockaddr *sa, int v6)
{
	if (l->n == TE__ADDRS_MAX)
		return 0;
	if (sa->sa_family == AF_INET) {
		l->a[l->n].family = 4;
		memcpy(l->a[l->n++].ip, &((const struct sockaddr_in *)(const void *)sa)->sin_addr,
		       4);
		return 1;
	}
	if (sa->sa_family == AF_INET6 && v6) {
		const struct in6_addr *in =
			&((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;

		if (IN6_IS_ADDR_LINKLOCAL(in))
			return 0;
		l->a[l->n].family = 6;
		memcpy(l->a[l->n++].ip, in, 16);
		return 1;
	}
	return 0;
}

static int find(const char *fn, int v6, struct te__addrs *l)
{
	const char *list = te__param_str(TE_PARAM_COMM_IFACE);
	struct ifaddrs *all;

	if (getifaddrs(&all))
		return te__fail(-errno, "%s: getifaddrs: %s", fn, te_strerror(-errno));
	for (int loopback = 0; loopback < 2 && !l->n; loopback++)
		for (const struct ifaddrs *i = all; i; i = i->ifa_next)
			if (i->ifa_addr && (i->ifa_flags & IFF_UP) && listed(list, i->ifa_name) &&
			    (*list || !(i->ifa_flags & IFF_LOOPBACK) == !loopback))
				add(l, i->ifa_addr, v6);
	freeifaddrs(all);
	if (l->n)
		return 0;
	if (*list)
		return te__fail(-ENODEV,
				"%s: no interface of TE_COMM_IFACE (%s) is up and has an "
				"address",
				fn, list);
	return te__fail(-ENODEV, "%s: no network interface is up, not even the loopback", fn);
}

static int bind_any(int family, int *ret_fd, uint16_t *ret_port)
{
	union {
		struct sockaddr sa;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} u;
	socklen_t len = family == AF_INET6 ? sizeof(u.v6) : sizeof(u.v4);
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), r, off = 0;

	if (fd < 0)
		return -errno;
	memset(&u, 0, sizeof(u));
	u.sa.sa_family = (sa_family_t)family; /* the address of zeros is any */
	if (family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	if (bind(fd, &u.sa, len) || listen(fd, BACKLOG) || getsockname(fd, &u.sa, &len)) {
		r = -errno;
		close(fd);
		return r;
	}
	*ret_port = ntohs(family == AF_INET6 ? u.v6.sin6_port : u.v4.sin_port);
	*ret_fd = fd;
	return 0;
}

int te__addr_listen(const char *fn, int *ret_fd, struct te__addrs *ret_addrs)
{
	struct te__addrs l = { 0 };
	int v6 = 1, fd, r;

	if (te__fault_point())
		return te__fail(-EIO, "%s: injected fault", fn);
	r = bind_any(AF_INET6, &fd, &l.port);
	if (r) {
		v6 = 0;
		r = bind_any(AF_INET, &fd, &l.port);
	}
	if (r)
		return te__fail(r, "%s: cannot listen on a TCP port: %s", fn, te_strerror(r));
	r = find(fn, v6, &l);
	if (r) {
		close(fd);
		return r;
	}
	*ret_fd = fd;
	*ret_addrs = l;
	return 0;
}

socklen_t te__addr_sockaddr(const struct te__addrs *l, int i, struct sockaddr_storage *ret_ss)
{
	memset(ret_ss, 0, sizeof(*ret_ss));
	if (l->a[i].family == 4) {
		struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)ret_ss;

		v4->sin_family = AF_INET;
		v4->sin_port = htons(l->port);
		memcpy(&v4->sin_addr, l->a[i].ip, 4);
		return sizeof(*v4);
	} else {
		struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)ret_ss;

		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(l->port);
		memcpy(&v6->sin6_addr, l->a[i].ip, 16);
		return sizeof(*v6);
	}
}

const char *te__addr_text(const struct te__addrs *l, char text[TE__ADDR_TEXT])
{
	char ip[INET6_ADDRSTRLEN] = "";
	const int v6 = l->n && l->a[0].family == 6;

	if (l->n)
		inet_ntop(v6 ? AF_INET6 : AF_INET, l->a[0].ip, ip, sizeof(ip));
	snprintf(text, TE__ADDR_TEXT, v6 ? "[%s]:%u%s" : "%s:%u%s", l->n ? ip : "?", l->port,
		 l->n > 1 ? "..." : "");
	return text;
}

size_t te__addrs_put(uint8_t *p, const struct te__addrs *l)
{
	uint8_t *at = p;

	*at++ = (uint8_t)l->port;
	*at++ = (uint8_t)(l->port >> 8);
	*at++ = l->n;
	for (int i = 0; i < l->n; i++) {
		const size_t n = l->a[i].family == 6 ? 16 : 4;

		*at++ = l->a[i].family;
		memcpy(at, l->a[i].ip, n);
		at += n;
	}
	return (size_t)(at - p);
}

int te__addrs_get(const uint8_t *p, size_t nbytes, struct te__addrs *ret_l)
{
	size_t at = 3;

	memset(ret_l, 0, sizeof(*ret_l));
	if (nbytes < at || p[2] > TE__ADDRS_MAX)
		return -EBADMSG;
	ret_l->port = (uint16_t)(p[0] | p[1] << 8);
	for (; ret_l->n < p[2]; ret_l->n++) {
		size_t n;

		if (nbytes - at < 1 || (p[at] != 4 && p[at] != 6))
			return -EBADMSG;
		n = p[at] == 6 ? 16 : 4;
		if (nbytes - at < 1 + n)
			return -EBADMSG;
		ret_l->a[ret_l->n].family = p[at];
		memcpy(ret_l->a[ret_l->n].ip, p + at + 1, n);
		at += 1 + n;
	}
	return (int)at;
}
