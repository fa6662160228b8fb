/* texts.c - the tokens of a file of text or of JSON lines, computed or kept by an earlier run. */
#include "config.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include <te/version.h>

#include "blocks.h"
#include "kept.h"
#include "source.h"
#include "texts.h"
#include "tools/lib/say.h"
#include "tools/lib/tokens.h"

/* text that takes a core several seconds */
#define LONG_NBYTES ((int64_t)256 << 20)

struct joined {
	char *text;
	size_t n;
	int64_t zero_at; /* first byte 0, or -1 */
};

static void join(void *arg, const uint8_t *p, size_t n, int64_t at)
{
	struct joined *all = arg;
	const uint8_t *zero = memchr(p, 0, n);

	if (zero && all->zero_at < 0)
		all->zero_at = at + (zero - p);
	memcpy(all->text + all->n, p, n);
	all->n += n;
}

/* parts between occurrences of o->split are documents, unless they are empty, as of JSON lines */
int texts_add(const struct data_opts *o, const char *name, const char *text, size_t all, int ends,
	      struct docs *docs)
{
	const int32_t end = tokenizer_end(o->tokenizer);
	const size_t nsplit = o->split ? strlen(o->split) : 0;
	int r = STATUS_OK;

	for (size_t at = 0, to; at <= all && !r; at = to + nsplit + !nsplit) {
		const char *p = nsplit ? memmem(text + at, all - at, o->split, nsplit) : NULL;
		const int64_t first = docs->n;
		int32_t *token = NULL;
		size_t n = 0;

		to = p ? (size_t)(p - text) : all;
		if (to == at && nsplit)
			continue;
		r = tokenizer_encode(o->tokenizer, name, text + at, to - at, 0, &token, &n);
		if (!r)
			r = docs_add(docs, token, n, DOCS_TARGET);
		if (!r && end >= 0 && (p || ends))
			r = docs_add(docs, &end, 1, DOCS_TARGET);
		if (!r && nsplit && docs->n > first)
			docs->ignored[first] = DOCS_FIRST;
		free(token);
	}
	return r;
}

int texts_refuse_zero(const struct source *src, int64_t at)
{
	return say_bad("%s: is not text: byte %lld is 0; --data-type gives the type of "
		       "token files, and text accepts any bytes",
		       source_name(src), (long long)at);
}

static int read_text(struct source *src, const struct data_opts *o, struct docs *docs)
{
	struct joined all = { .zero_at = -1 };
	const char *name = source_name(src);
	int r;

	all.text = malloc((size_t)source_nbytes(src));
	r = all.text ? source_scan(src, 0, join, &all) : say_failed("out of memory");
	if (!r && o->type == DATA_AUTO && all.zero_at >= 0)
		r = texts_refuse_zero(src, all.zero_at);
	if (!r)
		r = texts_add(o, name, all.text, all.n, 1, docs);
	free(all.text);
	return r || docs->n || !o->split ? r : say_bad("%s: has no documents", name);
}

static void add_lines(void *arg, const uint8_t *p, size_t n, int64_t at)
{
	(void)at;
	jsonl_add(arg, p, n);
}

/* no more threads than cores of the process, or blocks of the file */
static int count_threads(int64_t nbytes)
{
	const int64_t nblocks = nbytes / BLOCKS_NBYTES;
	cpu_set_t set;
	int ncores = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);

	return nblocks < ncores ? (int)nblocks : ncores;
}

static int read_lines(struct source *src, const struct data_opts *o, struct docs *docs)
{
	struct jsonl j = { .name = source_name(src),
			   .tokenizer = o->tokenizer,
			   .chat = o->chat,
			   .docs = docs };
	const int nthreads = count_threads(source_nbytes(src));
	struct blocks *b = NULL;
	int r = nthreads > 1 ? blocks_begin(&j, nthreads, BLOCKS_NBYTES, &b) : STATUS_OK, end;

	if (!r)
		r = source_scan(src, 0, b ? blocks_add : add_lines, b ? (void *)b : &j);
	end = b ? blocks_end(b) : jsonl_end(&j);
	r = r ? r : end;
	return r || docs->n ? r : say_bad("%s: has no documents", j.name);
}

static int compute(struct source *src, const struct data_opts *o, int has_lines, struct digest *all,
		   struct docs *docs)
{
	int r;

	if (o->tokenizer && source_nbytes(src) >= LONG_NBYTES)
		say_note("%s: all its text is encoded before the first step; --order chunks begins "
			 "before that", source_name(src));
	r = has_lines ? read_lines(src, o, docs) : read_text(src, o, docs);
	digest_add(all, source_digest(src), DIGEST_NBYTES);
	docs_digest(docs, all);
	return r;
}

/* a text or NULL, so that no two lists of them have the same bytes */
static void digest_text(struct digest *d, const char *text)
{
	const uint64_t n = text ? strlen(text) + 1 : 0;

	digest_add(d, &n, sizeof(n));
	digest_add(d, text ? text : "", n ? n - 1 : 0);
}

void texts_digest(struct digest *d, const struct data_opts *o, int has_lines)
{
	const int32_t end = o->tokenizer ? tokenizer_end(o->tokenizer) : -1;
	const int32_t number[] = { (int32_t)o->type, has_lines, end };

	digest_add(d, number, sizeof(number));
	if (!has_lines && o->split)
		digest_text(d, o->split);
	if (!has_lines)
		return;
	digest_text(d, o->chat->begin);
	for (int i = 0; i < CHAT_NROLES; i++)
		digest_text(d, o->chat->role[i]);
	digest_text(d, o->chat->end);
}

/* a file of kept tokens, or compute and keep them */
static int find_kept(struct source *src, const struct data_opts *o, int has_lines,
		     struct digest *all, struct docs *docs)
{
	struct kept k = { .dir = o->kept,
			  .vocab = o->vocab,
			  .wait_s = KEPT_WAIT_S,
			  .what = source_name(src) };
	struct digest rest = { 0 }, both[2] = { *all };
	char text[DIGEST_NBYTES];
	int found, r = source_scan(src, 0, NULL, NULL);

	if (r)
		return r;
	memcpy(text, source_digest(src), sizeof(text));
	digest_text(&rest, te_version());
	digest_text(&rest, o->tokenizer_digest);
	texts_digest(&rest, o, has_lines);
	kept_name(&k, text, &rest);
	digest_add(&both[0], text, DIGEST_NBYTES);
	both[1] = both[0];
	found = kept_find(&k, &both[1], docs);
	if (!found) {
		r = compute(src, o, has_lines, all, docs);
		both[1] = *all;
	}
	if (!r && strcmp(text, source_digest(src)))
		r = say_bad("%s: the file changed while it was in use", k.what);
	kept_end(&k, both, r || found || !docs->n ? NULL : docs);
	*all = both[1];
	return r;
}

int texts_read(struct source *src, const struct data_opts *o, int has_lines, struct digest *all,
	       struct docs *ret_docs)
{
	return o->tokenizer && o->kept && o->tokenizer_digest &&
			       source_nbytes(src) >= o->kept_nbytes ?
		       find_kept(src, o, has_lines, all, ret_docs) :
		       compute(src, o, has_lines, all, ret_docs);
}
