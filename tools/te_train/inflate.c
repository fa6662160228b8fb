/* inflate.c - formats of compressed data, by the libraries that this build has. */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef HAVE_LZMA
#include <lzma.h>
#endif
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

#include "inflate.h"

#ifdef HAVE_ZLIB
static int gz_begin(void **ret_state)
{
	z_stream *z = calloc(1, sizeof(*z));

	if (!z || inflateInit2(z, 15 + 16) != Z_OK) {
		free(z);
		return -1;
	}
	*ret_state = z;
	return 0;
}

/* zlib counts in 32 bits */
static uInt at_most(size_t n)
{
	return n > 1u << 30 ? 1u << 30 : (uInt)n;
}

static int gz_step(void *state, struct inflate_io *io)
{
	z_stream *z = state;
	int r;

	z->next_in = (Bytef *)io->in;
	z->avail_in = at_most(io->nin);
	z->next_out = io->out;
	z->avail_out = at_most(io->nout);
	r = inflate(z, Z_NO_FLUSH);
	io->nin -= (size_t)(z->next_in - io->in);
	io->nout -= (size_t)(z->next_out - io->out);
	io->in = z->next_in;
	io->out = z->next_out;
	return r == Z_STREAM_END	     ? INFLATE_END :
	       r == Z_OK || r == Z_BUF_ERROR ? INFLATE_MORE :
					       INFLATE_BAD;
}

static void gz_end(void *state)
{
	inflateEnd(state);
	free(state);
}
#define GZ gz_begin, gz_step, gz_end
#else
#define GZ NULL, NULL, NULL
#endif

#ifdef HAVE_LZMA
static int xz_begin(void **ret_state)
{
	static const lzma_stream init = LZMA_STREAM_INIT;
	lzma_stream *z = malloc(sizeof(*z));

	if (z)
		*z = init;
	if (!z || lzma_stream_decoder(z, UINT64_MAX, 0) != LZMA_OK) {
		free(z);
		return -1;
	}
	*ret_state = z;
	return 0;
}

static int xz_step(void *state, struct inflate_io *io)
{
	lzma_stream *z = state;
	lzma_ret r;

	z->next_in = io->in;
	z->avail_in = io->nin;
	z->next_out = io->out;
	z->avail_out = io->nout;
	r = lzma_code(z, LZMA_RUN);
	*io = (struct inflate_io){ z->next_in, z->avail_in, z->next_out, z->avail_out };
	return r == LZMA_STREAM_END		   ? INFLATE_END :
	       r == LZMA_OK || r == LZMA_BUF_ERROR ? INFLATE_MORE :
						     INFLATE_BAD;
}

static void xz_end(void *state)
{
	lzma_end(state);
	free(state);
}
#define XZ xz_begin, xz_step, xz_end
#else
#define XZ NULL, NULL, NULL
#endif

#ifdef HAVE_ZSTD
static int zst_begin(void **ret_state)
{
	*ret_state = ZSTD_createDStream();
	return *ret_state ? 0 : -1;
}

static int zst_step(void *state, struct inflate_io *io)
{
	ZSTD_inBuffer in = { io->in, io->nin, 0 };
	ZSTD_outBuffer out = { io->out, io->nout, 0 };
	size_t r = ZSTD_decompressStream(state, &out, &in);

	io->in += in.pos;
	io->nin -= in.pos;
	io->out += out.pos;
	io->nout -= out.pos;
	return ZSTD_isError(r) ? INFLATE_BAD : r ? INFLATE_MORE : INFLATE_END;
}

static void zst_end(void *state)
{
	ZSTD_freeDStream(state);
}
#define ZST zst_begin, zst_step, zst_end
#else
#define ZST NULL, NULL, NULL
#endif

/* RFC 1952, section 2.3.1 (method 8); the .xz format 1.2.0, section 2.1.1; RFC 8878, 3.1.1 */
static const struct inflate formats[] = {
	{ "gzip", ".gz", "zlib", "zlib1g-dev", "gzip", { 0x1f, 0x8b, 8 }, 3, GZ },
	{ "xz", ".xz", "liblzma", "liblzma-dev", "xz", { 0xfd, '7', 'z', 'X', 'Z', 0 }, 6, XZ },
	{ "zstd", ".zst", "libzstd", "libzstd-dev", "zstd", { 0x28, 0xb5, 0x2f, 0xfd }, 4, ZST },
};

const struct inflate *inflate_find(const uint8_t *head, size_t n)
{
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
		if (n >= formats[i].nmagic && !memcmp(head, formats[i].magic, formats[i].nmagic))
			return &formats[i];
	}
	return NULL;
}
