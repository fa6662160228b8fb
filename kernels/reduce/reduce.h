/* reduce.h - arguments of sums over rows. Included by te_k.h, which has the common rules. */
#ifndef TE_K_REDUCE_H
#define TE_K_REDUCE_H

/* partial column sums of x: part [TE_K_NPARTS(rows), cols] */
struct te_k_colsum {
	const void *x; /* T */
	float *part;
	int64_t rows, cols;
	int32_t dtype;
	int32_t pad;
};

/*
 * out[c] += sum over p of part[p][c]: each TE_K_PART_GROUP parts are added up with p ascending,
 * then these sums from the first on, and the total is added to out, rounded to its type.
 */
#define TE_K_PART_GROUP 32
struct te_k_part_sum {
	const float *part;
	void *out; /* FP32 or BF16 */
	int64_t nparts, cols;
	int32_t dtype; /* type of out */
	int32_t pad;
};

#endif
