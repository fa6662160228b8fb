/* tokens.c - tokens of texts, and text of tokens, by libtetoken. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef HAVE_TOKEN
#include <te/errno.h>
#include <te/token.h>
#endif

#include "gguf.h"
#include "say.h"
#include "tokens.h"

/* the file that te_token_open() reads for a path, for free(3), which need not be a tokenizer; or
 * NULL */
static char *file_of(const char *path)
{
	static const char *const name[] = { "tokenizer.json", "tekken.json", "tokenizer.model",
					    TOKENIZER_GGUF };

	if (gguf_is(path))
		return strdup(path);
	for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
		char *file;

		if (asprintf(&file, "%s/%s", path, name[i]) < 0)
			return NULL;
		if (!access(file, F_OK))
			return file;
		free(file);
	}
	return NULL;
}

int tokenizer_in(const char *path)
{
	char *file = file_of(path);
	const int found = file != NULL;

	free(file);
	return found;
}

/* 1: the bytes of a regular file were added */
static int add_file(struct digest *d, const char *path)
{
	FILE *f = fopen(path, "re");
	char part[4096];
	int good = f != NULL;
	size_t n;

	while (f && (n = fread(part, 1, sizeof(part), f)) > 0)
		digest_add(d, part, n);
	good = good && !ferror(f);
	if (f)
		fclose(f);
	return good;
}

int tokenizer_digest(const char *path, char ret_text[DIGEST_NBYTES])
{
	struct digest d = { 0 };
	uint64_t nitems;
	struct stat st;
	void *items;
	size_t n;
	char *file = NULL;
	int good = 0;

	if (stat(path, &st))
		return 0;
	file = S_ISDIR(st.st_mode) ? file_of(path) : strdup(path);
	if (file && gguf_is(file)) {
		/* a model's file has its weights too */
		good = !gguf_items(file, "tokenizer.", &items, &n, &nitems);
		if (good) {
			digest_add(&d, items, n);
			free(items);
		}
	} else if (file && !stat(file, &st) && S_ISREG(st.st_mode)) {
		good = add_file(&d, file);
	}
	free(file);
	digest_end(&d, ret_text);
	return good;
}

#ifdef HAVE_TOKEN
#define GGUF_HEADER 24 /* bytes; the last 8 are the number of items */

static int check_count(const struct te_token *t, const char *path, int64_t vocab)
{
	const int n = (int)te_token_count(t);

	return n <= vocab ? STATUS_OK :
			    say_bad("%s: the tokenizer has %d tokens, more than the model's "
				    "vocabulary of %lld", path, n, (long long)vocab);
}

static int save_gguf(const char *path, int64_t vocab, void **ret, size_t *ret_nbytes,
		     uint64_t *ret_nitems)
{
	struct te_token *t = NULL;
	char *data = NULL;
	size_t n = 0;
	int te = te_token_open(path, NULL, &t);

	if (te >= 0 && check_count(t, path, vocab)) {
		te_token_unref(t);
		return STATUS_BAD;
	}
	if (te >= 0)
		te = te_token_gguf(t, (int32_t)vocab, (void **)&data, &n);
	te_token_unref(t);
	if (te == -ENOMEM)
		return say_failed("out of memory");
	if (te < 0)
		return say_bad("%s: %s", path, te_error_detail());
	memcpy(ret_nitems, data + 16, 8);
	*ret_nbytes = n - GGUF_HEADER;
	memmove(data, data + GGUF_HEADER, *ret_nbytes);
	*ret = data;
	return STATUS_OK;
}

struct tokenizer {
	struct te_token *token;
	struct te_token_stream *stream; /* text of samples */
	int32_t end;
};

int tokenizer_open(const char *path, int64_t vocab, int32_t end, struct tokenizer **ret_t)
{
	struct tokenizer *t = calloc(1, sizeof(*t));
	int te, r = STATUS_OK;

	if (!t)
		return say_failed("out of memory");
	te = te_token_open(path, NULL, &t->token);
	if (te >= 0)
		te = te_token_stream_create(t->token, 0, &t->stream);
	if (te == -ENOMEM)
		r = say_failed("out of memory");
	else if (te < 0)
		r = say_bad("%s", te_error_detail());
	else
		r = check_count(t->token, path, vocab);
	if (!r)
		t->end = te_token_eos(t->token) >= 0 ? te_token_eos(t->token) : end;
	if (r)
		tokenizer_close(t);
	else
		*ret_t = t;
	return r;
}

void tokenizer_close(struct tokenizer *t)
{
	if (!t)
		return;
	te_token_stream_unref(t->stream);
	te_token_unref(t->token);
	free(t);
}

int tokenizer_encode(const struct tokenizer *t, const char *what, const char *text, size_t n,
		     int begins, int32_t **ret_token, size_t *ret_n)
{
	const int te = te_token_encode(t->token, text, n, begins ? TE_TOKEN_TEMPLATE : 0, 0,
				       ret_token, ret_n);

	return te < 0 ? say_te(te, "%s: its text has no tokens", what) : STATUS_OK;
}

int32_t tokenizer_end(const struct tokenizer *t)
{
	return t->end;
}

int tokenizer_decode(struct tokenizer *t, int32_t token, char **ret_text, size_t *ret_n)
{
	size_t n;
	int te;

	if (token >= 0 && !te_token_bytes(t->token, token, &n)) {
		const int k = asprintf(ret_text, "[%d]", (int)token);

		*ret_n = (size_t)k;
		return k < 0 ? say_failed("out of memory") : STATUS_OK;
	}
	te = token < 0 ? te_token_stream_end(t->stream, ret_text, ret_n) :
			 te_token_stream_push(t->stream, token, ret_text, ret_n);
	return te < 0 ? say_te(te, "text of tokens") : STATUS_OK;
}
#else
static int save_gguf(const char *path, int64_t vocab, void **ret, size_t *ret_nbytes,
		     uint64_t *ret_nitems)
{
	(void)ret, (void)ret_nbytes, (void)ret_nitems;
	return tokenizer_open(path, vocab, -1, &(struct tokenizer *){ NULL });
}

int tokenizer_open(const char *path, int64_t vocab, int32_t end, struct tokenizer **ret_t)
{
	(void)vocab;
	(void)end;
	*ret_t = NULL;
	return say_bad("%s: this program was built without libtetoken, which reads tokenizers: "
		       "install PCRE2 and utf8proc and build it again, or give files of tokens",
		       path);
}

void tokenizer_close(struct tokenizer *t)
{
	(void)t;
}

/* none can be opened */
int tokenizer_encode(const struct tokenizer *t, const char *what, const char *text, size_t n,
		     int begins, int32_t **ret_token, size_t *ret_n)
{
	(void)t;
	(void)text;
	(void)n;
	(void)begins;
	*ret_token = NULL;
	*ret_n = 0;
	return say_failed("%s: no tokenizer", what);
}

int32_t tokenizer_end(const struct tokenizer *t)
{
	(void)t;
	return -1;
}

int tokenizer_decode(struct tokenizer *t, int32_t token, char **ret_text, size_t *ret_n)
{
	(void)t;
	(void)token;
	*ret_text = NULL;
	*ret_n = 0;
	return say_failed("no tokenizer");
}
#endif

int tokenizer_gguf(const char *path, int64_t vocab, void **ret, size_t *ret_nbytes,
		   uint64_t *ret_nitems)
{
	char *file = file_of(path);
	int r = file && gguf_is(file) ?
			gguf_items(file, "tokenizer.", ret, ret_nbytes, ret_nitems) :
			save_gguf(path, vocab, ret, ret_nbytes, ret_nitems);

	free(file);
	return r;
}
