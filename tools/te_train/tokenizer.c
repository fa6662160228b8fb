/* tokenizer.c - tokens of texts by libtetoken; copies of a tokenizer's files, and similar files. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef HAVE_TOKEN
#include <te/errno.h>
#include <te/token.h>
#endif

#include "tokenizer.h"
#include "tools/lib/folder.h"
#include "tools/lib/say.h"

#define MOST_NBYTES (64 << 20) /* the largest tokenizers have 35 MB */

static const char *const names[] = {
	"tokenizer.json",     "tokenizer_config.json",	"special_tokens_map.json",
	"added_tokens.json",  "vocab.json",		"merges.txt",
	"vocab.txt",	      "tokenizer.model",	"generation_config.json",
	"chat_template.jinja", "chat_template.json",	"tekken.json",
};
#define NNAMES (sizeof(names) / sizeof(names[0]))

/* ---- tokens ---- */

int tokenizer_in(const char *dir)
{
	static const char *const name[] = { "tokenizer.json", "tekken.json", "tokenizer.model" };
	int found = 0;

	for (size_t i = 0; i < sizeof(name) / sizeof(name[0]) && !found; i++) {
		char *path;

		if (asprintf(&path, "%s/%s", dir, name[i]) < 0)
			return 0;
		found = !access(path, F_OK);
		free(path);
	}
	return found;
}

#ifdef HAVE_TOKEN
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
	else if (te_token_count(t->token) > vocab)
		r = say_bad("%s: the tokenizer has %d tokens, more than the model's vocabulary of "
			    "%lld", path, (int)te_token_count(t->token), (long long)vocab);
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
		     int32_t **ret_token, size_t *ret_n)
{
	const int te = te_token_encode(t->token, text, n, 0, 0, ret_token, ret_n);

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
	return te < 0 ? say_te(te, "sampling") : STATUS_OK;
}
#else
int tokenizer_open(const char *path, int64_t vocab, int32_t end, struct tokenizer **ret_t)
{
	(void)vocab;
	(void)end;
	*ret_t = NULL;
	return say_bad("%s: this te_train was built without libtetoken, which reads tokenizers: "
		       "install PCRE2 and utf8proc and build it again, or give files of tokens",
		       path);
}

void tokenizer_close(struct tokenizer *t)
{
	(void)t;
}

/* none can be opened */
int tokenizer_encode(const struct tokenizer *t, const char *what, const char *text, size_t n,
		     int32_t **ret_token, size_t *ret_n)
{
	(void)t;
	(void)text;
	(void)n;
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

/* ---- copies ---- */

/* STATUS_OK and *ret_text NULL: the file does not exist, or is not copied. name NULL: from */
static int read_text(const char *from, const char *name, char **ret_text, size_t *ret_n)
{
	struct stat st;
	char *path, *text = NULL;
	int fd = -1, r = STATUS_OK;
	size_t n = 0;

	*ret_text = NULL;
	if (asprintf(&path, "%s%s%s", from, name ? "/" : "", name ? name : "") < 0)
		return say_failed("%s: out of memory", from);
	if (!stat(path, &st) && (!S_ISREG(st.st_mode) || st.st_size > MOST_NBYTES))
		say_note("%s: is not copied: not a regular file of at most %d MiB", path,
			 MOST_NBYTES >> 20);
	else if (!lstat(path, &st))
		r = file_open(path, &fd);
	if (fd >= 0 && fstat(fd, &st))
		r = say_bad("%s: %s", path, strerror(errno));
	else if (fd >= 0 && !(text = malloc((size_t)st.st_size + 1)))
		r = say_failed("%s: out of memory", path);
	while (text && !r && n < (size_t)st.st_size) {
		ssize_t k = read(fd, text + n, (size_t)st.st_size - n);

		if (k <= 0 && (k == 0 || errno != EINTR))
			r = say_bad("%s: %s", path, k ? strerror(errno) : "became shorter");
		n += k > 0 ? (size_t)k : 0;
	}
	if (fd >= 0)
		close(fd);
	free(path);
	if (r) {
		free(text);
		return r;
	}
	*ret_text = text;
	*ret_n = n;
	return STATUS_OK;
}

static int write_text(const struct folder *to, const char *name, const char *text, size_t n)
{
	char fresh[64];
	size_t at = 0;
	int fd, r;

	snprintf(fresh, sizeof(fresh), "%s.new", name);
	r = folder_create(to, fresh, &fd);
	if (r)
		return r;
	while (at < n) {
		ssize_t k = write(fd, text + at, n - at);

		if (k < 0 && errno != EINTR)
			break;
		at += k > 0 ? (size_t)k : 0;
	}
	if (at < n || fsync(fd) || renameat(to->fd, fresh, to->fd, name)) {
		r = say_bad("%s/%s: %s", to->path, name, strerror(errno));
		unlinkat(to->fd, fresh, 0);
	}
	close(fd);
	return r;
}

/* the name of a copy of a file that is not of a folder */
static const char *name_of_copy(const char *path)
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
	const size_t n = strlen(base);

	if (!strcmp(base, "tekken.json"))
		return "tekken.json";
	return n >= 5 && !strcmp(base + n - 5, ".json") ? "tokenizer.json" : "tokenizer.model";
}

/* from: a folder, a file, which is the only one of its names, or NULL */
static int copy_one(const char *from, int is_file, const struct folder *to, const char *name,
		    int drop)
{
	char *text = NULL;
	size_t n = 0;
	int r = STATUS_OK;

	if (from && is_file && !strcmp(name, name_of_copy(from)))
		r = read_text(from, NULL, &text, &n);
	else if (from && !is_file)
		r = read_text(from, name, &text, &n);

	if (!r && text)
		r = write_text(to, name, text, n);
	if (!r && !text && drop && unlinkat(to->fd, name, 0) && errno != ENOENT)
		r = say_bad("%s/%s: %s", to->path, name, strerror(errno));
	free(text);
	return r;
}

int tokenizer_copy(const char *from, const char *to, const char *sub, int drop)
{
	struct folder dir, in = { 0 };
	struct stat a, b;
	int r, same = 0, is_file = 0;

	if (!from && !drop)
		return STATUS_OK;
	r = folder_open(to, &dir);
	if (r)
		return r;
	if (sub)
		r = folder_open_in(&dir, sub, &in);
	if (!r && from && !stat(from, &a))
		is_file = !S_ISDIR(a.st_mode);
	if (!r && from)
		same = !stat(from, &a) && !fstat(sub ? in.fd : dir.fd, &b) &&
		       a.st_dev == b.st_dev && a.st_ino == b.st_ino;
	for (size_t i = 0; i < NNAMES && !same && (!sub || in.path); i++)
		r = copy_one(from, is_file, sub ? &in : &dir, names[i], drop) ? STATUS_BAD : r;
	folder_close(&in);
	folder_close(&dir);
	return r;
}

int tokenizer_remove(const struct folder *f)
{
	int r = STATUS_OK;

	for (size_t i = 0; i < NNAMES && !r; i++)
		r = copy_one(NULL, 0, f, names[i], 1);
	return r;
}
