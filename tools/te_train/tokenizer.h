/* tokenizer.h - the files of a model that programs read with its weights, and te_train does not. */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "tools/lib/folder.h"

/*
 * Copy them from the folder of the model that a run began with, unless NULL, to the folder `to`, or
 * to `sub` in it. drop: remove those that are not there. One that fails is reported and left as it
 * was, and the others are copied.
 */
int tokenizer_copy(const char *from, const char *to, const char *sub, int drop);
int tokenizer_remove(const struct folder *f);

#endif
