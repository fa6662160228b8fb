/*
 * token_internal.h - a tokenizer, shared by the files of te_token_*(3).
 *
 * Each format has a file, which fills struct te_token: vocabulary, merges, and the steps by which
 * text becomes words. vocab.c stores tokens and merges, in the arrays, maps and tries of store.c;
 * normalize.c and split.c are the steps; bpe.c turns a word into tokens; encode.c and decode.c are
 * the calls of the API.
 */
#ifndef TE__TOKEN_INTERNAL_H
#define TE__TOKEN_INTERNAL_H

#define TE_LOG_CATEGORY "token"
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <te/token.h>
#include "libtecore/base/private.h"

/* limits of files */
#define TE__TOKEN_MAX_FILE (1u << 30) /* bytes */
#define TE__TOKEN_MAX_VOCAB (1 << 22) /* tokens */
#define TE__TOKEN_MAX_LEN 65535	      /* bytes of a token */
#define TE__TOKEN_MAX_STEPS 16	      /* normalizers, pre-tokenizers or decoders */

#define TE__TOKEN_MARK "\xe2\x96\x81" /* U+2581, a space in vocabularies of SentencePiece */

/* growing array of bytes */
struct te__tbuf {
	char *p;
	size_t n, room;
	size_t most; /* bytes; 0: no limit */
};
/* -EFBIG beyond the limit */
int te__tbuf_add(struct te__tbuf *b, const void *p, size_t nbytes);

/* growing array of tokens */
struct te__tids {
	int32_t *v;
	size_t n, room;
};
int te__tids_room(struct te__tids *ids, size_t more);

/* bytes -> number; keys are in a pool that their owner keeps */
struct te__tmap {
	struct te__tmap_slot {
		uint32_t off, len;
		int32_t value; /* -1: free */
	} * slot;
	size_t nslots, n; /* nslots: a power of two, or 0 */
};
int te__tmap_put(struct te__tmap *m, const char *pool, uint32_t off, uint32_t len, int32_t value);
int32_t te__tmap_get(const struct te__tmap *m, const char *pool, const void *key, size_t len);
uint64_t te__token_hash(const void *p, size_t n);

enum {
	TE__TOK_SPECIAL = 1,
	TE__TOK_FOREIGN = 2, /* no text has it as a word: not in the map */
	TE__TOK_BYTE = 4,    /* "<0xXX>" with byte fallback */
	TE__TOK_USER = 8,    /* user-defined symbol of a unigram model */
};

struct te__tok {
	uint32_t off, len;  /* key: text as merges and words see it */
	uint32_t out, nout; /* bytes that it decodes to */
	uint32_t flags;
};

struct te__merge {
	uint64_t pair; /* left << 32 | right; UINT64_MAX: free */
	uint32_t rank;
	int32_t id;
};

/* a token that is found in the text before normalizers or words */
struct te__added {
	uint32_t off, len; /* text */
	int32_t id;
	uint8_t lstrip, rstrip, single_word, normalized, special;
	uint8_t piece; /* a symbol of SentencePiece: normalizers do not change it, nor its bytes */
};

/* added tokens by their bytes: edges are (node, byte) -> node */
struct te__trie {
	struct te__trie_edge {
		uint32_t node, to; /* to 0: free */
		uint8_t byte;
	} * edge;
	size_t nedges, room; /* room: a power of two, or 0 */
	int32_t *end;	     /* by node: index of the added token, or -1 */
	size_t nnodes, node_room;
	uint8_t first[256]; /* 1: a token begins with it */
};

int te__trie_add(struct te__trie *t, const void *key, size_t len, int32_t value);
/* the node after one more byte, or 0; node 0 is the root */
uint32_t te__trie_step(const struct te__trie *t, uint32_t node, char byte);
/* length of the longest key at the start of p, its value, or 0 */
size_t te__trie_match(const struct te__trie *t, const char *p, size_t n, int32_t *ret_value);
void te__trie_free(struct te__trie *t);

enum te__norm_kind {
	TE__NORM_NFC,
	TE__NORM_NFD,
	TE__NORM_NFKC,
	TE__NORM_NFKD,
	TE__NORM_LOWER,
	TE__NORM_STRIP,
	TE__NORM_REPLACE,
	TE__NORM_PREPEND,
	TE__NORM_CHARSMAP, /* the rules of a charsmap, as tokenizers applies them */
	TE__NORM_PIECES, /* the normalizer of SentencePiece */
};

/* a normalizer, or a step of a decoder */
struct te__norm {
	enum te__norm_kind kind;
	int left, right; /* STRIP; PIECES: add_dummy_prefix, remove_extra_whitespaces */
	char *from, *to; /* REPLACE; PREPEND has to; PIECES, CHARSMAP: from is the charsmap */
	size_t nfrom, nto;
	pcre2_code *code; /* REPLACE by a pattern, or NULL */
};

enum te__split_kind {
	TE__SPLIT_PATTERN,
	TE__SPLIT_METASPACE,
	TE__SPLIT_PREFIX, /* a space before each piece that has none */
	TE__SPLIT_MARKS,  /* before each U+2581 after another character; tokens stay the same */
};

enum te__behavior {
	TE__SPLIT_ISOLATED,
	TE__SPLIT_REMOVED,
	TE__SPLIT_PREVIOUS, /* a match joins the piece before it */
	TE__SPLIT_NEXT,
	TE__SPLIT_CONTIGUOUS,
};

struct te__split {
	enum te__split_kind kind;
	enum te__behavior behavior;
	int invert;
	pcre2_code *code;
	int jit;
	char *source; /* the pattern as it was given, or NULL: not one pattern */
	/* METASPACE */
	char mark[8];
	int prepend; /* 0: never, 1: the first piece of a text, 2: all */
	int pieces;  /* 1: split before each mark */
};

struct te_token {
	_Atomic int refs;

	char *pool; /* texts of all tokens */
	size_t npool, pool_room;
	struct te__tok *tok;
	int32_t ntok, tok_room;
	struct te__tmap map; /* key -> token */

	struct te__merge *merge;
	size_t nmerges, merge_room; /* merge_room: a power of two, or 0 */

	int byte_level;	      /* keys are bytes; else UTF-8 characters */
	int32_t byte_id[256]; /* byte_level: the token of a byte; else of "<0xXX>"; -1: none */
	int byte_fallback, fuse_unk, ignore_merges;
	int32_t unk; /* or -1 */

	struct te__added *added;
	size_t nadded, added_room;
	struct te__trie raw, normalized; /* added tokens found before and after normalizers */
	struct te__tmap special;	 /* text of added tokens -> token */
	struct te__trie user;		 /* texts that PIECES does not change */

	/* unigram model, or NULL: score of each token, extremes of normal ones, texts -> token */
	double *score;
	double score_low, score_high;
	float *piece_score; /* scores that ordered the merges of BPE, or NULL */
	int exact; /* sums of scores are in double precision, as for tokenizer.json and GGUF */
	struct te__trie unigram;

	struct te__norm norm[TE__TOKEN_MAX_STEPS];
	int nnorm;
	struct te__split split[TE__TOKEN_MAX_STEPS];
	int nsplit;

	/* decoder: replacements of each token's text are in tok.out */
	int strip_left, strip_right; /* characters, from both ends of the text */
	char strip_char[8];
	int strip_one;	/* at most one character of a token */
	int join_space; /* a space between tokens: no decoder */

	int32_t bos, eos;	 /* or -1 */
	void *load;		 /* state of the parser of a file, while it runs */
	int32_t *before, *after; /* template */
	int nbefore, nafter;
};

/* vocab.c */
int te__token_new(struct te_token **ret_token);
void te__token_free(struct te_token *t);
/* key and bytes of token id; the bytes are the key if out is NULL */
int te__token_set(struct te_token *t, int64_t id, const void *key, size_t len, const void *out,
		  size_t nout, uint32_t flags);
int te__token_merge_add(struct te_token *t, int32_t left, int32_t right, uint32_t rank, int32_t id);
/* all pairs of tokens whose joined texts are a token get the rank of it */
int te__token_merges_by_rank(struct te_token *t, const uint32_t *rank);
int te__token_add_special(struct te_token *t, const struct te__added *a, const void *text,
			  size_t len);
/* a template's list of one token, or of none if id is negative */
int te__token_template(int32_t id, int32_t **ret_list, int *ret_n);
/* after all tokens are set: byte tokens, tries */
int te__token_finish(struct te_token *t);

static inline const struct te__merge *te__merge_find(const struct te_token *t, int32_t l, int32_t r)
{
	const uint64_t pair = (uint64_t)(uint32_t)l << 32 | (uint32_t)r;
	size_t i;

	if (!t->merge_room)
		return NULL;
	i = (pair * 0x9e3779b97f4a7c15u) >> 20;
	for (;; i++) {
		const struct te__merge *m = &t->merge[i & (t->merge_room - 1)];

		if (m->pair == pair)
			return m;
		if (m->pair == UINT64_MAX)
			return NULL;
	}
}

/* bpe.c: tokens of words, with what was computed before; one thread's */
struct te__words {
	const struct te_token *t;
	struct te__tids *out;
	struct te__word_slot *slot;
	size_t nslots;
	struct te__tbuf arena;
	/* symbols of one word, and the heap of a long one */
	int32_t *sym, *prev, *next;
	uint32_t *rank;
	size_t room;
	uint64_t *heap;
	size_t heap_n, heap_room;
};
int te__words_init(struct te__words *w, const struct te_token *t, struct te__tids *out,
		   size_t nbytes);
void te__words_free(struct te__words *w);
int te__words_put(struct te__words *w, const char *word, size_t len);

/* unigram.c */
/* The score and the text of a token. nbytes: bytes of all texts so far. -EFBIG beyond limits */
int te__unigram_add(struct te_token *t, int32_t id, const char *text, size_t n, double score,
		    size_t *nbytes);
int te__unigram_put(const struct te_token *t, const char *p, size_t n, struct te__tids *out);

/* sentencepiece.c: its vocabularies in any file; types of pieces have its numbers */
enum {
	TE__PIECE_NORMAL = 1,
	TE__PIECE_UNKNOWN,
	TE__PIECE_CONTROL,
	TE__PIECE_USER_DEFINED,
	TE__PIECE_UNUSED,
	TE__PIECE_BYTE,
};
/* token id; b: scratch */
int te__piece_set(struct te_token *t, int64_t id, const char *text, size_t n, uint32_t type,
		  struct te__tbuf *b);
/* merges of BPE; scores: a float for each token, not aligned. The highest is merged first */
int te__pieces_merge(struct te_token *t, const char *scores);
/* a unigram model: its normalizer, then all pieces in order */
struct te__unigram {
	size_t npieces;
	const char *charsmap;
	size_t ncharsmap;
	int prefix, remove_spaces; /* add_dummy_prefix, remove_extra_whitespaces */
	/* state: zeroed; scratch is for te__free() */
	struct te__tbuf scratch;
	size_t ntext;  /* bytes of all texts so far */
	int32_t nbytes; /* pieces of type BYTE */
};
int te__unigram_begin(struct te_token *t, const struct te__unigram *u);
/* score: a float, not aligned */
int te__unigram_piece(struct te_token *t, int32_t id, const char *text, size_t n, uint32_t type,
		      const char score[4], struct te__unigram *u);
/* normalizers that put U+2581 for a space, and before a text if prefix is 1 */
int te__pieces_spaces(struct te_token *t, int prefix);

/* normalize.c */
/* 1 if the bytes are a precompiled_charsmap of SentencePiece that can be walked */
int te__is_charsmap(const char *p, size_t n);
/* the first place of key, or NULL. memmem(3) of sanitizers looks at all n bytes each time */
const char *te__find(const char *p, size_t n, const char *key, size_t k);
/* *ret_p: p itself, or *b's bytes */
int te__normalize(const struct te_token *t, const char *p, size_t n, struct te__tbuf *b,
		  struct te__tbuf *spare, const char **ret_p, size_t *ret_n);
/* U+FFFD for each maximal part of a character that is not UTF-8; as te__normalize() */
int te__utf8_repair(const char *p, size_t n, struct te__tbuf *b, const char **ret_p, size_t *ret_n);
/* length of the character at p, 0: bad; *ret_skip: bytes that one U+FFFD replaces; 1: incomplete */
int te__utf8_len(const char *p, size_t n, int *ret_skip, int *ret_short);
int te__utf8_get(const char *p, int *ret_len); /* p is valid */
int te__is_utf8(const char *p, size_t n);
int te__is_space(int c);
int te__is_word(int c);

/* split.c */
struct te__pieces {
	const struct te_token *t;
	struct te__words *words;
	pcre2_match_data *match[TE__TOKEN_MAX_STEPS];
	pcre2_match_context *context;
	pcre2_jit_stack *stack;
	struct te__tbuf prefixed[TE__TOKEN_MAX_STEPS];
	int first; /* 1: the segment begins the text */
};
int te__pieces_init(struct te__pieces *p, const struct te_token *t, struct te__words *w);
void te__pieces_free(struct te__pieces *p);
/* all words of the part of a segment from begin; words that begin at or after end are left out.
 * Returns 1 if a word crosses end, 0 if not, or an error */
int te__pieces_run(struct te__pieces *p, const char *seg, size_t n, size_t begin, size_t end);
int te__pattern_compile(const char *fn, const char *pattern, size_t n, pcre2_code **ret_code,
			int *ret_jit);
int te__split_add_pattern(struct te_token *t, const char *pattern, enum te__behavior behavior);
/* a pattern by its name, or NULL */
const char *te__pattern_named(const char *name);
/* names: what a space in the vocabulary is; adds TE__SPLIT_MARKS if tokens stay the same */
int te__split_at_marks(struct te_token *t);

/* formats; each returns -TE_EFORMAT without a message if the bytes are of another one */
int te__token_load_gguf(struct te_token *t, const char *p, size_t n);
/* the tokenizer.ggml.pre that splits text as t does, or NULL */
const char *te__gguf_pre(const struct te_token *t);
int te__token_load_json(struct te_token *t, const char *p, size_t n);
int te__token_load_ranks(struct te_token *t, const char *p, size_t n, const char *pattern);
int te__token_load_sentencepiece(struct te_token *t, const char *p, size_t n);
/* base64; returns the number of bytes, or -1 */
int te__base64(const char *p, size_t n, char *ret);
/* the character of the byte-level alphabet that stands for a byte */
int te__char_of_byte(int byte);
/* bytes of a text in that alphabet; returns -1 if a character is outside of it */
int te__bytes_of_text(const char *p, size_t n, char *ret);

#endif
