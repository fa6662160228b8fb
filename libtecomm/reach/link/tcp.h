/*
 * tcp.h - the parts of a link over TCP (tcp.c) that tests use directly: heads of frames, and a link
 * over given streams.
 */
#ifndef TE__TCP_H
#define TE__TCP_H

#include "libtecomm/meet/auth.h"
#include "libtecomm/reach/link/link.h"

/* a head: "teLk", type, size, checksum of the data, little-endian; then the MAC of these */
#define TE__TCP_HEAD_MAC 24
#define TE__TCP_HEAD (TE__TCP_HEAD_MAC + TE__MAC_NBYTES)

enum te__tcp_type { TE__TCP_DATA = 1, TE__TCP_BEAT, TE__TCP_BYE, TE__TCP_ABORT };

/* the head of the next frame of a direction */
void te__tcp_head(struct te__seal *s, uint8_t *ret_head, enum te__tcp_type type, const void *data,
		  uint64_t nbytes);

/* a link without streams: 0, -ENOMEM, -EMFILE */
int te__tcp_prepare(struct te__link *l);
/* takes the descriptor: the authenticated stream of peer i */
void te__tcp_take(struct te__link *l, int32_t i, int fd, const struct te__session *session);

#endif
