/*
 * order.c - the training data with its documents permuted, as one sequence of tokens an epoch.
 *
 * Large token files have no index of their documents, which would take a read of everything before
 * the first step. They are divided into chunks of equal size, so that the offset of each chunk in
 * an epoch is known. A permutation that needs no memory, epoch_permute(), gives the order of
 * chunks; a group of consecutive ones is read to find its documents, which are shuffled. One group
 * is in memory.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "order.h"
#include "tools/lib/model.h"
#include "tools/lib/say.h"

/* a document, or a part of it */
struct piece {
	int64_t first; /* index in the span */
	int64_t n;     /* tokens; once the group is complete, the offset of its end in the epoch */
};

struct order {
	struct span s;
	uint64_t seed;
	int64_t chunk, nchunks; /* the chunks of a group */
	int64_t nwhole;		/* chunks; the last group has the rest of the tokens, too */
	int64_t ngroups;
	int64_t epoch, group; /* the group in memory; -1: none */
	struct piece *piece;
	int64_t npieces, room;
	uint8_t *cut; /* for each piece: its first token does not begin a document */
};

/*
 * Feistel network on 2 h bits (Luby and Rackoff, 1988, with six rounds), repeated until the result
 * is below n. The domain has less than 4 n elements, so that takes 4 times on average at most.
 */
int64_t epoch_permute(uint64_t key, int64_t n, int64_t i)
{
	uint64_t x = (uint64_t)i, mask;
	unsigned h = 1;

	while ((uint64_t)1 << 2 * h < (uint64_t)n)
		h++;
	mask = ((uint64_t)1 << h) - 1;
	do {
		uint64_t left = x >> h, right = x & mask;

		for (uint64_t round = 0; round < 6; round++) {
			const uint64_t next = left ^ (mix64(key + round, right) & mask);

			left = right;
			right = next;
		}
		x = left << h | right;
	} while (x >= (uint64_t)n);
	return (int64_t)x;
}

int64_t epoch_draw(uint64_t key, int64_t i)
{
	return (int64_t)((unsigned __int128)mix64(key, (uint64_t)i) * (uint64_t)(i + 1) >> 64);
}

static int64_t group_first(const struct order *o, int64_t group)
{
	return group == o->ngroups ? o->s.n : group * o->nchunks * o->chunk;
}

static int add_piece(struct order *o, int64_t first, uint8_t cut)
{
	if (o->npieces == o->room) {
		const int64_t room = o->room ? 2 * o->room : 1024;
		struct piece *piece = realloc(o->piece, (size_t)room * sizeof(*piece));
		uint8_t *cuts;

		if (!piece)
			return say_failed("out of memory");
		o->piece = piece;
		cuts = realloc(o->cut, (size_t)room);
		if (!cuts)
			return say_failed("out of memory");
		o->cut = cuts;
		o->room = room;
	}
	o->cut[o->npieces] = cut;
	o->piece[o->npieces++] = (struct piece){ first, 0 };
	return STATUS_OK;
}

static int add_start(void *arg, int64_t at)
{
	struct order *o = arg;
	struct piece *last = &o->piece[o->npieces - 1];

	if (last->first == at) {
		o->cut[o->npieces - 1] = 0;
		return STATUS_OK;
	}
	last->n = at - last->first;
	return add_piece(o, at, 0);
}

static int add_range(struct order *o, int64_t from, int64_t to)
{
	int r;

	if (from == to)
		return STATUS_OK;
	r = add_piece(o, from, 1);
	if (!r)
		r = span_starts(&o->s, from, to - from, add_start, o);
	if (!r)
		o->piece[o->npieces - 1].n = to - o->piece[o->npieces - 1].first;
	return r;
}

/* Chunks begin elsewhere in each epoch, so that other documents are divided. */
static int add_chunk(struct order *o, uint64_t key, int64_t k)
{
	const int64_t n = o->s.n, left = n - k * o->chunk;
	const int64_t shift = o->nwhole ? (int64_t)(mix64(key, UINT64_MAX) % (uint64_t)n) : 0;
	const int64_t from = (k * o->chunk + shift) % n;
	const int64_t to = from + (left < o->chunk ? left : o->chunk);
	const int r = add_range(o, from, to < n ? to : n);

	return r || to <= n ? r : add_range(o, 0, to - n);
}

/* the pieces of a group in their order (Fisher and Yates), and the ends of each in the epoch */
static void shuffle(struct order *o, uint64_t key)
{
	int64_t end = group_first(o, o->group);

	for (int64_t i = o->npieces - 1; i > 0; i--) {
		const int64_t j = epoch_draw(key, i);
		const struct piece piece = o->piece[i];
		const uint8_t cut = o->cut[i];

		o->piece[i] = o->piece[j];
		o->cut[i] = o->cut[j];
		o->piece[j] = piece;
		o->cut[j] = cut;
	}
	for (int64_t i = 0; i < o->npieces; i++)
		o->piece[i].n = end += o->piece[i].n;
}

static int load(struct order *o, int64_t epoch, int64_t group)
{
	const int64_t next = (group + 1) * o->nchunks;
	const uint64_t key = mix64(o->seed, (uint64_t)epoch);
	int r = STATUS_OK;

	if (o->epoch == epoch && o->group == group)
		return STATUS_OK;
	o->epoch = o->group = -1;
	o->npieces = 0;
	for (int64_t i = group * o->nchunks; i < next && i < o->nwhole && !r; i++)
		r = add_chunk(o, key, epoch_permute(key, o->nwhole, i));
	if (!r && group == o->ngroups - 1)
		r = add_chunk(o, key, o->nwhole);
	if (r)
		return r;
	o->epoch = epoch;
	o->group = group;
	shuffle(o, mix64(key, (uint64_t)group));
	return STATUS_OK;
}

/* does a document begin after the first token of the span */
static int has_start(const struct order *o)
{
	for (int64_t i = 0; i < o->npieces; i++)
		if (!o->cut[i] && o->piece[i].first)
			return 1;
	return 0;
}

int order_open(const struct span *s, uint64_t seed, int64_t chunk, int64_t nchunks,
	       struct order **ret_o)
{
	struct order *o = calloc(1, sizeof(*o));
	int r;

	if (!o)
		return say_failed("out of memory");
	*o = (struct order){ .s = *s, .seed = seed, .chunk = chunk, .nchunks = nchunks };
	if (!data_needs_mark(s->data) || s->n <= chunk * nchunks) {
		o->chunk = s->n + 1;
		o->nchunks = 1;
	}
	o->nwhole = s->n / o->chunk;
	o->ngroups = o->nwhole ? (o->nwhole + o->nchunks - 1) / o->nchunks : 1;
	o->epoch = o->group = -1;
	r = load(o, 0, 0);
	if (!r && !has_start(o))
		r = say_bad("--order documents: no document ends in the first %lld tokens of its "
			    "order: expected several documents%s, or --order epoch",
			    (long long)group_first(o, 1),
			    data_needs_mark(s->data) ? " and the token that divides them" : "");
	if (r) {
		order_close(o);
		return r;
	}
	*ret_o = o;
	return STATUS_OK;
}

void order_close(struct order *o)
{
	if (!o)
		return;
	free(o->piece);
	free(o->cut);
	free(o);
}

int64_t order_ntokens(const struct order *o)
{
	return o->s.n;
}

/* the piece of the group in memory that has a token of the epoch */
static int64_t find(const struct order *o, int64_t at)
{
	int64_t lo = 0, hi = o->npieces - 1;

	while (lo < hi) {
		const int64_t mid = (lo + hi) / 2;

		if (o->piece[mid].n > at)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

/* consecutive tokens of one piece */
struct range {
	int64_t from, n; /* index in the span */
	int starts;	 /* the first one begins the piece */
	int cut;
};

/* at most n tokens from index at of the epoch */
static int part_at(struct order *o, int64_t epoch, int64_t at, int64_t n, struct range *ret_p)
{
	const int64_t size = o->nchunks * o->chunk, last = o->ngroups - 1;
	const int64_t group = at / size < last ? at / size : last;
	int64_t i, begin, left;
	int r = load(o, epoch, group);

	if (r)
		return r;
	i = find(o, at);
	begin = i ? o->piece[i - 1].n : group_first(o, group);
	left = o->piece[i].n - at;
	*ret_p = (struct range){ .from = o->piece[i].first + at - begin,
				.n = left < n ? left : n,
				.starts = at == begin,
				.cut = o->cut[i] };
	return STATUS_OK;
}

int order_read(struct order *o, int64_t epoch, int64_t at, int64_t n, int32_t *token,
	       int32_t *target, int32_t *documents)
{
	struct range p;
	int32_t latest = 0;
	int r = part_at(o, epoch, at, 1, &p);

	if (!r)
		r = span_read(&o->s, p.from, 1, token);
	if (documents)
		*documents = 0;
	for (int64_t i = 0; i < n && !r; i += p.n) {
		int32_t *y = target + i;
		int ignored;

		r = part_at(o, epoch, at + 1 + i, n - i, &p);
		if (!r)
			r = span_read(&o->s, p.from, p.n, y);
		if (r)
			break;
		ignored = p.starts && (p.cut || (documents && !data_is_begin(o->s.data, *y)));
		memcpy(token + i + 1, y, (size_t)(i + p.n < n ? p.n : p.n - 1) * sizeof(*y));
		span_mask(&o->s, p.from, p.n, y);
		if (ignored)
			*y = IGNORED_TARGET;
		latest = p.starts ? (int32_t)(i + 1) : latest;
		for (int64_t k = i + 1; documents && k <= i + p.n && k < n; k++)
			documents[k] = latest;
	}
	return r;
}
