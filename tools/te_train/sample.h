/* sample.h - text written by the model. */
#ifndef SAMPLE_H
#define SAMPLE_H

#include "loop.h"

/*
 * Write n tokens after the prompt, to stdout as they come unless samples is an array
 * that takes the text. Byte models write text, with control characters as '?';
 * others write token numbers.
 */
int sample(struct trainer *t, json_t *samples);

#endif
