/* tokenizer.c - copies the files of a tokenizer, and similar files, to saved models. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "folder.h"
#include "gguf.h"
#include "say.h"
#include "tokenizer.h"
#include "tokens.h"

#define MOST_NBYTES (64 << 20) /* the largest tokenizers have 35 MB */

static const char *const names[] = {
	"tokenizer.json",     "tokenizer_config.json",	"special_tokens_map.json",
	"added_tokens.json",  "vocab.json",		"merges.txt",
	"vocab.txt",	      "tokenizer.model",	"generation_config.json",
	"chat_template.jinja", "chat_template.json",	"tekken.json",
	TOKENIZER_GGUF,
};
#define NNAMES (sizeof(names) / sizeof(names[0]))

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

/* the tokenizer in a GGUF file of a model, as a file */
static int read_gguf(const char *from, char **ret_text, size_t *ret_n)
{
	struct {
		char magic[4];
		uint32_t version;
		uint64_t ntensors, nitems;
	} header = { { 'G', 'G', 'U', 'F' }, 3, 0, 0 };
	void *items;
	size_t n;
	int r = tokenizer_gguf(from, 0, &items, &n, &header.nitems);

	if (r)
		return r;
	if (!header.nitems) {
		free(items);
		return STATUS_OK; /* a model without one */
	}
	*ret_text = malloc(sizeof(header) + n);
	if (*ret_text) {
		memcpy(*ret_text, &header, sizeof(header));
		memcpy(*ret_text + sizeof(header), items, n);
		*ret_n = sizeof(header) + n;
	}
	free(items);
	return *ret_text ? STATUS_OK : say_failed("%s: out of memory", from);
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

	if (gguf_is(path))
		return TOKENIZER_GGUF;
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
		r = gguf_is(from) ? read_gguf(from, &text, &n) :
				    read_text(from, NULL, &text, &n);
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

int tokenizer_is_file(const char *name)
{
	for (size_t i = 0; i < NNAMES; i++)
		if (!strcmp(names[i], name))
			return 1;
	return 0;
}
