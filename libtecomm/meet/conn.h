/*
 * conn.h - a stream socket that sends and receives frames without blocking, after each end has
 * proved that it knows the key (auth.h).
 */
#ifndef TE__CONN_H
#define TE__CONN_H

#include <poll.h>

#include "libtecomm/meet/frame.h"

struct te__conn {
	int fd; /* -1: none */
	struct te__ends ends;
	enum {
		TE__CONN_ASKS,	  /* this end has sent its challenge, and waits for the answer */
		TE__CONN_LISTENS, /* this end waits for the challenge */
		TE__CONN_KEYED,	  /* there is a session, but no proof of the other end yet */
		TE__CONN_PROVEN,
	} step;
	uint8_t challenge[TE__FRAME_HEAD + TE__CHALLENGE_NBYTES];
	struct te__session session;
	/* the frame that is being received, or is complete until te__conn_next() */
	uint8_t in_head[TE__FRAME_HEAD];
	struct te__frame in;
	uint8_t *in_body; /* ends with a 0 that is not part of it */
	size_t in_got;	  /* bytes of head and body */
	int in_whole;
	/* the frame that is being sent */
	uint8_t out_head[TE__FRAME_HEAD];
	const void *out_body;
	size_t out_nbytes, out_sent; /* bytes of head and body */
	int out_sealed;		     /* the head has its MAC */
	int out_broken; /* the peer receives no more; bytes that it sent can still be read */
	uint8_t out_small[TE__REFUSE_MOST]; /* a copy of a small body */
};

#define TE__CONN_INIT    \
	{                \
		.fd = -1 \
	}

#define TE__ACCEPT_MOST 32 /* connections, before time-outs and other sockets are looked at */

/*
 * Accepts a connection: 1, or 0 if none waits or it has ended, or after TE__ACCEPT_MOST connections
 * of other users; -EMFILE, -ENFILE, -ENOBUFS, -ENOMEM: none can be accepted. Connections that still
 * wait keep the socket readable. Records no message.
 */
int te__conn_accept(const struct te__listen *l, int *ret_fd);

/*
 * Takes the descriptor and sets its options. connects: this end has connected, and sends its
 * challenge. te__conn_read() then does the rest of the handshake before the first frame.
 */
void te__conn_open(struct te__conn *c, int fd, const struct te__ends *ends, int connects);
void te__conn_close(struct te__conn *c);

/*
 * Receives available bytes. 1: c->in and c->in_body are a whole frame, until te__conn_next(); 0:
 * not yet; -EPIPE: the peer has closed its end; -EACCES: it does not know the key; -EBADMSG: not a
 * frame, larger than most, or not the next one that it sent; other errno values.
 */
int te__conn_read(struct te__conn *c, uint32_t most);
void te__conn_next(struct te__conn *c);

/*
 * Queues a frame; the previous one must have been sent completely or not at all. A body of more
 * than TE__REFUSE_MOST bytes is not copied.
 */
void te__conn_queue(struct te__conn *c, const struct te__frame *f, const void *body, size_t nbytes);
/* 1: all has been sent; 0: not yet; errno values. Records no message */
int te__conn_write(struct te__conn *c);
static inline int te__conn_pending(const struct te__conn *c)
{
	return c->out_sent < c->out_nbytes;
}
/* te__conn_write(), but a failure shows only after all that the peer sent was read: out_broken */
void te__conn_flush(struct te__conn *c);
/* queues a frame without a number or text, and sends what can be sent without waiting */
void te__conn_say(struct te__conn *c, enum te__frame_type type, const void *body, size_t nbytes);
/* events to wait for; fd is -1 if there are none, also while a whole frame is not taken */
struct pollfd te__conn_poll(const struct te__conn *c);
/* 1: a frame can be sent without waiting for a frame of the other end */
static inline int te__conn_can_write(const struct te__conn *c)
{
	return te__conn_pending(c) && c->step >= TE__CONN_KEYED;
}

#endif
