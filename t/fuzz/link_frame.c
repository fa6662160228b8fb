/*
 * t/fuzz/link_frame.c - what a link over TCP reads from a rank that has proved its key: frames of
 * all types, in any order, changed before or after they got their MAC.
 *
 * The input is a list of frames: a byte with the type (bits 0 and 1), whether a receive waits for
 * the data (bit 2), whether a byte of the head changes before its MAC is made (bit 3), or one of
 * the frame afterwards (bit 4), and whether the frame comes twice (bit 5); the number of bytes of
 * the body, and these; and for each change a byte with its place and one with the bits that change.
 *
 * What is received is what was sent, in order, and nothing that comes after a change of what has
 * its MAC, or after a frame that has come already. A head that gets its MAC after a change may be a
 * frame too.
 */
#include "config.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "libtecomm/meet/boot.h"
#include "libtecomm/reach/link/tcp.h"

#define FRAMES_MOST 64 /* frames per input; so many receives can wait */

static const uint8_t key[TE__KEY_NBYTES] = { 1, 2, 3 }, nonce[TE__NONCE_NBYTES];

struct sent {
	uint8_t body[255], got[255];
	size_t nbytes;
};

static struct te__link *open_link(struct te__boot *boot, const int32_t *peer, int fd)
{
	static char text[2][TE__PEER_TEXT] = { "rank 0", "rank 1" };
	struct te__link *l = te__calloc(1, te__link_tcp.nbytes);
	struct te__session s;

	boot->nranks = 2;
	boot->text = text;
	l->ops = &te__link_tcp;
	l->o = (struct te__link_opts){ .boot = boot, .peers = peer, .npeers = 1,
				       .timeout_ms = 60000, .heartbeat_ms = 60000 };
	l->sends = te__calloc(1, sizeof(*l->sends));
	l->receives = te__calloc(1, sizeof(*l->receives));
	te__session_derive(key, "", 0, nonce, 0, &s);
	if (te__tcp_prepare(l))
		abort();
	te__tcp_take(l, 0, fd, &s);
	return l;
}

static uint8_t next(const uint8_t **data, const uint8_t *end)
{
	return *data < end ? *(*data)++ : 0;
}

/* 1: bits of the first nbytes have changed */
static int change(uint8_t *p, size_t nbytes, const uint8_t **data, const uint8_t *end)
{
	const uint8_t place = next(data, end), bits = next(data, end);

	p[place % nbytes] ^= bits;
	return bits != 0;
}

enum { INTACT, OTHERWISE, CHANGED };

/* a frame into the stream */
static int send_frame(int fd, struct te__seal *seal, int how, struct sent *m, const uint8_t **data,
		      const uint8_t *end)
{
	uint8_t f[TE__TCP_HEAD + sizeof(m->body)];
	size_t n;
	const enum te__tcp_type type = (enum te__tcp_type)(TE__TCP_DATA + (how & 3));
	const int has_body = type == TE__TCP_DATA || type == TE__TCP_ABORT;
	int is = INTACT;

	te__tcp_head(seal, f, type, m->body, has_body ? m->nbytes : 0);
	if (how & 8) {
		is = change(f, TE__TCP_HEAD_MAC, data, end) ? OTHERWISE : INTACT;
		seal->n--;
		te__seal_mac(seal, f, TE__TCP_HEAD_MAC, m->body,
			     type == TE__TCP_ABORT ? m->nbytes : 0, f + TE__TCP_HEAD_MAC);
		seal->n++;
	}
	memcpy(f + TE__TCP_HEAD, m->body, m->nbytes);
	n = TE__TCP_HEAD + (has_body ? m->nbytes : 0);
	if (how & 16 && change(f, n, data, end) && is == INTACT)
		is = CHANGED;
	for (int k = 0; k <= (how & 32) / 32; k++)
		(void)send(fd, f, n, MSG_NOSIGNAL | MSG_DONTWAIT);
	return is;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	const uint8_t *end = data + nbytes;
	const int32_t peer = 1;
	struct te__boot boot = { 0 };
	struct sent *m = calloc(FRAMES_MOST + 1, sizeof(*m));
	uint64_t nrecv = 0, ndata = 0;
	struct te__session far;
	struct te__link *l;
	int fd[2], is = INTACT;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd))
		abort();
	te__session_derive(key, "", 0, nonce, 1, &far);
	l = open_link(&boot, &peer, fd[0]);
	for (int k = 0; k < FRAMES_MOST && data < end; k++) {
		struct sent *s = &m[ndata];
		const int how = next(&data, end);
		int now;

		s->nbytes = next(&data, end);
		for (size_t i = 0; i < s->nbytes; i++)
			s->body[i] = next(&data, end);
		if (how & 4)
			nrecv += !te__link_recv(l, 0, m[nrecv].got,
						nrecv < ndata ? m[nrecv].nbytes : s->nbytes);
		now = send_frame(fd[1], &far.out, how, s, &data, end);
		is = is == INTACT ? now : is;
		ndata += is == INTACT && (how & 3) == 0;
		if (how & 32 && is == INTACT)
			is = CHANGED; /* by what comes twice */
		(void)te__link_poll(l, 0);
	}
	if (l->code > 0 || (is != OTHERWISE && l->receives[0].complete > ndata))
		abort();
	for (uint64_t k = 0; k < l->receives[0].complete && k < ndata; k++)
		if (memcmp(m[k].got, m[k].body, m[k].nbytes))
			abort();
	close(fd[1]);
	l->ops->close(l);
	te__free(l->sends);
	te__free(l->receives);
	te__free(l);
	free(m);
	return 0;
}
