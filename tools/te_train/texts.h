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

#endif
