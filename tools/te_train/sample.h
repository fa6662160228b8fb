/* sample.h - text generation. */
#ifndef SAMPLE_H
#define SAMPLE_H

#include "loop.h"
#include "tools/lib/record.h"

/*
 * Generate n tokens after the prompt. They are printed to stdout one by one, unless samples is a
 * record with an open list, to which the text is appended. Byte models and tokenizers give
 * text, with control characters as '?'; other models give token numbers.
 */
int sample(struct trainer *t, struct record *samples);

/* STATUS_BAD, with a message, if the prompt is not valid for this model */
int sample_check_prompt(const struct opts *o, const struct tokenizer *tokenizer,
			const struct config *cfg);

/* options of drawing a token */
struct sampling {
	double temperature; /* 0: draw the most likely token */
	int64_t top_k;	    /* draw from the k most likely tokens; 0: all */
	double top_p;	    /* draw from the most likely tokens with this total probability */
};

struct candidate {
	float logit;
	int64_t id;
};
/* returns a token id below n, which u in [0, 1) selects. room: memory for n candidates */
int64_t sample_choose(const struct sampling *s, const float *logits, int64_t n, double u,
		      struct candidate *room);

#endif
