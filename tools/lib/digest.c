/* digest.c - a 64-bit digest of a stream of bytes, to find damage and changes. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "digest.h"

static void digest_word(struct digest *d, uint64_t word)
{
	d->h = (d->h ^ word) * 0x9e3779b97f4a7c15;
	d->h ^= d->h >> 32;
}

void digest_add(struct digest *d, const void *src, size_t n)
{
	const uint8_t *p = src;
	uint64_t word;

	while (n && d->nrest) {
		d->rest[d->nrest++] = *p++;
		n--;
		if (d->nrest == 8) {
			memcpy(&word, d->rest, 8);
			digest_word(d, word);
			d->nrest = 0;
		}
	}
	if (!n)
		return;
	for (; n >= 8; p += 8, n -= 8) {
		memcpy(&word, p, 8);
		digest_word(d, word);
	}
	memcpy(d->rest, p, n);
	d->nrest = n;
}

void digest_end(struct digest *d, char ret_text[17])
{
	uint64_t word = 0;

	memcpy(&word, d->rest, d->nrest);
	digest_word(d, word);
	digest_word(d, d->nrest);
	snprintf(ret_text, 17, "%016llx", (unsigned long long)d->h);
}
