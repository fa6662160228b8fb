/* digest.h - a 64-bit digest of a stream of bytes, to find damage and changes. */
#ifndef DIGEST_H
#define DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define DIGEST_NBYTES 17 /* size of the text: 16 hexadecimal digits and a 0 */

/*
 * Initially zero. Little-endian 64-bit words are multiplied and folded; the last one is padded
 * with zeros, and its length is one more word.
 */
struct digest {
	uint64_t h;
	uint8_t rest[8];
	size_t nrest;
};

void digest_add(struct digest *d, const void *src, size_t n);
void digest_end(struct digest *d, char ret_text[DIGEST_NBYTES]);

#endif
