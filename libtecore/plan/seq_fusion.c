/* seq_fusion.c - fusions that a program adds to a sequence. */
#define TE_LOG_CATEGORY "core/seq"
#include <errno.h>
#include <string.h>

#include "libtecore/base/private.h"

#include "libtecore/plan/seq.h"

static int check_fusion(const struct te_fusion *f)
{
	const int joint = f->pass == TE_PASS_JOINT;

	if (!f->name || !f->run || !f->pattern || !*f->pattern ||
	    !(joint || strchr(f->pattern, ' ')))
		return te__fail(-EINVAL,
				"te_seq_add_fusion: needs a name, two steps or more, and run()");
	if (!joint && f->pass != TE_PASS_FORWARD && f->pass != TE_PASS_BACKWARD)
		return te__fail(-EINVAL, "fusion %s: pass %d is unknown", f->name, (int)f->pass);
	if (joint == !f->backward)
		return te__fail(-EINVAL, "fusion %s: backward is %s", f->name,
				joint ? "NULL, but it is joint" : "set, but it is not joint");
	if (f->flags & ~TE_FUSION_REPEATS || (f->flags && f->pass != TE_PASS_FORWARD))
		return te__fail(-EINVAL, "fusion %s: flags are 0x%x, which its pass does not have",
				f->name, (unsigned)f->flags);
	if (f->drop || (f->save && !joint))
		return te__fail(-EINVAL, "fusion %s: %s", f->name,
				f->drop ? "only backward of a joint fusion can drop" :
					  "save() is set, but it is not joint");
	return 0;
}

static int check_backward(const struct te_fusion *f, const struct te_fusion *b)
{
	if (b->pass != TE_PASS_BACKWARD || !b->run || !b->pattern || !*b->pattern)
		return te__fail(-EINVAL, "fusion %s: its backward needs TE_PASS_BACKWARD, a step "
				"or more, and run()", f->name);
	if (b->backward || b->save)
		return te__fail(-EINVAL, "fusion %s: its backward has %s of its own", f->name,
				b->backward ? "a backward" : "save()");
	return 0;
}

/* copy f->backward, and give the copy f's name if it has no name */
static int copy_backward(struct te_fusion *f)
{
	struct te_fusion b = TE_FUSION_INIT, *copy;
	int r = te__sized_in("te_seq_add_fusion", te_fusion, f->backward, &b);

	if (!r)
		r = check_backward(f, &b);
	if (r)
		return r;
	copy = te__malloc(sizeof(*copy));
	if (!copy)
		return te__no_memory("sequence");
	if (!b.name)
		b.name = f->name;
	*copy = b;
	f->backward = copy;
	return 0;
}

static int add_fusion(struct te_seq *seq, const struct te_fusion *fusion, uint32_t flags)
{
	struct te_fusion f = TE_FUSION_INIT;
	int r;

	if (!seq)
		return te__fail(-EINVAL, "te_seq_add_fusion: seq is NULL");
	r = te__sized_in("te_seq_add_fusion", te_fusion, fusion, &f);
	if (!r)
		r = check_fusion(&f);
	if (r)
		return r;
	if (seq->planned)
		return te__fail(-EBUSY, "fusion %s: the sequence has been planned", f.name);
	r = te__seq_grow((void **)&seq->fusion, &seq->cap_fusions, seq->nfusions,
			 sizeof(*seq->fusion));
	if (!r && f.backward)
		r = copy_backward(&f);
	if (r < 0)
		return r;
	f.flags |= flags;
	seq->fusion[seq->nfusions++] = f;
	return 0;
}

int te_seq_add_fusion(struct te_seq *seq, const struct te_fusion *fusion)
{
	return add_fusion(seq, fusion, 0);
}

int te__seq_add_fusion(struct te_seq *seq, const struct te_fusion *fusion)
{
	return add_fusion(seq, fusion, TE__FUSION_LIBRARY);
}
