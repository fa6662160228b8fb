/* tokenizer.h - copies of a tokenizer's files, and similar files. */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "folder.h"

/*
 * Copy the files from the folder of the model that a run began with, unless NULL, to the folder
 * `to`, or to `sub` in it. drop: remove files that are not there. A file that fails is reported and
 * left as it was, and the others are copied. If `from` is a file, it is copied alone, under a name
 * that tokenizer_open() finds.
 */
int tokenizer_copy(const char *from, const char *to, const char *sub, int drop);
int tokenizer_remove(const struct folder *f);
/* 1: a name of a file that tokenizer_copy() copies */
int tokenizer_is_file(const char *name);

#endif
