/*
 * join.h - a stream between ranks, each of which has proved that it knows the key.
 *
 * A rank connects to the lower ranks and accepts the higher ones. Who connects says HELLO and is
 * answered WELCOME or REFUSE; whoever does not know the key, or wants another rank, is closed
 * without an answer (conn.h). The mesh of a bootstrap is made so, and later a link over TCP.
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
	TE__LOST, /* up once; its stream has ended in an exchange, after its part of that */
};

struct te__join {
	struct te__boot *b; /* names and key; a failure ends it, and all ranks learn of it */
	const char *what;   /* begins error messages */
	bool link; /* b is open: its failures end the joining, too, and streams get no frames yet */
	const struct te__listen *listen;
	const struct te__addrs *addrs; /* [nranks]; NULL: the provider's dial() has addresses */
	struct te__conn *conn;	  /* [nranks], closed */
	_Atomic uint8_t *state;	  /* [nranks]; TE__UP: no stream is wanted */
	int64_t begin, deadline;
	/* not of a link: input and output of a peer that is up */
	int (*step_up)(struct te__boot *b, int32_t rank, short revents, const char *what);
};

/* 0: all are up, and everything is sent; else streams that are open are left to the caller */
int te__join(const struct te__join *o);

#endif
