/* auth.c - see auth.h. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libtecomm/meet/auth.h"
#include "libtecore/base/private.h"
#include "libtecore/base/userns.h"

_Static_assert(TE__KEY_NBYTES >= crypto_generichash_KEYBYTES_MIN &&
	       TE__MAC_NBYTES >= crypto_generichash_BYTES_MIN, "libsodium takes them");

/* the parts of a message are of lengths that its label fixes, or end with one of variable length */
static void begin(crypto_generichash_state *h, const void *key, size_t key_nbytes, size_t nbytes,
		  const char *label)
{
	crypto_generichash_init(h, key, key_nbytes, nbytes);
	crypto_generichash_update(h, (const void *)label, strlen(label) + 1);
}

static void direction(const uint8_t *key, const char *label, const void *challenge, size_t nbytes,
		      const uint8_t *nonce, struct te__seal *ret)
{
	crypto_generichash_state h;

	begin(&h, key, TE__KEY_NBYTES, sizeof(ret->key), label);
	crypto_generichash_update(&h, nonce, TE__NONCE_NBYTES);
	crypto_generichash_update(&h, challenge, nbytes);
	crypto_generichash_final(&h, ret->key, sizeof(ret->key));
	ret->n = 0;
}

void te__session_derive(const uint8_t *key, const void *challenge, size_t nbytes,
			const uint8_t *nonce, int connects, struct te__session *ret_s)
{
	/* choose the fastest code; results do not depend on it */
	if (sodium_init() < 0)
		te__log_debug("sodium_init has failed");
	direction(key, "te stream, connecting end", challenge, nbytes, nonce,
		  connects ? &ret_s->out : &ret_s->in);
	direction(key, "te stream, accepting end", challenge, nbytes, nonce,
		  connects ? &ret_s->in : &ret_s->out);
}

void te__seal_mac(const struct te__seal *s, const void *head, size_t head_nbytes, const void *body,
		  size_t nbytes, uint8_t ret_mac[TE__MAC_NBYTES])
{
	crypto_generichash_state h;
	uint8_t n[8];

	for (int i = 0; i < 8; i++)
		n[i] = (uint8_t)(s->n >> 8 * i);
	begin(&h, s->key, sizeof(s->key), TE__MAC_NBYTES, "te frame");
	crypto_generichash_update(&h, n, sizeof(n));
	crypto_generichash_update(&h, head, head_nbytes);
	if (nbytes)
		crypto_generichash_update(&h, body, nbytes);
	crypto_generichash_final(&h, ret_mac, TE__MAC_NBYTES);
}

int te__seal_check(const struct te__seal *s, const void *head, size_t head_nbytes,
		   const void *body, size_t nbytes, const uint8_t mac[TE__MAC_NBYTES])
{
	uint8_t want[TE__MAC_NBYTES];

	te__seal_mac(s, head, head_nbytes, body, nbytes, want);
	return !sodium_memcmp(want, mac, sizeof(want));
}

void te__key_derive(const uint8_t *key, const char *label, const void *data, size_t nbytes,
		    uint8_t ret_key[TE__KEY_NBYTES])
{
	crypto_generichash_state h;

	begin(&h, key, TE__KEY_NBYTES, TE__KEY_NBYTES, label);
	if (nbytes)
		crypto_generichash_update(&h, data, nbytes);
	crypto_generichash_final(&h, ret_key, TE__KEY_NBYTES);
}

int te__peer_check(int sock, int *ret_pid)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return te__fail(-errno, "SO_PEERCRED: %s", strerror(errno));
	if (cred.uid != geteuid())
		return te__fail(-EACCES, "process %d has user id %u, expected %u", (int)cred.pid,
				(unsigned int)cred.uid, (unsigned int)geteuid());
	if (cred.uid == te__overflow_uid())
		return te__fail(-EACCES, "process %d has a user without an id in this user "
				"namespace", (int)cred.pid);
	*ret_pid = (int)cred.pid;
	return 0;
}

int te__random(void *p, size_t nbytes)
{
	if (te__fault_point() || getrandom(p, nbytes, 0) != (ssize_t)nbytes)
		return te__fail(-EIO, "te_comm_create: getrandom gave no random bytes");
	return 0;
}
