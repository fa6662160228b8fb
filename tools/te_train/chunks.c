/*
 * chunks.c - text in a random order of its chunks, whose tokens are computed when they are used.
 *
 * Files are divided into chunks at ends of lines or documents, which are found near multiples of
 * the chunk's size: no index of all text is needed. Seed and epoch permute the chunks, and the
 * documents of a group of consecutive ones are shuffled together. The number of windows in a group
 * is known once its tokens are, so a position is a group with the number of its first window.
 * Threads compute the tokens of the next group while the present one is used.
 */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "chunks.h"
#include "jsonl.h"
#include "order.h"
#include "source.h"
#include "texts.h"
#include "tools/lib/say.h"

#define MOST_THREADS 4
#define PIECE_NBYTES (64 << 10) /* bytes of a read that looks for an end */

/* the first end of a line at or after `from` is `to` */
struct end {
	int64_t from, to;
};

/* chunks, and their tokens as threads compute them */
struct job {
	struct chunks *c;
	int64_t n, *chunk;
	struct docs *docs;
	uint8_t *failed; /* for each chunk; also 1 if no thread has computed it */
	_Atomic int64_t next;
	pthread_t thread[MOST_THREADS];
	int nthreads;
};

struct chunks {
	const struct data *data;
	struct data_opts o;
	uint64_t seed;
	int64_t T, nbytes;
	int64_t *first;	  /* [number of files + 1] number of each one's first chunk */
	struct end *end;  /* [number of files] the end that was found last */
	int64_t ntrain, ngroups;
	pthread_mutex_t lock; /* held while a file is read, and for `end` */
	struct chunks_at at, begin; /* the present group, and the one at chunks_begin() */
	struct data *group;	    /* tokens of the present group; NULL: not computed */
	int64_t ntokens, nwindows;
	int64_t nempty; /* the latest groups that have no window */
	struct job ahead; /* computes the group of `next`, if ahead.n */
	struct chunks_at next;
};

/* ---- text of a chunk ---- */

static const char *end_of(const struct chunks *c, int file)
{
	return !data_has_lines(c->data, file) && c->o.split ? c->o.split : "\n";
}

/* the first end of a line or document of the file at or after an offset */
static int find_end(struct chunks *c, int file, int64_t from, int64_t *ret_to)
{
	struct source *src = data_source(c->data, file);
	const char *end = end_of(c, file);
	const int64_t nend = (int64_t)strlen(end), all = source_nbytes(src);
	struct end *e = &c->end[file];
	char *buf;
	int r = STATUS_OK;

	if (from <= 0 || from >= all) {
		*ret_to = from <= 0 ? 0 : all;
		return STATUS_OK;
	}
	if (e->from <= from && from <= e->to) {
		*ret_to = e->to;
		return STATUS_OK;
	}
	buf = malloc(PIECE_NBYTES + (size_t)nend);
	if (!buf)
		return say_failed("out of memory");
	*ret_to = all;
	for (int64_t at = from > nend ? from - nend : 0; at < all && !r; at += PIECE_NBYTES) {
		const int64_t left = all - at, most = PIECE_NBYTES + nend - 1;
		const size_t n = (size_t)(left < most ? left : most);
		const char *p;

		r = source_read(src, at, buf, n);
		p = r ? NULL : memmem(buf, n, end, (size_t)nend);
		if (p) {
			*ret_to = at + (p - buf) + nend;
			break;
		}
	}
	free(buf);
	if (!r)
		*e = (struct end){ from, *ret_to };
	return r;
}

static int file_of(const struct chunks *c, int64_t k)
{
	int lo = 0, hi = data_nfiles(c->data) - 1;

	while (lo < hi) {
		const int mid = (lo + hi + 1) / 2;

		if (c->first[mid] <= k)
			lo = mid;
		else
			hi = mid - 1;
	}
	return lo;
}

struct text {
	int file;
	int64_t from, to;
	char *p;
};

static int read_text(struct chunks *c, int64_t k, struct text *ret_t)
{
	const int file = file_of(c, k);
	const int64_t i = k - c->first[file];
	struct text t = { .file = file };
	int r;

	pthread_mutex_lock(&c->lock);
	r = find_end(c, file, i * c->nbytes, &t.from);
	if (!r)
		r = find_end(c, file, (i + 1) * c->nbytes, &t.to);
	if (!r) {
		t.p = malloc((size_t)(t.to - t.from) + 1);
		r = t.p ? source_read(data_source(c->data, file), t.from, t.p,
				      (size_t)(t.to - t.from)) :
			  say_failed("out of memory");
	}
	pthread_mutex_unlock(&c->lock);
	if (r)
		free(t.p);
	else
		*ret_t = t;
	return r;
}

/* lines of a file before an offset, for a message, while no threads read */
static int64_t lines_before(struct chunks *c, int file, int64_t to)
{
	char buf[4096];
	int64_t n = 0, at = 0;

	while (at < to) {
		const int64_t left = to - at, most = (int64_t)sizeof(buf);
		const size_t m = (size_t)(left < most ? left : most);

		if (source_read(data_source(c->data, file), at, buf, m))
			break;
		for (size_t i = 0; i < m; i++)
			n += buf[i] == '\n';
		at += (int64_t)m;
	}
	return n;
}

/* Tokens of a chunk. loud: error messages count lines from the beginning of the file. */
static int compute(struct chunks *c, int64_t k, int loud, struct docs *docs)
{
	struct text t;
	struct source *src;
	int r = read_text(c, k, &t);

	if (r)
		return r;
	src = data_source(c->data, t.file);
	if (data_has_lines(c->data, t.file)) {
		struct jsonl j = { .name = source_name(src),
				   .tokenizer = c->o.tokenizer,
				   .chat = c->o.chat,
				   .docs = docs,
				   .line = loud ? lines_before(c, t.file, t.from) : 0 };

		jsonl_add(&j, (const uint8_t *)t.p, (size_t)(t.to - t.from));
		r = jsonl_end(&j);
	} else if (t.from < t.to) {
		const char *zero = memchr(t.p, 0, (size_t)(t.to - t.from));

		r = c->o.type == DATA_AUTO && zero ?
			    texts_refuse_zero(src, t.from + (zero - t.p)) :
			    texts_add(&c->o, source_name(src), t.p, (size_t)(t.to - t.from),
				      t.to == source_nbytes(src), docs);
		if (!r && docs->n)
			docs->ignored[0] = DOCS_FIRST;
	}
	free(t.p);
	return r;
}

/* ---- jobs ---- */

static void *run(void *arg)
{
	struct job *j = arg;
	int64_t i;

	/* messages are job_end()'s */
	say_hush(1);
	while ((i = atomic_fetch_add(&j->next, 1)) < j->n)
		j->failed[i] = compute(j->c, j->chunk[i], 0, &j->docs[i]) != STATUS_OK;
	return NULL;
}

static void job_free(struct job *j)
{
	for (int64_t i = 0; i < j->n && j->docs; i++)
		docs_free(&j->docs[i]);
	free(j->chunk);
	free(j->docs);
	free(j->failed);
	*j = (struct job){ 0 };
}

static int job_create(struct chunks *c, int64_t n, struct job *j)
{
	*j = (struct job){ .c = c, .n = n };
	j->chunk = calloc((size_t)n, sizeof(*j->chunk));
	j->docs = calloc((size_t)n, sizeof(*j->docs));
	j->failed = malloc((size_t)n);
	if (j->chunk && j->docs && j->failed) {
		memset(j->failed, 1, (size_t)n);
		return STATUS_OK;
	}
	job_free(j);
	return say_failed("out of memory");
}

/* Threads begin. If none can be started, job_end() does their work. */
static void job_start(struct job *j)
{
	sigset_t all, old;
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set), e = 0;

	n = n < MOST_THREADS ? n : MOST_THREADS;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (j->nthreads < n && j->nthreads < j->n && !e) {
		e = pthread_create(&j->thread[j->nthreads], NULL, run, j);
		j->nthreads += !e;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void job_join(struct job *j)
{
	for (int i = 0; i < j->nthreads; i++)
		pthread_join(j->thread[i], NULL);
	j->nthreads = 0;
}

/* end a job whose tokens are not needed */
static void job_drop(struct job *j)
{
	atomic_store(&j->next, j->n);
	job_join(j);
	job_free(j);
}

/* Wait for the threads. Chunks that they could not compute are tried again, with a message. */
static int job_end(struct job *j)
{
	int r = STATUS_OK;

	job_join(j);
	for (int64_t i = 0; i < j->n && !r; i++) {
		if (!j->failed[i])
			continue;
		docs_free(&j->docs[i]);
		r = compute(j->c, j->chunk[i], 1, &j->docs[i]);
	}
	return r;
}

/* ---- groups ---- */

/* a document, or what a chunk has of it */
struct piece {
	int64_t chunk, first, n;
};

static int64_t list_pieces(const struct job *j, struct piece *piece)
{
	int64_t n = 0;

	for (int64_t i = 0; i < j->n; i++) {
		const struct docs *d = &j->docs[i];

		for (int64_t k = 0; k < d->n; n++) {
			const uint8_t *p = memchr(d->ignored + k + 1, DOCS_FIRST,
						  (size_t)(d->n - k - 1));
			const int64_t end = p ? p - d->ignored : d->n;

			if (piece)
				piece[n] = (struct piece){ i, k, end - k };
			k = end;
		}
	}
	return n;
}

/* The documents of all chunks. key: NULL, or the key of their order (Fisher and Yates). */
static int join_docs(const struct job *j, const uint64_t *key, struct docs *all)
{
	const int64_t n = list_pieces(j, NULL);
	struct piece *piece = calloc((size_t)n + 1, sizeof(*piece));
	int r = piece ? STATUS_OK : say_failed("out of memory");

	if (!r)
		list_pieces(j, piece);
	for (int64_t i = n - 1; i > 0 && key && !r; i--) {
		const int64_t k = epoch_draw(*key, i);
		const struct piece p = piece[i];

		piece[i] = piece[k];
		piece[k] = p;
	}
	for (int64_t i = 0; i < n && !r; i++) {
		const struct docs *d = &j->docs[piece[i].chunk];
		const struct docs one = { .token = d->token + piece[i].first,
					  .ignored = d->ignored + piece[i].first,
					  .n = piece[i].n };

		r = docs_append(all, &one);
	}
	free(piece);
	return r;
}

/* ends the job; the data has its tokens and, without a key, their digest */
static int job_take(struct job *j, const uint64_t *key, struct data **ret_data)
{
	const int64_t vocab = j->c->o.vocab;
	char text[DIGEST_NBYTES] = "";
	struct digest digest = { 0 };
	struct docs docs = { 0 };
	int r = job_end(j);

	if (!r)
		r = join_docs(j, key, &docs);
	job_free(j);
	if (!key)
		docs_digest(&docs, &digest);
	if (!key)
		digest_end(&digest, text);
	if (!r)
		r = data_of_docs(vocab, &docs, text, ret_data);
	docs_free(&docs);
	return r;
}

static uint64_t epoch_key(const struct chunks *c, int64_t epoch)
{
	return mix64(c->seed, (uint64_t)epoch);
}

/* Begin to compute the tokens of a group. c->ahead.n is 0 if there is no memory. */
static void go_ahead(struct chunks *c, const struct chunks_at *at)
{
	const int64_t from = c->ntrain * at->group / c->ngroups;
	const int64_t to = c->ntrain * (at->group + 1) / c->ngroups;

	c->next = *at;
	if (job_create(c, to - from, &c->ahead))
		return;
	for (int64_t i = from; i < to; i++)
		c->ahead.chunk[i - from] = epoch_permute(epoch_key(c, at->epoch), c->ntrain, i);
	job_start(&c->ahead);
}

static void drop_group(struct chunks *c)
{
	data_close(c->group);
	c->group = NULL;
	c->ntokens = c->nwindows = 0;
}

/* Complete the group at c->at, and begin to compute the next one. */
static int load(struct chunks *c)
{
	const uint64_t key = mix64(epoch_key(c, c->at.epoch), (uint64_t)c->at.group);
	struct chunks_at next = c->at;
	int r;

	if (c->ahead.n && (c->next.epoch != next.epoch || c->next.group != next.group))
		job_drop(&c->ahead);
	if (!c->ahead.n)
		go_ahead(c, &next);
	if (!c->ahead.n)
		return STATUS_FAILED;
	r = job_take(&c->ahead, &key, &c->group);
	if (r)
		return r;
	c->ntokens = data_ntokens(c->group);
	c->nwindows = c->ntokens > 1 ? (c->ntokens - 1 + c->T - 1) / c->T : 0;
	c->nempty = c->nwindows ? 0 : c->nempty + 1;
	if (c->nempty == c->ngroups)
		return say_bad("--order chunks: no text of an epoch has two tokens");
	next.group++;
	if (next.group == c->ngroups)
		next = (struct chunks_at){ .epoch = next.epoch + 1 };
	go_ahead(c, &next);
	return STATUS_OK;
}

void chunks_seek(struct chunks *c, const struct chunks_at *at)
{
	drop_group(c);
	c->at = c->begin = *at;
	c->nempty = 0;
	if (!c->ahead.n)
		go_ahead(c, at);
}

struct chunks_at chunks_at(const struct chunks *c)
{
	return c->at;
}

void chunks_begin(struct chunks *c, int64_t number)
{
	if (number < c->at.first)
		chunks_seek(c, &c->begin);
	c->begin = c->at;
}

int chunks_find(struct chunks *c, int64_t number, struct span *ret_s, int64_t *ret_at)
{
	int r = c->group ? STATUS_OK : load(c);

	while (!r && number >= c->at.first + c->nwindows) {
		c->at.first += c->nwindows;
		c->at.group++;
		if (c->at.group == c->ngroups) {
			c->at.epoch++;
			c->at.group = 0;
		}
		drop_group(c);
		r = load(c);
	}
	*ret_s = (struct span){ c->group, 0, c->ntokens };
	*ret_at = (number - c->at.first) * c->T;
	return r;
}

double chunks_epochs(const struct chunks *c, int64_t number)
{
	const double part = c->nwindows ? (double)(number - c->at.first) / (double)c->nwindows : 0;

	return (double)c->at.epoch + ((double)c->at.group + part) / (double)c->ngroups;
}

/* ---- all of it ---- */

int chunks_held_out(struct chunks *c, struct data **ret_data)
{
	const int64_t n = c->first[data_nfiles(c->data)] - c->ntrain;
	struct job j;
	int r = job_create(c, n, &j);

	for (int64_t i = 0; i < n && !r; i++)
		j.chunk[i] = c->ntrain + i;
	if (r)
		return r;
	job_start(&j);
	return job_take(&j, NULL, ret_data);
}

int64_t chunks_nbytes(const struct chunks *c)
{
	const int last = file_of(c, c->ntrain);
	int64_t all = (c->ntrain - c->first[last]) * c->nbytes;

	for (int i = 0; i < last; i++)
		all += source_nbytes(data_source(c->data, i));
	return all;
}

int64_t chunks_ngroups(const struct chunks *c)
{
	return c->ngroups;
}

/* numbers the chunks of all files */
static void divide(struct chunks *c)
{
	int64_t all = 0, most;

	for (int i = 0; i < data_nfiles(c->data); i++)
		all += source_nbytes(data_source(c->data, i));
	most = all / CHUNKS_LEAST;
	c->nbytes = most < 1 ? 1 : most < CHUNKS_NBYTES ? most : CHUNKS_NBYTES;
	for (int i = 0; i < data_nfiles(c->data); i++)
		c->first[i + 1] = c->first[i] +
				  (source_nbytes(data_source(c->data, i)) + c->nbytes - 1) /
					  c->nbytes;
}

int chunks_open(const struct data *d, const struct data_opts *opts, double val_fraction,
		uint64_t seed, int64_t T, struct chunks **ret_c)
{
	struct chunks *c = calloc(1, sizeof(*c));
	int64_t n, nval;

	if (!c)
		return say_failed("out of memory");
	*c = (struct chunks){ .data = d, .o = *opts, .seed = seed, .T = T };
	pthread_mutex_init(&c->lock, NULL);
	c->first = calloc((size_t)data_nfiles(d) + 1, sizeof(*c->first));
	c->end = calloc((size_t)data_nfiles(d), sizeof(*c->end));
	if (!c->first || !c->end) {
		chunks_close(c);
		return say_failed("out of memory");
	}
	divide(c);
	n = c->first[data_nfiles(d)];
	nval = (int64_t)(val_fraction * (double)n);
	nval = nval > CHUNKS_HELD_OUT ? CHUNKS_HELD_OUT : nval < 1 && val_fraction > 0 ? 1 : nval;
	c->ntrain = n - nval;
	c->ngroups = (c->ntrain + CHUNKS_GROUP - 1) / CHUNKS_GROUP;
	if (c->ntrain < 1) {
		chunks_close(c);
		return say_bad("--order chunks: the text has %lld bytes, expected more",
			       (long long)n);
	}
	*ret_c = c;
	return STATUS_OK;
}

void chunks_close(struct chunks *c)
{
	if (!c)
		return;
	job_drop(&c->ahead);
	drop_group(c);
	pthread_mutex_destroy(&c->lock);
	free(c->first);
	free(c->end);
	free(c);
}
