/* addr.c - see addr.h. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libtecomm/meet/addr.h"
#include "libtecore/base/private.h"

#define BACKLOG 1024 /* the system's limit may be lower */
#define PORTS_MOST 16 /* number of ports that are tried */

/* 1: a comma separated list has the name; an empty list has all */
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

/* 1: the address was added; link-local ones need the name of an interface and are omitted */
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
		return te__fail(-ENODEV, "%s: no interface of TE_COMM_IFACE (%s) is up and has an "
				"address", fn, list);
	return te__fail(-ENODEV, "%s: no network interface is up, not even the loopback", fn);
}

static int listen_at(const struct sockaddr *sa, socklen_t len, struct te__listen *l)
{
	int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int off = 0, r = 0;

	if (fd < 0)
		return -errno;
	if (sa->sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	if (bind(fd, sa, len) || listen(fd, BACKLOG))
		r = -errno;
	if (r)
		close(fd);
	else
		l->fd[l->n++] = fd;
	return r;
}

static int port_of(const struct te__listen *l, uint16_t *ret_port)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);

	if (getsockname(l->fd[0], (struct sockaddr *)&ss, &len))
		return -errno;
	*ret_port = ntohs(ss.ss_family == AF_INET6 ?
			  ((const struct sockaddr_in6 *)(const void *)&ss)->sin6_port :
			  ((const struct sockaddr_in *)(const void *)&ss)->sin_port);
	return 0;
}

/* all interfaces; *ret_v6: over IPv6 too */
static int listen_any(struct te__listen *l, uint16_t *ret_port, int *ret_v6)
{
	const struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 }; /* zeros are any address */
	const struct sockaddr_in v4 = { .sin_family = AF_INET };
	int r = listen_at((const struct sockaddr *)(const void *)&v6, sizeof(v6), l);

	*ret_v6 = !r;
	if (r)
		r = listen_at((const struct sockaddr *)(const void *)&v4, sizeof(v4), l);
	return r ? r : port_of(l, ret_port);
}

/* listen at the addresses of a, with one port; omit new addresses that cannot be bound */
static int listen_each(struct te__listen *l, struct te__addrs *a)
{
	struct sockaddr_storage ss;
	struct te__addrs used = { 0 };
	int r = -EADDRNOTAVAIL;

	for (int i = 0; i < a->n; i++) {
		int code;

		a->port = used.port;
		code = listen_at((const struct sockaddr *)&ss, te__addr_sockaddr(a, i, &ss), l);
		if (!code && !used.port)
			code = port_of(l, &used.port);
		if (code == -EADDRNOTAVAIL || code == -EAFNOSUPPORT)
			continue;
		r = code;
		if (r)
			break;
		used.a[used.n++] = a->a[i];
	}
	if (!r)
		*a = used;
	else
		te__listen_close(l);
	return r;
}

int te__addr_listen(const char *fn, struct te__listen *ret_l, struct te__addrs *ret_addrs)
{
	const int named = *te__param_str(TE_PARAM_COMM_IFACE) != 0;
	struct te__addrs a = { 0 };
	struct te__listen l = { 0 };
	int v6 = 1, r = 0;

	if (te__fault_point())
		return te__fail(-EIO, "%s: injected fault", fn);
	if (named)
		r = find(fn, v6, &a);
	if (r)
		return r;
	if (!named)
		r = listen_any(&l, &a.port, &v6);
	/* a port that is free at the first address may not be so at another one */
	for (int i = 0; named && i < PORTS_MOST && (!i || r == -EADDRINUSE); i++)
		r = listen_each(&l, &a);
	if (r)
		te__fail(r, "%s: cannot listen on a TCP port: %s", fn, te_strerror(r));
	else if (!named)
		r = find(fn, v6, &a);
	if (r) {
		te__listen_close(&l);
		return r;
	}
	*ret_l = l;
	*ret_addrs = a;
	return 0;
}

void te__listen_close(struct te__listen *l)
{
	while (l->n)
		close(l->fd[--l->n]);
}

int te__listen_dup(const struct te__listen *l, struct te__listen *ret_l)
{
	struct te__listen d = { 0 };

	for (; d.n < l->n; d.n++) {
		d.fd[d.n] = te__fault_point() ? (errno = EMFILE, -1) :
						fcntl(l->fd[d.n], F_DUPFD_CLOEXEC, 0);
		if (d.fd[d.n] < 0) {
			const int r = -errno;

			te__listen_close(&d);
			return r;
		}
	}
	*ret_l = d;
	return 0;
}

void te__listen_poll(const struct te__listen *l, struct pollfd *p)
{
	for (int i = 0; i < l->n; i++)
		p[i] = (struct pollfd){ .fd = l->fd[i], .events = POLLIN };
}

int te__listen_ready(const struct te__listen *l, const struct pollfd *p)
{
	int ready = 0;

	for (int i = 0; i < l->n; i++)
		ready |= p[i].revents;
	return ready;
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
