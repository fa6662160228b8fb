/* choices.h - multiple-choice questions, answered by the probabilities of their endings. */
#ifndef CHOICES_H
#define CHOICES_H

#include <stddef.h>
#include <stdint.h>

#include <te/decoder.h>

#include "record.h"

struct tokenizer;

struct ending {
	int32_t *token; /* context, then ending */
	int64_t ncontext, n;
	size_t nbytes;	/* bytes of its text, without the space before it */
	double logprob; /* sum over its tokens, once it is computed */
	int32_t seq;	/* sequence of the decoder; -1: none */
};

struct question {
	int64_t first; /* index of its first ending */
	int64_t nendings, label;
};

/* Zeroed, with tokenizer, vocab and context set: no questions. */
struct choices {
	const struct tokenizer *tokenizer; /* NULL: tokens are bytes */
	int64_t vocab;			   /* tokens of the model */
	int64_t context;		   /* most tokens that a token is computed from */
	struct question *question;
	struct ending *ending;
	int64_t nquestions, nendings;
	int64_t longest;    /* tokens of the longest context and ending that are computed */
	int64_t ntruncated; /* endings whose context lost its first tokens */
	int64_t ncomputed;  /* tokens */
	double s;	    /* seconds of their computation */
};

/*
 * Append the questions of a file of JSON lines in HellaSwag's format. STATUS_BAD, with the line and
 * the field: one is wrong.
 */
int choices_read(struct choices *c, const char *path);
/* compute the log probabilities of the endings of n questions, most of them at a time */
int choices_score(struct choices *c, struct te_decoder *d, int64_t most, int64_t first, int64_t n);
/* log probability of a token by n logits; NaN if a logit is not finite */
double choices_logprob(const float *logit, int64_t n, int32_t token);
/* questions, of these n, whose best ending is the right one; normalized: by bytes */
int64_t choices_nright(const struct choices *c, int normalized, int64_t first, int64_t n);
/* accuracies as fields of an object */
void choices_record(const struct choices *c, struct record *rec);
/* accuracies as a line on standard output */
void choices_print(const struct choices *c);
void choices_free(struct choices *c);

#endif
