/* encode.c - te_token_encode(3): added tokens, then segments between them, by threads if long. */
#include "config.h"

#include <errno.h>
#include <sched.h>

#include "token_internal.h"

#define CHUNK (256u << 10) /* bytes: a thread for less is not worth its start */

/* state of one call; words and pieces are for the calling thread */
struct encoder {
	const struct te_token *t;
	uint32_t flags;
	int nthreads;
	struct te__tids ids;
	struct te__words words;
	struct te__pieces pieces;
	struct te__tbuf normal, spare;
};

/* a thread's part of a segment */
struct part {
	const struct te_token *t;
	const char *seg;
	size_t n, begin, end;
	struct te__tids ids;
	int started, r;
	pthread_t thread;
	char why[256];
};

static void *part_run(void *arg)
{
	struct part *a = arg;
	struct te__words words;
	struct te__pieces pieces = { 0 };

	a->r = te__words_init(&words, a->t, &a->ids, a->end - a->begin);
	if (!a->r)
		a->r = te__pieces_init(&pieces, a->t, &words);
	if (!a->r)
		a->r = te__pieces_run(&pieces, a->seg, a->n, a->begin, a->end);
	if (a->r < 0)
		snprintf(a->why, sizeof(a->why), "%s", te_error_detail());
	te__pieces_free(&pieces);
	te__words_free(&words);
	return NULL;
}

static int is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* the first position from at where a word probably begins: a letter, a space, a letter */
static size_t cut(const struct te_token *t, const char *seg, size_t n, size_t at)
{
	const int marks = t->split[0].kind == TE__SPLIT_MARKS;

	for (; at + 4 < n; at++)
		if (is_letter(seg[at - 1]) &&
		    (marks ? !memcmp(seg + at, TE__TOKEN_MARK, 3) && is_letter(seg[at + 3]) :
			     seg[at] == ' ' && is_letter(seg[at + 1])))
			return at;
	return n;
}

/* *ret_done: 0: the parts do not fit together, nothing was added */
static int in_parts(struct encoder *e, const char *seg, size_t n, int nparts, int *ret_done)
{
	struct part *part = te__calloc((size_t)nparts, sizeof(*part));
	size_t at = 0;
	int r = 0, good = 1;

	if (!part)
		return te__no_memory("te_token_encode");
	for (int i = 0; i < nparts; i++) {
		part[i] = (struct part){ .t = e->t, .seg = seg, .n = n, .begin = at };
		at = i + 1 == nparts ? n : (n / (size_t)nparts) * (size_t)(i + 1);
		at = at <= part[i].begin ? part[i].begin : at == n ? n : cut(e->t, seg, n, at);
		part[i].end = at;
	}
	for (int i = 1; i < nparts && !r; i++) {
		r = te__thread_create(&part[i].thread, "te-token", part_run, &part[i]);
		part[i].started = !r;
	}
	if (!r)
		part_run(&part[0]);
	for (int i = 1; i < nparts; i++)
		if (part[i].started)
			pthread_join(part[i].thread, NULL);
	/* if each part ends where the next begins, the words are what one pass over all finds */
	for (int i = 0; i < nparts; i++) {
		if (!r && part[i].r < 0)
			r = te__fail(part[i].r, "%s", part[i].why);
		good &= !part[i].r;
	}
	for (int i = 0; i < nparts && good && !r; i++) {
		r = te__tids_room(&e->ids, part[i].ids.n);
		if (!r && part[i].ids.n)
			memcpy(e->ids.v + e->ids.n, part[i].ids.v, part[i].ids.n * sizeof(int32_t));
		e->ids.n += r ? 0 : part[i].ids.n;
	}
	for (int i = 0; i < nparts; i++)
		te__free(part[i].ids.v);
	te__free(part);
	*ret_done = good;
	return r;
}

static int words(struct encoder *e, const char *seg, size_t n, int first)
{
	const struct te__split *s = &e->t->split[0];
	const size_t most = n / CHUNK;
	int r, done = 0;

	if (e->nthreads > 1 && most > 1 && e->t->nsplit &&
	    (s->kind == TE__SPLIT_MARKS ||
	     (s->kind == TE__SPLIT_PATTERN && s->behavior == TE__SPLIT_ISOLATED))) {
		r = in_parts(e, seg, n, most < (size_t)e->nthreads ? (int)most : e->nthreads,
			     &done);
		if (r || done)
			return r;
	}
	e->pieces.first = first;
	return te__pieces_run(&e->pieces, seg, n, 0, n);
}

/* 1: no word character is next to the match */
static int is_whole(const char *p, size_t n, size_t from, size_t to)
{
	int k;

	if (to < n && te__is_word(te__utf8_get(p + to, &k)))
		return 0;
	if (!from)
		return 1;
	for (from--; from && (p[from] & 0xc0) == 0x80;)
		from--;
	return !te__is_word(te__utf8_get(p + from, &k));
}

typedef int segment_fn(struct encoder *e, const char *p, size_t n, int first);

/* added tokens of the trie, and what is between them by then() */
static int find_added(struct encoder *e, const struct te__trie *trie, const char *p, size_t n,
		      int first, segment_fn *then)
{
	size_t done = 0;
	int r = 0;

	for (size_t i = 0; i < n && trie->nedges && !r;) {
		const struct te__added *a;
		int32_t index = -1;
		size_t len, from, to;
		int k;

		if (!trie->first[(unsigned char)p[i]]) {
			i++;
			continue;
		}
		len = te__trie_match(trie, p + i, n - i, &index);
		if (!len) {
			i++;
			continue;
		}
		a = &e->t->added[index];
		from = i;
		i = to = i + len;
		if ((a->special && e->flags & TE_TOKEN_ORDINARY) ||
		    (a->single_word && !is_whole(p, n, from, to)))
			continue;
		while (a->lstrip && from > done) {
			size_t q = from - 1;

			while (q > done && (p[q] & 0xc0) == 0x80)
				q--;
			if (!te__is_space(te__utf8_get(p + q, &k)))
				break;
			from = q;
		}
		while (a->rstrip && to < n && te__is_space(te__utf8_get(p + to, &k)))
			to += (size_t)k;
		if (from > done)
			r = then(e, p + done, from - done, first && !done);
		if (!r)
			r = te__tids_room(&e->ids, 1);
		if (!r)
			e->ids.v[e->ids.n++] = a->id;
		i = done = to;
	}
	return !r && done < n ? then(e, p + done, n - done, first && !done) : r;
}

static int segment(struct encoder *e, const char *p, size_t n, int first)
{
	int r = te__normalize(e->t, p, n, &e->normal, &e->spare, &p, &n);

	return r || !n ? r : find_added(e, &e->t->normalized, p, n, first, words);
}

static int add(struct te__tids *ids, const int32_t *v, int n)
{
	int r = te__tids_room(ids, (size_t)n + 1);

	if (!r && n)
		memcpy(ids->v + ids->n, v, (size_t)n * sizeof(*v));
	ids->n += r ? 0 : (size_t)n;
	return r;
}

static int cores(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
}

int te_token_encode(const struct te_token *token, const void *text, size_t nbytes, uint32_t flags,
		    int nthreads, int32_t **ret_ids, size_t *ret_n)
{
	struct te__tbuf repaired = { 0 };
	struct encoder e = { .t = token, .flags = flags };
	const char *p = text;
	size_t n = nbytes;
	int r;

	if (!token || (!text && nbytes) || !ret_ids || !ret_n)
		return te__fail(-EINVAL, "te_token_encode: an argument is NULL");
	if (flags & ~(TE_TOKEN_TEMPLATE | TE_TOKEN_ORDINARY))
		return te__fail(-EINVAL, "te_token_encode: flags: 0x%x has unknown bits", flags);
	if (nthreads < 0 || nthreads > 1024)
		return te__fail(-EINVAL, "te_token_encode: nthreads: %d is outside of 0 to 1024",
				nthreads);
	if (nbytes > INT32_MAX)
		return te__fail(-EFBIG,
				"te_token_encode: text: it has %zu bytes, expected less than "
				"2^31",
				nbytes);
	e.nthreads = nthreads ? nthreads : nbytes < 2 * CHUNK ? 1 : cores();
	r = te__words_init(&e.words, token, &e.ids, nbytes);
	if (!r)
		r = te__pieces_init(&e.pieces, token, &e.words);
	if (!r)
		r = te__utf8_repair(p, n, &repaired, &p, &n);
	if (!r)
		r = add(&e.ids, token->before, flags & TE_TOKEN_TEMPLATE ? token->nbefore : 0);
	if (!r)
		r = find_added(&e, &token->raw, p, n, 1, segment);
	if (!r)
		r = add(&e.ids, token->after, flags & TE_TOKEN_TEMPLATE ? token->nafter : 0);
	te__pieces_free(&e.pieces);
	te__words_free(&e.words);
	te__free(e.normal.p);
	te__free(e.spare.p);
	te__free(repaired.p);
	if (r) {
		te__free(e.ids.v);
		return r;
	}
	*ret_ids = te__give(e.ids.v);
	*ret_n = e.ids.n;
	return 0;
}
