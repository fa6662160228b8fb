/* reading.c - what the bytes of a file are as tokens of each width. */
#include "config.h"

#include <stdio.h>

#include "reading.h"

/*
 * Tokens that are wider than they are read have small numbers, their upper halves, at every other
 * index. A vocabulary below FEW << 16 has upper halves below FEW.
 */
#define FEW 16

static void measure(struct reading *rd, const uint8_t *p, size_t nbytes, int64_t at)
{
	const int width = width_of(rd->type);
	const int64_t first = at / width;
	size_t n = nbytes / (size_t)width;

	for (size_t i = 0; i < n; i++, p += width) {
		uint32_t t = token_at(p, width);

		if (t > rd->largest[i & 1])
			rd->largest[i & 1] = t;
		if (t >= rd->vocab && rd->bad_at < 0) {
			rd->bad_at = first + (int64_t)i;
			rd->bad = t;
		}
		if (!t && rd->zero_at < 0)
			rd->zero_at = first + (int64_t)i;
	}
}

void readings_add(void *arg, const uint8_t *p, size_t n, int64_t at)
{
	struct readings *rs = arg;

	for (int i = 0; i < rs->n; i++)
		measure(&rs->rd[i], p, n, at);
}

static int is_printable(const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if ((p[i] < ' ' && (p[i] < 9 || p[i] > 13)) || p[i] == 127)
			return 0;
	}
	return n >= FEW;
}

int reading_is_possible(struct reading *rd, const uint8_t *head, size_t nhead)
{
	char *why = rd->why_not;
	size_t room = sizeof(rd->why_not);

	if (rd->ntails)
		snprintf(why, room, "its size is not a multiple of %d bytes", width_of(rd->type));
	else if (is_printable(head, nhead))
		snprintf(why, room,
			 "its bytes are text: give it a name such as .txt, or "
			 "--data-type text");
	else if (rd->bad_at >= 0)
		snprintf(why, room, "token %u at index %lld is beyond the vocabulary of %lld",
			 rd->bad, (long long)rd->bad_at, (long long)rd->vocab);
	else if (rd->n >= 8 && rd->largest[0] >= FEW && rd->largest[1] < FEW)
		snprintf(why, room, "every second token is below %d: its tokens are wider", FEW);
	return !*why;
}
