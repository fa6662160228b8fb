/* kernels.c - the functions of kernels.h, generated from kernels.def. */
#include "config.h"

#include <te/dtype.h>

#include "kernels/kernels.h"

/* ---- offsets of pointers ---- */

#define R(field, nbytes) offsetof(S, field)
#define W R
#define DISJOINT R
#define U(field) offsetof(S, field)
#define AT(field, begin, nbytes) offsetof(S, field)
#define R_AT AT
#define Q(field, rows, cols)                                                                  \
	U(field.row), U(field.col), U(field.scale), U(field.scale_inv),                       \
		U(field.col_scale_inv), U(field.amax), U(field.noop)
#define COMM(field, in_nbytes, out_nbytes)                                                    \
	U(field.in), U(field.out), U(field.slots), U(field.ctl), U(field.abort), U(field.status), \
		U(field.multicast)
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
#undef COMM
#undef Q
#undef R_AT
#undef AT
#undef U
#undef DISJOINT
#undef W
#undef R

/* ---- ranges of memory ---- */

static void range_add(struct te__ranges *r, const void *ptr, int64_t begin, int64_t nbytes,
		      enum te__access access)
{
	if (ptr && nbytes > 0)
		r->v[r->n++] = (struct te__range){ (uintptr_t)ptr + (uintptr_t)begin,
						   (uint64_t)nbytes, access };
}

#define ES(dtype) ((int64_t)te_dtype_nbytes((enum te_dtype)(dtype)))
#define N (a->rows * a->cols)
#define SCALES(scaling, rows, cols) (4 * te_k_scale_nfloats(scaling, rows, cols))
#define PARTS TE_K_NPARTS(a->rows)
#define HALVES (a->gated ? 2 : 1)
#define HIST ((int64_t)4 * a->history_len)
#define HEADS (ES(a->dtype) * a->batch * a->seqlen * a->nheads * a->head_dim)
#define QKV (ES(a->dtype) * a->batch * a->seqlen * (a->nheads + 2 * a->nkv) * a->head_dim)
#define LSE (4 * a->batch * a->nheads * a->seqlen)
#define TABLE ((int64_t)sizeof(*a->table) * a->n)
#define AMAXES ((int64_t)4 * a->nslots * a->window)
#define RESIDUAL_ROW (ES(a->comm.dtype) * a->cols)
#define RESIDUAL_AT (RESIDUAL_ROW * te_k_comm_norm_residual_first(a))
#define RESIDUAL_NBYTES (RESIDUAL_ROW * te_k_comm_norm_residual_rows(a))
#define R(field, nbytes) range_add(r, a->field, 0, nbytes, TE__READ)
#define W(field, nbytes) range_add(r, a->field, 0, nbytes, TE__WRITE)
#define DISJOINT(field, nbytes) range_add(r, a->field, 0, nbytes, TE__DISJOINT)
#define U(field) (void)a
#define AT(field, begin, nbytes) range_add(r, a->field, begin, nbytes, TE__WRITE)
#define R_AT(field, begin, nbytes) range_add(r, a->field, begin, nbytes, TE__READ)
#define Q(field, rows, cols)                                                                  \
	W(field.row, (rows) * (cols)), W(field.col, (rows) * (cols)), R(field.scale, 4),      \
		W(field.scale_inv, SCALES(a->field.scaling, rows, cols)),                     \
		W(field.col_scale_inv, SCALES(a->field.scaling, cols, rows)),                 \
		W(field.amax, 4), R(field.noop, 4)
#define COMM(field, in_nbytes, out_nbytes)                                                    \
	R(field.in, in_nbytes), W(field.out, out_nbytes), U(field.slots),                     \
		W(field.ctl, sizeof(*a->field.ctl)), U(field.abort), U(field.status),         \
		U(field.multicast)
#define TE_K(ID, name, args, family, ...)                                                     \
	static void ranges_##name(const void *p, struct te__ranges *r)                        \
	{                                                                                     \
		const struct te_k_##args *a = p;                                              \
											      \
		__VA_ARGS__;                                                                  \
	}
#include "kernels/kernels.def"
#undef TE_K
#undef COMM
#undef Q
#undef R_AT
#undef AT
#undef U
#undef DISJOINT
#undef W
#undef R

/* ---- where the memory of a pointer begins ---- */

#define R(field, nbytes) (void)a
#define W R
#define DISJOINT R
#define U(field) (void)a
#define AT(field, begin, nbytes) (void)(offset == offsetof(S, field) ? (ret = (begin)) : 0)
#define R_AT AT
#define Q(field, rows, cols) (void)a
#define COMM(field, in_nbytes, out_nbytes) (void)a
#define TE_K(ID, name, args, family, ...)                                                     \
	static int64_t begin_##name(const void *p, uint32_t offset)                           \
	{                                                                                     \
		typedef struct te_k_##args S;                                                 \
		const S *a = p;                                                               \
		int64_t ret = 0;                                                              \
											      \
		(void)offset;                                                                 \
		__VA_ARGS__;                                                                  \
		return ret;                                                                   \
	}
#include "kernels/kernels.def"
#undef TE_K
#undef COMM
#undef Q
#undef R_AT
#undef AT
#undef U
#undef DISJOINT
#undef W
#undef R
#undef N
#undef SCALES
#undef PARTS
#undef HALVES
#undef HIST
#undef HEADS
#undef QKV
#undef LSE
#undef TABLE
#undef AMAXES
#undef RESIDUAL_ROW
#undef RESIDUAL_AT
#undef RESIDUAL_NBYTES
#undef ES

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
	uint32_t (*ptrs)(const uint16_t **ret);
	void (*ranges)(const void *args, struct te__ranges *r);
	int64_t (*begin)(const void *args, uint32_t offset);
	te__k_fn *reference;
} kernel[TE_K_COUNT] = {
#define TE_K(ID, name, args, family, ...)                                                     \
	{ #name, sizeof(struct te_k_##args), ptrs_##name, ranges_##name, begin_##name,    \
	  run_##name },
#include "kernels/kernels.def"
#undef TE_K
};

const char *te__k_name(enum te_k_id id)
{
	return (unsigned int)id < TE_K_COUNT ? kernel[id].name : "?";
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
const struct te__kernel_image te__kernel_images[] = { { NULL, NULL, NULL } };
#endif
