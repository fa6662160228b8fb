/*
 * shard.h - a model that ranks divide: the part of each weight that a rank has.
 *
 * Shard k has the k-th heads, columns of the first and rows of the second matrix of an MLP, and
 * tokens. Norms and the biases after sums are the same in all shards; learned positions are in
 * shard 0.
 *
 * A stage of a pipeline has some of the weights, or shards of these.
 */
#ifndef SHARD_H
#define SHARD_H

#include "model.h"

/*
 * Copies the shard's part of weights, gradients or moments to part. flat: laid out as the weights
 * of `whole`, whose tensors have the same names. trained: both are without frozen weights.
 */
void shard_take(const struct model *m, const struct model *whole, const float *flat, int trained,
		float *part);
/* sets the shard's masters to their part of flat; returns an exit status */
int shard_set(const struct model *m, const struct model *whole, const float *flat);
/*
 * Reverses shard_take(); collective: shard 0 gets *ret_flat, laid out as m->whole, for free(3);
 * others NULL.
 */
int shard_gather(const struct model *m, const struct te_tensor *src, int trained, float **ret_flat);
/*
 * Waits for copies that use the caller's memory, after a failure te too. Returns te if it is
 * negative, else the result of the wait.
 */
int settle(struct te_stream *stream, int te);

/* Create quantizers of m->whole with the state of q, m's quantizers; and the reverse. Not
 * collective: ranks_step() makes the state equal in all shards. */
int shard_quant_whole(const struct model *m, const struct te_quant *q, struct te_quant **ret_q);
int shard_quant_take(const struct model *m, const struct te_quant *whole);

/* [te_seq_nweights] 1: all shards of a stage have the weight. For free(3); NULL if there is no
 * memory */
uint8_t *shard_common(const struct model *m);

/* the stage that has a layer; the last one if there is no such layer */
int32_t stage_of_layer(const struct model *m, int64_t layer);
/* the name of the first operation of a chunk of this stage other than the first one */
const char *stage_begins_with(const struct model *m, int32_t chunk, char *buf, size_t nbytes);

#endif
