/* reading.h - what the bytes of a file are as tokens of each width. */
#ifndef READING_H
#define READING_H

#include <stddef.h>
#include <stdint.h>

#include "data.h"

static inline int width_of(enum data_type type)
{
	return type == DATA_U32 ? 4 : type == DATA_U16 ? 2 : 1;
}

static inline uint32_t token_at(const uint8_t *p, int width)
{
	return width == 1 ? p[0] :
	       width == 2 ? p[0] | (uint32_t)p[1] << 8 :
			    p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
				    (uint32_t)p[3] << 24;
}

/* contents of a file as tokens of one type */
struct reading {
	enum data_type type;
	int64_t vocab, n;
	int64_t ntails;	     /* bytes after the last whole token */
	uint32_t largest[2]; /* at even and odd indices */
	int64_t bad_at;	     /* first token beyond the vocabulary, or -1 */
	uint32_t bad;
	int64_t zero_at; /* first token 0, or -1 */
	char why_not[160];
};

struct readings {
	struct reading rd[2];
	int n;
};

/* a function for source_scan(): arg is a struct readings */
void readings_add(void *arg, const uint8_t *p, size_t n, int64_t at);
/* may the contents be of this type; otherwise rd->why_not has the reason */
int reading_is_possible(struct reading *rd, const uint8_t *head, size_t nhead);

#endif
