/*
 * recipe.h - a recipe is one row of a table. A new recipe is a file with its row, and in te/quant.h
 * an enumerator of enum te_recipe_kind, a name and its place in TE__RECIPE_ROWS().
 */
#ifndef TE__QUANT_RECIPE_H
#define TE__QUANT_RECIPE_H

#include <stdatomic.h>

#include "libtecore/quant/quant.h"

/* Numbers of FP32 device words of a slot. */
struct te__slot_words {
	int32_t nscale; /* 1: a scale, initially 1; 0: scales are stored with the copies */
	int32_t namax;	/* words into which amaxes are folded, initially 0 */
	int32_t saves_amax; /* 1: te_quant_save() saves the amaxes too */
};

#define TE__KEEPS_X_GPU 2

struct te__recipe_ops {
	const char *name; /* as te_recipe_from_name() takes it */
	enum te_recipe_kind kind;
	/* compute dtype of the preset, in which rows of one kind differ */
	enum te_dtype compute;
	uint32_t flags; /* TE_RECIPE_* that may be set */
	/* checks the fields that this recipe reads: 0 or -EINVAL; NULL: it reads none */
	int (*check)(const char *fn, const struct te_recipe *r);
	/* NULL: nothing is cast; then the functions below are absent */
	struct te__operand (*operand)(const struct te_recipe *r, enum te__role role);
	/* 1: scales from an amax are rounded down to powers of two; NULL: never */
	int (*pow2)(const struct te_recipe *r);
	struct te__slot_words (*words)(const struct te_recipe *r); /* NULL: none */
	/* see te__quantize_begin() */
	int (*begin)(const struct te__quantize *z, struct te_k_q *ret_q);
	/* 0: the producer writes the copies. 1: it only folds its amax if *ret_q asks for it; the
	 * copies are written from its result afterwards, with the scale of the slot */
	int keeps_x; /* or TE__KEEPS_X_GPU: 1 on a GPU, whose producers do not cast by it */
	int (*scale)(const struct te__quantize *z); /* sets the scale before that; or NULL */
	uint32_t weights; /* TE__WEIGHTS_*: how copies of weights are refreshed */
	/* te_quant_update() of count slots, 1 or more; NULL: nothing to do */
	int (*update)(struct te_stream *stream, struct te_quant *q, int first, int count);
};

#define TE__RECIPE_EXTERN(row) extern const struct te__recipe_ops te__recipe_##row;
TE__RECIPE_ROWS(TE__RECIPE_EXTERN)

/* the row of a recipe, or NULL */
const struct te__recipe_ops *te__recipe_row(const struct te_recipe *recipe);

struct te_quant {
	_Atomic uint32_t refs;
	struct te_ctx *ctx;
	struct te_recipe recipe;
	const struct te__recipe_ops *row;
	struct te__slot_words words; /* words of each slot */
	int nslots;
	/* one device allocation; NULL if slots have no words. amax follows scale */
	float *fmt_max; /* [nslots], the largest finite values of the slots' types */
	float *scale;	/* [nslots] */
	float *amax;	/* [nslots, words.namax] */
	enum te_dtype dtype[];
};

/* write y's copies with the scale of the slot, or with scales of blocks, without an amax */
void te__quantize_by_slot(const struct te__quantize *z, struct te_k_q *ret_q);
/* begin() of recipes with block scaling: the producer writes y's copies and the blocks' scales */
int te__quantize_blocks(const struct te__quantize *z, struct te_k_q *ret_q);
/* begin() of recipes that need nothing of the producer: te__quantize_end() casts its result */
int te__quantize_later(const struct te__quantize *z, struct te_k_q *ret_q);

#endif
