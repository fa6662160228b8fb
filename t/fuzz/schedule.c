/* t/fuzz/schedule.c - te_schedule_parse(3) of any text. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include <te/schedule.h>

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	struct te_schedule_opts opts = TE_SCHEDULE_OPTS_INIT;
	struct te_schedule *s = NULL;
	char *text = malloc(nbytes + 1);

	/* the first byte chooses the numbers of chunks and micro-batches */
	opts.nchunks = nbytes ? data[0] % 5 : 0;
	opts.nmicro = nbytes ? 1 + data[0] / 5 % 9 : 1;
	memcpy(text, nbytes ? data + 1 : data, nbytes ? nbytes - 1 : 0);
	text[nbytes ? nbytes - 1 : 0] = 0;
	if (te_schedule_parse(text, &opts, &s) >= 0)
		te_schedule_unref(s);
	free(text);
	return 0;
}
