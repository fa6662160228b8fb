/*
 * sentencepiece.c - the .model files of SentencePiece, and its vocabularies in other files.
 *
 * Format: https://github.com/google/sentencepiece, src/sentencepiece_model.proto. The messages are
 * walked here: a number, a text or a message is at most as long as what is around it, so that a
 * damaged file costs one pass over its bytes. A file that needs what is not implemented is refused
 * by the name that the format has for it.
 */
#include "config.h"

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>

#include "token_internal.h"

#define WIRE_VARINT 0
#define WIRE_64 1
#define WIRE_BYTES 2
#define WIRE_32 5

#define UNK_SURFACE " \xe2\x81\x87 "

/* trainer_spec.model_type */
enum { MODEL_UNIGRAM = 1, MODEL_BPE = 2 };

struct bytes {
	const char *p;
	size_t n; /* bytes that are left */
};

/* a field of a message: a number, or bytes */
struct field {
	uint32_t number, wire;
	uint64_t value;
	struct bytes at;
};

/* members of trainer_spec and normalizer_spec */
struct spec {
	uint64_t model, byte_fallback, suffix;
	uint64_t dummy_prefix, remove_spaces, escape_spaces;
	struct bytes unk_surface, bos, eos, charsmap, decoder_charsmap;
};

static int corrupt(const char *why)
{
	return te__fail(-TE_ECORRUPT, "te_token: SentencePiece: %s", why);
}

static int take_varint(struct bytes *b, uint64_t *ret)
{
	*ret = 0;
	for (unsigned shift = 0; shift < 64 && b->n; shift += 7) {
		const unsigned char c = (unsigned char)*b->p++;

		b->n--;
		*ret |= (uint64_t)(c & 127) << shift;
		if (c < 128)
			return 1;
	}
	return 0;
}

static int take_bytes(struct bytes *b, uint64_t n, struct bytes *ret)
{
	if (n > b->n)
		return 0;
	*ret = (struct bytes){ b->p, (size_t)n };
	b->p += n;
	b->n -= (size_t)n;
	return 1;
}

/* 1: a field; 0: the end of the message; -1: damaged */
static int next_field(struct bytes *b, struct field *f)
{
	uint64_t key, n;
	int good;

	if (!b->n)
		return 0;
	if (!take_varint(b, &key) || !(key >> 3) || key >> 3 > UINT32_MAX)
		return -1;
	*f = (struct field){ .number = (uint32_t)(key >> 3), .wire = key & 7 };
	switch (f->wire) {
	case WIRE_VARINT:
		good = take_varint(b, &f->value);
		break;
	case WIRE_64:
		good = take_bytes(b, 8, &f->at);
		break;
	case WIRE_BYTES:
		good = take_varint(b, &n) && take_bytes(b, n, &f->at);
		break;
	case WIRE_32:
		good = take_bytes(b, 4, &f->at);
		break;
	default:
		good = 0;
	}
	return good ? 1 : -1;
}

/* ---- vocabularies of SentencePiece in any file ---- */

static int hex_of(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* the text of a piece with a space for each U+2581 */
static int spaces_of_marks(const char *p, size_t n, struct te__tbuf *b)
{
	const char *end = p + n, *q;
	int r = 0;

	b->n = 0;
	while (!r && (q = te__find(p, (size_t)(end - p), TE__TOKEN_MARK, 3))) {
		r = te__tbuf_add(b, p, (size_t)(q - p));
		if (!r)
			r = te__tbuf_add(b, " ", 1);
		p = q + 3;
	}
	return r ? r : te__tbuf_add(b, p, (size_t)(end - p));
}

int te__piece_set(struct te_token *t, int64_t id, const char *text, size_t n, uint32_t type,
		  struct te__tbuf *b)
{
	char byte;
	int r;

	if (type == TE__PIECE_UNKNOWN || type == TE__PIECE_CONTROL ||
	    type == TE__PIECE_USER_DEFINED || type == TE__PIECE_UNUSED)
		return te__token_set(t, id, text, n, NULL, 0, TE__TOK_FOREIGN);
	if (type == TE__PIECE_BYTE) {
		if (n != 6 || memcmp(text, "<0x", 3) || hex_of(text[3]) < 0 ||
		    hex_of(text[4]) < 0 || text[5] != '>')
			return te__fail(-TE_ECORRUPT,
					"te_token: token %lld: expected a byte as <0xXX>",
					(long long)id);
		byte = (char)(hex_of(text[3]) << 4 | hex_of(text[4]));
		return te__token_set(t, id, text, n, &byte, 1, TE__TOK_BYTE);
	}
	r = spaces_of_marks(text, n, b);
	return r ? r : te__token_set(t, id, text, n, b->p ? b->p : "", b->n, 0);
}

int te__pieces_merge(struct te_token *t, const char *scores)
{
	uint32_t *rank = te__malloc((size_t)t->ntok * sizeof(*rank));
	int r = 0;

	t->piece_score = te__malloc((size_t)t->ntok * sizeof(*t->piece_score));
	if (!rank || !t->piece_score) {
		te__free(rank);
		return te__no_memory("te_token");
	}
	for (int32_t i = 0; i < t->ntok && !r; i++) {
		uint32_t bits;
		float score;

		memcpy(&bits, scores + 4 * (size_t)i, 4);
		memcpy(&score, &bits, 4);
		if (!isfinite(score))
			r = te__fail(-TE_ECORRUPT,
				     "te_token: scores: the score of token %d is not finite", i);
		t->piece_score[i] = score;
		/* bits of positive numbers rise with them, and bits of negative ones fall */
		rank[i] = score == 0 ? 0x7fffffff : bits >> 31 ? bits : 0x7fffffff - bits;
	}
	if (!r)
		r = te__token_merges_by_rank(t, rank);
	te__free(rank);
	return r ? r : te__split_at_marks(t);
}

static struct te__norm *norm_add(struct te_token *t, enum te__norm_kind kind, const char *from,
				 size_t nfrom, const char *to)
{
	struct te__norm *norm = &t->norm[t->nnorm++];

	*norm = (struct te__norm){ .kind = kind, .nfrom = nfrom, .nto = strlen(to) };
	norm->from = te__malloc(norm->nfrom + 1);
	norm->to = te__malloc(norm->nto + 1);
	if (!norm->from || !norm->to) {
		te__no_memory("te_token");
		return NULL;
	}
	if (nfrom)
		memcpy(norm->from, from, nfrom);
	norm->from[nfrom] = 0;
	strcpy(norm->to, to);
	return norm;
}

int te__pieces_spaces(struct te_token *t, int prefix)
{
	if (prefix) {
		t->strip_left = 1;
		strcpy(t->strip_char, " ");
		if (!norm_add(t, TE__NORM_PREPEND, "", 0, TE__TOKEN_MARK))
			return -ENOMEM;
	}
	return norm_add(t, TE__NORM_REPLACE, " ", 1, TE__TOKEN_MARK) ? 0 : -ENOMEM;
}

/* ---- .model files ---- */

/* numbers of fields that are read; a name refuses what is not the default */
static int read_spec(struct bytes b, int is_trainer, struct spec *s)
{
	struct field f;
	int k;

	while ((k = next_field(&b, &f)) > 0) {
		uint64_t *number = NULL;
		struct bytes *text = NULL;

		if (is_trainer) {
			number = f.number == 3	? &s->model :
				 f.number == 24 ? &s->suffix :
				 f.number == 35 ? &s->byte_fallback :
						  NULL;
			text = f.number == 44 ? &s->unk_surface :
			       f.number == 46 ? &s->bos :
			       f.number == 47 ? &s->eos :
						NULL;
		} else {
			number = f.number == 3 ? &s->dummy_prefix :
				 f.number == 4 ? &s->remove_spaces :
				 f.number == 5 ? &s->escape_spaces :
						 NULL;
			text = f.number == 2 ? &s->charsmap : NULL;
		}
		if ((number && f.wire != WIRE_VARINT) || (text && f.wire != WIRE_BYTES))
			return corrupt(is_trainer ? "trainer_spec: a field has another type" :
						    "normalizer_spec: a field has another type");
		if (number)
			*number = f.value;
		if (text)
			*text = f.at;
	}
	return k ? corrupt(is_trainer ? "trainer_spec is damaged" : "normalizer_spec is damaged") :
		   0;
}

static int refuse(const char *what)
{
	return te__fail(-EOPNOTSUPP, "te_token: SentencePiece: %s is not implemented", what);
}

static int check_spec(const struct spec *s)
{
	if (s->model != MODEL_UNIGRAM && s->model != MODEL_BPE)
		return refuse(s->model == 3 ? "model_type WORD" :
			      s->model == 4 ? "model_type CHAR" :
					      "this model_type");
	if (s->suffix)
		return refuse("treat_whitespace_as_suffix");
	if (!s->escape_spaces)
		return refuse("escape_whitespaces false");
	if (s->decoder_charsmap.n)
		return refuse("denormalizer_spec");
	return 0;
}

/* the specifications; pieces are read by a second walk, which needs them */
static int read_specs(struct bytes b, struct spec *s, int64_t *ret_npieces)
{
	struct spec decoder = { 0 };
	struct field f;
	int k, r = 0;

	*ret_npieces = 0;
	while (!r && (k = next_field(&b, &f)) > 0) {
		if (f.number > 5 || f.number == 4)
			continue;
		if (f.wire != WIRE_BYTES)
			return corrupt("a field has another type");
		if (f.number == 1)
			++*ret_npieces;
		else if (f.number == 5)
			r = read_spec(f.at, 0, &decoder);
		else
			r = read_spec(f.at, f.number == 2, s);
	}
	s->decoder_charsmap = decoder.charsmap;
	if (r)
		return r;
	if (k < 0)
		return corrupt("damaged or cut short");
	if (!*ret_npieces || *ret_npieces > TE__TOKEN_MAX_VOCAB)
		return te__fail(*ret_npieces ? -EFBIG : -TE_ECORRUPT,
				"te_token: SentencePiece: %lld pieces, expected 1 to %d",
				(long long)*ret_npieces, TE__TOKEN_MAX_VOCAB);
	return check_spec(s);
}

struct piece {
	struct bytes text;
	uint32_t type, bits; /* bits: of the score */
};

static int read_piece(struct bytes b, struct piece *piece)
{
	struct field f;
	int k;

	*piece = (struct piece){ .type = TE__PIECE_NORMAL };
	while ((k = next_field(&b, &f)) > 0) {
		if (f.number == 1 && f.wire == WIRE_BYTES)
			piece->text = f.at;
		else if (f.number == 2 && f.wire == WIRE_32)
			memcpy(&piece->bits, f.at.p, 4);
		else if (f.number == 3 && f.wire == WIRE_VARINT)
			piece->type = (uint32_t)f.value;
		else if (f.number < 4)
			return 0;
	}
	return !k && te__is_utf8(piece->text.p, piece->text.n);
}

static int is_text(const struct bytes *b, const struct bytes *text)
{
	return b->n == text->n && !memcmp(b->p, text->p, b->n);
}

/* before the pieces of a unigram model */
static int begin_unigram(struct te_token *t, size_t npieces)
{
	t->fuse_unk = 1;
	t->score = te__calloc(npieces, sizeof(*t->score));
	t->score_low = (double)FLT_MAX;
	t->score_high = (double)FLT_MIN; /* as there: symbols of users get about 0 */
	return t->score ? 0 : te__no_memory("te_token");
}

static int unigram_piece(struct te_token *t, int32_t id, const struct piece *piece, size_t *nbytes)
{
	const int mine = piece->type == TE__PIECE_USER_DEFINED;
	float score;

	memcpy(&score, &piece->bits, 4);
	if (!isfinite(score))
		return te__fail(-TE_ECORRUPT,
				"te_token: the score of piece %d is not finite", id);
	if (piece->type == TE__PIECE_NORMAL) {
		t->score_low = fmin(t->score_low, (double)score);
		t->score_high = fmax(t->score_high, (double)score);
	} else if (!mine) {
		return 0;
	}
	t->tok[id].flags |= mine ? TE__TOK_USER : 0;
	return te__unigram_add(t, id, piece->text.p, piece->text.n, (double)score, nbytes);
}

static int add_piece(struct te_token *t, const struct spec *s, int32_t id,
		     const struct piece *piece, struct te__tbuf *b)
{
	const char *p = piece->text.p;
	const size_t n = piece->text.n;
	struct te__added a = { .id = id, .piece = 1 };
	int r;

	if (!n || te__tmap_get(&t->special, t->pool, p, n) >= 0 ||
	    te__tmap_get(&t->map, t->pool, p, n) >= 0)
		return te__fail(-TE_ECORRUPT, "te_token: piece %d: %s", id,
				n ? "another one has its text" : "it has no text");
	if (piece->type < TE__PIECE_NORMAL || piece->type > TE__PIECE_BYTE)
		return te__fail(-TE_ECORRUPT, "te_token: piece %d: type %u", id,
				piece->type);
	if (piece->type == TE__PIECE_UNUSED && s->model == MODEL_BPE)
		return refuse("BPE with pieces of type UNUSED");
	if (piece->type == TE__PIECE_UNKNOWN && t->unk >= 0)
		return corrupt("two pieces are of type UNKNOWN");
	r = te__piece_set(t, id, p, n, piece->type, b);
	if (r || piece->type == TE__PIECE_NORMAL || piece->type == TE__PIECE_BYTE)
		return r;
	if (piece->type == TE__PIECE_USER_DEFINED) {
		r = spaces_of_marks(p, n, b);
		if (!r)
			r = te__token_set(t, id, p, n, b->p ? b->p : "", b->n, TE__TOK_FOREIGN);
		if (!r)
			r = te__trie_add(&t->user, p, n, id);
		/* pieces of BPE do not join with a symbol of a user */
		if (!r && s->model == MODEL_BPE)
			return te__token_add_special(t, &a, p, n);
	} else if (piece->type == TE__PIECE_UNKNOWN) {
		t->unk = id;
		r = te__token_set(t, id, p, n, s->unk_surface.p, s->unk_surface.n,
				  TE__TOK_FOREIGN | TE__TOK_SPECIAL);
	} else if (piece->type == TE__PIECE_CONTROL) {
		t->tok[id].flags |= TE__TOK_SPECIAL;
	}
	return r ? r : te__tmap_put(&t->special, t->pool, t->tok[id].off, t->tok[id].len, id);
}

static int read_pieces(struct te_token *t, struct bytes b, const struct spec *s, char *scores)
{
	struct te__tbuf scratch = { 0 };
	struct piece piece;
	struct field f;
	size_t nbytes = 0;
	int32_t id = 0, nbyte_pieces = 0;
	int r = 0;

	while (!r && next_field(&b, &f) > 0) {
		if (f.number != 1)
			continue;
		if (!read_piece(f.at, &piece)) {
			r = te__fail(-TE_ECORRUPT,
				     "te_token: SentencePiece: piece %d is damaged or not UTF-8",
				     id);
			break;
		}
		memcpy(scores + 4 * (size_t)id, &piece.bits, 4);
		r = add_piece(t, s, id, &piece, &scratch);
		if (!r && s->model == MODEL_UNIGRAM)
			r = unigram_piece(t, id, &piece, &nbytes);
		if (!r && piece.type == TE__PIECE_CONTROL) {
			t->bos = is_text(&piece.text, &s->bos) ? id : t->bos;
			t->eos = is_text(&piece.text, &s->eos) ? id : t->eos;
		}
		nbyte_pieces += piece.type == TE__PIECE_BYTE;
		id++;
	}
	te__free(scratch.p);
	if (!r && nbyte_pieces != (s->byte_fallback ? 256 : 0))
		r = corrupt("expected 256 pieces of type BYTE with byte_fallback, none without");
	return r;
}

/* the normalizer: all of it in one step, or the two steps of identity */
static int add_normalizer(struct te_token *t, const struct spec *s)
{
	struct te__norm *norm;
	const struct bytes *map = &s->charsmap;

	if (!map->n && !s->remove_spaces)
		return te__pieces_spaces(t, s->dummy_prefix != 0);
	if (map->n && !te__is_charsmap(map->p, map->n))
		return corrupt("normalizer_spec: precompiled_charsmap is damaged");
	norm = norm_add(t, TE__NORM_PIECES, s->charsmap.p, s->charsmap.n, "");
	if (!norm)
		return -ENOMEM;
	norm->left = s->dummy_prefix != 0;
	norm->right = s->remove_spaces != 0;
	if (norm->left || norm->right) {
		t->strip_left = norm->right ? INT_MAX : 1;
		t->strip_one = 1;
		strcpy(t->strip_char, " ");
	}
	return 0;
}

int te__unigram_begin(struct te_token *t, const struct te__unigram *u)
{
	const struct spec s = { .dummy_prefix = (uint64_t)u->prefix,
				.remove_spaces = (uint64_t)u->remove_spaces,
				.charsmap = { u->charsmap, u->ncharsmap } };
	const int r = begin_unigram(t, u->npieces);

	return r ? r : add_normalizer(t, &s);
}

int te__unigram_piece(struct te_token *t, int32_t id, const char *text, size_t n, uint32_t type,
		      const char score[4], struct te__unigram *u)
{
	const struct spec s = { .model = MODEL_UNIGRAM, .unk_surface = { UNK_SURFACE, 5 } };
	struct piece piece = { { text, n }, type, 0 };
	int r;

	memcpy(&piece.bits, score, 4);
	r = add_piece(t, &s, id, &piece, &u->scratch);
	u->nbytes += type == TE__PIECE_BYTE;
	return r ? r : unigram_piece(t, id, &piece, &u->ntext);
}

/* the first field of a file is a piece, whose first field is its text */
static int is_model(struct bytes b)
{
	struct field f, piece;

	return next_field(&b, &f) > 0 && f.number == 1 && f.wire == WIRE_BYTES &&
	       next_field(&f.at, &piece) > 0 && piece.number == 1 && piece.wire == WIRE_BYTES;
}

int te__token_load_sentencepiece(struct te_token *t, const char *p, size_t n)
{
	const struct bytes b = { p, n };
	struct spec s = {
		.model = MODEL_UNIGRAM,
		.dummy_prefix = 1,
		.remove_spaces = 1,
		.escape_spaces = 1,
		.unk_surface = { UNK_SURFACE, 5 },
		.bos = { "<s>", 3 },
		.eos = { "</s>", 4 },
	};
	int64_t npieces;
	char *scores;
	int r;

	if (!is_model(b))
		return -TE_EFORMAT;
	r = read_specs(b, &s, &npieces);
	if (r)
		return r;
	scores = te__malloc((size_t)npieces * 4);
	if (!scores)
		return te__no_memory("te_token");
	t->fuse_unk = 1;
	t->byte_fallback = s.byte_fallback != 0;
	if (s.model == MODEL_UNIGRAM)
		r = begin_unigram(t, (size_t)npieces);
	if (!r)
		r = add_normalizer(t, &s);
	if (!r)
		r = read_pieces(t, b, &s, scores);
	if (!r && t->unk < 0)
		r = corrupt("no piece is of type UNKNOWN");
	if (!r && s.model == MODEL_BPE)
		r = te__pieces_merge(t, scores);
	te__free(scores);
	return r ? r : te__token_template(t->bos, &t->before, &t->nbefore);
}
