/* sample.h - text generation. */
#ifndef SAMPLE_H
#define SAMPLE_H

#include "loop.h"

/*
 * Generate n tokens after the prompt. They are printed to stdout one by one, unless samples is an
 * array, to which the text is appended. Byte models give text, with control characters as '?';
 * others give token numbers.
 */
int sample(struct trainer *t, json_t *samples);

#endif
