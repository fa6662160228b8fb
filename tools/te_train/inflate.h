/* inflate.h - formats of compressed data, by the libraries that this build has. */
#ifndef INFLATE_H
#define INFLATE_H

#include <stddef.h>
#include <stdint.h>

enum { INFLATE_MORE, INFLATE_END, INFLATE_BAD };

/* input and output of a step */
struct inflate_io {
	const uint8_t *in;
	size_t nin;
	uint8_t *out;
	size_t nout;
};

struct inflate {
	const char *name, *suffix;
	const char *library, *package, *program; /* for a message */
	uint8_t magic[6];
	size_t nmagic;
	/* NULL without the library; begin: 0, or no memory */
	int (*begin)(void **ret_state);
	/* decompresses a part of one member of a file; returns INFLATE_* */
	int (*step)(void *state, struct inflate_io *io);
	void (*end)(void *state);
};

/* returns the format of data that begins with the n bytes at head, or NULL */
const struct inflate *inflate_find(const uint8_t *head, size_t n);

#endif
