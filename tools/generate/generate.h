/* generate.h - a run of te_generate: its options, its prompts and what became of them. */
#ifndef GENERATE_H
#define GENERATE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include <te/ctx.h>
#include <te/decoder.h>

#include "tools/generate/talk.h"
#include "tools/lib/choices.h"
#include "tools/lib/model.h"

#define NBYTES 256 /* a vocabulary of at most this size is bytes */
#define NEOS 8 /* end tokens */

struct opts {
	char *model, *adapter, *tokenizer, *prompt, *prompt_tokens, *file, *eval_choices, *recipe;
	char *cache, *system, *chat_template, *backend, *stop;
	int64_t interactive, chat, max_tokens, context, batch, top_k, seed, json, logprobs;
	double temperature, top_p, min_p, repetition_penalty;
};

/* a prompt and the text after it */
struct job {
	char *text;	/* the prompt, or NULL if it is given as tokens or messages */
	json_t *messages; /* messages of a chat, or NULL */
	int32_t *token; /* with room for all */
	int64_t nprompt, n;
	int32_t seq; /* sequence of the decoder; -1: waits or has ended */
	double *logprob; /* with --logprobs, for each token after the prompt */
	size_t nshown;	 /* bytes of text that are printed, with --stop */
	const char *end; /* why it ended: "eos", "stop", "length" or "context" */
};

struct run {
	struct opts o;
	char *stop; /* bytes that end a text, or NULL */
	float *logit; /* with --logprobs, a copy of a token's */
	struct te_ctx *ctx;
	struct model model;
	struct tokenizer *tokenizer; /* NULL: tokens are bytes or numbers */
	struct te_decoder *d;
	struct talk talk; /* with --chat */
	int32_t seq;	  /* sequence of the chat on standard input; -1: none yet */
	int ended;	  /* its last token is talk.end */
	struct job *job;
	int64_t njobs;
	struct choices choices; /* questions of --eval-choices */
	int64_t context;
	int32_t eos[NEOS];
	int neos;
	/* figures */
	int64_t nprefill, ndecoded;
	double prefill_s, decode_s;
};

/* a model whose tokens are the bytes of a text */
int run_is_bytes(const struct run *r);

/* add prompts; where: messages begin with it */
int prompts_add_text(struct run *r, const char *text, const char *where);
/* numbers of tokens, such as 15496,995 */
int prompts_add_list(struct run *r, const char *list);
/* the file of --file */
int prompts_add_file(struct run *r);
/* encode prompts first and later, once the model is known, and check that their tokens fit */
int prompts_check(struct run *r, int64_t first);

/* print a token; -1: the end of a text */
int text_put(const struct run *r, int32_t token);
/* print a prompt and its text */
int text_put_job(const struct run *r, const struct job *j);
/* text after the prompt, for free(3), or NULL if tokens are numbers */
int text_after(const struct run *r, const struct job *j, char **ret_text, size_t *ret_n);
/* with --stop: end the job if its text has these bytes, and print, if loud, what comes before */
int text_stop(const struct run *r, struct job *j, int loud);

int no_memory(void);

#endif
