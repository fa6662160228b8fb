/* t/fuzz/token.c - te_token_load(3) of any bytes, and a short text with what was loaded. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include <te/token.h>

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	static const char text[] = "ab  \xe4\xb8\xad \xff <s>1a-b\xc3\xa9\n";
	struct te_token *t = NULL;
	size_t n, nback;
	int32_t *ids;
	char *back;

	/* the last byte chooses a pattern for files of tiktoken */
	if (te_token_load(data, nbytes, nbytes && data[nbytes - 1] & 1 ? "gpt2" : NULL, &t) < 0)
		return 0;
	if (te_token_encode(t, text, sizeof(text) - 1, TE_TOKEN_TEMPLATE, 1, &ids, &n) >= 0) {
		if (te_token_decode(t, ids, n, 0, &back, &nback) >= 0)
			free(back);
		free(ids);
	}
	te_token_unref(t);
	return 0;
}
