/* frame.c - messages between te_run and its agents on other hosts. */
#include "config.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

static const char magic[4] = { 't', 'e', 'R', '1' };

/* makes room for n more bytes at the end */
static int reserve(struct buf *b, size_t n)
{
	char *more;

	if (b->at > b->n / 2) { /* rare, and moves fewer bytes than it skips */
		memmove(b->p, b->p + b->at, b->n - b->at);
		b->n -= b->at;
		b->at = 0;
	}
	if (b->n + n > b->cap) {
		more = realloc(b->p, 2 * (b->n + n));
		if (!more) {
			b->failed = 1;
			return 0;
		}
		b->p = more;
		b->cap = 2 * (b->n + n);
	}
	return 1;
}

void buf_put(struct buf *b, const void *p, size_t n)
{
	if (!n || !reserve(b, n))
		return;
	memcpy(b->p + b->n, p, n);
	b->n += n;
}

static void put_u32(char *to, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		to[i] = (char)(v >> 8 * i);
}

static uint32_t get_u32(const char *p)
{
	uint32_t v = 0;

	for (int i = 4; i-- > 0;)
		v = v << 8 | (uint8_t)p[i];
	return v;
}

void buf_put_int(struct buf *b, int v)
{
	char p[4];

	put_u32(p, (uint32_t)v);
	buf_put(b, p, sizeof(p));
}

void buf_put_text(struct buf *b, const char *text)
{
	buf_put(b, text, strlen(text) + 1);
}

int buf_take_int(struct buf *b)
{
	if (b->n - b->at < 4) {
		b->failed = 1;
		return 0;
	}
	b->at += 4;
	return (int)get_u32(b->p + b->at - 4);
}

const char *buf_take_text(struct buf *b)
{
	const char *s = b->p + b->at, *end = b->n > b->at ? memchr(s, 0, b->n - b->at) : NULL;

	if (!end) {
		b->failed = 1;
		return "";
	}
	b->at += (size_t)(end - s) + 1;
	return s;
}

void buf_free(struct buf *b)
{
	free(b->p);
	memset(b, 0, sizeof(*b));
}

void frame_put(struct buf *to, enum frame_type type, const struct buf *body)
{
	const size_t n = body ? body->n - body->at : 0;
	char head[FRAME_HEAD];

	memcpy(head, magic, 4);
	put_u32(head + 4, (uint32_t)type);
	put_u32(head + 8, (uint32_t)n);
	if (!reserve(to, sizeof(head) + n))
		return;
	buf_put(to, head, sizeof(head));
	if (n)
		buf_put(to, body->p + body->at, n);
}

int frame_take(struct buf *from, enum frame_type *ret_type, struct buf *ret_body)
{
	const char *h = from->p + from->at;
	const size_t have = from->n - from->at;
	uint32_t type, n;

	/* the first bytes show that another program writes */
	if (have && memcmp(h, magic, have < 4 ? have : 4))
		return -1;
	if (have < FRAME_HEAD)
		return 0;
	type = get_u32(h + 4);
	n = get_u32(h + 8);
	if (type < FRAME_JOB || type > FRAME_DONE || n > FRAME_MOST)
		return -1;
	if (have < FRAME_HEAD + n)
		return 0;
	*ret_type = (enum frame_type)type;
	*ret_body = (struct buf){ .p = from->p + from->at + FRAME_HEAD, .n = n };
	from->at += FRAME_HEAD + n;
	return 1;
}

int frame_read(int fd, struct buf *to)
{
	ssize_t n;

	if (!reserve(to, 65536))
		return 0;
	n = read(fd, to->p + to->n, 65536);
	if (n < 0)
		return errno == EINTR || errno == EAGAIN ? -1 : 0;
	to->n += (size_t)n;
	return n > 0;
}

static int is_number(int v, int lo, int hi)
{
	return v >= lo && v <= hi;
}

/* reads n texts or, if n is below 0, all texts before an empty one; NULL: they are missing */
static char **take_texts(struct buf *b, int n)
{
	char **list = NULL, **more;
	const char *s;
	int have = 0;

	for (;;) {
		/* the list is doubled at each power of two */
		if (!(have & (have + 1))) {
			more = realloc(list, 2 * ((size_t)have + 1) * sizeof(*list));
			if (!more)
				break;
			list = more;
		}
		if (have == n) {
			list[have] = NULL;
			return list;
		}
		s = buf_take_text(b);
		if (b->failed)
			break;
		if (n < 0 && !*s)
			n = have;
		else
			list[have++] = (char *)(uintptr_t)s;
	}
	free(list);
	return NULL;
}

int job_take(struct buf *b, struct job *ret)
{
	int argc;

	memset(ret, 0, sizeof(*ret));
	ret->version = buf_take_text(b);
	ret->host = buf_take_text(b);
	ret->folder = buf_take_text(b);
	ret->nranks = buf_take_int(b);
	ret->first = buf_take_int(b);
	ret->n = buf_take_int(b);
	ret->per_node = buf_take_int(b);
	ret->grace_s = buf_take_int(b);
	ret->silence_s = buf_take_int(b);
	ret->respawn = buf_take_int(b);
	if (b->failed || !is_number(ret->nranks, 1, RANKS_MAX) ||
	    !is_number(ret->n, 1, ret->nranks) ||
	    !is_number(ret->first, 0, ret->nranks - ret->n) ||
	    !is_number(ret->per_node, 0, RANKS_MAX) || !is_number(ret->grace_s, 0, 3600) ||
	    !is_number(ret->silence_s, 1, 3600) || !is_number(ret->respawn, 0, 1))
		return -1;
	ret->env = take_texts(b, -1);
	argc = buf_take_int(b);
	/* a text has a byte at least */
	if (!ret->env || b->failed || argc < 1 || (size_t)argc > b->n - b->at)
		return -1;
	for (char **v = ret->env; *v; v++)
		if (**v == '=' || !strchr(*v, '='))
			return -1;
	ret->cmd = take_texts(b, argc);
	return ret->cmd && b->at == b->n ? 0 : -1;
}
