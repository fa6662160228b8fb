/* te/token.h - text to tokens and back, with the tokenizer files of published models. */
#ifndef TE_TOKEN_H
#define TE_TOKEN_H

#include <stddef.h>
#include <stdint.h>
#include <te/export.h>

TE_BEGIN_DECLS

struct te_token;	/* a tokenizer: opaque, immutable, reference counted */
struct te_token_stream; /* text of a sequence of tokens that arrive one by one */

#define TE_TOKEN_TEMPLATE 1u	 /* encode: add the tokens of the post-processor, such as BOS */
#define TE_TOKEN_ORDINARY 2u	 /* encode: text of special tokens is ordinary text */
#define TE_TOKEN_SKIP_SPECIAL 4u /* decode: special tokens give no text */

/**
 * te_token_open - read a tokenizer from a file or a model's folder
 * @path:      a file of one of the formats below, or a folder that has tokenizer.json, tekken.json,
 *             tokenizer.model or tokenizer.gguf; the first of these is read
 * @pattern:   NULL; or for a file of tiktoken the name of its pattern, see te_token_load()
 * @ret_token: the tokenizer, with one reference
 *
 * Thread: any.  Since: 0.1
 * Errors: -TE_EFORMAT (not a tokenizer; the message has the path), -TE_ECORRUPT (damaged),
 * -EOPNOTSUPP (the message names what is not implemented), -EFBIG (a limit is exceeded), -ENOMEM,
 * -EINVAL, codes of open(2) and read(2).
 */
TE_EXPORT int te_token_open(const char *path, const char *pattern, struct te_token **ret_token);

/**
 * te_token_load - parse a tokenizer
 * @data:      [nbytes] a file of one of the formats
 * @nbytes:    bytes of data
 * @pattern:   NULL; or for a file of tiktoken the name of its pattern: "gpt2", "cl100k", "o200k",
 *             "llama3" or "qwen2"
 * @ret_token: the tokenizer, with one reference
 *
 * The format is detected: tokenizer.json of the Python package tokenizers with a model of type BPE,
 * a rank file of tiktoken, tekken.json of mistral-common, a model of SentencePiece of type BPE or
 * UNIGRAM, or the metadata of a GGUF file with a vocabulary "gpt2" or "llama". A rank file has no
 * pattern: if pattern is NULL, the number of ranks identifies the published vocabulary.
 * Thread: any.  Since: 0.1
 * Errors: as te_token_open().
 */
TE_EXPORT int te_token_load(const void *data, size_t nbytes, const char *pattern,
			    struct te_token **ret_token);
TE_EXPORT struct te_token *te_token_ref(struct te_token *token);
TE_EXPORT struct te_token *te_token_unref(struct te_token *token);

/**
 * te_token_count, te_token_find, te_token_bytes, te_token_is_special - query the vocabulary
 * @token: not NULL, as in all functions below
 * @id:    a token
 * @text:  [nbytes] a token's text
 * @nbytes: bytes of text
 * @ret_nbytes: bytes of the result
 *
 * te_token_count() returns the size of the vocabulary: the highest token plus 1. te_token_find()
 * returns the token whose text equals text, or -ENOENT without a message; it searches added and
 * special tokens first. te_token_bytes() returns the bytes that the token decodes to, valid until
 * the tokenizer is released, or NULL if there is no such token. te_token_is_special() returns 1 or
 * 0.
 * Thread: any.  Since: 0.1
 */
TE_EXPORT int32_t te_token_count(const struct te_token *token);
TE_EXPORT int32_t te_token_find(const struct te_token *token, const void *text, size_t nbytes);
TE_EXPORT const void *te_token_bytes(const struct te_token *token, int32_t id, size_t *ret_nbytes);
TE_EXPORT int te_token_is_special(const struct te_token *token, int32_t id);
/* the token that begins or ends a text; -ENOENT if the file does not name one */
TE_EXPORT int32_t te_token_bos(const struct te_token *token);
TE_EXPORT int32_t te_token_eos(const struct te_token *token);

/**
 * te_token_encode - tokens of a text
 * @token:    the tokenizer
 * @text:     [nbytes] any bytes; invalid UTF-8 is replaced by U+FFFD, one for each maximal part of
 *            a character, as by Python's errors="replace"
 * @nbytes:   bytes of text
 * @flags:    TE_TOKEN_TEMPLATE, TE_TOKEN_ORDINARY
 * @nthreads: threads to use for long texts, 0: one for each core; the tokens do not depend on it
 * @ret_ids:  [ret_n] the tokens; release with free(3); not NULL even if there are none
 * @ret_n:    number of tokens
 *
 * The result is the same as from the Python package of the format: tokenizers, tiktoken,
 * mistral-common or sentencepiece; for GGUF it follows llama.cpp. Characters that
 * Unicode added after the version of PCRE2 or utf8proc may differ.
 * Thread: any; several at a time may use one tokenizer.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM, -EFBIG (text above 2^31 - 1 bytes, or a match of the pattern exceeds
 * PCRE2's limits).
 */
TE_EXPORT int te_token_encode(const struct te_token *token, const void *text, size_t nbytes,
			      uint32_t flags, int nthreads, int32_t **ret_ids, size_t *ret_n);

/**
 * te_token_decode - text of tokens
 * @token:      the tokenizer
 * @ids:        [n] tokens
 * @n:          number of tokens
 * @flags:      TE_TOKEN_SKIP_SPECIAL
 * @ret_text:   the text and a 0 byte; release with free(3)
 * @ret_nbytes: bytes of the text
 *
 * The bytes of the tokens are not changed to valid UTF-8: tokens of a part of a text may begin or
 * end inside a character.
 * Thread: any.  Since: 0.1
 * Errors: -EINVAL (names the token that is not in the vocabulary), -ENOMEM.
 */
TE_EXPORT int te_token_decode(const struct te_token *token, const int32_t *ids, size_t n,
			      uint32_t flags, char **ret_text, size_t *ret_nbytes);

/**
 * te_token_stream_create - decode tokens one by one, in whole characters
 * @token:      the tokenizer; the stream keeps a reference
 * @flags:      TE_TOKEN_SKIP_SPECIAL
 * @ret_stream: the stream, with one reference
 * @stream:     not NULL
 * @id:         the next token
 * @ret_text:   the text that is complete now, perhaps none, and a 0 byte; release with free(3)
 * @ret_nbytes: bytes of the text
 *
 * te_token_stream_push() returns whole UTF-8 characters only, and keeps the bytes of an incomplete
 * one for the next call. Invalid bytes are returned unchanged. te_token_stream_end() returns the
 * bytes that are left, and begins a new text. All texts joined are the result of
 * te_token_decode().
 * Thread: one stream by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM.
 */
TE_EXPORT int te_token_stream_create(struct te_token *token, uint32_t flags,
				     struct te_token_stream **ret_stream);
TE_EXPORT int te_token_stream_push(struct te_token_stream *stream, int32_t id, char **ret_text,
				   size_t *ret_nbytes);
TE_EXPORT int te_token_stream_end(struct te_token_stream *stream, char **ret_text,
				  size_t *ret_nbytes);
TE_EXPORT struct te_token_stream *te_token_stream_ref(struct te_token_stream *stream);
TE_EXPORT struct te_token_stream *te_token_stream_unref(struct te_token_stream *stream);

/**
 * te_token_train - compute the vocabulary of a byte-level BPE from a text
 * @text:     [nbytes] any bytes
 * @nbytes:   bytes of text
 * @nvocab:   size of the vocabulary, 256 bytes included; fewer if the text has no further pairs
 * @pattern:  how text is split into words: a name of te_token_load(), or NULL for "gpt2"
 * @ret_json: a tokenizer.json, 0-terminated; release with free(3)
 *
 * Each merge joins the most frequent pair of tokens; of equally frequent pairs, the pair with the
 * lowest tokens.
 * Source: Sennrich et al. 2016, Neural Machine Translation of Rare Words with Subword Units.
 * Thread: any.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM, -EFBIG.
 */
TE_EXPORT int te_token_train(const void *text, size_t nbytes, int32_t nvocab, const char *pattern,
			     char **ret_json);

/**
 * te_token_gguf - the metadata of a GGUF file for a tokenizer
 * @token:      a vocabulary of bytes
 * @nvocab:     number of tokens to write; tokens after the vocabulary are unused. 0: its size
 * @ret_data:   a GGUF file, version 3, without tensors, which te_token_load() reads; release with
 *              free(3)
 * @ret_nbytes: bytes of the file
 *
 * The items of metadata begin at byte 24; the 8 bytes before them are their number, little-endian.
 * All names have the prefix "tokenizer.ggml.": model, pre, tokens, token_type, merges,
 * add_bos_token, add_eos_token, and bos_token_id and eos_token_id if they are known.
 * Source: llama.cpp, src/llama-vocab.cpp; t/token/token.c loads what was written.
 * Thread: any.  Since: 0.1
 * Errors: -EINVAL (also nvocab below the vocabulary), -ENOMEM, -EOPNOTSUPP (a part that
 * GGUF files have no name for: the message names it).
 */
TE_EXPORT int te_token_gguf(const struct te_token *token, int32_t nvocab, void **ret_data,
			    size_t *ret_nbytes);

/**
 * te_token_version - the version of the libtetoken that runs, as "0.1.0"
 *
 * Thread: any.
 * Since:  0.1
 */
TE_EXPORT const char *te_token_version(void);

TE_END_DECLS

#endif
