/* model.h - a model as a sequence of ops. */
#ifndef MODEL_H
#define MODEL_H

#include <te/comm.h>
#include <te/seq.h>

#include "hfconfig.h"
#include "weight_map.h"

/* what the ranks of a model divide among them in norms and residuals */
enum model_divides { DIVIDE_NOTHING, DIVIDE_SEQUENCES, DIVIDE_TOKENS };

struct model {
	struct config cfg;
	struct te_seq *seq;
	int64_t vocab_padded; /* rows of the embedding and of the head */
	int64_t nparams;      /* without padding */
	int64_t ntrained;     /* parameters that are not frozen */
	const char *frozen;   /* the patterns of model_freeze(), or NULL */
	/* a shard: seq has a part of most weights; else 1, 0, NULL, NULL */
	int32_t nshards, shard;
	struct te_comm *comm; /* the ranks with the shards, of this stage; borrowed */
	enum model_divides by; /* what they divide of norms and residuals */
	/* whole weights, for the tokens of this rank; else 1, NULL */
	int32_t ncontext;
	struct te_comm *context; /* the ranks that divide the tokens, borrowed */
	/* a stage: seq has some layers, in nchunks parts of the model; else 1, 0, 1, NULL */
	int32_t nstages, stage, nchunks;
	struct te_comm *pipe; /* rank s nshards + k has shard k of stage s; borrowed */
	struct model *whole; /* the layout of all weights, without memory for them */
};

#define MODEL_LOSS "loss"	/* name of the last op */
#define MODEL_HEAD "head"	/* name of the op that makes the logits */
#define MODEL_TARGETS "targets" /* channel [B,T] INT32 */
/* channel [B,T] INT32 with config.documents: te_attention_attrs.documents */
#define MODEL_DOCUMENTS "documents"
#define IGNORED_TARGET (-100)

/*
 * Before model_init(): weights that plans with this recipe, of B sequences of T tokens, read only
 * as codes have no masters. flags: TE_PLAN_*
 */
int model_store_codes(struct model *m, const struct te_recipe *recipe, uint32_t flags, int64_t B,
		      int64_t T);

/*
 * Create the ops and lay out their weights without memory; model_create() also does model_init().
 */
int model_build(struct te_ctx *ctx, const struct config *cfg, struct model *ret_model);
/*
 * model_build() for the shard of this rank; comm NULL or with one rank: the whole model. by: ranks
 * divide the sequences of a batch, or the tokens of each, in norms and residuals, which each rank
 * would compute otherwise.
 */
int model_build_shard(struct te_ctx *ctx, const struct config *cfg, struct te_comm *comm,
		      enum model_divides by, struct model *ret_model);
/*
 * model_build() for the stage of this rank of n. The model is divided into n nchunks parts: part k
 * has the layers k L / (n nchunks) to (k + 1) L / (n nchunks) - 1 of L, the first one the
 * embedding, and the last one the head, too. Rank r has the parts c n + r, its chunks, each of
 * which begins with the value that the part before ends with. pipe: the ranks of the model; comm:
 * ranks that divide this stage, NULL: one; their ranks in pipe are neighbours.
 */
int model_build_stage(struct te_ctx *ctx, const struct config *cfg, struct te_comm *pipe,
		      struct te_comm *comm, int32_t nchunks, struct model *ret_model);
/*
 * model_build() for the tokens of this rank: rank k of n has tokens k T / n to (k + 1) T / n - 1 of
 * each sequence. MODEL_DOCUMENTS is [B,T/n,n], the memory of [B,T].
 */
int model_build_context(struct te_ctx *ctx, const struct config *cfg, struct te_comm *comm,
			struct model *ret_model);
/*
 * Freeze weights, between model_build() and model_init(). patterns: patterns of fnmatch(3) for
 * names of weights and of ops, separated by commas; they outlive the model. NULL or empty: none.
 */
int model_freeze(struct model *m, const char *patterns);
/* a shard gets its part of the weights that the whole model would have */
int model_init(struct model *m, uint64_t seed);
int model_create(struct te_ctx *ctx, const struct config *cfg, uint64_t seed,
		 struct model *ret_model);
void model_free(struct model *m);
/* sequences of the smallest batch */
int64_t model_fewest(const struct model *m);
/* parameters in weights without these TE_WEIGHT_*, without padding */
int64_t model_count(const struct model *m, uint32_t without);
/* reports the library's error r and returns STATUS_* */
int model_cannot(const struct model *m, int r);

/*
 * Names of the ops where a model can be divided: the embedding with the first layer, each other
 * layer, and the head. One allocation, for free(3); NULL if there is no memory.
 */
const char **model_cuts(const struct config *cfg, int32_t *ret_n);

/*
 * Floating point operations of forward and backward for one token of a context of T:
 * 6 for each matrix weight, and 6 T (heads x head_dim) for the two GEMMs of each layer's causal
 * attention.
 */
double model_flops_per_token(const struct config *cfg, int64_t T);

#endif
