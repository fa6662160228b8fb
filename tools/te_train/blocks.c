/* blocks.c - the documents of JSON lines by several threads, in the order of the lines. */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "blocks.h"
#include "tools/lib/say.h"

/* whole lines; the memory of the text is used again */
struct block {
	char *text;
	size_t n, room;
	int64_t line; /* lines of the file before it */
	struct docs docs;
	int done, status;
};

/* Block i of the file is block[i % nblocks]. Counts and block.done change under the lock. */
struct blocks {
	struct jsonl *j;
	size_t nbytes;
	int nthreads, nblocks;
	struct block *block;
	pthread_t *thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int64_t nfilled, ntaken, nmerged;
	int ended;
};

static void read_block(const struct blocks *b, struct block *k)
{
	struct jsonl j = { .name = b->j->name,
			   .tokenizer = b->j->tokenizer,
			   .chat = b->j->chat,
			   .docs = &k->docs,
			   .line = k->line };

	docs_free(&k->docs);
	jsonl_add(&j, (const uint8_t *)k->text, k->n);
	k->status = jsonl_end(&j);
}

static void *run(void *arg)
{
	struct blocks *b = arg;

	/* messages are merge()'s, for the first bad line */
	say_hush(1);
	pthread_mutex_lock(&b->lock);
	for (;;) {
		struct block *k;

		while (b->ntaken == b->nfilled && !b->ended)
			pthread_cond_wait(&b->changed, &b->lock);
		if (b->ntaken == b->nfilled)
			break;
		k = &b->block[b->ntaken++ % b->nblocks];
		pthread_mutex_unlock(&b->lock);
		read_block(b, k);
		pthread_mutex_lock(&b->lock);
		k->done = 1;
		pthread_cond_broadcast(&b->changed);
	}
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

/* the oldest block, after a thread has read it */
static void merge(struct blocks *b)
{
	struct block *k = &b->block[b->nmerged % b->nblocks];

	pthread_mutex_lock(&b->lock);
	while (!k->done)
		pthread_cond_wait(&b->changed, &b->lock);
	k->done = 0;
	pthread_mutex_unlock(&b->lock);
	b->nmerged++;
	if (k->status)
		read_block(b, k); /* again, with the message */
	b->j->status = k->status ? k->status : docs_append(b->j->docs, &k->docs);
	docs_free(&k->docs);
	k->n = 0;
}

/* the block that is being filled, or NULL after a failure */
static struct block *present(struct blocks *b)
{
	while (b->nfilled - b->nmerged == b->nblocks && !b->j->status)
		merge(b);
	return b->j->status ? NULL : &b->block[b->nfilled % b->nblocks];
}

static void hand_over(struct blocks *b)
{
	const struct block *k = &b->block[b->nfilled % b->nblocks];

	for (size_t i = 0; i < k->n; i++)
		b->j->line += k->text[i] == '\n';
	pthread_mutex_lock(&b->lock);
	b->nfilled++;
	pthread_cond_broadcast(&b->changed);
	pthread_mutex_unlock(&b->lock);
}

static int append(struct blocks *b, struct block *k, const uint8_t *p, size_t n)
{
	if (k->room < k->n + n) {
		const size_t room = 2 * (k->n + n);
		char *text = realloc(k->text, room);

		if (!text)
			return say_failed("%s: out of memory", b->j->name);
		k->text = text;
		k->room = room;
	}
	if (!k->n)
		k->line = b->j->line;
	memcpy(k->text + k->n, p, n);
	k->n += n;
	return STATUS_OK;
}

void blocks_add(void *arg, const uint8_t *p, size_t n, int64_t at)
{
	struct blocks *b = arg;
	struct block *k;

	(void)at;
	while (n && (k = present(b))) {
		const uint8_t *end = NULL;
		size_t m = n;

		if (k->n < b->nbytes) {
			m = n < b->nbytes - k->n ? n : b->nbytes - k->n;
		} else {
			end = memchr(p, '\n', n);
			m = end ? (size_t)(end - p) + 1 : n;
		}
		b->j->status = append(b, k, p, m);
		if (end && !b->j->status)
			hand_over(b);
		p += m;
		n -= m;
	}
}

static void free_all(struct blocks *b)
{
	for (int i = 0; i < b->nblocks && b->block; i++) {
		free(b->block[i].text);
		docs_free(&b->block[i].docs);
	}
	pthread_cond_destroy(&b->changed);
	pthread_mutex_destroy(&b->lock);
	free(b->block);
	free(b->thread);
	free(b);
}

/* signals are taken by the thread that called */
static int start(struct blocks *b, int nthreads)
{
	sigset_t all, old;
	int e = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (b->nthreads < nthreads && !e) {
		e = pthread_create(&b->thread[b->nthreads], NULL, run, b);
		b->nthreads += !e;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return b->nthreads ? STATUS_OK :
			     say_failed("%s: no thread can be started: %s", b->j->name,
					strerror(e));
}

int blocks_begin(struct jsonl *j, int nthreads, size_t nbytes, struct blocks **ret_b)
{
	struct blocks *b = calloc(1, sizeof(*b));
	int r;

	if (!b)
		return say_failed("out of memory");
	b->j = j;
	b->nbytes = nbytes;
	/* threads have work while the oldest block is read or one is filled */
	b->nblocks = 2 * nthreads + 1;
	b->block = calloc((size_t)b->nblocks, sizeof(*b->block));
	b->thread = calloc((size_t)nthreads, sizeof(*b->thread));
	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->changed, NULL);
	r = b->block && b->thread ? start(b, nthreads) : say_failed("out of memory");
	if (r)
		free_all(b);
	else
		*ret_b = b;
	return r;
}

int blocks_end(struct blocks *b)
{
	struct block *k = present(b);
	int r;

	if (k && k->n)
		hand_over(b);
	while (b->nmerged < b->nfilled && !b->j->status)
		merge(b);
	pthread_mutex_lock(&b->lock);
	b->ended = 1;
	b->ntaken = b->nfilled;
	pthread_cond_broadcast(&b->changed);
	pthread_mutex_unlock(&b->lock);
	for (int i = 0; i < b->nthreads; i++)
		pthread_join(b->thread[i], NULL);
	r = b->j->status;
	free_all(b);
	return r;
}
