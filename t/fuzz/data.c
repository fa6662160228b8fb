/* t/fuzz/data.c - te_train's reader of text and token files, of any bytes. */
#include "config.h"

#include "fuzz.h"
#include "tools/lib/say.h"
#include "tools/te_train/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes)
{
	static const enum data_type types[] = { DATA_AUTO, DATA_TEXT, DATA_U16, DATA_U32 };
	char *file = (char *)(uintptr_t)fuzz_file(bytes, nbytes);

	say_hush(1);
	for (int i = 0; i < 16; i++) {
		struct data *d;
		int32_t token[2];

		/* read completely, and in pieces */
		if (data_open(&file, 1, types[i % 4], i / 4 % 2 ? DATA_NBYTES : 50257,
			      i < 8 ? DATA_CHECKED_NBYTES : 0, &d))
			continue;
		if (data_ntokens(d) >= 2)
			span_read(&(struct span){ d, data_ntokens(d) - 2, 2 }, 0, 2, token);
		data_close(d);
	}
	return 0;
}
