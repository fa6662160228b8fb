/* t/fuzz/safetensors.c - te_train's reader of safetensors files, of any bytes. */
#include "config.h"

#include <string.h>

#include "fuzz.h"
#include "tools/lib/safetensors.h"
#include "tools/lib/say.h"
#include "tools/lib/tensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	char shape[SHAPE_TEXT];
	struct st_tensor t;
	struct tensors ts;
	struct st_file *f;
	size_t n;
	volatile uint8_t last = 0;
	const char *name = NULL;

	say_hush(1);
	if (st_open(fuzz_file(data, nbytes), &f))
		return 0;
	while ((name = st_next(f, name))) {
		if (st_find(f, name, &t) && t.nbytes)
			last = t.data[t.nbytes - 1];
	}
	if (!tensors_of_files(&f, 1, &ts)) {
		for (size_t i = 0; i < ts.n; i++)
			shape_text(ts.at[i].st.ndim, ts.at[i].st.shape, shape);
		tensors_find(&ts, "lm_head.weight");
		tensors_unused(&ts, &n);
		tensors_free(&ts);
	}
	(void)last;
	st_get_meta(f, "format");
	st_check_digest(f);
	st_close(f);
	return 0;
}
