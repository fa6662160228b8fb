/* token.c - te_token_open(3): finds the format of a file, and answers what a vocabulary has. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "token_internal.h"

static int is_gguf(const char *p, size_t n)
{
	return n >= 4 && !memcmp(p, "GGUF", 4);
}

static int load(const char *p, size_t n, const char *pattern, struct te_token *t)
{
	int r;

	if (is_gguf(p, n))
		return te__token_load_gguf(t, p, n);
	r = te__token_load_json(t, p, n);
	if (r == -TE_EFORMAT)
		r = te__token_load_ranks(t, p, n, pattern);
	if (r == -TE_EFORMAT)
		r = te__token_load_sentencepiece(t, p, n);
	if (r == -TE_EFORMAT)
		return te__fail(-TE_EFORMAT, "te_token: the file is no tokenizer: expected "
					     "tokenizer.json, ranks of tiktoken, tekken.json, "
					     "a model of SentencePiece or GGUF");
	return r;
}

int te_token_load(const void *data, size_t nbytes, const char *pattern, struct te_token **ret_token)
{
	struct te_token *t;
	int r;

	if ((!data && nbytes) || !ret_token)
		return te__fail(-EINVAL, "te_token_load: an argument is NULL");
	if (pattern && !te__pattern_named(pattern))
		return te__fail(-EINVAL,
				"te_token_load: pattern: %s: expected gpt2, cl100k, o200k, "
				"llama3 or qwen2",
				pattern);
	if (nbytes > TE__TOKEN_MAX_FILE)
		return te__fail(-EFBIG, "te_token_load: the file has more than 1 GiB");
	r = te__token_new(&t);
	if (r)
		return r;
	r = load(data, nbytes, pattern, t);
	if (!r)
		r = te__token_finish(t);
	if (r)
		te__token_free(t);
	else
		*ret_token = t;
	return r;
}

/* the part of a file that a parser may read is mapped: a GGUF file has a model's weights too */
static int load_mapped(int fd, size_t nbytes, const char *path, const char *pattern,
		       struct te_token **ret_token)
{
	const size_t n = nbytes < TE__TOKEN_MAX_FILE ? nbytes : TE__TOKEN_MAX_FILE;
	void *p = mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0);
	int r;

	if (p == MAP_FAILED)
		return te__fail(-errno, "te_token_open: %s: %s", path, strerror(errno));
	r = te_token_load(p, n, pattern, ret_token);
	munmap(p, n);
	return r;
}

static int load_read(int fd, const char *path, const char *pattern, struct te_token **ret_token)
{
	struct te__tbuf b = { .most = TE__TOKEN_MAX_FILE };
	char part[4096];
	ssize_t k = 1;
	int r = 0;

	while (k && !r) {
		k = read(fd, part, sizeof(part));
		if (k < 0 && errno != EINTR)
			r = te__fail(-errno, "te_token_open: %s: %s", path, strerror(errno));
		else if (k > 0)
			r = te__tbuf_add(&b, part, (size_t)k);
	}
	if (r == -EFBIG)
		r = te__fail(-EFBIG, "te_token: the file has more than 1 GiB");
	if (!r)
		r = te_token_load(b.p ? b.p : "", b.n, pattern, ret_token);
	te__free(b.p);
	return r;
}

static int open_file(const char *path, const char *pattern, struct te_token **ret_token)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	char start[4];
	struct stat st;
	int r;

	if (fd < 0)
		return te__fail(-errno, "te_token_open: %s: %s", path, strerror(errno));
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && pread(fd, start, 4, 0) == 4 &&
	    is_gguf(start, 4))
		r = load_mapped(fd, (size_t)st.st_size, path, pattern, ret_token);
	else
		r = load_read(fd, path, pattern, ret_token);
	close(fd);
	/* the message of the parser, after the path */
	if (r == -TE_ECORRUPT || r == -TE_EFORMAT || r == -EOPNOTSUPP || r == -EFBIG) {
		char why[512];

		snprintf(why, sizeof(why), "%s", te_error_detail());
		return te__fail(r, "te_token_open: %s: %s", path,
				strncmp(why, "te_token: ", 10) ? why : why + 10);
	}
	return r;
}

int te_token_open(const char *path, const char *pattern, struct te_token **ret_token)
{
	static const char *const names[] = { "tokenizer.json", "tekken.json", "tokenizer.model",
					     "tokenizer.gguf" };
	char *file;
	struct stat st;
	size_t i;
	int r;

	if (!path || !ret_token)
		return te__fail(-EINVAL, "te_token_open: an argument is NULL");
	if (stat(path, &st))
		return te__fail(-errno, "te_token_open: %s: %s", path, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return open_file(path, pattern, ret_token);
	file = te__malloc(strlen(path) + 32);
	if (!file)
		return te__no_memory("te_token_open");
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		sprintf(file, "%s/%s", path, names[i]);
		if (!access(file, F_OK))
			break;
	}
	r = i < sizeof(names) / sizeof(names[0]) ?
		    open_file(file, pattern, ret_token) :
		    te__fail(-ENOENT,
			     "te_token_open: %s: the folder has no tokenizer.json, "
			     "tekken.json, tokenizer.model or tokenizer.gguf",
			     path);
	te__free(file);
	return r;
}

struct te_token *te_token_ref(struct te_token *token)
{
	if (token)
		atomic_fetch_add(&token->refs, 1);
	return token;
}

struct te_token *te_token_unref(struct te_token *token)
{
	if (token && atomic_fetch_sub(&token->refs, 1) == 1)
		te__token_free(token);
	return NULL;
}

int32_t te_token_count(const struct te_token *token)
{
	return token ? token->ntok : 0;
}

int32_t te_token_find(const struct te_token *token, const void *text, size_t nbytes)
{
	int32_t id;

	if (!token || (!text && nbytes))
		return te__fail(-EINVAL, "te_token_find: an argument is NULL");
	id = te__tmap_get(&token->special, token->pool, text, nbytes);
	if (id < 0)
		id = te__tmap_get(&token->map, token->pool, text, nbytes);
	return id < 0 ? -ENOENT : id;
}

const void *te_token_bytes(const struct te_token *token, int32_t id, size_t *ret_nbytes)
{
	if (!token || !ret_nbytes || id < 0 || id >= token->ntok)
		return NULL;
	*ret_nbytes = token->tok[id].nout;
	return token->pool ? token->pool + token->tok[id].out : "";
}

int te_token_is_special(const struct te_token *token, int32_t id)
{
	return token && id >= 0 && id < token->ntok && token->tok[id].flags & TE__TOK_SPECIAL;
}

int32_t te_token_bos(const struct te_token *token)
{
	return token && token->bos >= 0 ? token->bos : -ENOENT;
}

int32_t te_token_eos(const struct te_token *token)
{
	return token && token->eos >= 0 ? token->eos : -ENOENT;
}
