/*
 * unigram.c - tokens of a text by a unigram model: the pieces whose scores have the greatest sum.
 *
 * The search goes once over the text and keeps the best way to each position (Viterbi). Scores are
 * added from the start of the text and kept in single precision, as in EncodeOptimized() of
 * SentencePiece 0.2.1: rounding decides between nearly equal ways.
 */
#include "config.h"

#include <errno.h>

#include "token_internal.h"

#define UNKNOWN_PENALTY 10.0f /* below the lowest score: SentencePiece's kUnkPenalty */

/* the best way to a position */
struct te__node {
	float score;
	int32_t from, id; /* from -1: no way is known */
};

static void offer(struct te__node *to, double score, size_t from, int32_t id)
{
	if (to->from >= 0 && !(score > (double)to->score))
		return;
	*to = (struct te__node){ (float)score, (int32_t)from, id };
}

static void search(const struct te_token *t, const char *p, size_t n, struct te__node *node)
{
	const float unknown = t->score_low - UNKNOWN_PENALTY;

	for (size_t i = 0, next; i < n; i = next) {
		const float here = node[i].score;
		uint32_t at = 0;
		int k, whole = 0;

		te__utf8_get(p + i, &k);
		next = i + (size_t)k;
		for (size_t j = i; j < n && (at = te__trie_step(&t->unigram, at, p[j]));) {
			const int32_t id = t->unigram.end[at];

			j++;
			if (id < 0)
				continue;
			/* symbols of users win over what they are made of */
			if (t->tok[id].flags & TE__TOK_USER)
				offer(&node[j],
				      (double)((float)(j - i) * t->score_high) - 0.1 + (double)here,
				      i, id);
			else
				offer(&node[j], (double)t->score[id] + (double)here, i, id);
			whole |= j == next;
		}
		if (!whole)
			offer(&node[next], (double)(unknown + here), i, t->unk);
	}
}

/* tokens of the best way, from its end to its start, are written in reverse */
static int put(const struct te_token *t, const char *p, size_t n, const struct te__node *node,
	       struct te__tids *out)
{
	size_t count = 0;
	int32_t *v;
	int r, was_unk = 0;

	for (size_t i = n; i; i = (size_t)node[i].from)
		count += node[i].id == t->unk ? i - (size_t)node[i].from : 1;
	r = te__tids_room(out, count);
	if (r)
		return r;
	v = out->v + out->n + count;
	for (size_t i = n, from; i; i = from) {
		const int32_t id = node[i].id;

		from = (size_t)node[i].from;
		if (id != t->unk)
			*--v = id;
		for (size_t j = i; id == t->unk && t->byte_fallback && j > from; j--)
			*--v = t->byte_id[(unsigned char)p[j - 1]];
		if (id == t->unk && !t->byte_fallback && !was_unk)
			*--v = id;
		was_unk = id == t->unk;
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
