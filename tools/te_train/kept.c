/*
 * kept.c - the tokens of a text in a file, which later runs and other ranks map.
 *
 * A file is written under another name, which is locked until the file has its own: other processes
 * that need it wait for the lock. A process that is killed releases it, and the next one begins
 * anew. Bytes that a crash has kept from the disk are found by the digest, as other damage is.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kept.h"
#include "lock.h"
#include "tools/lib/say.h"

#define FORMAT_VERSION 1
#define BYTE_ORDER_MARK 0x01020304

/* before n tokens of 4 bytes and n of enum docs_ignored */
struct head {
	char magic[8];
	uint32_t version, order;
	char name[KEPT_NAME];
	int64_t n, ntargets;
	struct digest all[2]; /* digest of the data before and after docs_digest() */
	int32_t largest;
	char unused[3];
	char digest[DIGEST_NBYTES]; /* digest of the head before it, and of the rest */
};
static const char magic[8] = "tetokens";

char *kept_folder(const char *word)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	char *dir = NULL;
	int n = 0;

	if (word)
		return strcmp(word, "off") ? strdup(word) : NULL;
	/* the XDG Base Directory Specification ignores relative ones */
	if (cache && *cache == '/')
		n = asprintf(&dir, "%s/te_train", cache);
	else if (home && *home == '/')
		n = asprintf(&dir, "%s/.cache/te_train", home);
	return n < 0 ? NULL : dir;
}

void kept_name(struct kept *k, const char *text, struct digest *rest)
{
	char key[DIGEST_NBYTES];

	digest_end(rest, key);
	snprintf(k->name, sizeof(k->name), "%s-%s.tokens", text, key);
}

static int64_t file_nbytes(int64_t n)
{
	return (int64_t)sizeof(struct head) + n * (int64_t)(sizeof(int32_t) + 1);
}

/* the digest of a file, for the head */
static void digest_file(const struct head *h, const struct docs *docs, char ret_text[DIGEST_NBYTES])
{
	struct digest d = { 0 };

	digest_add(&d, h, offsetof(struct head, digest));
	digest_add(&d, docs->token, (size_t)docs->n * sizeof(*docs->token));
	digest_add(&d, docs->ignored, (size_t)docs->n);
	digest_end(&d, ret_text);
}

static int is_good(const struct kept *k, const struct head *h, const struct docs *docs)
{
	char digest[DIGEST_NBYTES];

	digest_file(h, docs, digest);
	return !memcmp(digest, h->digest, sizeof(digest)) && h->largest < k->vocab;
}

static int is_head(const struct kept *k, const struct head *h, int64_t nbytes)
{
	return !memcmp(h->magic, magic, sizeof(magic)) && h->version == FORMAT_VERSION &&
	       h->order == BYTE_ORDER_MARK && !strncmp(h->name, k->name, sizeof(h->name)) &&
	       h->n > 0 && h->n <= nbytes && file_nbytes(h->n) == nbytes;
}

static int same_digest(const struct digest *a, const struct digest *b)
{
	return a->h == b->h && a->nrest == b->nrest && !memcmp(a->rest, b->rest, a->nrest);
}

/* is a file the user's, without a second name: another user may have written any tokens */
static int is_own(int fd, struct stat *ret_st)
{
	return !fstat(fd, ret_st) && S_ISREG(ret_st->st_mode) && ret_st->st_nlink <= 1 &&
	       ret_st->st_uid == geteuid();
}

/* 1: mapped; 0: there is no file, or another is to be made */
static int map(const struct kept *k, struct digest *all, struct docs *ret_docs)
{
	const int fd = open(k->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct docs docs = { 0 };
	struct stat st;
	struct head h;
	int good = 0;

	if (fd < 0) {
		if (errno != ENOENT)
			say_note("%s: %s", k->path, strerror(errno));
		return 0;
	}
	if (!is_own(fd, &st)) {
		say_note("%s: is not a file of this user", k->path);
		close(fd);
		return 0;
	}
	if (pread(fd, &h, sizeof(h), 0) == sizeof(h) && is_head(k, &h, st.st_size)) {
		docs.map_nbytes = (size_t)st.st_size;
		docs.map = mmap(NULL, docs.map_nbytes, PROT_READ, MAP_PRIVATE, fd, 0);
	}
	if (docs.map && docs.map != MAP_FAILED) {
		docs.token = (int32_t *)((char *)docs.map + sizeof(h));
		docs.ignored = (uint8_t *)(docs.token + h.n);
		docs.n = h.n;
		docs.ntargets = h.ntargets;
		docs.largest = h.largest;
		good = is_good(k, &h, &docs);
		if (!good)
			docs_free(&docs);
	}
	close(fd);
	if (good) {
		/* the same files were before it when it was written */
		if (same_digest(all, &h.all[0]))
			*all = h.all[1];
		else
			docs_digest(&docs, all);
		*ret_docs = docs;
	} else {
		say_note("%s: is damaged, the tokens are computed again", k->path);
		unlink(k->path);
	}
	return good;
}

/* all folders of the path */
static int make_folders(const char *dir)
{
	char *path = strdup(dir);
	int r = path ? 0 : -1;

	for (char *p = path ? path + 1 : NULL; p && *p; p++) {
		if (*p != '/')
			continue;
		*p = '\0';
		mkdir(path, 0700);
		*p = '/';
	}
	if (path && mkdir(path, 0700) && errno != EEXIST)
		r = -1;
	free(path);
	return r;
}

/* is the file still the one of the name */
static int has_name(int fd, const char *path)
{
	struct stat a, b;

	return !fstat(fd, &a) && !lstat(path, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int lock(const struct kept *k, int fd)
{
	int r = lock_wait(fd, 0);

	if (r && errno == EWOULDBLOCK) {
		say_note("%s: waits for another process that computes its tokens", k->what);
		r = lock_wait(fd, k->wait_s);
	}
	return r;
}

/* k->fd, unless the part cannot be locked */
static int open_part(struct kept *k)
{
	struct stat st;

	k->fd = open(k->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (k->fd >= 0 && !is_own(k->fd, &st))
		errno = EPERM;
	else if (k->fd >= 0 && !lock(k, k->fd))
		return 1;
	say_note("%s: %s: the tokens of %s are not kept", k->part,
		 errno == EWOULDBLOCK ? "another process has it" : strerror(errno), k->what);
	if (k->fd >= 0)
		close(k->fd);
	k->fd = -1;
	return 0;
}

static void close_part(struct kept *k, int drop)
{
	if (drop)
		unlink(k->part);
	close(k->fd);
	k->fd = -1;
}

int kept_find(struct kept *k, struct digest *all, struct docs *ret_docs)
{
	k->fd = -1;
	if (asprintf(&k->path, "%s/%s", k->dir, k->name) < 0)
		k->path = NULL;
	if (!k->path || asprintf(&k->part, "%s.part", k->path) < 0)
		k->part = NULL;
	if (!k->part)
		return 0;
	if (make_folders(k->dir)) {
		say_note("%s: %s: the tokens of %s are not kept", k->dir, strerror(errno), k->what);
		return 0;
	}
	if (map(k, all, ret_docs))
		return 1;
	while (open_part(k)) {
		const int mine = has_name(k->fd, k->part);
		struct stat st;

		/* the one before may have ended meanwhile */
		if (!lstat(k->path, &st) && map(k, all, ret_docs)) {
			close_part(k, mine);
			return 1;
		}
		if (mine)
			return 0;
		close_part(k, 0);
	}
	return 0;
}

static int write_all(int fd, const void *src, size_t n)
{
	const char *p = src;

	while (n) {
		const ssize_t m = write(fd, p, n);

		if (m < 0 && errno != EINTR)
			return -1;
		p += m > 0 ? m : 0;
		n -= m > 0 ? (size_t)m : 0;
	}
	return 0;
}

static int write_docs(const struct kept *k, const struct digest all[2], const struct docs *docs)
{
	struct head h;

	/* without the bytes of padding that digest_file() would read */
	memset(&h, 0, sizeof(h));
	h.version = FORMAT_VERSION;
	h.order = BYTE_ORDER_MARK;
	h.n = docs->n;
	h.ntargets = docs->ntargets;
	h.largest = docs->largest;
	memcpy(h.all, all, sizeof(h.all));

	memcpy(h.magic, magic, sizeof(magic));
	memcpy(h.name, k->name, sizeof(h.name));
	digest_file(&h, docs, h.digest);
	if (ftruncate(k->fd, 0) || write_all(k->fd, &h, sizeof(h)) ||
	    write_all(k->fd, docs->token, (size_t)docs->n * sizeof(*docs->token)) ||
	    write_all(k->fd, docs->ignored, (size_t)docs->n))
		return -1;
	return rename(k->part, k->path);
}

void kept_end(struct kept *k, const struct digest all[2], struct docs *docs)
{
	struct digest after;
	struct docs mapped;
	int written = 0;

	if (k->fd >= 0 && docs) {
		written = !write_docs(k, all, docs);
		if (!written)
			say_note("%s: %s: the tokens of %s are not kept", k->part, strerror(errno),
				 k->what);
	}
	if (k->fd >= 0)
		close_part(k, !written);
	if (written) {
		say_note("%s: its tokens are kept in %s, %lld MiB", k->what, k->path,
			 (long long)(file_nbytes(docs->n) >> 20));
		after = all[0];
		if (map(k, &after, &mapped)) {
			docs_free(docs);
			*docs = mapped;
		}
	}
	free(k->path);
	free(k->part);
	k->path = k->part = NULL;
}
