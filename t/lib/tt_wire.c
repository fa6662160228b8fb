/* tt_wire.c - see tt_wire.h. */
#include "config.h"

#include <sys/socket.h>

#include "tt.h"
#include "tt_wire.h"

int64_t tt_wire_total(void)
{
	const char *env = getenv("TT_WIRE_MESSAGES");

	return env ? strtoll(env, NULL, 10) : TT_FEWER(10000);
}

size_t tt_wire_draw(const uint8_t *key, uint8_t *packet)
{
	struct te__wire m = { .magic = TE__WIRE_MAGIC, .kind = (uint32_t)tt_rand_int(0, 20) };
	const int64_t size = tt_rand_int(0, 40);
	size_t nbytes = sizeof(m) + (size_t)tt_rand_int(0, 3) * 100;

	memcpy(m.key, key, sizeof(m.key));
	m.key[0] ^= (uint8_t)tt_rand_int(0, 1);
	m.rank = tt_rand_int(0, 3) ? (uint32_t)tt_rand_int(0, 5) : UINT32_MAX;
	m.item = (uint32_t)tt_rand_int(0, 5);
	m.nbytes = tt_rand_u64();
	snprintf(m.text, sizeof(m.text), "%d", (int)tt_rand_int(0, 30));
	memset(packet, 'd', 1024);
	memcpy(packet, &m, sizeof(m));
	if (size == 0)
		return (size_t)tt_rand_int(0, sizeof(m) - 1);
	if (size == 1)
		return sizeof(m) + TE__WIRE_DATA_MAX + (size_t)tt_rand_int(0, 1);
	if (size < 6)
		tt_fill_bytes(packet + tt_rand_int(0, 200), 56);
	if (size == 6)
		packet[tt_rand_int(0, 3)] ^= 1;
	return nbytes;
}

int tt_wire_draw_nfds(void)
{
	const int64_t n = tt_rand_int(0, 60);

	return n == 0 ? 253 : n == 1 ? 2 : n < 20;
}

int tt_wire_send(int sock, const void *packet, size_t nbytes, int nfds, int fd)
{
	static union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(253 * sizeof(int))];
	} a;
	struct iovec io = { (void *)(uintptr_t)packet, nbytes };
	struct msghdr h = { .msg_iov = &io, .msg_iovlen = 1 };
	struct cmsghdr *c;

	if (nfds) {
		h.msg_control = a.bytes;
		h.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
		c = CMSG_FIRSTHDR(&h);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int));
		for (int i = 0; i < nfds; i++)
			memcpy(CMSG_DATA(c) + i * (int)sizeof(int), &fd, sizeof(int));
	}
	return sendmsg(sock, &h, MSG_NOSIGNAL) == (ssize_t)nbytes;
}
