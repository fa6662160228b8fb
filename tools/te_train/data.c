/* data.c - a data set: text and token files, or random tokens, as one sequence of tokens. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libtecore/base/splitmix64.h"

#include "data.h"
#include "jsonl.h"
#include "magic.h"
#include "reading.h"
#include "source.h"
#include "texts.h"
#include "tools/lib/model.h"
#include "tools/lib/say.h"

/* llm.c, dev/data/data_common.py: 256 words, then tokens */
#define LLMC_NBYTES 1024
static const struct llmc {
	int32_t magic, version;
	enum data_type type;
	const char *name;
} llmc[] = {
	{ 20240520, 1, DATA_U16, "GPT-2" },
	{ 20240801, 7, DATA_U32, "Llama 3" },
};

#define HEAD_NBYTES 4096   /* enough to recognise a file */
#define CHUNK_NTOKENS 1024 /* tokens of a copy */
#define RANDOM_NTOKENS (1 << 24)

struct file {
	struct source *src;
	enum data_type type;
	int64_t skip;	  /* bytes of its header */
	int sampled;	  /* tokens are checked when they are read */
	int is_copy;	  /* src and docs belong to a file before it */
	int has_lines;	  /* JSON lines, if their tokens are computed later */
	int64_t first, n; /* index in the sequence of all tokens */
	struct docs docs; /* documents, if it has JSON lines */
};

struct data {
	struct file *file;
	int nfiles;
	enum data_type type; /* widest type of the files */
	int random;
	int64_t most_nbytes; /* bytes of files that may still be read completely */
	int64_t vocab; /* vocabulary size of the model */
	enum data_mark mark;
	int32_t mark_token;
	int64_t ntokens;
	int32_t largest;
	struct digest all; /* digest of the files before the one that is read */
	char digest[DIGEST_NBYTES];
};

static const char *const type_name[] = { "auto", "text", "u16", "u32", "jsonl" };

enum data_type data_type_find(const char *word)
{
	for (int i = DATA_TEXT; i <= DATA_JSONL; i++) {
		if (!strcmp(word, type_name[i]))
			return (enum data_type)i;
	}
	return DATA_AUTO;
}

/* ---- types of files ---- */

static int refuse_magic(const struct file *f, const uint8_t *head, size_t n, int text)
{
	const struct magic *m = magic_find(head, n, text);

	return m ? say_bad("%s: is %s, neither text nor tokens: %s", source_name(f->src), m->name,
			   m->advice) :
		   STATUS_OK;
}

/* a header of llm.c: f->skip and f->type */
static int take_header(struct file *f, const uint8_t *head, size_t nhead, enum data_type type)
{
	const char *name = source_name(f->src);
	int32_t h[3];
	int64_t have;

	if (nhead < LLMC_NBYTES)
		return STATUS_OK;
	memcpy(h, head, sizeof(h));
	for (size_t i = 0; i < sizeof(llmc) / sizeof(llmc[0]); i++) {
		if (h[0] != llmc[i].magic)
			continue;
		f->skip = LLMC_NBYTES;
		f->type = llmc[i].type;
		if (type != DATA_AUTO && type != f->type)
			return say_bad("%s: its header is of %s tokens (%s), not %s", name,
				       type_name[f->type], llmc[i].name, type_name[type]);
		if (h[1] != llmc[i].version)
			return say_bad("%s: token file of version %d; of %s, version %d is known",
				       name, h[1], llmc[i].name, llmc[i].version);
		have = source_nbytes(f->src) - f->skip;
		if (have != (int64_t)(uint32_t)h[2] * width_of(f->type))
			return say_bad("%s: its header promises %u tokens, but it has %lld bytes "
				       "of them, %s",
				       name, (unsigned)h[2], (long long)have,
				       have < (int64_t)(uint32_t)h[2] * width_of(f->type) ?
					       "which is cut short" :
					       "which is more");
		return STATUS_OK;
	}
	/* the other formats of llm.c are numbered by dates too */
	if (h[0] / 10000 == 2024)
		return say_bad("%s: has a header of llm.c with number %d; of its token files, "
			       "%d and %d are known",
			       name, h[0], llmc[0].magic, llmc[1].magic);
	return STATUS_OK;
}

/* choose the type of a .bin file without a header: exactly one must be possible */
static int choose_type(struct file *f, struct readings *rs, const uint8_t *head, size_t nhead)
{
	const char *name = source_name(f->src);
	struct reading *u16 = &rs->rd[0], *u32 = &rs->rd[1];
	int is16 = reading_is_possible(u16, head, nhead);
	int is32 = reading_is_possible(u32, head, nhead);

	if (is16 && is32)
		return say_bad("%s: may be tokens of 16 or of 32 bits: give --data-type u16 or u32",
			       name);
	if (!is16 && !is32 && !strcmp(u16->why_not, u32->why_not))
		return say_bad("%s: is not a file of tokens: %s", name, u16->why_not);
	if (!is16 && !is32)
		return say_bad("%s: is not a file of tokens: of 16 bits, %s; of 32 bits, %s", name,
			       u16->why_not, u32->why_not);
	/* 16 bits do not number such a vocabulary, and nearly any file would do */
	if (is16 && u16->vocab > 1 << 16)
		return say_bad("%s: is not a file of 32-bit tokens: %s; if its tokens have 16 "
			       "bits, give --data-type u16",
			       name, u32->why_not);
	f->type = is16 ? DATA_U16 : DATA_U32;
	return STATUS_OK;
}

static int check_type(struct file *f, struct reading *rd, const uint8_t *head, size_t nhead,
		      enum data_type asked)
{
	const char *name = source_name(f->src);

	if (f->type != DATA_TEXT)
		return reading_is_possible(rd, f->skip ? NULL : head, f->skip ? 0 : nhead) ?
			       STATUS_OK :
			       say_bad("%s: is not a file of %d-bit tokens: %s", name,
				       8 * width_of(f->type), rd->why_not);
	if (asked == DATA_AUTO && rd->zero_at >= 0)
		return say_bad("%s: is not text: byte %lld is 0; --data-type gives the type of "
			       "token files, and text accepts any bytes",
			       name, (long long)rd->zero_at);
	if (rd->bad_at >= 0)
		return say_bad("%s: token %u at index %lld is beyond the vocabulary of %lld", name,
			       rd->bad, (long long)rd->bad_at, (long long)rd->vocab);
	return STATUS_OK;
}

static int refuse_text(const struct file *f, int64_t vocab)
{
	return say_bad("%s: is text, but the model's vocabulary of %lld is not bytes: give a "
		       "--tokenizer, files of its tokens (.bin), or a model of bytes such as "
		       "--preset char-gpt, or --random-tokens to measure speed",
		       source_name(f->src), (long long)vocab);
}

/* without a header; DATA_AUTO: tokens of an unknown type */
static enum data_type type_of_name(const struct source *src)
{
	return source_ends_with(src, ".u16") ? DATA_U16 :
	       source_ends_with(src, ".u32") ? DATA_U32 :
	       source_ends_with(src, ".bin") ? DATA_AUTO :
					       DATA_TEXT;
}

/* all of the file, or pieces of it */
static int read_file(struct data *d, struct file *f, struct readings *rs)
{
	const int64_t nbytes = source_nbytes(f->src) - f->skip;

	for (int i = 0; i < rs->n; i++) {
		rs->rd[i].n = nbytes / width_of(rs->rd[i].type);
		rs->rd[i].ntails = nbytes % width_of(rs->rd[i].type);
	}
	f->sampled = nbytes > d->most_nbytes;
	if (f->sampled)
		return source_sample(f->src, f->skip, readings_add, rs);
	d->most_nbytes -= nbytes;
	return source_scan(f->src, f->skip, readings_add, rs);
}

/* the type of tokens of text by a tokenizer */
static enum data_type type_of_tokens(int64_t vocab)
{
	return vocab > 1 << 16 ? DATA_U32 : DATA_U16;
}

/* text or JSON lines by a tokenizer */
static int read_tokenized(struct data *d, struct file *f, const struct data_opts *o, int has_lines)
{
	int r;

	f->type = type_of_tokens(d->vocab);
	digest_add(&d->all, &f->type, sizeof(f->type));
	if (o->later) {
		f->has_lines = has_lines;
		r = source_sample(f->src, 0, NULL, NULL);
		texts_digest(&d->all, o, has_lines);
		digest_add(&d->all, source_digest(f->src), DIGEST_NBYTES);
		return r;
	}
	r = texts_read(f->src, o, has_lines, &d->all, &f->docs);
	f->n = f->docs.n;
	d->largest = f->docs.largest > d->largest ? f->docs.largest : d->largest;
	return r;
}

/* JSON lines, whose tokens are bytes */
static int read_lines(struct data *d, struct file *f, const struct data_opts *o)
{
	const char *name = source_name(f->src);
	int r;

	f->type = DATA_TEXT;
	digest_add(&d->all, &f->type, sizeof(f->type));
	r = texts_read(f->src, o, 1, &d->all, &f->docs);
	f->n = f->docs.n;
	d->largest = f->docs.largest > d->largest ? f->docs.largest : d->largest;
	for (int64_t i = 0; i < f->n && !r && f->docs.largest >= d->vocab; i++)
		if (f->docs.token[i] >= d->vocab)
			r = say_bad("%s: byte %d is beyond the vocabulary of %lld", name,
				    (int)f->docs.token[i], (long long)d->vocab);
	return r;
}

static int is_jsonl(const struct source *src, enum data_type asked)
{
	return asked == DATA_JSONL || (asked == DATA_AUTO && source_ends_with(src, ".jsonl"));
}

/* f->type, skip and n */
static int recognise(struct data *d, struct file *f, const struct data_opts *o)
{
	const enum data_type asked = o->type;
	uint8_t head[HEAD_NBYTES];
	size_t nhead = sizeof(head);
	struct readings rs = { .n = 1 };
	int r;

	if (is_jsonl(f->src, asked)) {
		if (o->tokenizer || o->later)
			return read_tokenized(d, f, o, 1);
		return d->vocab > DATA_NBYTES ? refuse_text(f, d->vocab) : read_lines(d, f, o);
	}
	if (source_nbytes(f->src) < (int64_t)nhead)
		nhead = (size_t)source_nbytes(f->src);
	r = source_read(f->src, 0, head, nhead);
	f->type = asked;
	if (!r && asked != DATA_TEXT)
		r = take_header(f, head, nhead, asked);
	if (!r && asked == DATA_AUTO && !f->skip)
		f->type = type_of_name(f->src);
	if (!r && asked != DATA_TEXT && !f->skip)
		r = refuse_magic(f, head, nhead, f->type == DATA_TEXT);
	if (!r && f->type == DATA_TEXT && o->tokenizer)
		return read_tokenized(d, f, o, 0);
	if (!r && f->type == DATA_TEXT && d->vocab > DATA_NBYTES)
		r = refuse_text(f, d->vocab);
	if (!r && o->later)
		r = say_bad("%s: is a file of tokens: --order chunks is for text, expected --order "
			    "epoch or documents", source_name(f->src));
	if (r)
		return r;
	for (int i = 0; i < 2; i++)
		rs.rd[i] = (struct reading){ .vocab = d->vocab, .bad_at = -1, .zero_at = -1 };
	rs.rd[0].type = f->type == DATA_AUTO ? DATA_U16 : f->type;
	rs.rd[1].type = DATA_U32;
	rs.n = f->type == DATA_AUTO ? 2 : 1;
	r = read_file(d, f, &rs);
	if (!r)
		r = f->type == DATA_AUTO ? choose_type(f, &rs, head, nhead) :
					   check_type(f, &rs.rd[0], head, nhead, asked);
	for (int i = 0; i < rs.n && !r; i++) {
		if (rs.rd[i].type != f->type)
			continue;
		f->n = rs.rd[i].n;
		for (int k = 0; k < 2; k++) {
			if ((int32_t)rs.rd[i].largest[k] > d->largest)
				d->largest = (int32_t)rs.rd[i].largest[k];
		}
	}
	digest_add(&d->all, &f->type, sizeof(f->type));
	digest_add(&d->all, source_digest(f->src), DIGEST_NBYTES);
	return r;
}

/* ---- the data set ---- */

/* are documents of the file told by a mark, if at all */
static int needs_mark(const struct file *f)
{
	return f->type != DATA_TEXT && !f->docs.n;
}

static int add_file(struct data *d, const char *path, const struct data_opts *o)
{
	struct file *f = realloc(d->file, ((size_t)d->nfiles + 1) * sizeof(*f));
	int r;

	if (!f)
		return say_failed("out of memory");
	d->file = f;
	f += d->nfiles++;
	*f = (struct file){ 0 };
	r = source_open(path, &f->src);
	if (!r)
		r = recognise(d, f, o);
	if (!r && d->nfiles > 1 && (f->type == DATA_TEXT) != (d->type == DATA_TEXT))
		r = say_bad("%s: token files and text cannot be mixed", path);
	if (!r && d->mark && d->mark_token < 0 && needs_mark(f))
		r = say_bad("%s: documents in token files need the token that %s them, expected "
			    "%s in config.json", path,
			    d->mark == DATA_MARK_ENDS ? "ends" : "begins",
			    d->mark == DATA_MARK_ENDS ? "eos_token_id" : "bos_token_id");
	if (f->type > d->type)
		d->type = f->type;
	f->first = d->ntokens;
	d->ntokens += f->n;
	return r;
}

static int is_shown(const struct dirent *e)
{
	return *e->d_name != '.';
}

/* byte order, regardless of the locale, so that ranks and resumed runs have one order */
static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

/* the files of a folder, without hidden ones, in the order of their names */
static int add_folder(struct data *d, const char *path, const struct data_opts *o)
{
	struct dirent **list = NULL;
	const int n = scandir(path, &list, is_shown, by_name);
	int r = n < 0 ? say_bad("%s: %s", path, strerror(errno)) : STATUS_OK, nfound = 0;

	for (int i = 0; i < n; i++) {
		struct stat st;
		char *name = NULL;

		if (!r && asprintf(&name, "%s/%s", path, list[i]->d_name) < 0) {
			name = NULL;
			r = say_failed("out of memory");
		}
		if (!r && (stat(name, &st) || S_ISREG(st.st_mode))) {
			r = add_file(d, name, o);
			nfound++;
		}
		free(name);
		free(list[i]);
	}
	free(list);
	return r || nfound ? r : say_bad("%s: the folder has no files", path);
}

/* the files from an index on, ncopies times more */
static int add_copies(struct data *d, int first, int32_t ncopies)
{
	const int n = d->nfiles - first;
	struct file *f = realloc(d->file, ((size_t)d->nfiles + (size_t)n * (size_t)ncopies) *
						  sizeof(*f));

	if (!f)
		return say_failed("out of memory");
	d->file = f;
	for (int64_t i = 0; i < (int64_t)n * ncopies; i++) {
		struct file *copy = &f[d->nfiles++];

		*copy = f[first + i % n];
		copy->is_copy = 1;
		copy->first = d->ntokens;
		d->ntokens += copy->n;
	}
	digest_add(&d->all, &ncopies, sizeof(ncopies));
	return STATUS_OK;
}

int data_open(char *const *file, int nfiles, const struct data_opts *opts, struct data **ret_data)
{
	struct data *d = calloc(1, sizeof(*d));
	int r = STATUS_OK;

	if (!d)
		return say_failed("out of memory");
	d->vocab = opts->vocab;
	d->most_nbytes = opts->most_nbytes;
	d->mark = opts->mark;
	d->mark_token = opts->mark_token;
	for (int i = 0; i < nfiles && !r; i++) {
		const int first = d->nfiles;
		struct stat st;

		if (strcmp(file[i], "-") && !stat(file[i], &st) && S_ISDIR(st.st_mode))
			r = add_folder(d, file[i], opts);
		else
			r = add_file(d, file[i], opts);
		if (!r && opts->times && opts->times[i] > 1)
			r = add_copies(d, first, opts->times[i] - 1);
	}
	if (r) {
		data_close(d);
		return r;
	}
	digest_end(&d->all, d->digest);
	*ret_data = d;
	return STATUS_OK;
}

int data_random(int64_t vocab, struct data **ret_data)
{
	struct data *d = calloc(1, sizeof(*d));

	if (!d)
		return say_failed("out of memory");
	d->random = 1;
	d->vocab = vocab;
	d->type = vocab > 1 << 16 ? DATA_U32 : DATA_U16;
	d->ntokens = RANDOM_NTOKENS;
	d->largest = (int32_t)(vocab - 1);
	snprintf(d->digest, sizeof(d->digest), "%016llx", (unsigned long long)vocab);
	*ret_data = d;
	return STATUS_OK;
}

int data_of_docs(int64_t vocab, struct docs *docs, const char *digest, struct data **ret_data)
{
	struct data *d = calloc(1, sizeof(*d));

	if (d)
		d->file = calloc(1, sizeof(*d->file));
	if (!d || !d->file) {
		free(d);
		return say_failed("out of memory");
	}
	d->type = type_of_tokens(vocab);
	d->vocab = vocab;
	d->nfiles = 1;
	d->ntokens = docs->n;
	d->file->type = d->type;
	d->file->n = docs->n;
	d->file->docs = *docs;
	snprintf(d->digest, sizeof(d->digest), "%s", digest);
	*docs = (struct docs){ 0 };
	*ret_data = d;
	return STATUS_OK;
}

void data_close(struct data *d)
{
	if (!d)
		return;
	for (int i = 0; i < d->nfiles; i++) {
		if (d->file[i].is_copy)
			continue;
		source_close(d->file[i].src);
		docs_free(&d->file[i].docs);
	}
	free(d->file);
	free(d);
}

int64_t data_ntokens(const struct data *d)
{
	return d->ntokens;
}

int data_is_bytes(const struct data *d)
{
	return d->type == DATA_TEXT;
}

int data_width(const struct data *d)
{
	return width_of(d->type);
}

const char *data_kind(const struct data *d)
{
	return d->random ? "random" : type_name[d->type];
}

int32_t data_largest(const struct data *d)
{
	return d->largest;
}

const char *data_digest(const struct data *d)
{
	return d->digest;
}

int data_nfiles(const struct data *d)
{
	return d->nfiles;
}

struct source *data_source(const struct data *d, int file)
{
	return d->file[file].src;
}

int data_has_lines(const struct data *d, int file)
{
	return d->file[file].has_lines;
}

static const struct file *file_at(const struct data *d, int64_t at)
{
	int lo = 0, hi = d->nfiles - 1;

	while (lo < hi) {
		int mid = (lo + hi + 1) / 2;

		if (d->file[mid].first <= at)
			lo = mid;
		else
			hi = mid - 1;
	}
	return &d->file[lo];
}

static void draw_random(const struct data *d, int64_t at, int64_t n, int32_t *dst)
{
	for (int64_t i = 0; i < n; i++) {
		uint64_t u = mix64((uint64_t)d->vocab, (uint64_t)(at + i));

		dst[i] = (int32_t)((unsigned __int128)u * (uint64_t)d->vocab >> 64);
	}
}

/* m tokens of a file; a change that its time stamps do not show must not get past the vocabulary */
static int read_tokens(const struct data *d, const struct file *f, int64_t k, int64_t m,
		       int32_t *dst)
{
	uint8_t raw[CHUNK_NTOKENS * 4];
	const int width = width_of(f->type);
	int r;

	if (f->docs.n) {
		memcpy(dst, f->docs.token + k, (size_t)m * sizeof(*dst));
		return STATUS_OK;
	}
	r = source_read(f->src, f->skip + k * width, raw, (size_t)(m * width));

	for (int64_t i = 0; i < m && !r; i++) {
		uint32_t t = token_at(raw + i * width, width);

		if (t >= d->vocab && f->sampled)
			r = say_bad("%s: token %u at index %lld is beyond the vocabulary of %lld",
				    source_name(f->src), t, (long long)(k + i),
				    (long long)d->vocab);
		else if (t >= d->vocab)
			r = say_bad("%s: the file changed while it was in use",
				    source_name(f->src));
		dst[i] = (int32_t)t;
	}
	return r;
}

int span_read(const struct span *s, int64_t at, int64_t n, int32_t *dst)
{
	const struct data *d = s->data;

	at += s->first;
	if (d->random) {
		draw_random(d, at, n, dst);
		return STATUS_OK;
	}
	while (n > 0) {
		const struct file *f = file_at(d, at);
		int64_t k = at - f->first, m = f->n - k < n ? f->n - k : n;
		int r;

		m = m < CHUNK_NTOKENS ? m : CHUNK_NTOKENS;
		r = read_tokens(d, f, k, m, dst);
		if (r)
			return r;
		dst += m;
		at += m;
		n -= m;
	}
	return STATUS_OK;
}

void span_mask(const struct span *s, int64_t at, int64_t n, int32_t *target)
{
	const struct data *d = s->data;

	at += s->first;
	while (n > 0 && !d->random) {
		const struct file *f = file_at(d, at);
		const int64_t k = at - f->first, m = f->n - k < n ? f->n - k : n;

		for (int64_t i = 0; i < m && f->docs.n; i++)
			if (f->docs.ignored[k + i] != DOCS_TARGET)
				target[i] = IGNORED_TARGET;
		target += m;
		at += m;
		n -= m;
	}
}

int data_needs_mark(const struct data *d)
{
	for (int i = 0; i < d->nfiles; i++)
		if (needs_mark(&d->file[i]))
			return 1;
	return 0;
}

int data_is_begin(const struct data *d, int32_t token)
{
	return d->mark == DATA_MARK_BEGINS && token == d->mark_token;
}

/* does the mark tell that the token begins a document; before: the token before it */
static int is_marked(const struct data *d, int32_t before, int32_t token)
{
	return (d->mark == DATA_MARK_ENDS && before == d->mark_token) || data_is_begin(d, token);
}

/* does the token at an index begin a document */
static int begins(const struct data *d, int64_t at, int32_t before, int32_t token)
{
	const struct file *f = file_at(d, at);
	const int64_t k = at - f->first;

	/* a document may go on in the next token file */
	if (!k && !(needs_mark(f) && f > d->file && needs_mark(f - 1)))
		return 1;
	if (!needs_mark(f))
		return f->docs.n && f->docs.ignored[k] == DOCS_FIRST;
	return is_marked(d, before, token);
}

void span_documents(const struct span *s, int64_t at, int64_t n, const int32_t *token,
		    int32_t *target, int32_t *first)
{
	const struct data *d = s->data;
	int32_t latest = 0;

	at += s->first;
	for (int64_t i = 0; i < n; i++) {
		first[i] = latest;
		if (!begins(d, at + i + 1, token[i], target[i]))
			continue;
		latest = (int32_t)(i + 1);
		if (!data_is_begin(d, target[i]))
			target[i] = IGNORED_TARGET;
	}
}

/* documents of a token file after its first token: from index at up to `to` of the data */
static int marked_starts(const struct span *s, int64_t at, int64_t to, start_fn fn, void *arg)
{
	const struct span all = { s->data, 0, s->data->ntokens };
	int32_t token[CHUNK_NTOKENS];
	int r = STATUS_OK;

	while (at < to && !r) {
		const int64_t m = to - at < CHUNK_NTOKENS - 1 ? to - at : CHUNK_NTOKENS - 1;

		r = span_read(&all, at - 1, m + 1, token);
		for (int64_t i = 0; i < m && !r; i++)
			if (is_marked(s->data, token[i], token[i + 1]))
				r = fn(arg, at + i - s->first);
		at += m;
	}
	return r;
}

/* documents of a file of text or JSON lines after the first one; likewise */
static int line_starts(const struct span *s, const struct docs *docs, int64_t begin, int64_t at,
		       int64_t to, start_fn fn, void *arg)
{
	int r = STATUS_OK;

	while (at < to && docs->n && !r) {
		const uint8_t *ignored = docs->ignored + (at - begin),
			      *p = memchr(ignored, DOCS_FIRST, (size_t)(to - at));

		at = p ? at + (p - ignored) + 1 : to;
		if (p)
			r = fn(arg, at - 1 - s->first);
	}
	return r;
}

int span_starts(const struct span *s, int64_t at, int64_t n, start_fn fn, void *arg)
{
	const struct data *d = s->data;
	const struct span all = { d, 0, d->ntokens };
	const int64_t end = s->first + at + n;
	int r = STATUS_OK;

	at += s->first;
	while (at < end && !r) {
		const struct file *f = file_at(d, at);
		const int64_t to = f->first + f->n < end ? f->first + f->n : end;
		int32_t pair[2] = { 0 };

		if (at == f->first) {
			r = span_read(&all, at - (at > 0), 1 + (at > 0), pair + !at);
			if (!r && begins(d, at, pair[0], pair[1]))
				r = fn(arg, at - s->first);
			at++;
		}
		if (!r)
			r = needs_mark(f) ? marked_starts(s, at, to, fn, arg) :
					    line_starts(s, &f->docs, f->first, at, to, fn, arg);
		at = to;
	}
	return r;
}

int span_has_target(const struct span *s)
{
	int32_t target[CHUNK_NTOKENS];

	for (int64_t at = 1; at < s->n; at += CHUNK_NTOKENS) {
		const int64_t n = s->n - at < CHUNK_NTOKENS ? s->n - at : CHUNK_NTOKENS;

		memset(target, 0, sizeof(target));
		span_mask(s, at, n, target);
		for (int64_t i = 0; i < n; i++)
			if (target[i] != IGNORED_TARGET)
				return 1;
	}
	return 0;
}

int data_reads(const struct data *d, const struct stat *st)
{
	for (int i = 0; i < d->nfiles; i++)
		if (d->file[i].src && source_is(d->file[i].src, st))
			return 1;
	return 0;
}

uint64_t mix64(uint64_t a, uint64_t b)
{
	uint64_t state = a + TE__SPLITMIX64_STEP * b;

	return te__splitmix64(&state);
}
