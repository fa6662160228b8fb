/* link_lib.c - see link_lib.h. */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "libtecore/base/splitmix64.h"
#include "link_lib.h"

#define POISON 0xa5

static uint64_t state_of(const struct link_stream *s, int from, int to, int n)
{
	uint64_t x = s->seed + (uint64_t)from * 1000003 + (uint64_t)to * 7919;

	x = te__splitmix64(&x) + (uint64_t)n;
	te__splitmix64(&x);
	return x;
}

static size_t size_of(const struct link_stream *s, uint64_t *state)
{
	static const size_t limit[] = { 64, 4096, 65536 };
	const uint64_t kind = te__splitmix64(state) % 4;
	const size_t most = kind < 3 && limit[kind] < s->most ? limit[kind] : s->most;

	return te__splitmix64(state) % (most + 1);
}

static void fill(uint8_t *p, size_t n, uint64_t state)
{
	for (; n >= 8; n -= 8, p += 8) {
		const uint64_t x = te__splitmix64(&state);

		memcpy(p, &x, 8);
	}
	while (n--)
		*p++ = (uint8_t)te__splitmix64(&state);
}

static int is_filled(const uint8_t *p, size_t n, uint64_t state)
{
	for (; n >= 8; n -= 8, p += 8) {
		const uint64_t x = te__splitmix64(&state);

		if (memcmp(p, &x, 8))
			return 0;
	}
	while (n--)
		if (*p++ != (uint8_t)te__splitmix64(&state))
			return 0;
	return 1;
}

static int queue(const struct link_stream *s, int n, int receive)
{
	const int from = receive ? s->peer : s->rank, to = receive ? s->rank : s->peer;
	const size_t at = (size_t)(n % s->depth + (receive ? s->depth : 0)) * s->most;
	uint64_t state = state_of(s, from, to, n);
	const size_t nbytes = size_of(s, &state);

	if (!receive)
		fill(s->mem + at, nbytes, state);
	else
		memset(s->mem + at, POISON, s->most);
	return receive ? te__link_recv(s->link, s->i, s->mem + at, nbytes)
		       : te__link_send(s->link, s->i, s->mem + at, nbytes);
}

static int check(const struct link_stream *s, int n)
{
	const uint8_t *p = s->mem + (size_t)(n % s->depth + s->depth) * s->most;
	uint64_t state = state_of(s, s->peer, s->rank, n);
	const size_t nbytes = size_of(s, &state);

	if (!is_filled(p, nbytes, state))
		return te__fail(-EBADMSG, "message %d of %zu bytes is wrong", n, nbytes);
	for (size_t k = nbytes; k < s->most; k++)
		if (p[k] != POISON)
			return te__fail(-EBADMSG, "byte %zu after message %d is written",
					k - nbytes, n);
	return 0;
}

int link_exchange(const struct link_stream *s, int count)
{
	const struct te__link_counts *tx = &s->link->sends[s->i], *rx = &s->link->receives[s->i];
	const uint64_t tx0 = tx->complete, rx0 = rx->complete;
	int nsend = 0, nrecv = 0, nchecked = 0, r = 0;

	while (!r && (nchecked < count || tx->complete - tx0 < (uint64_t)count)) {
		while (!r && nchecked < (int)(rx->complete - rx0))
			r = check(s, nchecked++);
		while (!r && nrecv < count && nrecv - nchecked < s->depth)
			r = queue(s, nrecv++, 1);
		while (!r && nsend < count && nsend - (int)(tx->complete - tx0) < s->depth)
			r = queue(s, nsend++, 0);
		if (!r)
			r = te__link_poll(s->link, te__boot_now() + 10000000);
	}
	return r;
}
