/* kernels.c - the functions of kernels.h, generated from kernels.def. */
#include "config.h"

#include <te/dtype.h>

#include "kernels/kernels.h"
#include "libtecore/base/base.h"

/* ---- rows of kernels.def ---- */

#define ES(dtype) ((int64_t)te_dtype_nbytes((enum te_dtype)(dtype)))
#define N (a->rows * a->cols)
#define CODES(dtype, n) te__nbytes_of(dtype, n)
#define SCALES(scaling, rows, cols) (4 * te_k_scale_nfloats(scaling, rows, cols))
#define PARTS TE_K_NPARTS(a->rows)
#define HALVES (a->gated ? 2 : 1)
#define RUNS ((a->n + TE_K_ALIGN_WEIGHT - 1) / TE_K_ALIGN_WEIGHT)
#define MOMENT (a->moments == TE_K_MOMENTS_FP8 ? a->n : te_k_moment_nbytes(a->moments, a->n))
#define HIST ((int64_t)4 * a->history_len)
#define HEADS_TOKENS                                                                          \
	(ES(a->dtype) * a->nseqs * a->ntokens * (a->nheads + 2 * a->nkv) * a->head_dim)
#define HEADS_PARTS (ES(a->dtype) * a->nseqs * a->nranks * te_k_heads_part(a))
#define HEADS(member, ntokens, nheads, dim) \
	(ES(a->dtype) * te_k_attn_extent(TE_K_ATTN_VIEWS(a).member, a->batch, ntokens, nheads, dim))
#define QKV HEADS(q, a->seqlen, a->nheads + (a->more.k ? 0 : 2 * a->nkv), a->head_dim)
#define HEAD_DIM_V (a->more.head_dim_v ? a->more.head_dim_v : a->head_dim)
#define OUT HEADS(out, a->seqlen, a->nheads, HEAD_DIM_V)
#define KLEN (a->more.klen ? a->more.klen : a->seqlen)
#define K HEADS(k, KLEN, a->nkv, a->head_dim)
#define V HEADS(v, KLEN, a->nkv, HEAD_DIM_V)
#define OFFSETS (4 * ((int64_t)a->more.nseqs + 1))
#define BIAS (4 * ((a->nheads - 1) * a->more.bias_head + a->seqlen * KLEN))
#define CACHE_OF(c) (ES((c).cache_dtype) * (c).npages * (c).page * (c).nkv * (c).head_dim)
#define CACHE_SCALES_OF(c) ((c).npages * (c).page * (c).nkv)
#define PACKED_OF(c) (ES((c).dtype) * (c).rows * ((c).nheads + 2 * (c).nkv) * (c).head_dim)
#define CACHE CACHE_OF(*a)
#define CACHE_SCALES CACHE_SCALES_OF(*a)
#define PACKED PACKED_OF(*a)
#define LSE (4 * a->batch * a->nheads * a->seqlen)
#define TABLE ((int64_t)sizeof(*a->table) * a->n)
#define MASTERS ((int64_t)(a->split ? 2 : 4) * a->nmasters)
#define AMAXES ((int64_t)4 * a->nslots * a->window)
#define RESIDUAL_ROW (ES(a->comm.dtype) * a->cols)
#define RESIDUAL_AT (RESIDUAL_ROW * te_k_comm_norm_residual_first(a))
#define RESIDUAL_NBYTES (RESIDUAL_ROW * te_k_comm_norm_residual_rows(a))
#define RESIDUAL_WORDS_AT (4 * te_k_comm_norm_residual_first(a))
#define RESIDUAL_WORDS_NBYTES (4 * te_k_comm_norm_residual_rows(a))
/* each use becomes USE(field, begin, nbytes, access), which is defined before each expansion */
#define R(field, nbytes) USE(field, 0, nbytes, TE__READ)
#define W(field, nbytes) USE(field, 0, nbytes, TE__WRITE)
#define DISJOINT(field, nbytes) USE(field, 0, nbytes, TE__DISJOINT)
#define U(field) USE(field, 0, 0, TE__READ)
#define AT(field, begin, nbytes) USE(field, begin, nbytes, TE__WRITE)
#define R_AT(field, begin, nbytes) USE(field, begin, nbytes, TE__READ)
#define Q(field, rows, cols)                                                                  \
	W(field.row, CODES(a->field.dtype, (rows) * (cols))),                                 \
		W(field.col, CODES(a->field.dtype, (rows) * (cols))), R(field.scale, 4),      \
		W(field.scale_inv, SCALES(a->field.scaling, rows, cols)),                     \
		W(field.col_scale_inv, SCALES(a->field.scaling, cols, rows)),                 \
		W(field.amax, 4), R(field.noop, 4)
#define COMM(field, in_nbytes, out_begin, out_nbytes)                                         \
	R(field.in, in_nbytes), AT(field.out, out_begin, out_nbytes), U(field.slots),         \
		W(field.ctl, sizeof(*a->field.ctl)), U(field.abort), U(field.status),         \
		U(field.multicast)
#define END(field, i)                                                                         \
	USE(field[i].data, 0, a->field[i].nbytes, a->field[i].sends ? TE__READ : TE__WRITE)
#define ENDS(field, i)                                                                        \
	END(field, i), END(field, i + 1), END(field, i + 2), END(field, i + 3),               \
		END(field, i + 4), END(field, i + 5), END(field, i + 6), END(field, i + 7)

/* ---- offsets of pointers ---- */

#define USE(field, begin, nbytes, access) offsetof(S, field)
#define TE_K(ID, name, args, family, ...)                                                     \
	static uint32_t ptrs_##name(const uint16_t **ret)                                     \
	{                                                                                     \
		typedef struct te_k_##args S;                                                 \
		static const uint16_t offset[] = { __VA_ARGS__ };                             \
											      \
		*ret = offset;                                                                \
		return sizeof(offset) / sizeof(offset[0]);                                    \
	}
#include "kernels/kernels.def"
#undef TE_K
#undef USE

/* ---- ranges of memory ---- */

static void range_add(struct te__ranges *r, const void *ptr, int64_t begin, int64_t nbytes,
		      enum te__access access)
{
	if (ptr && nbytes > 0)
		r->v[r->n++] = (struct te__range){ (uintptr_t)ptr + (uintptr_t)begin,
						   (uint64_t)nbytes, access };
}

#define USE(field, begin, nbytes, access) range_add(r, a->field, begin, nbytes, access)
#define TE_K(ID, name, args, family, ...)                                                     \
	static void ranges_##name(const void *p, struct te__ranges *r)                        \
	{                                                                                     \
		const struct te_k_##args *a = p;                                              \
											      \
		__VA_ARGS__;                                                                  \
	}
#include "kernels/kernels.def"
#undef TE_K
#undef USE

/* ---- where the memory of a pointer begins ---- */

#define USE(field, begin, nbytes, access) (void)(offset == offsetof(S, field) ? (ret = (begin)) : 0)
#define TE_K(ID, name, args, family, ...)                                                     \
	static int64_t begin_##name(const void *p, uint32_t offset)                           \
	{                                                                                     \
		typedef struct te_k_##args S;                                                 \
		const S *a = p;                                                               \
		int64_t ret = 0;                                                              \
											      \
		(void)a;                                                                      \
		__VA_ARGS__;                                                                  \
		return ret;                                                                   \
	}
#include "kernels/kernels.def"
#undef TE_K
#undef USE

/* ---- the table ---- */

/* calling a function through a pointer of another type would be undefined behaviour */
#define TE_K(ID, name, args, family, ...)                                                     \
	static void run_##name(const void *p)                                                 \
	{                                                                                     \
		te__h_##name(p);                                                              \
	}
#include "kernels/kernels.def"
#undef TE_K

static const struct {
	const char *name;
	size_t nbytes;
	int collective;
	uint32_t (*ptrs)(const uint16_t **ret);
	void (*ranges)(const void *args, struct te__ranges *r);
	int64_t (*begin)(const void *args, uint32_t offset);
	te__k_fn *reference;
} kernel[TE_K_COUNT] = {
#define TE_K(ID, name, args, family, ...)                                                     \
	{ #name, sizeof(struct te_k_##args), !__builtin_strcmp(#family, "comm"),           \
	  ptrs_##name, ranges_##name, begin_##name, run_##name },
#include "kernels/kernels.def"
#undef TE_K
};

const char *te__k_name(enum te_k_id id)
{
	return (unsigned int)id < TE_K_COUNT ? kernel[id].name : "?";
}

int te__k_is_collective(enum te_k_id id)
{
	return (unsigned int)id < TE_K_COUNT && kernel[id].collective;
}

size_t te__k_nbytes(enum te_k_id id)
{
	return (unsigned int)id < TE_K_COUNT ? kernel[id].nbytes : 0;
}

uint32_t te__k_ptrs(enum te_k_id id, const uint16_t **ret_offset)
{
	return (unsigned int)id < TE_K_COUNT ? kernel[id].ptrs(ret_offset) : 0;
}

void te__k_ranges(enum te_k_id id, const void *args, struct te__ranges *ret)
{
	ret->n = 0;
	kernel[id].ranges(args, ret);
}

int64_t te__k_begin(enum te_k_id id, const void *args, uint32_t offset)
{
	return kernel[id].begin(args, offset);
}

te__k_fn *te__k_reference(enum te_k_id id)
{
	return (unsigned int)id < TE_K_COUNT ? kernel[id].reference : NULL;
}

#ifndef HAVE_KERNELS
const struct te__kernel_image te__kernel_images[] = { { NULL, NULL, NULL, 0, 0 } };
#endif
