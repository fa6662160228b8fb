/*
 * norm.h - arguments of the all-reduce that also adds a residual, normalizes (RMSNorm) and
 * casts to FP8. Included by te_k.h, which has the common rules; comm.h has the protocol.
 *
 * x is [rows, cols] of T on each rank: FP32, BF16 or FP16. For each element
 *
 *	s = x_0 + x_1 + ... in rank order in FP32; with TE_K_COMM_ROUND_SUM rounded to T
 *	r = T(s + residual), an FP32 addition; T(s) without a residual
 *	y = T(r * rstd * gain), gain gamma or, zero-centered, 1 + gamma
 *
 * with rstd = 1/sqrt(mean over the row of r^2 + eps), of the rounded r, as te_k_norm_fwd computes
 * it. So with TE_K_COMM_ROUND_SUM the results equal te_k_comm_allreduce, te_k_add and
 * te_k_norm_fwd, and without a residual they are in any case. This holds for every bit, with one
 * exception: on a GPU, te_k_norm_fwd takes other orders of summation where cols % 8 != 0 and where
 * it writes transposed or block-scaled codes itself. NaN results are 0x7fffffff or 0x7fff on every
 * rank, sum and r of a single rank included.
 *
 * Codes, E4M3 or E5M2, of y:
 *	TENSOR	y * *scale; *scale_inv = 1 / *scale. The word is the same on all ranks.
 *	TOKEN	y * s of the row, scale_inv[row] = 1 / s
 *	BLOCK	y * s of 128 columns of the row, 1 / s at te_k_scale_index(TE_K_SCALING_1X128, ...)
 *		of scale_inv, whose padding receives 0
 * with s from the amax of the elements that share it, as for block scaling in struct te_k_q.
 *
 * One-shot (TE_K_COMM_ONE_SHOT): every rank receives all rows and computes all results. Two-shot
 * (TE_K_COMM_TWO_SHOT): each rank owns rows, the first rows % n ranks one more than the others. It
 * receives these, computes the results and sends them in their final form: where y is NULL, rows of
 * codes and scales instead of rows of T. TE_K_COMM_RESIDUAL_SHARDED: it sends no r. Then the other
 * rows of residual_out remain as they were; of residual, two-shot reads the rank's own rows only.
 *
 * Packets of source s. One-shot: packet i of x is at s * packets of x + i. Two-shot: row i of the
 * owner's rows of x is at (s * most + i) * packets of a row, where most is the rows of rank 0; the
 * results of row i of source s follow (n - 1) * most rows of x, at (s * most + i) * packets of
 * results.
 */
#ifndef TE_K_COMM_NORM_H
#define TE_K_COMM_NORM_H

#define TE_K_COMM_NORM_COLS 16384 /* at most */

/* sets of codes that share a scale */
enum te_k_comm_scaling {
	TE_K_COMM_SCALING_TENSOR,
	TE_K_COMM_SCALING_TOKEN,
	TE_K_COMM_SCALING_BLOCK,
	TE_K_COMM_SCALINGS
};

enum te_k_comm_norm_flags {
	TE_K_COMM_ROUND_SUM = 1,
	TE_K_COMM_RESIDUAL_SHARDED = 2,
	TE_K_COMM_ZERO_CENTERED = 4,
	TE_K_COMM_POW2 = 8, /* s of TOKEN and BLOCK: mantissa bits cleared */
};

/*
 * Any output may be NULL, and all ranks ask for the same ones. Outputs of T may be comm.in or
 * residual, but no other part of these. rows 0: no operation.
 *
 * Of comm: in is x, out T(s), count rows * cols, dtype T, op SUM, algorithm oneshot or twoshot,
 * buffer_nbytes at least te_k_comm_norm_buffer_nbytes().
 */
struct te_k_comm_norm {
	struct te_k_comm comm;
	const void *residual; /* T, or NULL */
	const float *gamma;   /* [cols] */
	void *residual_out;   /* r */
	void *y;
	float *rstd;	    /* [rows] */
	void *codes;	    /* [rows, cols] */
	const float *scale; /* TENSOR: needed with codes */
	float *scale_inv;   /* needed with codes */
	float *amax;	    /* TENSOR: folds max |y|; also without codes */
	const void *x;	     /* T, of te_k_comm_norm_bwd, which is below; and the next */
	const float *x_rstd; /* [rows] */
	int64_t rows, cols; /* a row of T is whole packets, at most TE_K_COMM_NORM_COLS columns */
	float eps;
	float epsilon; /* TOKEN, BLOCK: the least amax */
	int32_t qdtype, scaling;
	uint32_t flags;
	int32_t pad;
};

/*
 * te_k_comm_norm_bwd: the gradient of a norm of x, from parts of the gradient of its output.
 * comm.in is dy on each rank, s of it is as above and always rounded, and y receives what
 * te_k_norm_bwd computes as dx from s, with x_rstd, and with residual as dres. The other outputs
 * are NULL; s, for te_k_norm_dw, is comm.out, which is not residual. So the results equal
 * te_k_comm_allreduce and te_k_norm_bwd, with the exception above.
 *
 * With TE_K_COMM_RESIDUAL_SHARDED, of residual, x, x_rstd and comm.out the rank's own rows only are
 * accessed: two-shot sends y, but not s. Then, or with one rank, residual_out receives a copy of
 * these rows of y; it may be residual.
 */

/* words of a row among its results, in this order, if requested: rstd, amax, scales */
TE_K_INLINE int32_t te_k_comm_norm_nscales(const struct te_k_comm_norm *a)
{
	return !a->codes || a->scaling == TE_K_COMM_SCALING_TENSOR ? 0 :
	       a->scaling == TE_K_COMM_SCALING_TOKEN		   ? 1 :
			(int32_t)((a->cols + TE_K_BLOCK - 1) / TE_K_BLOCK);
}

TE_K_INLINE int32_t te_k_comm_norm_nwords(const struct te_k_comm_norm *a)
{
	return (a->rstd ? 1 : 0) + (a->amax ? 1 : 0) + te_k_comm_norm_nscales(a);
}

/* bytes of the whole array, with padding */
TE_K_INLINE int64_t te_k_comm_norm_scale_inv_nfloats(const struct te_k_comm_norm *a)
{
	return a->scaling == TE_K_COMM_SCALING_TENSOR ? 1 :
	       a->scaling == TE_K_COMM_SCALING_TOKEN  ? a->rows :
			te_k_scale_nfloats(TE_K_SCALING_1X128, a->rows, a->cols);
}

/* packets of a row of x */
TE_K_INLINE int32_t te_k_comm_norm_in_packets(const struct te_k_comm_norm *a)
{
	return (int32_t)te_k_comm_packets(a->cols * (a->comm.dtype == 0 ? 4 : 2));
}

/* does two-shot send s? */
TE_K_INLINE int te_k_comm_norm_sends_s(const struct te_k_comm_norm *a)
{
	return a->comm.out && !(a->x && a->flags & TE_K_COMM_RESIDUAL_SHARDED);
}

/* does it send r? */
TE_K_INLINE int te_k_comm_norm_sends_r(const struct te_k_comm_norm *a)
{
	return a->residual_out && !(a->flags & TE_K_COMM_RESIDUAL_SHARDED);
}

/* packets of a row's results: of s, r and y; of codes; of words */
TE_K_INLINE int32_t te_k_comm_norm_out_packets(const struct te_k_comm_norm *a)
{
	const int32_t t = te_k_comm_norm_sends_s(a) + te_k_comm_norm_sends_r(a) + (a->y ? 1 : 0);

	return t * te_k_comm_norm_in_packets(a) +
	       (a->codes ? (int32_t)te_k_comm_packets(a->cols) : 0) +
	       (int32_t)te_k_comm_packets((int64_t)4 * te_k_comm_norm_nwords(a));
}

/* two-shot: the rows of a rank are te_k_comm_norm_first(a, rank) to _first(a, rank + 1) - 1 */
TE_K_INLINE int64_t te_k_comm_norm_first(const struct te_k_comm_norm *a, int32_t rank)
{
	const int64_t each = a->rows / a->comm.nranks, more = a->rows % a->comm.nranks;

	return rank * each + (rank < more ? rank : more);
}

/* the rows that are accessed of arrays of which a rank may have its own rows only */
TE_K_INLINE int64_t te_k_comm_norm_residual_first(const struct te_k_comm_norm *a)
{
	return a->flags & TE_K_COMM_RESIDUAL_SHARDED ? te_k_comm_norm_first(a, a->comm.rank) : 0;
}

TE_K_INLINE int64_t te_k_comm_norm_residual_rows(const struct te_k_comm_norm *a)
{
	return (a->flags & TE_K_COMM_RESIDUAL_SHARDED ?
			te_k_comm_norm_first(a, a->comm.rank + 1) : a->rows) -
	       te_k_comm_norm_residual_first(a);
}

TE_K_INLINE int64_t te_k_comm_norm_buffer_nbytes(const struct te_k_comm_norm *a)
{
	const int64_t in = te_k_comm_norm_in_packets(a), out = te_k_comm_norm_out_packets(a);
	const int64_t rows = a->comm.algorithm == TE_K_COMM_ONE_SHOT ? a->rows :
								 te_k_comm_norm_first(a, 1);
	const int64_t packets = (a->comm.nranks - 1) * rows *
				(a->comm.algorithm == TE_K_COMM_ONE_SHOT ? in : in + out);

	return (te_k_comm_headers_nbytes(a->comm.nranks) + packets * TE_K_COMM_PACKET + 127) &
	       ~(int64_t)127;
}

/*
 * Values that must be equal on all ranks: bits 0 to 23 rows, 24 to 38 cols, 39 type,
 * 41 algorithm, 42 max_blocks, 50 outputs: out, residual_out, y, rstd, amax, codes; 56 scaling,
 * 3 in te_k_comm_norm_bwd, 58 TE_K_COMM_RESIDUAL_SHARDED, 59 E5M2, 60 the kind of operation.
 */
TE_K_INLINE uint64_t te_k_comm_norm_signature(const struct te_k_comm_norm *a)
{
	const uint64_t outputs = (a->comm.out ? 1 : 0) | (a->residual_out ? 2 : 0) |
				 (a->y ? 4 : 0) | (a->rstd ? 8 : 0) | (a->amax ? 16 : 0) |
				 (a->codes ? 32 : 0);

	return (uint64_t)a->rows | (uint64_t)a->cols << 24 | (uint64_t)a->comm.dtype << 39 |
	       (uint64_t)(a->comm.algorithm == TE_K_COMM_TWO_SHOT) << 41 |
	       (uint64_t)a->comm.max_blocks << 42 | outputs << 50 |
	       (uint64_t)(a->x ? 3 : a->scaling) << 56 |
	       (uint64_t)(a->flags & TE_K_COMM_RESIDUAL_SHARDED ? 1 : 0) << 58 |
	       (uint64_t)(a->codes && a->qdtype == 4 ? 1 : 0) << 59 |
	       (uint64_t)TE_K_COLL_ALLREDUCE_NORM << 60;
}

#endif
