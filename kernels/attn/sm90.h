/* sm90.h - arguments and launch constants of sm90.cu. */
#ifndef TE_ATTN_SM90_H
#define TE_ATTN_SM90_H

#include "kernels/sm90.h"
#include "kernels/te_k.h"

/* the keys of a query: all before it and itself, a window of these, or a document, or both */
enum { ATTN_SM90_ALL, ATTN_SM90_WINDOW, ATTN_SM90_DOCUMENTS };
#define ATTN_SM90_MASK(args)                         \
	((args).first ? ATTN_SM90_DOCUMENTS :        \
	 (args).window ? ATTN_SM90_WINDOW : ATTN_SM90_ALL)

/* d: head_dim, 64 or 128 */
#define ATTN_SM90_GROUPS(d) ((d) == 64 ? 3 : 2) /* warpgroups that compute */
#define ATTN_SM90_THREADS(d) (128 * (ATTN_SM90_GROUPS(d) + 1))
#define ATTN_SM90_STRIP 64 /* rows of a warpgroup */
#define ATTN_SM90_KEYS 128 /* keys of a tile */
#define ATTN_SM90_BOX 64   /* rows and columns */
#define ATTN_SM90_ROWS(d) (ATTN_SM90_GROUPS(d) * ATTN_SM90_STRIP)
#define ATTN_SM90_STAGES(d) ((d) == 64 ? 4 : 2) /* tiles of keys, and of values */
/* two blocks of queries, the stages, two barriers for each strip and tile in these, first keys */
#define ATTN_SM90_SMEM(d)                                                                      \
	(2 * ATTN_SM90_ROWS(d) * (d) * 2 + 2 * ATTN_SM90_STAGES(d) * ATTN_SM90_KEYS * (d) * 2 + \
	 16 * (2 * ATTN_SM90_GROUPS(d) + 2 * ATTN_SM90_STAGES(d)) + 4 * ATTN_SM90_ROWS(d))

/*
 * The operation of struct te_k_attn_fwd (attn.h), without dropout. qkv [batch, seqlen, (nheads + 2
 * nkv) head_dim] and out [batch, seqlen, nheads head_dim] in boxes of 64 columns and rows.
 */
struct te_attn_sm90 {
	struct te_tensor_map qkv, out;
	float *lse;
	struct te_k_q q;
	float scale;
	int32_t has_out; /* or only q is wanted */
	int32_t seqlen, nheads, nkv;
	int32_t nrows;	   /* seqlen, rounded up to strips */
	int32_t nblocks;   /* blocks of rows of a head */
	int32_t nmatrices; /* batch nheads */
	int32_t at_once;   /* heads whose keys and values are read at the same time */
	int32_t window;	   /* keys of a query, or 0 */
	const int32_t *first; /* first tokens of documents, as in te_k_attn_fwd; or NULL */
};

/* backward: a block of keys, tiles of 64 queries; see sm90_bwd.cu */
#define ATTN_SM90_BWD_APART(d) ((d) == 64) /* a warpgroup for dq */
#define ATTN_SM90_BWD_THREADS(d) (ATTN_SM90_BWD_APART(d) ? 512 : 384)
#define ATTN_SM90_BWD_ROWS 128
#define ATTN_SM90_BWD_BUFFERS(d) ((d) == 64 ? 2 : 1) /* items whose keys are there */
#define ATTN_SM90_BWD_STAGES(d) ((d) == 64 ? 4 : 3)  /* tiles of queries and dout */
#define ATTN_SM90_BWD_DS(d) ((d) == 64 ? 3 : 2)      /* tiles of ds, of 16 KiB */
#define ATTN_SM90_BWD_PIECES 2			      /* 64 x 64 of dq in FP32 */
#define ATTN_SM90_BWD_WRITERS 2			      /* warps, of every second tile each */
#define ATTN_SM90_BWD_FIRSTS (ATTN_SM90_BOX + 16) /* bytes of the first keys of a tile */
#define ATTN_SM90_BWD_SMEM(d)                                                            \
	(ATTN_SM90_BWD_BUFFERS(d) * (2 * ATTN_SM90_BWD_ROWS * (d) * 2 + 32) +           \
	 ATTN_SM90_BWD_STAGES(d) * (2 * ATTN_SM90_BOX * (d) * 2 + 8 * ATTN_SM90_BOX + 16) + \
	 ATTN_SM90_BWD_DS(d) * (ATTN_SM90_BWD_ROWS * ATTN_SM90_BOX * 2 + 16) +          \
	 ATTN_SM90_BWD_PIECES * (ATTN_SM90_BOX * ATTN_SM90_BOX * 4 + 8) +                \
	 ATTN_SM90_BWD_WRITERS * 8 * ((d) / ATTN_SM90_BOX) + 72 +                        \
	 ATTN_SM90_BWD_STAGES(d) * ATTN_SM90_BWD_FIRSTS)

/* The operation of struct te_k_attn_bwd, without dropout; delta is complete. */
struct te_attn_bwd_sm90 {
	struct te_tensor_map qkv, dout, dqkv;
	const float *lse, *delta;
	uint32_t *next;	 /* item; 0 at first */
	uint32_t *ready; /* blocks of keys that have added to each 64 x 64 of dq; 0 at first */
	float *sums;	 /* FP32, for each counter */
	float scale;
	int32_t seqlen, nheads, nkv, group; /* group: nheads / nkv */
	int32_t nblocks;   /* blocks of keys of a head */
	int32_t ntiles;	   /* tiles of queries of a head */
	int32_t nmatrices; /* batch nkv */
	int32_t at_once;   /* heads whose items are taken level by level */
	int32_t window;
	const int32_t *first;  /* as in te_attn_sm90 */
	const int32_t *starts; /* least first keys of tiles, in te_k_attn_bwd.sums */
};

struct te_attn_sm90_plan {
	int32_t head_dim;
	int32_t nblocks; /* the grid's */
	struct te_sm90_map qkv, out;
	struct te_attn_sm90 args; /* maps are not set */
};

struct te_attn_bwd_sm90_plan {
	int32_t head_dim;
	int32_t nblocks; /* the grid's */
	struct te_sm90_map qkv, dout, dqkv;
	struct te_attn_bwd_sm90 args; /* maps are not set */
};

/*
 * plan.c: attention on a device with nsms multiprocessors. NULL, or why these kernels do not
 * compute it: a phrase after "because".
 */
const char *te__attn_sm90_plan(const struct te_k_attn_fwd *a, int32_t nsms,
			       struct te_attn_sm90_plan *ret);
const char *te__attn_bwd_sm90_plan(const struct te_k_attn_bwd *a, int32_t nsms,
				    struct te_attn_bwd_sm90_plan *ret);

#endif
