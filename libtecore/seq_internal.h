/* seq_internal.h - what a sequence holds and lends its plans. */
#ifndef TE__SEQ_INTERNAL_H
#define TE__SEQ_INTERNAL_H

#include <stdatomic.h>

#include <te/plan.h>
#include <te/seq.h>

/* A weight and the copies that plans read; the copies are shared by all plans. */
struct te__weight {
	struct te_weight_decl decl;
	struct te_op *op;
	int op_index, index; /* which weight of which op */
	char *name;
	int64_t offset_nelems;
	struct te_tensor *master, *grad;
	struct te_tensor *copy_hp; /* compute dtype, or NULL */
	struct te_tensor *copy_q;  /* FP8, or NULL */
	int fresh;		   /* copies hold some past master, so they may be called cached */
};

/* A value named across ops. giver -1: fed by the caller. */
struct te__channel {
	const char *name;
	int giver, give_index;
	int ntakers;
	struct te_spec tail; /* fed: dtype, and the extents behind [B,T] */
};

struct te_seq {
	atomic_int refs;
	struct te_ctx *ctx;
	int nops, cap_ops;
	struct te_op **op;
	int nchannels, cap_channels;
	struct te__channel *channel;
	int nweights;
	struct te__weight *weight;
	int (*op_weight)
		[TE_OP_MAX_WEIGHTS]; /* [nops]: index into weight, the owner's if tied; or -1 */
	int64_t nelems;			     /* of the flat buffers */
	struct te_tensor *masters, *grads;
	struct te_quant *quant;
	uint64_t *rng; /* device words: seed, next offset; each plan keeps the one it uses */
	int nfusions, cap_fusions;
	struct te_fusion *fusion;
	int initialised, planned;
	uint64_t weights_nbytes, copies_nbytes, quant_nbytes; /* device memory held */
};

struct te__channel *te__seq_channel(const struct te_seq *seq, const char *name);

#endif
