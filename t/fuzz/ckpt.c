/*
 * t/fuzz/ckpt.c - te_train's reader of checkpoints: the record of the run in state.safetensors, of
 * any bytes.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "tools/lib/say.h"
#include "tools/te_train/ckpt.h"

static char dir[64], state[96];

static void finish(void)
{
	unlink(state);
	rmdir(dir);
}

static void prepare(void)
{
	const char *tmp = getenv("TMPDIR");

	say_hush(1);
	snprintf(dir, sizeof(dir), "%s/te-fuzz.XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(dir))
		abort();
	snprintf(state, sizeof(state), "%s/state.safetensors", dir);
	atexit(finish);
}

/* a file of one tensor, "run", with these bytes */
static void write_state(const uint8_t *data, size_t nbytes)
{
	char header[256];
	uint8_t length[8] = { 0 };
	FILE *f = fopen(state, "wb");
	int n = snprintf(header, sizeof(header),
			 "{\"run\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}",
			 nbytes, nbytes);

	while (n % 8)
		header[n++] = ' ';
	length[0] = (uint8_t)n;
	if (!f || fwrite(length, 1, 8, f) != 8 || fwrite(header, 1, (size_t)n, f) != (size_t)n ||
	    fwrite(data, 1, nbytes, f) != nbytes || fclose(f))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	json_t *options;

	if (!*state)
		prepare();
	write_state(data, nbytes);
	if (!ckpt_options(dir, &options))
		json_decref(options);
	say_hush(1); /* the reader has switched it off */
	return 0;
}
