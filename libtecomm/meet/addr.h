/* addr.h - listening sockets with one port, and the list of their addresses. */
#ifndef TE__ADDR_H
#define TE__ADDR_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define TE__ADDRS_MAX 6
#define TE__ADDRS_MOST (3 + 17 * TE__ADDRS_MAX) /* bytes of te__addrs_put */

struct te__addrs {
	uint16_t port;
	uint8_t n;
	struct {
		uint8_t family; /* 4 or 6 */
		uint8_t ip[16]; /* network order; the first 4 bytes, or all */
	} a[TE__ADDRS_MAX];
};

/* zeros: none */
struct te__listen {
	int n, fd[TE__ADDRS_MAX];
};

/*
 * Listens on a free port: if TE_COMM_IFACE names interfaces, only at their addresses; else on all
 * interfaces, over IPv6 and IPv4 if the system has them. The list then has the addresses of
 * interfaces that are up, or of the loopback interface if there is no other. fn: for messages.
 * Errors: errno values.
 */
int te__addr_listen(const char *fn, struct te__listen *ret_l, struct te__addrs *ret_addrs);
/* closes all sockets */
void te__listen_close(struct te__listen *l);
/* duplicates the descriptors; 0 or -errno */
int te__listen_dup(const struct te__listen *l, struct te__listen *ret_l);
/* fills in l->n entries; poll(2) takes no more than a process may have files */
void te__listen_poll(const struct te__listen *l, struct pollfd *p);
/* 1: connections wait, by these entries after poll(2) */
int te__listen_ready(const struct te__listen *l, const struct pollfd *p);

/* the ith address as a socket address; returns its length */
socklen_t te__addr_sockaddr(const struct te__addrs *l, int i, struct sockaddr_storage *ret_ss);

/* 1: the list, which another rank may have sent, has an address to connect to */
static inline int te__addrs_usable(const struct te__addrs *l)
{
	return l->n && l->n <= TE__ADDRS_MAX && l->port;
}

/* "10.0.0.5:4000", "[2001:db8::5]:4000": the first of the list, and "..." if there are more */
#define TE__ADDR_TEXT 64
const char *te__addr_text(const struct te__addrs *l, char text[TE__ADDR_TEXT]);

/* writes the list as bytes; returns their number, at most TE__ADDRS_MOST */
size_t te__addrs_put(uint8_t *p, const struct te__addrs *l);
/* reads a list from nbytes; returns the number of bytes read, or -EBADMSG */
int te__addrs_get(const uint8_t *p, size_t nbytes, struct te__addrs *ret_l);

#endif
