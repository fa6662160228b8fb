/*
 * t/fuzz/run_frame.c - what te_run and its agents read from each other: any bytes, all at once and
 * in parts, which give the same messages; and values of their bodies.
 */
#include "config.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "tools/run/run.h"

#define MOST 8192 /* bytes of an input: less than a pipe holds */

/* a buffer without room at its end, so that reads past it are seen */
static struct buf copy_of(const void *p, size_t n)
{
	struct buf b = { .p = malloc(n + !n), .n = n, .cap = n };

	memcpy(b.p, p, n);
	return b;
}

static void check_text(struct buf *b)
{
	const size_t at = b->at;
	const char *s = buf_take_text(b);

	if (b->failed ? *s || b->at != at : s != b->p + at || b->at != at + strlen(s) + 1)
		abort();
}

static void check_int(struct buf *b)
{
	const size_t at = b->at;
	struct buf again = { 0 };

	buf_put_int(&again, buf_take_int(b));
	if (b->failed ? b->at != at : b->at != at + 4 || memcmp(again.p, b->p + at, 4))
		abort();
	buf_free(&again);
}

/* texts and numbers of a body, from either of them on, for as long as there are any */
static void take_values(const struct buf *body)
{
	for (int first = 0; first < 2; first++) {
		struct buf b = copy_of(body->p, body->n);

		for (int k = first; !b.failed; k++)
			(k & 1 ? check_int : check_text)(&b);
		if (b.at > b.n)
			abort();
		buf_free(&b);
	}
}

/* what frame_put() makes of a message are the bytes that it came from */
static void check_frame(enum frame_type type, const struct buf *body)
{
	struct buf again = { 0 };

	frame_put(&again, type, body);
	if (again.failed || again.n != FRAME_HEAD + body->n ||
	    memcmp(again.p, body->p - FRAME_HEAD, again.n))
		abort();
	buf_free(&again);
	take_values(body);
}

/* messages and, in *ret_end, how frame_take() ended: the bytes that are left, or SIZE_MAX */
static int take_all(struct buf *b, size_t *ret_end)
{
	enum frame_type type;
	struct buf body;
	int n = 0, t;

	for (; (t = frame_take(b, &type, &body)) > 0; n++)
		check_frame(type, &body);
	*ret_end = t < 0 ? SIZE_MAX : b->n - b->at;
	return n;
}

/* the same by a pipe, of which parts are read: 1 byte, 2, 3 and so on */
static int take_parts(const uint8_t *data, size_t nbytes, size_t *ret_end)
{
	struct buf b = { 0 };
	size_t part = 1, m;
	int fd[2], n = 0;

	if (pipe2(fd, O_NONBLOCK))
		abort();
	if (frame_read(fd[0], &b) != -1)
		abort();
	*ret_end = 0;
	for (; nbytes && *ret_end != SIZE_MAX; part++, data += m, nbytes -= m) {
		m = part < nbytes ? part : nbytes;
		if (write(fd[1], data, m) != (ssize_t)m || frame_read(fd[0], &b) != 1)
			abort();
		n += take_all(&b, ret_end);
	}
	close(fd[1]);
	if (frame_read(fd[0], &b) || b.failed)
		abort();
	close(fd[0]);
	buf_free(&b);
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	size_t end, end_of_parts;
	struct buf b;
	int n;

	if (nbytes > MOST)
		return 0;
	b = copy_of(data, nbytes);
	n = take_all(&b, &end);
	buf_free(&b);
	if (take_parts(data, nbytes, &end_of_parts) != n || end_of_parts != end)
		abort();
	return 0;
}
