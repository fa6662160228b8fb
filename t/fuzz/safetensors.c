/* t/fuzz/safetensors.c - te_train's reader of safetensors files, of any bytes. */
#include "config.h"

#include <string.h>

#include "fuzz.h"
#include "tools/te_train/safetensors.h"
#include "tools/te_train/say.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	struct st_tensor t;
	struct st_file *f;
	volatile uint8_t last = 0;
	const char *name = NULL;

	say_hush(1);
	if (st_open(fuzz_file(data, nbytes), &f))
		return 0;
	while ((name = st_next(f, name))) {
		if (st_find(f, name, &t) && t.nbytes)
			last = t.data[t.nbytes - 1];
	}
	(void)last;
	st_get_meta(f, "format");
	st_check_digest(f);
	st_close(f);
	return 0;
}
