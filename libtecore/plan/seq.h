/* seq.h - a sequence, and the parts of it that its plans use. */
#ifndef TE__SEQ_INTERNAL_H
#define TE__SEQ_INTERNAL_H

#include <stdatomic.h>

#include <te/optim.h>
#include <te/plan.h>
#include <te/seq.h>

#include "kernels/te_k.h"
#include "libtecore/base/names.h"

/*
 * Weight copies that one launch refreshes: the copies that one plan needed and the sequence lacked;
 * or the column-wise copy of a bound weight.
 */
struct te__copies {
	struct te__copies *next;
	struct te_k_weights args; /* arguments of a refresh by a plan that does not train */
	struct te_k_weight_transpose transpose; /* col is not NULL for a bound weight */
	void *state;		  /* device memory of args.done, table and part */
	uint32_t flags;		  /* TE__WEIGHTS_* of quant.h */
	struct te_k_weight *table; /* args.table, for the CPU */
	int has_frozen;		   /* a weight of the set is not trained */
	/* device, in state: each entry as a set of one, for BF16 masters in host memory that are
	 * all trained; or NULL */
	struct te_k_weight *alone;
	struct te_k_weights_done *alone_done;
};
#define TE__SEQ_ALIGN 256  /* alignment of the caller's flat buffers and bound weights, in bytes */
#define TE__SEQ_ZEROS ((size_t)64 << 20)
#define TE__SCALE_ALIGN 16 /* alignment of their scales, which cuBLASLt needs */

/* A weight and the copies that plans read; the copies are shared by all plans. */
struct te__weight {
	struct te_weight_decl decl;
	struct te_op *op;
	int op_index, index; /* number of the op; number of the weight in the op */
	char *name;
	int64_t order_nelems;  /* elements of earlier weights in op order: seeds initial values */
	int64_t offset_nelems; /* in masters, in grads, or in both; -1: in neither */
	struct te_tensor *value; /* from te_seq_bind_weight(), without a master; or NULL */
	const struct te_recipe *codes; /* value is the library's, cast by it; or NULL */
	struct te_tensor *master, *grad;
	/* grad in host memory, or in parts, counts as zeros until a pass writes it */
	int grad_is_zero;
	void *rest; /* device, 16 bits an element that make a BF16 master FP32; or NULL */
	struct te_tensor *copy_hp; /* compute dtype, or of a BF16 master FP32; or NULL */
	struct te_tensor *copy_q;  /* FP8, or NULL */
	struct te__copies *set_hp, *set_q; /* sets that hold the copies */
};

/* A value named across ops. giver -1: an input, written by the caller. */
struct te__channel {
	const char *name;
	int giver;
	int ntakers;
	struct te_spec tail; /* input: dtype, and the extents after [B,T] */
	int is_whole; /* 1: tail has all extents; 0 is an extent of the plan's main input */
};

/* elements of a part of a flat buffer: its own, and the tail, which all parts have */
struct te__part {
	int64_t first, nelems; /* own ones */
	int64_t tail, ntail;
};
/* part number `part` if nparts parts have n elements */
struct te__part te__part_of(int32_t nparts, int32_t part, int64_t n);

struct te_seq {
	atomic_int refs;
	struct te_ctx *ctx;
	int nops, cap_ops;
	struct te_op **op;
	int nchannels, cap_channels;
	struct te__channel *channel;
	struct te__names op_names, channel_names;
	int nweights;
	struct te__weight *weight;
	int **op_weight; /* [nops][weights of the op]: index in weight; tied: of the owner */
	int64_t nelems, ngrads; /* elements of the flat buffers; 0: no weights */
	struct te_seq_binding binding; /* the caller's memory */
	struct te_tensor *masters, *grads;
	/* device, 16 bits of each of the first nrest masters: TE_SEQ_REMAINDERS; or NULL */
	void *rest;
	/* memory of TE_SEQ_HOST_REMAINDERS, _MASTERS and _GRADS; or NULL */
	struct te__pinned *host_rest, *host_masters, *host_grads;
	void *part_copy; /* BF16: TE_SEQ_BF16_COPIES, after the masters; or NULL */
	struct te__copies *part_set; /* it as a set of one entry; NULL: no plan needs it yet */
	void *zeros; /* device: zeros for gradients in host memory, TE__SEQ_ZEROS bytes; or NULL */
	int64_t nrest;
	struct te_quant *quant;
	struct te_recipe codes; /* see te__weight */
	/* device words, one allocation: seed, next offset (plans keep the offset of their latest
	 * forward), version of the masters */
	uint64_t *rng, *version;
	struct te__copies *copies; /* all sets */
	int nfusions, cap_fusions;
	struct te_fusion *fusion;
	int complete;	 /* weights are laid out: te_seq_complete */
	int initialised; /* weights have memory: te_seq_init */
	int planned;
};

/* bit of te_fusion.flags: added by te__seq_add_fusion() */
#define TE__FUSION_LIBRARY 0x80000000u
/* a joint fusion of the library: the first value that it saves may take over the memory of its main
 * input, and the input gradient the memory of that value */
#define TE__FUSION_IN_PLACE 0x40000000u
/* either half of a joint fusion: forward also computes what backward() and backward_dw() would */
#define TE__FUSION_EARLY 0x20000000u

/* make room for one more element of *array */
int te__seq_grow(void **array, int *cap, int n, size_t nbytes);
/* 0, or -EBUSY, naming what: te_seq_complete() has run */
int te__seq_building(const struct te_seq *seq, const char *what);
/* 0, or an error, naming what: now is not between te_seq_complete() and te_seq_init() */
int te__seq_laid_out(const struct te_seq *seq, const char *what);
struct te_spec te__weight_spec(const struct te_weight_decl *decl); /* in FP32 */
void te__seq_lay_out(struct te_seq *seq); /* again, after weights have lost or won masters */
/* 0, or -TE_ESTATE, naming what: te_seq_init() has not run */
int te__seq_initialised(const struct te_seq *seq, const char *what);

/* makes a channel of each output that an op gives, and connects its takers: 0 or -TE_ECHANNEL */
int te__seq_check_channels(struct te_seq *seq);

/* find by name; NULL, or -1, if there is none */
struct te__channel *te__seq_channel(const struct te_seq *seq, const char *name);
int te__seq_op(const struct te_seq *seq, const char *name);
void te__copies_free(struct te_seq *seq); /* all sets */
/* arguments that make entry i of a set with `alone` from its BF16 master at that address */
void te__copies_alone(const struct te__copies *set, int i, const void *master,
		      struct te_k_weights *ret);
/* zeros to a gradient, or to all: to part of seq->grads */
int te__seq_zero_grad(const struct te_seq *seq, struct te_stream *stream, struct te_tensor *grad);
/* release the remainders, and host memory of masters and gradients */
void te__seq_put_flat(struct te_seq *seq);
/* bytes of masters and gradients that the library allocates */
uint64_t te__seq_weights_nbytes(const struct te_seq *seq);
uint64_t te__seq_bound_nbytes(const struct te_seq *seq); /* bytes of te_seq_bind_weight() tensors */

/* 1: masters are BF16 */
static inline int te__seq_is_split(const struct te_seq *seq)
{
	return (seq->binding.flags & TE_SEQ_BF16_MASTERS) != 0;
}

/* 1: this rank has a part of the gradients */
static inline int te__seq_is_divided(const struct te_seq *seq)
{
	return seq->binding.nparts > 1;
}

/* elements of a flat buffer, which has some also if no weight is in it */
static inline int64_t te__flat_nelems(int64_t n)
{
	return n ? n : TE_K_ALIGN_WEIGHT;
}

/* 1: this rank has the same part of the masters */
static inline int te__seq_divides_masters(const struct te_seq *seq)
{
	return te__seq_is_divided(seq) && seq->binding.fetch;
}

/* the part of the gradients that this rank has */
struct te__part te__seq_part(const struct te_seq *seq);
/* elements of masters in this rank's memory */
int64_t te__seq_own_masters(const struct te_seq *seq);
/* 1: this rank has not all of the weight's master, whose tensor has no memory then */
int te__weight_is_divided(const struct te_seq *seq, const struct te__weight *w);
/* offset of a weight that is not divided in this rank's masters */
int64_t te__weight_own_offset(const struct te_seq *seq, const struct te__weight *w);
/* 1: its part has a BF16 copy, which plans that compute in BF16 read */
static inline int te__seq_copies_part(const struct te_seq *seq)
{
	return te__seq_divides_masters(seq) && seq->binding.flags & TE_SEQ_BF16_COPIES;
}

/* bytes of te_seq_binding.alloc: this rank's masters, then their BF16 copy */
size_t te__parts_nbytes(const struct te_seq *seq);
int te__parts_alloc(struct te_seq *seq, void **ret_masters);
/* queue a barrier of all ranks, if they divide the masters: after it other ranks may be read */
int te__parts_meet(const struct te_seq *seq, struct te_stream *stream);
/* address of n masters, or of their BF16 copies, from element `first` on in this rank's part; NULL:
 * they are not all there, or in host memory */
void *te__parts_own(const struct te_seq *seq, int copies, int64_t first, int64_t n);
/* queue the copy of n masters of all ranks, or of their BF16 copies, from element `first` on, to
 * dst */
int te__parts_gather(const struct te_seq *seq, struct te_stream *stream, int copies, int64_t first,
		     int64_t n, void *dst);
/* divided masters from and to host memory; set: those that this rank has; has: are there any? */
int te__parts_get(const struct te_seq *seq, int64_t first, int64_t n, float *dst);
int te__parts_set(const struct te_seq *seq, int64_t first, int64_t n, const float *src);
int te__parts_has(const struct te_seq *seq, int64_t first, int64_t n);

static inline enum te_dtype te__seq_grad_dtype(const struct te_seq *seq)
{
	return seq->binding.flags & TE_SEQ_BF16_GRADS ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
}

/* the FP32 values of a weight with a master, from and to host memory; synchronous */
int te__weight_read(const struct te__weight *w, float *dst);
int te__weight_write(const struct te__weight *w, const float *src);

/* the same for a weight of te_seq_store_codes(): memory for it; its codes */
int te__weight_alloc_codes(struct te_seq *seq, struct te__weight *w);
int te__weight_write_codes(const struct te__weight *w, const float *src);

/* n masters in device memory: FP32; or if split BF16, of which the first nrest have remainders */
struct te__values {
	struct te_ctx *ctx;
	int split;
	void *at;
	uint16_t *rest;
	int64_t nrest, n;
};
/* nelems of them from `first` on */
struct te__values te__values_from(const struct te__values *v, int64_t first, int64_t nelems);
/* from and to FP32 in host memory; synchronous */
int te__values_read(const struct te__values *v, float *dst);
int te__values_write(const struct te__values *v, const float *src);
/* BF16 values and their remainders, from te__split() */
int te__values_write_split(const struct te__values *v, const uint16_t *half, const uint16_t *rest);
void te__split(const float *x, uint16_t *ret_half, uint16_t *ret_rest, int64_t n);

/* initial values of n elements of a weight from `first` on, an even number; they depend on the seed
 * and order_nelems */
void te__draw_weight(const struct te__weight *w, uint64_t seed, int64_t first, int64_t n,
		     float *ret_values);
void te__draw_split(const struct te__weight *w, uint64_t seed, int64_t first, int64_t n,
		    uint16_t *ret_half, uint16_t *ret_rest);

/* 1: it has a gradient, and an optimizer updates it */
static inline int te__weight_trains(const struct te__weight *w)
{
	return !(w->decl.flags & TE_WEIGHT_FROZEN);
}

/* 1: its master is BF16 and a remainder, also before te_seq_init */
static inline int te__weight_has_rest(const struct te_seq *seq, const struct te__weight *w)
{
	return seq->binding.flags & TE_SEQ_REMAINDERS &&
	       (te__weight_trains(w) || !(seq->binding.flags & TE_SEQ_ROUND_FROZEN));
}

/* 1: no column-wise copy of its codes is kept. Copies with blocks of 32 or 16 elements are not the
 * transpose of the row-wise copy, and are kept where there is no master */
static inline int te__weight_recomputes_cols(const struct te_seq *seq, const struct te__weight *w)
{
	return seq->binding.flags & TE_SEQ_RECOMPUTE_COLS &&
	       (!w->value || (!te_tensor_coldata(w->value) &&
			      te_tensor_scaling(w->value) < TE_SCALING_1X32));
}

/* 1: op i has a trained weight, or is tied to one */
int te__seq_op_trains(const struct te_seq *seq, int i);

/* 0; -TE_ECORRUPT: no run can reach this state */
int te__adamw_nparts(const struct te_adamw *opt);
int te__adamw_state_check(const char *fn, const struct te_k_adamw_state *s);

#endif
