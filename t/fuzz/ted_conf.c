/* t/fuzz/ted_conf.c - ted.conf(5), of any bytes. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/conf.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	struct ted_conf before, c;
	char text[512] = "";

	ted_conf_init(&before);
	c = before;
	if (ted_conf_read(fuzz_file(data, nbytes), &c, text, sizeof(text))) {
		/* with a message, and without a change */
		if (!*text || memcmp(&before, &c, sizeof(c)))
			abort();
	} else if (c.clients < 1 || c.hello_ms < 1 || c.spill_files < 1 || c.queue < 131072) {
		abort();
	}
	return 0;
}
