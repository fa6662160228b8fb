/* frame.c - see frame.h. */
#include "config.h"

#include <errno.h>
#include <string.h>

#include <te/errno.h>

#include "libtecomm/meet/frame.h"

static const uint8_t magic[4] = { 't', 'e', 'B', 's' };

static uint8_t *put(uint8_t *p, uint64_t v, int nbytes)
{
	for (int i = 0; i < nbytes; i++)
		*p++ = (uint8_t)(v >> 8 * i);
	return p;
}

static uint64_t get(const uint8_t **p, int nbytes)
{
	uint64_t v = 0;

	for (int i = 0; i < nbytes; i++)
		v |= (uint64_t) * (*p)++ << 8 * i;
	return v;
}

static uint8_t *put_text(uint8_t *p, const char *s, size_t nbytes)
{
	size_t n = strnlen(s, nbytes - 1);

	memcpy(p, s, n);
	memset(p + n, 0, nbytes - n);
	return p + nbytes;
}

/* text from others is shown in messages */
static void get_text(const uint8_t **p, char *ret, size_t nbytes)
{
	memcpy(ret, *p, nbytes);
	ret[nbytes - 1] = 0;
	for (char *c = ret; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	*p += nbytes;
}

void te__frame_put(uint8_t *head, const struct te__frame *f, size_t nbytes)
{
	uint8_t *p = head;

	memcpy(p, magic, sizeof(magic));
	p = put(p + sizeof(magic), f->version, 2);
	p = put(p, f->type, 2);
	p = put(p, f->seq, 8);
	p = put(p, nbytes, 4);
	p = put_text(p, f->what, sizeof(f->what));
	memset(p, 0, TE__MAC_NBYTES);
}

int te__frame_get(const uint8_t *head, uint32_t most, struct te__frame *ret_f)
{
	const uint8_t *p = head + sizeof(magic);

	if (memcmp(head, magic, sizeof(magic)))
		return -EBADMSG;
	ret_f->version = (uint16_t)get(&p, 2);
	ret_f->type = (uint16_t)get(&p, 2);
	ret_f->seq = get(&p, 8);
	ret_f->nbytes = (uint32_t)get(&p, 4);
	get_text(&p, ret_f->what, sizeof(ret_f->what));
	return ret_f->nbytes > most ? -EBADMSG : 0;
}

void te__challenge_put(uint8_t body[TE__CHALLENGE_NBYTES], const struct te__challenge *c)
{
	uint8_t *p = put(body, c->purpose, 1);

	p = put(p, (uint32_t)c->from, 4);
	p = put(p, (uint32_t)c->to, 4);
	memcpy(p, c->nonce, sizeof(c->nonce));
}

int te__challenge_get(const uint8_t *body, size_t nbytes, struct te__challenge *ret_c)
{
	const uint8_t *p = body;

	if (nbytes != TE__CHALLENGE_NBYTES)
		return -EBADMSG;
	ret_c->purpose = (uint8_t)get(&p, 1);
	ret_c->from = (int32_t)(uint32_t)get(&p, 4);
	ret_c->to = (int32_t)(uint32_t)get(&p, 4);
	memcpy(ret_c->nonce, p, sizeof(ret_c->nonce));
	return ret_c->from < 0 ? -EBADMSG : 0;
}

size_t te__hello_put(uint8_t *body, const struct te__hello *h)
{
	uint8_t *p = body;

	p = put(p, (uint32_t)h->rank, 4);
	p = put(p, (uint32_t)h->nranks, 4);
	p = put(p, h->pid, 4);
	p = put(p, (uint32_t)h->timeout_ms, 4);
	p = put(p, (uint32_t)h->left_ms, 4);
	p = put_text(p, h->version, sizeof(h->version));
	p = put_text(p, h->host, sizeof(h->host));
	p += te__addrs_put(p, &h->addrs);
	return (size_t)(p - body);
}

#define HELLO_FIXED \
	(20 + sizeof(((struct te__hello *)0)->version) + sizeof(((struct te__hello *)0)->host))

int te__hello_get(const uint8_t *body, size_t nbytes, struct te__hello *ret_h)
{
	const uint8_t *p = body;
	int n;

	if (nbytes < HELLO_FIXED)
		return -EBADMSG;
	ret_h->rank = (int32_t)(uint32_t)get(&p, 4);
	ret_h->nranks = (int32_t)(uint32_t)get(&p, 4);
	ret_h->pid = (uint32_t)get(&p, 4);
	ret_h->timeout_ms = (int32_t)(uint32_t)get(&p, 4);
	ret_h->left_ms = (int32_t)(uint32_t)get(&p, 4);
	get_text(&p, ret_h->version, sizeof(ret_h->version));
	get_text(&p, ret_h->host, sizeof(ret_h->host));
	n = te__addrs_get(p, nbytes - HELLO_FIXED, &ret_h->addrs);
	return n < 0 || HELLO_FIXED + (size_t)n != nbytes ? -EBADMSG : 0;
}

size_t te__refuse_put(uint8_t *body, int code, const char *text)
{
	size_t n = strnlen(text, TE__REFUSE_MOST - 5);

	memcpy(put(body, (uint32_t)code, 4), text, n);
	return 4 + n;
}

int te__refuse_get(const uint8_t *body, size_t nbytes, int *ret_code, char text[TE__REFUSE_MOST])
{
	static const int codes[] = { -ETIMEDOUT, -TE_EPEER, -TE_EMISMATCH };
	char copy[TE__REFUSE_MOST] = { 0 };
	const uint8_t *p = body;
	int code;

	if (nbytes < 4 || nbytes >= TE__REFUSE_MOST)
		return -EBADMSG;
	code = (int)(uint32_t)get(&p, 4);
	*ret_code = -TE_EABORT;
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
		if (code == codes[i])
			*ret_code = code;
	memcpy(copy, p, nbytes - 4);
	p = (const uint8_t *)copy;
	get_text(&p, text, TE__REFUSE_MOST);
	return 0;
}

int te__table_get(const uint8_t *body, size_t nbytes, int32_t nranks, struct te__addrs *ret_addrs)
{
	size_t at = 0;

	for (int32_t r = 0; r < nranks; r++) {
		int n = te__addrs_get(body + at, nbytes - at, &ret_addrs[r]);

		if (n < 0 || !te__addrs_usable(&ret_addrs[r]))
			return -EBADMSG;
		at += (size_t)n;
	}
	return at == nbytes ? 0 : -EBADMSG;
}
