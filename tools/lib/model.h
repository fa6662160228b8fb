/* model.h - a model as a sequence of ops. */
#ifndef MODEL_H
#define MODEL_H

#include <te/comm.h>
#include <te/seq.h>

#include "hfconfig.h"

struct model {
	struct config cfg;
	struct te_seq *seq;
	int64_t vocab_padded; /* rows of the embedding and of the head */
	int64_t nparams;      /* without padding */
	int64_t ntrained;     /* of them, those that are not frozen */
	const char *frozen;   /* the patterns of model_freeze(), or NULL */
	/* a shard: seq has a part of most weights; else 1, 0, NULL, NULL */
	int32_t nshards, shard;
	struct te_comm *comm; /* of the ranks with the shards, borrowed */
	int by_tokens;
	struct model *whole;  /* the layout of all weights, without memory for them */
};

#define MODEL_LOSS "loss"	/* name of the last op */
#define MODEL_TARGETS "targets" /* channel [B,T] INT32 */
#define IGNORED_TARGET (-100)

/*
 * The ops and their weights, without memory for them, then the weights; model_create() is both.
 */
int model_build(struct te_ctx *ctx, const struct config *cfg, struct model *ret_model);
/*
 * The shard of this rank; comm NULL, or of one rank: all of the model. by_tokens: the ranks divide
 * the tokens of what they would all compute, norms and residuals.
 */
int model_build_shard(struct te_ctx *ctx, const struct config *cfg, struct te_comm *comm,
		      int by_tokens, struct model *ret_model);
/*
 * Between them: freeze weights. patterns: of fnmatch(3), separated by commas, for names of weights
 * and of ops; they outlive the model. NULL or empty: none.
 */
int model_freeze(struct model *m, const char *patterns);
/* a shard gets its part of the weights that the whole model would have */
int model_init(struct model *m, uint64_t seed);
int model_create(struct te_ctx *ctx, const struct config *cfg, uint64_t seed,
		 struct model *ret_model);
void model_free(struct model *m);

/*
 * The ops where a model is divided: the embedding with the first layer, each other layer, and the
 * head. Names for free(3), together with them; NULL if there is no memory.
 */
const char **model_cuts(const struct config *cfg, int32_t *ret_n);

/*
 * Floating point operations of forward and backward for one token of a context of T:
 * 6 for each matrix weight, and 6 T (heads x head_dim) for the two GEMMs of each layer's causal
 * attention.
 */
double model_flops_per_token(const struct config *cfg, int64_t T);

/* How files of a family store a weight of the sequence. '#' is the layer's number. */
enum part { PART_ALL, PART_VOCAB, PART_Q, PART_K, PART_V, PART_GATE, PART_UP };
struct weight_map {
	const char *te; /* "<op>.<weight>" */
	const char *hf;
	enum part part;
	int transposed; /* [in,out] in the file */
};
/* ends with te NULL */
const struct weight_map *model_map(enum family family);
/* if name matches the pattern: the layer number, or -1 if it has no '#'; else -2 */
int model_match(const char *pattern, const char *name);
/* the rows of the sequence's weight that a part is */
void model_part_rows(const struct config *cfg, enum part part, int64_t rows, int64_t *ret_first,
		     int64_t *ret_count);

#endif
