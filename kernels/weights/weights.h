/*
 * kernels/weights/weights.h - arguments of the kernels that make the compute copies of all
 * weights of a set in one launch. Included by te_k.h, which has the common rules.
 *
 * Copies are current when they were made from the masters' present version, a counter that
 * increases with every change of the masters. Both numbers are in device memory, so that eager
 * passes, replays and all plans of a sequence agree on it. Where copies are current a launch
 * writes nothing.
 */
#ifndef TE_K_WEIGHTS_H
#define TE_K_WEIGHTS_H

/* ++*version: the masters were changed */
struct te_k_weights_changed {
	uint64_t *version;
};

/*
 * One copy: FP8 codes of a weight, or its values: in BF16, or in FP32 if masters are split, since
 * these are BF16. Offsets: bytes in te_k_weights.copies.
 */
struct te_k_weight {
	int64_t master; /* first element, in masters: [rows - pad_rows, cols - pad_cols] */
	int64_t rows, cols;
	int64_t hp;	   /* values [rows, cols]; -1: FP8 codes */
	int64_t row, col;  /* offsets of [rows, cols] and [cols, rows]; -1: no such copy */
	int64_t scale_inv, col_scale_inv; /* as in struct te_k_q */
	int64_t tile;	 /* tiles of all entries before this one: te_k_weight_ntiles */
	int32_t slot;	 /* index in scale and amax */
	int32_t dtype;	 /* E4M3, E5M2 or E2M1 */
	int32_t scaling; /* TENSOR, 128X128, 1X32 or 16X16 */
	int16_t pad_rows, pad_cols; /* as in struct te_k_quantize; 0 for BF16 */
};

/* The state of a set of copies; zero at first. */
struct te_k_weights_done {
	uint64_t copies; /* version of the masters that the copies were made from */
	uint64_t amax;	 /* version whose amaxes were recorded */
	uint64_t nblocks; /* blocks of a running launch that are done; 0 between launches */
};

/*
 * Nothing happens when done->copies == *version, and, with record, done->amax == *version too.
 *
 * weights_amax, for scales from the weights' own amaxes: amax and scale of each entry with codes,
 * as by te_k_amax into a cleared word and te_k_scale_current; of 16X16 the words that
 * te_k_nvfp4_amax writes, which weights_cast reads.
 *
 * weights_cast: each copy from its master, codes as by te_k_quantize with the slot's scale; with
 * record, amaxes are folded into the slots' words. Then done->copies = *version, and with record
 * done->amax = *version.
 */
struct te_k_weights {
	const struct te_k_weight *table; /* [n] */
	const void *masters;		 /* [nmasters] FP32; split: BF16 */
	const uint16_t *rest; /* split: [nmasters] the bits that BF16 lacks of FP32; or NULL */
	void *copies;
	float *scale; /* [nslots] */
	float *amax;  /* [nslots, window], the first word of each slot is used */
	float *part;  /* [ntiles], scratch of weights_amax on a GPU */
	const uint64_t *version;
	struct te_k_weights_done *done;
	int64_t nmasters, copies_nbytes, ntiles;
	int32_t n, nslots;
	int32_t window;
	int32_t record; /* 1: record amaxes, for the delayed recipe */
	float fmt_max[2]; /* largest values of E4M3 and E5M2 */
	float epsilon;	  /* as in te_k_scale_current */
	int32_t pow2;
	int32_t scaling; /* scaling of entries with codes; TENSOR if there are none */
	int32_t split;	/* 1: masters are struct te_k_split */
};

/*
 * The column-wise copy of codes that are the weight itself, and have no master: col = the transpose
 * of row. 128X128: a square of row has the scale of the square in col; padding words of
 * col_scale_inv receive 0. TENSOR: both copies have one scale, and the scale fields are not used.
 * Nothing happens when done->copies == *version; then done->copies = *version.
 */
struct te_k_weight_transpose {
	const void *row;	/* [rows, cols] */
	const float *scale_inv;
	void *col;		/* [cols, rows] */
	float *col_scale_inv;
	const uint64_t *version;
	struct te_k_weights_done *done;
	int64_t rows, cols;
	int32_t scaling; /* TENSOR or 128X128 */
	int32_t pad;
};

#define TE_K_WEIGHT_TILE (64 * 128) /* elements */

/*
 * Blocks of a GPU take tiles in turn: 64 rows x 128 columns of codes, or 128 x 128 if the
 * scaling is by blocks; 8192 elements of values.
 */
TE_K_INLINE int64_t te_k_weight_ntiles(const struct te_k_weight *w)
{
	if (w->hp >= 0)
		return (w->rows * w->cols + TE_K_WEIGHT_TILE - 1) / TE_K_WEIGHT_TILE;
	if (w->scaling != TE_K_SCALING_TENSOR)
		return (w->rows + 127) / 128 * ((w->cols + 127) / 128);
	return (w->rows + 63) / 64 * ((w->cols + 127) / 128);
}

/* is the launch's work done already? */
TE_K_INLINE int te_k_weights_current(const struct te_k_weights *a)
{
	return a->done->copies == *a->version && (!a->record || a->done->amax == *a->version);
}

/* arguments of te_k_quantize for the codes of an entry */
TE_K_INLINE struct te_k_q te_k_weight_q(const struct te_k_weights *a, const struct te_k_weight *w)
{
	struct te_k_q q = {};
	char *copies = (char *)a->copies;

	q.row = w->row < 0 ? (void *)0 : copies + w->row;
	q.col = w->col < 0 ? (void *)0 : copies + w->col;
	q.scale = a->scale ? a->scale + w->slot : a->scale;
	q.scale_inv = (float *)(void *)(copies + w->scale_inv);
	q.col_scale_inv = (float *)(void *)(copies + w->col_scale_inv);
	q.amax = a->record ? a->amax + (int64_t)w->slot * a->window : (float *)0;
	q.dtype = w->dtype;
	q.scaling = w->scaling;
	q.epsilon = a->epsilon;
	q.pow2 = a->pow2;
	return q;
}

#endif
