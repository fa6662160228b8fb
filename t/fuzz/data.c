/* t/fuzz/data.c - te_train's reader of text and token files, of any bytes. */
#include "config.h"

#include <stdlib.h>

#include "fuzz.h"
#include "tools/lib/say.h"
#include "tools/te_train/data.h"
#include "tools/te_train/jsonl.h"
#include "tools/te_train/order.h"

enum { MOST = 4096 }; /* tokens of data that is permuted */

/* the indices of documents rise */
static int count(void *arg, int64_t at)
{
	int64_t *next = arg;

	if (at < *next)
		abort();
	*next = at + 1;
	return STATUS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes)
{
	static const enum data_type types[] = { DATA_AUTO, DATA_TEXT, DATA_U16, DATA_U32,
						DATA_JSONL };
	const char *const role[CHAT_NROLES] = { NULL };
	char *file = (char *)(uintptr_t)fuzz_file(bytes, nbytes);
	struct chat chat;

	say_hush(1);
	if (chat_create(nbytes % 2 ? "mistral" : "llama3", NULL, role, NULL, &chat))
		abort();
	for (int i = 0; i < 20; i++) {
		/* read completely, and in pieces */
		const struct data_opts opts = {
			.type = types[i % 5],
			.vocab = i / 5 % 2 ? DATA_NBYTES : 50257,
			.most_nbytes = i < 10 ? DATA_CHECKED_NBYTES : 0,
			.chat = &chat,
			.mark = (enum data_mark)(i % 3),
			.mark_token = (int32_t)(nbytes % 3) - 1,
		};
		struct data *d;
		int32_t token[2], target[2] = { 0 }, first[2];
		struct order *o;

		if (data_open(&file, 1, &opts, &d))
			continue;
		if (data_ntokens(d) >= 2)
			span_read(&(struct span){ d, data_ntokens(d) - 2, 2 }, 0, 2, token);
		if (data_ntokens(d) >= 2)
			span_mask(&(struct span){ d, data_ntokens(d) - 2, 2 }, 0, 2, token);
		if (data_ntokens(d) >= 3)
			span_documents(&(struct span){ d, data_ntokens(d) - 3, 3 }, 0, 2, token,
				       target, first);
		if (data_ntokens(d) >= 3)
			span_starts(&(struct span){ d, 1, data_ntokens(d) - 1 }, 1,
				    data_ntokens(d) - 2, count, &(int64_t){ 0 });
		if (data_ntokens(d) >= 3 && data_ntokens(d) < MOST &&
		    !order_open(&(struct span){ d, 0, data_ntokens(d) }, nbytes, 5, 2, &o)) {
			order_read(o, (int64_t)nbytes, data_ntokens(d) / 2, 1, token, target, NULL);
			order_close(o);
		}
		data_close(d);
	}
	chat_free(&chat);
	return 0;
}
