/* magic.c - files that are neither text nor tokens, by their first bytes. */
#include "config.h"

#include <string.h>

#include "magic.h"

#define UNPACK "unpack it first"
#define EXPORT "write its texts to a text file, or its tokens to a .bin file"
#define UTF16 "convert it: iconv -f UTF-16 -t UTF-8"

struct row {
	struct magic magic;
	size_t offset, nbytes;
	const char *bytes;
};

static const struct row rows[] = {
	{ { "a NumPy array",
	    "write its tokens: numpy.load(FILE).astype(numpy.uint16).tofile(\"x.bin\")" },
	  0,
	  6,
	  "\x93NUMPY" },
	{ { "a zip archive", UNPACK }, 0, 4, "PK\3\4" },
	{ { "a gzip file inside another", UNPACK }, 0, 3, "\x1f\x8b\x08" },
	{ { "an xz file inside another", UNPACK }, 0, 6, "\xfd" "7zXZ\0" },
	{ { "a zstd file inside another", UNPACK }, 0, 4, "\x28\xb5\x2f\xfd" },
	{ { "bzip2 data", "bzip2 -dc FILE | te_train ... -" }, 0, 3, "BZh" },
	{ { "lz4 data", "lz4 -dc FILE | te_train ... -" }, 0, 4, "\x04\x22\x4d\x18" },
	{ { "a 7z archive", UNPACK }, 0, 6, "7z\xbc\xaf\x27\x1c" },
	{ { "a tar archive", UNPACK }, 257, 5, "ustar" },
	{ { "a PDF document", "extract its text: pdftotext FILE" }, 0, 5, "%PDF-" },
	{ { "an ELF program", "give text or tokens" }, 0, 4, "\x7f" "ELF" },
	{ { "an SQLite database", EXPORT }, 0, 15, "SQLite format 3" },
	{ { "an HDF5 file", EXPORT }, 0, 4, "\x89HDF" },
	{ { "a Parquet table", EXPORT }, 0, 4, "PAR1" },
	{ { "an Arrow table", EXPORT }, 0, 6, "ARROW1" },
	{ { "an index of Megatron's", "give the .bin file of this name, with --data-type" },
	  0,
	  6,
	  "MMIDIDX" },
	{ { "a model (GGUF)", "give text or tokens" }, 0, 4, "GGUF" },
	{ { "weights (safetensors)", "give their folder to --init, and text or tokens as FILE" },
	  4,
	  6,
	  "\0\0\0\0{\"" },
	{ { "a pickle of Python's", EXPORT }, 0, 2, "\x80\x02" },
	{ { "a pickle of Python's", EXPORT }, 0, 2, "\x80\x03" },
	{ { "a pickle of Python's", EXPORT }, 0, 2, "\x80\x04" },
	{ { "a pickle of Python's", EXPORT }, 0, 2, "\x80\x05" },
	{ { "a PNG image", "give text or tokens" }, 0, 4, "\x89PNG" },
	{ { "a JPEG image", "give text or tokens" }, 0, 3, "\xff\xd8\xff" },
	{ { "UTF-16 text", UTF16 }, 0, 2, "\xff\xfe" },
	{ { "UTF-16 text", UTF16 }, 0, 2, "\xfe\xff" },
};

const struct magic *magic_find(const uint8_t *head, size_t n, int text)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct row *row = &rows[i];

		if ((text || row->nbytes >= 4) && n >= row->offset + row->nbytes &&
		    !memcmp(head + row->offset, row->bytes, row->nbytes))
			return &row->magic;
	}
	return NULL;
}
