/* output.c - queues of standard output and standard error. */
#include "config.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

#define LINE_MOST 65536	      /* longer lines are broken */
#define QUEUE_MOST (1u << 20) /* bytes that wait; then ranks are not read */

static struct buf queue[2];
static int closed[2]; /* 1: the reader has closed it, or does not read */
static int hurried;
static struct line {
	size_t n;
	char text[LINE_MOST];
} *line[RANKS_MAX][2];

static size_t waiting(int which)
{
	return queue[which].n - queue[which].at;
}

void out_put(int which, const void *p, size_t n)
{
	if (hurried && waiting(which) >= QUEUE_MOST)
		closed[which] = 1;
	if (!closed[which])
		buf_put(&queue[which], p, n);
}

static void put_line(int rank, int which, const char *p, size_t n)
{
	char head[24];

	out_put(which, head, (size_t)snprintf(head, sizeof(head), "[%d] ", rank));
	out_put(which, p, n);
	if (!n || p[n - 1] != '\n')
		out_put(which, "\n", 1);
}

void out_lines(int rank, int which, const char *p, size_t n)
{
	struct line *l = line[rank][which];
	const int end = !n;

	if (!l)
		l = line[rank][which] = calloc(1, sizeof(*l));
	if (!l)
		return;
	while (n) {
		const char *nl = memchr(p, '\n', n);
		size_t part = nl ? (size_t)(nl + 1 - p) : n;

		if (part > sizeof(l->text) - l->n) {
			part = sizeof(l->text) - l->n;
			nl = NULL;
		}
		memcpy(l->text + l->n, p, part);
		l->n += part;
		p += part;
		n -= part;
		if (nl || l->n == sizeof(l->text)) {
			put_line(rank, which, l->text, l->n);
			l->n = 0;
		}
	}
	if (end && l->n) {
		put_line(rank, which, l->text, l->n);
		l->n = 0;
	}
}

static void put_hex(struct buf *to, const char *p, int n)
{
	char text[5];

	for (int i = 0; i < n; i++) {
		snprintf(text, sizeof(text), "\\x%02x", (unsigned char)p[i]);
		buf_put(to, text, 4);
	}
}

/* bytes of a character of UTF-8 (RFC 3629) by its first one; 0: none begins with it */
static int length(char first)
{
	const unsigned char c = (unsigned char)first;

	return c >= 0xc2 && c <= 0xdf ? 2 : c >= 0xe0 && c <= 0xef ? 3 :
	       c >= 0xf0 && c <= 0xf4 ? 4 : 0;
}

/* 1: c may be the next byte; 0: an overlong form, a surrogate, or a number above U+10FFFF */
static int goes_on(const struct shown *s, char next)
{
	const unsigned char a = (unsigned char)s->held[0], c = (unsigned char)next;

	if (c < 0x80 || c > 0xbf)
		return 0;
	return s->n > 1 || ((a != 0xe0 || c >= 0xa0) && (a != 0xed || c < 0xa0) &&
			    (a != 0xf0 || c >= 0x90) && (a != 0xf4 || c < 0x90));
}

void out_show(struct shown *s, const char *p, size_t n, struct buf *to)
{
	for (size_t i = 0; i < n; i++) {
		if (s->n && goes_on(s, p[i])) {
			s->held[s->n++] = p[i];
			if (s->n < length(s->held[0]))
				continue;
			/* U+0080 to U+009F are control characters */
			if (s->held[0] == (char)0xc2 && (unsigned char)p[i] < 0xa0)
				put_hex(to, s->held, s->n);
			else
				buf_put(to, s->held, (size_t)s->n);
			s->n = 0;
			continue;
		}
		put_hex(to, s->held, s->n);
		s->n = 0;
		if ((p[i] >= ' ' && p[i] < 127) || p[i] == '\t' || p[i] == '\n')
			buf_put(to, &p[i], 1);
		else if (length(p[i]))
			s->held[s->n++] = p[i];
		else
			put_hex(to, &p[i], 1);
	}
	if (!n) {
		put_hex(to, s->held, s->n);
		s->n = 0;
	}
}

int out_full(int which)
{
	return !hurried && waiting(which) >= QUEUE_MOST;
}

void out_poll(int which, struct pollfd *p)
{
	*p = (struct pollfd){
		.fd = waiting(which) ? which + 1 : -1,
		.events = POLLOUT,
	};
}

static void drop(int which)
{
	closed[which] = 1;
	queue[which].at = queue[which].n = 0;
}

/* bytes that a pipe takes without blocking when poll() reports it ready */
int out_write(int which)
{
	struct buf *q = &queue[which];
	const size_t left = waiting(which);
	ssize_t n = write(which + 1, q->p + q->at, left < PIPE_BUF ? left : PIPE_BUF);

	if (n < 0 && errno != EINTR && errno != EAGAIN) {
		drop(which);
		return errno;
	}
	if (n > 0)
		q->at += (size_t)n;
	return 0;
}

int out_waits(void)
{
	return waiting(0) || waiting(1);
}

void out_hurry(void)
{
	hurried = 1;
}

void out_drop(void)
{
	drop(0);
	drop(1);
}

void out_free(void)
{
	for (int i = 0; i < 2; i++)
		buf_free(&queue[i]);
	for (int r = 0; r < RANKS_MAX; r++)
		for (int i = 0; i < 2; i++)
			free(line[r][i]);
}
