/* seq_bind.c - memory that the caller gives a sequence, and where the library's memory is. */
#define TE_LOG_CATEGORY "core/seq"
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "libtecore/base/private.h"

#include "libtecore/ops/op.h"
#include "libtecore/plan/seq.h"
#include "libtecore/tensor/ctx.h"

static const char *check_memory(const struct te_tensor *t)
{
	const uintptr_t codes = (uintptr_t)te_tensor_data(t) | (uintptr_t)te_tensor_coldata(t);
	const uintptr_t scales = (uintptr_t)te_tensor_scale_inv(t) |
				 (uintptr_t)te_tensor_col_scale_inv(t);

	return !te_tensor_data(t)	? "has no row-wise copy" :
	       codes % TE__SEQ_ALIGN	? "is not aligned to 256 bytes" :
	       scales % TE__SCALE_ALIGN ? "has scales that are not aligned to 16 bytes" :
					  NULL;
}

static int check_value(const struct te_seq *seq, const struct te__weight *w,
		       const struct te_tensor *t)
{
	static const char fn[] = "te_seq_bind_weight";
	const struct te_spec want = te__weight_spec(&w->decl);
	const enum te_dtype dtype = te_tensor_dtype(t);
	struct te_spec have = te__spec_of(t);
	char want_text[96], have_text[96];
	const char *bad;

	if (te_tensor_ctx(t) != seq->ctx)
		return te__fail(-EINVAL, "%s: %s: the tensor belongs to another context", fn,
				w->name);
	if (dtype != TE_DTYPE_BF16 && dtype != TE_DTYPE_E4M3 && dtype != TE_DTYPE_E2M1)
		return te__fail(-TE_EDTYPE, "%s: %s: the tensor is %s, not bf16, e4m3 or e2m1", fn,
				w->name, te_dtype_name(dtype));
	have.dtype = want.dtype;
	if (!te__spec_equal(&want, &have)) {
		te__spec_str(&want, want_text, sizeof(want_text));
		te__spec_str(&have, have_text, sizeof(have_text));
		return te__fail(-TE_ESHAPE, "%s: %s: the tensor is %.*s, the weight %.*s", fn,
				w->name, (int)strcspn(have_text, " "), have_text,
				(int)strcspn(want_text, " "), want_text);
	}
	bad = check_memory(t);
	return bad ? te__fail(-EINVAL, "%s: %s: the tensor %s", fn, w->name, bad) : 0;
}

int te_seq_bind_weight(struct te_seq *seq, const char *name, struct te_tensor *value)
{
	struct te__weight *w = NULL;
	int r = te__seq_laid_out(seq, "te_seq_bind_weight");

	if (r)
		return r;
	for (int i = 0; name && i < seq->nweights && !w; i++)
		w = strcmp(seq->weight[i].name, name) ? NULL : &seq->weight[i];
	if (!w)
		return te__fail(name ? -ENOENT : -EINVAL, "te_seq_bind_weight: %s%s",
				name ? "no weight is named " : "name is NULL", name ? name : "");
	r = value ? check_value(seq, w, value) : 0;
	if (r)
		return r;
	te_tensor_unref(w->value);
	w->value = te_tensor_ref(value);
	w->codes = NULL;
	te__seq_lay_out(seq); /* te_seq_init makes the tensors again */
	return 0;
}

uint64_t te__seq_bound_nbytes(const struct te_seq *seq)
{
	uint64_t nbytes = 0;

	for (int i = 0; i < seq->nweights; i++) {
		const struct te_tensor *t = seq->weight[i].value;

		if (!t)
			continue;
		nbytes += te_tensor_nbytes(t) * (te_tensor_coldata(t) ? 2 : 1);
		if (te_tensor_scale_inv(t))
			nbytes += sizeof(float) *
				  (uint64_t)te_scaling_nfloats(te_tensor_scaling(t),
							       te_tensor_rows(t),
							       te_tensor_cols(t));
		if (te_tensor_coldata(t) && te_tensor_scaling(t))
			nbytes += sizeof(float) *
				  (uint64_t)te_scaling_nfloats(te_tensor_scaling(t),
							       te_tensor_cols(t),
							       te_tensor_rows(t));
	}
	return nbytes;
}

static int check_parts(const struct te_seq_binding *b)
{
	if (b->nparts < 0 || b->part < 0 || b->part >= (b->nparts ? b->nparts : 1))
		return te__fail(-EINVAL, "te_seq_bind: part %d of %d parts", b->part, b->nparts);
	if (b->nparts < 2)
		return 0;
	if (!b->reduce)
		return te__fail(-EINVAL, "te_seq_bind: %d parts, and no reduce", b->nparts);
	if (b->grads || b->flags & TE_SEQ_NO_GRADS)
		return te__fail(-EINVAL, "te_seq_bind: %d parts, and %s", b->nparts,
				b->grads ? "grads" : "TE_SEQ_NO_GRADS");
	if (b->fetch && (b->masters || b->flags & TE_SEQ_REMAINDERS || !b->alloc || !b->barrier))
		return te__fail(-EINVAL, "te_seq_bind: %d parts of masters, and %s", b->nparts,
				b->masters		     ? "masters" :
				b->flags & TE_SEQ_REMAINDERS ? "TE_SEQ_REMAINDERS" :
							       "no alloc or no barrier");
	return 0;
}

static int check_binding(const struct te_seq_binding *b)
{
	const uint32_t unknown = b->flags & ~(TE_SEQ_NO_GRADS | TE_SEQ_KEEP_MASTERS |
					      TE_SEQ_BF16_MASTERS | TE_SEQ_REMAINDERS |
					      TE_SEQ_NO_DRAW | TE_SEQ_ROUND_FROZEN |
					      TE_SEQ_HOST_REMAINDERS | TE_SEQ_BF16_GRADS |
					      TE_SEQ_RECOMPUTE_COLS | TE_SEQ_HOST_MASTERS |
					      TE_SEQ_HOST_GRADS | TE_SEQ_BF16_COPIES);

	if (unknown)
		return te__fail(-EINVAL, "te_seq_bind: unknown flags 0x%x", (unsigned)unknown);
	if ((uintptr_t)b->masters % TE__SEQ_ALIGN || (uintptr_t)b->grads % TE__SEQ_ALIGN)
		return te__fail(-EINVAL, "te_seq_bind: %s is not aligned to %d bytes",
				(uintptr_t)b->masters % TE__SEQ_ALIGN ? "masters" : "grads",
				TE__SEQ_ALIGN);
	if (b->grads && b->flags & TE_SEQ_NO_GRADS)
		return te__fail(-EINVAL, "te_seq_bind: grads, and TE_SEQ_NO_GRADS");
	if (b->flags & TE_SEQ_BF16_GRADS && b->flags & TE_SEQ_NO_GRADS)
		return te__fail(-EINVAL, "te_seq_bind: TE_SEQ_BF16_GRADS, and TE_SEQ_NO_GRADS");
	if (b->flags & TE_SEQ_RECOMPUTE_COLS && b->flags & TE_SEQ_NO_GRADS)
		return te__fail(-EINVAL, "te_seq_bind: TE_SEQ_RECOMPUTE_COLS, and TE_SEQ_NO_GRADS");
	if (b->flags & TE_SEQ_REMAINDERS && !(b->flags & TE_SEQ_BF16_MASTERS))
		return te__fail(-EINVAL, "te_seq_bind: TE_SEQ_REMAINDERS without "
				"TE_SEQ_BF16_MASTERS");
	if (b->flags & TE_SEQ_ROUND_FROZEN && !(b->flags & TE_SEQ_REMAINDERS))
		return te__fail(-EINVAL, "te_seq_bind: TE_SEQ_ROUND_FROZEN without "
				"TE_SEQ_REMAINDERS");
	if (b->flags & TE_SEQ_HOST_REMAINDERS && !(b->flags & TE_SEQ_REMAINDERS))
		return te__fail(-EINVAL, "te_seq_bind: TE_SEQ_HOST_REMAINDERS without "
				"TE_SEQ_REMAINDERS");
	if (b->flags & TE_SEQ_HOST_MASTERS && !(b->flags & TE_SEQ_BF16_MASTERS))
		return te__fail(-EINVAL, "te_seq_bind: TE_SEQ_HOST_MASTERS without "
				"TE_SEQ_BF16_MASTERS");
	if (b->flags & TE_SEQ_HOST_GRADS && (b->grads || b->flags & TE_SEQ_NO_GRADS))
		return te__fail(-EINVAL, "te_seq_bind: TE_SEQ_HOST_GRADS, and %s",
				b->grads ? "grads" : "TE_SEQ_NO_GRADS");
	if (b->masters && b->flags & TE_SEQ_BF16_MASTERS)
		return te__fail(-EINVAL, "te_seq_bind: masters, and TE_SEQ_BF16_MASTERS");
	if (!b->masters && b->flags & TE_SEQ_KEEP_MASTERS)
		return te__fail(-EINVAL, "te_seq_bind: TE_SEQ_KEEP_MASTERS without masters");
	if (b->flags & TE_SEQ_BF16_COPIES &&
	    (b->nparts < 2 || !b->fetch || b->flags & TE_SEQ_BF16_MASTERS))
		return te__fail(-EINVAL, "te_seq_bind: TE_SEQ_BF16_COPIES, expected parts of FP32 "
				"masters");
	if (b->masters && b->masters == b->grads)
		return te__fail(-EINVAL, "te_seq_bind: masters and grads are the same memory");
	return check_parts(b);
}

int te_seq_bind(struct te_seq *seq, const struct te_seq_binding *binding)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	int r = te__seq_laid_out(seq, "te_seq_bind");

	if (!r)
		r = te__sized_in("te_seq_bind", te_seq_binding, binding, &b);
	if (!r)
		r = check_binding(&b);
	if (!r && b.flags & TE_SEQ_HOST_REMAINDERS && strcmp(te_ctx_backend(seq->ctx), "host"))
		r = te__fail(-EOPNOTSUPP, "te_seq_bind: TE_SEQ_HOST_REMAINDERS on backend %s, "
			     "expected host", te_ctx_backend(seq->ctx));
	if (!r)
		seq->binding = b;
	return r;
}
