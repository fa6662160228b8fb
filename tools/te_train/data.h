/* data.h - a data set: text and token files, or random tokens, as one sequence of tokens. */
#ifndef DATA_H
#define DATA_H

#include <stdint.h>

struct chat;
struct data;
struct docs;
struct source;
struct stat;
struct tokenizer;

/* a range of the tokens */
struct span {
	const struct data *data;
	int64_t first, n;
};

enum data_type { DATA_AUTO, DATA_TEXT, DATA_U16, DATA_U32, DATA_JSONL };
/* returns the type for a word of --data-type */
enum data_type data_type_find(const char *word);

/* What a token of token files tells of documents. */
enum data_mark {
	DATA_NO_MARK,
	DATA_MARK_ENDS,	 /* it is the last of its document */
	DATA_MARK_BEGINS /* it is the first of its document, and ends the one before */
};

/* ids of models whose tokens are bytes are below this */
#define DATA_NBYTES 256

/* files with more bytes than this together are not read before the first step */
#define DATA_CHECKED_NBYTES ((int64_t)64 << 20)

struct data_opts {
	enum data_type type;
	int64_t vocab, most_nbytes;
	const struct chat *chat; /* texts around documents; is not used later */
	const struct tokenizer *tokenizer; /* NULL: tokens of text are bytes; likewise */
	enum data_mark mark; /* for span_documents() */
	int32_t mark_token;  /* -1: not known, and token files are refused if there is a mark */
	const char *split;   /* text between documents of files of text, or NULL */
	const int32_t *times; /* for each file or folder, how often it is used; NULL: once */
	const char *tokenizer_digest; /* NULL: tokens of text are not kept */
	const char *kept;	      /* folder where they are; likewise */
	int64_t kept_nbytes;	      /* text of fewer bytes is not worth it */
	int later; /* only pieces of text are read, and others are to compute its tokens */
};

/*
 * Open files, and all files in folders, for a model of vocab token ids. The first ones, up to
 * most_nbytes together, are read once: each token is below vocab. Only pieces are read of others
 * that stay on disk; their tokens are checked by span_read(). The tokens of text are its bytes, so
 * vocab is at most DATA_NBYTES, unless there is a tokenizer: then text becomes 16-bit or 32-bit
 * tokens, in memory or in a file of opts->kept, and each text ends with the end token. Token files
 * are little-endian; the headers of llm.c give their width, and otherwise the type does; what
 * DATA_AUTO decides is in te_train(1). Text and tokens cannot be mixed. The documents of JSON lines
 * are kept as text is, with a mask.
 */
int data_open(char *const *file, int nfiles, const struct data_opts *opts, struct data **ret_data);
/* tokens that are all equally likely, for measurements */
int data_random(int64_t vocab, struct data **ret_data);
/*
 * Tokens below vocab that are in memory; the data takes *docs. digest: text for data_digest().
 */
int data_of_docs(int64_t vocab, struct docs *docs, const char *digest, struct data **ret_data);
void data_close(struct data *d);

int64_t data_ntokens(const struct data *d);
int data_is_bytes(const struct data *d);
/* bytes of a token in the format of its files; of files of both widths, the larger */
int data_width(const struct data *d);
/* "text", "u16" or "u32"; of files of both widths, the larger; "random" */
const char *data_kind(const struct data *d);
/* the largest token id that was read by data_open() */
int32_t data_largest(const struct data *d);
/* digest of the tokens, which does not depend on names and compression of files */
const char *data_digest(const struct data *d);

/* n tokens of the span, from index at; fails if a file has changed since it was opened */
int span_read(const struct span *s, int64_t at, int64_t n, int32_t *dst);
/* n targets, beginning with index at: those that do not count become IGNORED_TARGET */
void span_mask(const struct span *s, int64_t at, int64_t n, int32_t *target);
/*
 * For a window of n tokens from index at, and their targets: the index in the window of the first
 * token of each one's document. Targets of other documents become IGNORED_TARGET, unless they are
 * the mark. A document is a file of text or a JSON line, and in token files what the mark tells.
 */
void span_documents(const struct span *s, int64_t at, int64_t n, const int32_t *token,
		    int32_t *target, int32_t *first);
/* a document begins at this index of the span; not STATUS_OK: span_starts() returns it */
typedef int (*start_fn)(void *arg, int64_t at);
/* calls fn for each document that begins in n tokens from index at, in order */
int span_starts(const struct span *s, int64_t at, int64_t n, start_fn fn, void *arg);
/* does one token of the span count as a target, apart from its first */
int span_has_target(const struct span *s);
/* has it token files, whose documents only the mark tells */
int data_needs_mark(const struct data *d);
/* is the token a mark that begins documents, which the token before it has as its target */
int data_is_begin(const struct data *d, int32_t token);
/* is a file of the data the one that stat(2) described */
int data_reads(const struct data *d, const struct stat *st);

/* all files in their order, for opts->later, and which of them have JSON lines */
int data_nfiles(const struct data *d);
struct source *data_source(const struct data *d, int file);
int data_has_lines(const struct data *d, int file);

/* a 64-bit hash of two numbers, for random draws that depend on nothing else */
uint64_t mix64(uint64_t a, uint64_t b);

#endif
