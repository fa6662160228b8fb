/* t/fuzz/gguf.c - te_train's reader of GGUF files, of any bytes. */
#include "config.h"

#include <stdlib.h>

#include "fuzz.h"
#include "tools/lib/gguf.h"
#include "tools/lib/say.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	const char *path = fuzz_file(data, nbytes), *name = NULL;
	volatile uint8_t last = 0;
	json_t *config = NULL;
	uint64_t nitems;
	void *items;
	size_t n;
	struct st_tensor t;
	struct st_file *f;

	say_hush(1);
	if (!gguf_is(path) || gguf_open(path, &f))
		return 0;
	while ((name = st_next(f, name))) {
		if (st_find(f, name, &t) && t.nbytes)
			last = t.data[t.nbytes - 1];
	}
	(void)last;
	st_close(f);
	if (!gguf_config(path, &config))
		json_decref(config);
	if (!gguf_items(path, "tokenizer.", &items, &n, &nitems))
		free(items);
	return 0;
}
