/*
 * frame.h - frames that ranks send each other while they meet and in exchanges, as bytes.
 *
 * A frame is a head of TE__FRAME_HEAD bytes, which ends with a MAC (auth.h), and a body. Numbers
 * are little-endian. Heads and challenges have this layout in all versions, so that a rank can
 * report a difference of versions to another one.
 */
#ifndef TE__FRAME_H
#define TE__FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "libtecomm/meet/addr.h"
#include "libtecomm/meet/auth.h"

#define TE__FRAME_VERSION 3
#define TE__FRAME_HEAD (TE__FRAME_MAC + TE__MAC_NBYTES)
#define TE__FRAME_MAC 60 /* offset of the MAC, over the bytes before it and the body */
#define TE__FRAME_WHAT 40

enum te__frame_type {
	TE__FRAME_HELLO = 1, /* describes the sender: struct te__hello */
	TE__FRAME_WELCOME,   /* reply to a hello */
	TE__FRAME_REFUSE,    /* reply to a hello: a code and the reason */
	TE__FRAME_TABLE,     /* reply of the root to a hello: the addresses of all ranks */
	TE__FRAME_DATA,	     /* data of an exchange */
	TE__FRAME_ABORT,     /* a code and the reason: the sender takes part in nothing more */
	TE__FRAME_BYE,	     /* the sender closes its end after this */
	TE__FRAME_ARRIVE,    /* lineage.h; seq: the generation */
	TE__FRAME_GROUP,
	TE__FRAME_CHALLENGE, /* the first of each end: struct te__challenge, and a nonce */
};

struct te__frame {
	uint16_t version, type;
	uint64_t seq; /* number of exchange, from 1, or connection (auth.h); else 0 */
	uint32_t nbytes;
	char what[TE__FRAME_WHAT]; /* name of an exchange, truncated; ends with 0 */
};
/*
 * to: checked, because an address of a rank can lead to another rank: hosts may have equal
 * addresses, for example on bridges.
 */
struct te__challenge {
	uint8_t purpose;
	int32_t from, to; /* ranks; 0 for the root */
	uint8_t nonce[TE__NONCE_NBYTES];
};

#define TE__CHALLENGE_NBYTES (9 + TE__NONCE_NBYTES)

struct te__hello {
	int32_t rank, nranks;
	uint32_t pid;
	int32_t timeout_ms, left_ms; /* to the root: the sender's time-out, and the rest of it */
	char version[16], host[64];  /* end with 0 */
	struct te__addrs addrs;	     /* to the root: addresses of the sender; else none */
};

#define TE__HELLO_MOST 256
#define TE__REFUSE_MOST 512 /* a code and text */
/* limit of the body of a frame before the sender has proved that it knows the key */
#define TE__FRAME_STRANGER 1024

/* writes the TE__FRAME_HEAD bytes of head, with zeros for the MAC */
void te__frame_put(uint8_t *head, const struct te__frame *f, size_t nbytes);
/* 0; -EBADMSG: not a frame, or its body is longer than most */
int te__frame_get(const uint8_t *head, uint32_t most, struct te__frame *ret_f);

void te__challenge_put(uint8_t body[TE__CHALLENGE_NBYTES], const struct te__challenge *c);
/* 0, or -EBADMSG, as the functions below */
int te__challenge_get(const uint8_t *body, size_t nbytes, struct te__challenge *ret_c);

/* returns the number of bytes, at most TE__HELLO_MOST */
size_t te__hello_put(uint8_t *body, const struct te__hello *h);
int te__hello_get(const uint8_t *body, size_t nbytes, struct te__hello *ret_h);

/* returns the number of bytes, at most TE__REFUSE_MOST; the text is truncated */
size_t te__refuse_put(uint8_t *body, int code, const char *text);
/* replaces an invalid code by -TE_EABORT, and unprintable bytes of the text by '?' */
int te__refuse_get(const uint8_t *body, size_t nbytes, int *ret_code, char text[TE__REFUSE_MOST]);

/* the table of the root: nranks times an address list */
int te__table_get(const uint8_t *body, size_t nbytes, int32_t nranks, struct te__addrs *ret_addrs);

#endif
