/*
 * auth.h - mutual proof that both ends of a stream know a key, without sending it, and
 * authentication of their frames.
 *
 * The end that connects sends a challenge: the purpose of the stream, the ranks at its ends, and
 * random bytes. The end that accepts answers with random bytes. Both derive two keys, one for each
 * direction, from the shared key, a label of the direction, the challenge and the answer. Starting
 * with the answer, each frame has a MAC by the key of its direction over its number, head and body.
 * So the answer proves that the accepting end knows the key, and the next frame that the connecting
 * end does. A frame that is changed, repeated, omitted, or from another stream or direction is
 * refused. Hash and MAC are keyed BLAKE2b of libsodium. Frames are not encrypted.
 */
#ifndef TE__AUTH_H
#define TE__AUTH_H

#include <stddef.h>
#include <stdint.h>

#define TE__KEY_NBYTES 16
#define TE__MAC_NBYTES 16
#define TE__NONCE_NBYTES 32

/* a direction of a stream; n: the number of its next frame */
struct te__seal {
	uint8_t key[32];
	uint64_t n;
};

struct te__session {
	struct te__seal out, in;
};

/* the purpose of a stream: a proof for one purpose is not valid for another */
enum te__purpose { TE__FOR_MESH = 1, TE__FOR_ROOT, TE__FOR_LINK, TE__FOR_LINEAGE };

/* the two ends of a stream that is not open yet, seen from one of them */
struct te__ends {
	const uint8_t *key; /* TE__KEY_NBYTES; valid until both ends have proved that */
	enum te__purpose purpose;
	int32_t me, peer; /* ranks; the accepting end gets the peer from the challenge */
	/*
	 * NULL, or the random bytes of the accepting end, which the other end knows: then the
	 * accepting end sends no answer, and proves nothing. It refuses a serial that it has seen.
	 */
	const uint8_t *nonce;
	uint64_t serial; /* number of the connection */
};

/* challenge: all its bytes; nonce: the answer's TE__NONCE_NBYTES; connects: 1 at the end that
 * does */
void te__session_derive(const uint8_t *key, const void *challenge, size_t nbytes,
			const uint8_t *nonce, int connects, struct te__session *ret_s);
/* the MAC of the next frame */
void te__seal_mac(const struct te__seal *s, const void *head, size_t head_nbytes, const void *body,
		  size_t nbytes, uint8_t ret_mac[TE__MAC_NBYTES]);
/* returns 1 if the MAC is right */
int te__seal_check(const struct te__seal *s, const void *head, size_t head_nbytes,
		   const void *body, size_t nbytes, const uint8_t mac[TE__MAC_NBYTES]);

/* derives another key, which does not reveal this one; ret_key may be key */
void te__key_derive(const uint8_t *key, const char *label, const void *data, size_t nbytes,
		    uint8_t ret_key[TE__KEY_NBYTES]);

/*
 * Checks the other end of a connected local socket: 0, and its process id when it connected or
 * began to listen; -EACCES, with a message, if it has another user id, or the id of all users whom
 * this user namespace does not map.
 */
int te__peer_check(int sock, int *ret_pid);
/* fills p with random bytes; 0, or -EIO with a message */
int te__random(void *p, size_t nbytes);

#endif
