/*
 * t/fuzz/verbs_hello.c - the hello of a rank before queue pairs are connected: of any bytes, what
 * is accepted has numbers that can be used, and what is refused has a reason.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "libtecomm/reach/link/verbs/hello.h"

#define NRANKS 2

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	/* the exchange gives as many bytes, no more and no fewer */
	const size_t whole = te__verbs_hello_nbytes(NRANKS);
	struct te__verbs_hello *h = calloc(1, whole);
	uint8_t used = 0;
	char text[120] = "";
	int r;

	memcpy(h, data, nbytes < whole ? nbytes : whole);
	r = te__verbs_hello_check(h, text, sizeof(text));
	if (r ? r != -TE_EMISMATCH || !text[0] : text[0])
		abort();
	for (int32_t lane = 0; !r && lane < h->nlanes; lane++) {
		used |= h->port[lane % h->nports].mtu;
		h->to[NRANKS - 1].qpn[lane] += used;
	}
	if (!r && !used)
		abort();
	free(h);
	return 0;
}
