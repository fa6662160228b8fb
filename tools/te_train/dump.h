/* dump.h - files that get a range of the tokens. */
#ifndef DUMP_H
#define DUMP_H

#include "data.h"

/* write a range in the format of its files, without header; path is replaced when all is written */
int span_dump(const struct span *s, const char *path);

#endif
