/* texts.h - the tokens of a file of text or of JSON lines, as documents. */
#ifndef TEXTS_H
#define TEXTS_H

#include "data.h"
#include "jsonl.h"

struct source;

/*
 * Read all of a file, by several threads if it is large. Without JSON lines, it is one document,
 * and there is a tokenizer. The digests of the file and of its tokens are added to all. STATUS_BAD,
 * with a message, if there are no documents.
 */
int texts_read(struct source *src, const struct data_opts *o, int has_lines, struct digest *all,
	       struct docs *ret_docs);
/*
 * Add the documents in n bytes of text: all of it, or its parts between occurrences of o->split.
 * ends: they have the end of the text, which completes a document.
 */
int texts_add(const struct data_opts *o, const char *name, const char *text, size_t n, int ends,
	      struct docs *docs);
/* STATUS_BAD, with a message: the text has a byte 0 */
int texts_refuse_zero(const struct source *src, int64_t at);
/* add what tokens depend on, apart from text, tokenizer and version */
void texts_digest(struct digest *d, const struct data_opts *o, int has_lines);

#endif
