/* conn.h - a stream socket that sends and receives frames without blocking. */
#ifndef TE__CONN_H
#define TE__CONN_H

#include "libtecomm/bootstrap/frame.h"

struct te__conn {
	int fd; /* -1: none */
	/* the frame that is being received, or that has been and waits for te__conn_next() */
	uint8_t in_head[TE__FRAME_HEAD];
	struct te__frame in;
	uint8_t *in_body; /* ends with a 0 that is not part of it */
	size_t in_got;	  /* bytes of head and body */
	int in_whole;
	/* the frame that is being sent */
	uint8_t out_head[TE__FRAME_HEAD];
	const void *out_body;
	size_t out_nbytes, out_sent; /* of head and body */
	int out_broken; /* the peer receives no more; what it has sent can still be read */
	uint8_t out_small[TE__REFUSE_MOST]; /* a copy of a small body */
};

#define TE__CONN_INIT    \
	{                \
		.fd = -1 \
	}

/*
 * 1: a connection that has waited; 0: there is none, or it has ended; -EMFILE, -ENFILE, -ENOBUFS,
 * -ENOMEM: none can be accepted, and those that wait keep the socket readable. Records no message.
 */
int te__conn_accept(int listen_fd, int *ret_fd);

/* takes the descriptor; sets what streams of the mesh have in common */
void te__conn_open(struct te__conn *c, int fd);
void te__conn_close(struct te__conn *c);

/*
 * Receives what is there. 1: c->in and c->in_body are a whole frame, until te__conn_next(); 0: not
 * yet; -EPIPE: the peer has closed its end; -EBADMSG: no frame, larger than most, or damaged; other
 * errno values. Records no message.
 */
int te__conn_read(struct te__conn *c, uint32_t most);
void te__conn_next(struct te__conn *c);

/*
 * Queues a frame; the one before must have been sent. A body of more than TE__REFUSE_MOST bytes is
 * not copied. te__conn_queue_head: with a head that te__frame_put has made.
 */
void te__conn_queue(struct te__conn *c, const struct te__frame *f, const void *body, size_t nbytes);
void te__conn_queue_head(struct te__conn *c, const uint8_t *head, const void *body, size_t nbytes);
/* 1: all has been sent; 0: not yet; errno values. Records no message */
int te__conn_write(struct te__conn *c);
static inline int te__conn_pending(const struct te__conn *c)
{
	return c->out_sent < c->out_nbytes;
}

#endif
