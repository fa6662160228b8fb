/*
 * join.h - authenticated streams between all ranks, for the mesh of a bootstrap and for links over
 * TCP.
 *
 * A rank connects to the lower ranks and accepts the higher ones. The connecting rank sends HELLO
 * and gets WELCOME or REFUSE; a connection that does not know the key, or wants another rank, is
 * closed without an answer (conn.h).
 */
#ifndef TE__JOIN_H
#define TE__JOIN_H

#include <stdbool.h>

#include "libtecomm/meet/boot.h"

/* state of a peer */
enum te__peer_state {
	TE__DIALING, /* lower rank: connecting */
	TE__GREETED, /* lower rank: has our hello */
	TE__AWAITED, /* higher rank: has not connected */
	TE__UP,
	TE__GONE, /* up once; it has closed its stream */
	TE__LOST, /* up once; its stream has ended in an exchange, after its part of the exchange */
};

struct te__join {
	struct te__boot *b; /* names and key; a failure ends it, on all ranks */
	const char *what;   /* begin of error messages */
	bool link; /* b is open: its failures end the join, too, and streams get no frames yet */
	const struct te__listen *listen;
	const struct te__addrs *addrs; /* [nranks]; NULL: the provider's dial() has addresses */
	struct te__conn *conn;	  /* [nranks], closed */
	_Atomic uint8_t *state;	  /* [nranks]; TE__UP: no stream is needed */
	int64_t begin, deadline;
};

/* 0: all are up, and everything is sent; else the caller closes the open streams */
int te__join(const struct te__join *o);

#endif
