/* model.h - a model as a sequence of ops. */
#ifndef MODEL_H
#define MODEL_H

#include <te/seq.h>

#include "hfconfig.h"

struct model {
	struct config cfg;
	struct te_seq *seq;
	int64_t vocab_padded; /* rows of the embedding and of the head */
	int64_t nparams;      /* without padding */
};

#define MODEL_LOSS "loss"	/* name of the last op */
#define MODEL_TARGETS "targets" /* channel [B,T] INT32 */
#define IGNORED_TARGET (-100)

/* @accum: micro-batches of a step: each adds 1/accum of its gradient */
int model_create(struct te_ctx *ctx, const struct config *cfg, int64_t accum, uint64_t seed,
		 struct model *ret_model);
void model_free(struct model *m);

/*
 * A model cut at its layers has model_nparts: the embedding with the first layer, each other
 * layer, and the head. The op where a part begins, or NULL for the first and for the end.
 */
int32_t model_nparts(const struct config *cfg);
const char *model_cut(const struct config *cfg, int32_t part, char ret_name[32]);

/*
 * Floating point operations of forward and backward for one token of a context of T:
 * 6 a matrix weight, and 6 T (heads x head_dim) a layer for causal attention's two products.
 */
double model_flops_per_token(const struct config *cfg, int64_t T);

/* How a weight of the sequence lies in files of the family. '#' is the layer's number. */
enum part { PART_ALL, PART_VOCAB, PART_Q, PART_K, PART_V, PART_GATE, PART_UP };
struct weight_map {
	const char *te; /* "<op>.<weight>" */
	const char *hf;
	enum part part;
	int transposed; /* the file holds [in,out] */
};
/* ends with te NULL */
const struct weight_map *model_map(enum family family);
/* the layer number when name fits the pattern, -1 when the pattern has no '#'; -2: no fit */
int model_match(const char *pattern, const char *name);
/* the rows of our weight that a part takes */
void model_part_rows(const struct config *cfg, enum part part, int64_t rows, int64_t *ret_first,
		     int64_t *ret_count);

#endif
