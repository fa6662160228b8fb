/*
 * unigram.c - tokens of a text by a unigram model: the pieces whose scores have the greatest sum.
 *
 * The search goes once over the text and keeps the best way to each position (Viterbi). Scores are
 * added from the start of the text and kept in single precision, as in EncodeOptimized() of
 * SentencePiece 0.2.1, or in double precision, as in tokenizers 0.23.3, models/unigram/model.rs,
 * and in llama.cpp: rounding decides between nearly equal ways.
 */
#include "config.h"

#include <errno.h>

#include "token_internal.h"

#define MOST_PIECE 1024	 /* bytes of a piece: each position of a text may try them */
#define MOST_PIECES (16u << 20) /* bytes of all pieces */
#define UNKNOWN_PENALTY 10.0f /* below the lowest score: SentencePiece's kUnkPenalty */

int te__unigram_add(struct te_token *t, int32_t id, const char *text, size_t n, double score,
		    size_t *nbytes)
{
	uint32_t at = 0;
	int r;

	*nbytes += n;
	if (n > MOST_PIECE || *nbytes > MOST_PIECES)
		return te__fail(-EFBIG,
				"te_token: piece %d: pieces have more than %d bytes, or more than "
				"%u together",
				id, MOST_PIECE, MOST_PIECES);
	t->score[id] = score;
	r = te__trie_add(&t->unigram, text, n, id);
	/* the last of several tokens with one text is found */
	for (size_t i = 0; i < n && !r; i++)
		at = te__trie_step(&t->unigram, at, text[i]);
	if (!r)
		t->unigram.end[at] = id;
	return r;
}

/* the best way to a position */
struct te__node {
	double score;
	int32_t from, id; /* from -1: no way is known */
};

static void offer(const struct te_token *t, struct te__node *to, double score, size_t from,
		  int32_t id)
{
	if (to->from >= 0 && !(score > to->score))
		return;
	*to = (struct te__node){ t->exact ? score : (double)(float)score, (int32_t)from, id };
}

/* score of an unknown character after `here` */
static double unknown(const struct te_token *t, double here)
{
	return t->exact ? t->score_low - (double)UNKNOWN_PENALTY + here :
			  (double)((float)t->score_low - UNKNOWN_PENALTY + (float)here);
}

static void search(const struct te_token *t, const char *p, size_t n, struct te__node *node)
{
	for (size_t i = 0, next; i < n; i = next) {
		const double here = node[i].score;
		uint32_t at = 0;
		int k, whole = 0;

		te__utf8_get(p + i, &k);
		next = i + (size_t)k;
		for (size_t j = i; j < n && (at = te__trie_step(&t->unigram, at, p[j]));) {
			const int32_t id = t->unigram.end[at];

			j++;
			if (id < 0)
				continue;
			/* symbols of users win over what they are made of; in GGUF by a score */
			if (t->tok[id].flags & TE__TOK_USER && !t->exact)
				offer(t, &node[j],
				      (double)((float)(j - i) * (float)t->score_high) - 0.1 + here,
				      i, id);
			else
				offer(t, &node[j], t->score[id] + here, i, id);
			whole |= j == next;
		}
		if (!whole)
			offer(t, &node[next], unknown(t, here), i, t->unk);
	}
}

/* tokenizers looks up neighbouring unknown characters as one text: the text of the unknown token */
static int is_unknown_text(const struct te_token *t, const char *p, size_t n)
{
	return t->exact && te__tmap_get(&t->map, t->pool, p, n) == t->unk;
}

/* tokens of the best way, from its end to its start, are written in reverse */
static int put(const struct te_token *t, const char *p, size_t n, const struct te__node *node,
	       struct te__tids *out)
{
	size_t count = 0;
	int32_t *v;
	int r;

	for (size_t i = n; i; i = (size_t)node[i].from)
		count += node[i].id == t->unk ? i - (size_t)node[i].from : 1;
	r = te__tids_room(out, count);
	if (r)
		return r;
	v = out->v + out->n + count;
	for (size_t i = n, from; i; i = from) {
		const int32_t id = node[i].id;

		from = (size_t)node[i].from;
		while (id == t->unk && from && node[from].id == t->unk)
			from = (size_t)node[from].from;
		if (id != t->unk || !t->byte_fallback || is_unknown_text(t, p + from, i - from)) {
			*--v = id;
			continue;
		}
		for (size_t j = i; j > from; j--)
			*--v = t->byte_id[(unsigned char)p[j - 1]];
	}
	count -= (size_t)(v - (out->v + out->n));
	memmove(out->v + out->n, v, count * sizeof(*v));
	out->n += count;
	return 0;
}

int te__unigram_put(const struct te_token *t, const char *p, size_t n, struct te__tids *out)
{
	struct te__node *node;
	int r;

	if (n >= INT32_MAX)
		return te__fail(-EFBIG, "te_token_encode: a text has 2 GiB or more");
	node = te__malloc((n + 1) * sizeof(*node));
	if (!node)
		return te__no_memory("te_token_encode");
	for (size_t i = 0; i <= n; i++)
		node[i].from = -1;
	node[0].score = 0;
	search(t, p, n, node);
	r = put(t, p, n, node, out);
	te__free(node);
	return r;
}
