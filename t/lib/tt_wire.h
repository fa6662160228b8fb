/* tt_wire.h - random packets for services with the protocol of libtecore/base/wire.h. */
#ifndef TT_WIRE_H
#define TT_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "libtecore/base/wire.h"

#define TT_WIRE_MOST (sizeof(struct te__wire) + TE__WIRE_DATA_MAX + 1)

/* packets of a test: 10000, fewer with a sanitizer, or TT_WIRE_MESSAGES of the environment */
int64_t tt_wire_total(void);
/*
 * Makes a valid request with the key, or one with some bytes or the length changed, in a packet of
 * TT_WIRE_MOST bytes; returns its length.
 */
size_t tt_wire_draw(const uint8_t *key, uint8_t *packet);
/* number of descriptors to send with a packet: mostly 0, or 1, 2, 253 */
int tt_wire_draw_nfds(void);
/* sends fd nfds times, 253 at most; returns 1 if it could */
int tt_wire_send(int sock, const void *packet, size_t nbytes, int nfds, int fd);

#endif
