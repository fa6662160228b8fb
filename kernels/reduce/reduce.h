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
 * then these sums from the first on, and the total is added to out, rounded to its type. part_b and
 * out_b, of the same extents and type, are computed likewise, unless NULL.
 */
#define TE_K_PART_GROUP 32
struct te_k_part_sum {
	const float *part;
	void *out; /* FP32 or BF16 */
	int64_t nparts, cols;
	int32_t dtype; /* type of out and out_b */
	int32_t pad;
	const float *part_b;
	void *out_b;
};

/*
 * The first of the largest elements of each row of x BF16 [rows, ld], among its first n columns.
 * part [rows, TE_K_ARGMAX_PARTS]: the largest key of TE_K_ARGMAX_COLS(n) columns each, and 0 after
 * the last column. Keys order elements, and of equal ones the first is largest; one that is not
 * finite has the largest of all.
 */
#define TE_K_ARGMAX_PARTS 64
#define TE_K_ARGMAX_COLS(n) (((n) + 8 * TE_K_ARGMAX_PARTS - 1) / (8 * TE_K_ARGMAX_PARTS) * 8)
#define TE_K_ARGMAX_NOT_FINITE ((uint64_t)1 << 63)
struct te_k_argmax {
	const void *x;
	uint64_t *part;
	int64_t rows, ld, n;
};

TE_K_INLINE uint64_t te_k_argmax_key(uint32_t bits, int64_t column)
{
	const uint32_t zero = bits == 0x8000 ? 0 : bits; /* -0 is 0 */
	const uint32_t order = zero & 0x8000 ? 0xffff - zero : zero | 0x8000;
	const uint64_t key = (uint64_t)order << 32 | (0xffffffffu - (uint32_t)column);

	return (bits & 0x7fff) >= 0x7f80 ? key | TE_K_ARGMAX_NOT_FINITE : key;
}

TE_K_INLINE int64_t te_k_argmax_column(uint64_t key)
{
	return 0xffffffffu - (uint32_t)key;
}

#endif
