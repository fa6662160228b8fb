/*
 * calibrate.c - the first scales of delayed scaling.
 *
 * New quantizers have scales of 1, with which small weights and gradients become 0 and large values
 * saturate. So the passes of a first step's first micro-batch run before it, several times: the
 * amax of a value is right once the scales of the operands that it depends on are. In a transformer
 * weights have their scales after the first time, activations after the second, and gradients after
 * the third, because the residual stream carries them past all other blocks. The number of times is
 * fixed: ranks that meet within the passes do not compare their scales.
 */
#define TE_LOG_CATEGORY "core/plan"
#include "config.h"

#include "libtecore/base/private.h"
#include "libtecore/plan/seq.h"
#include "libtecore/quant/quant.h"
#include "libtecore/tensor/ctx.h"

#define TIMES 4

int te__seq_calibrate(struct te_seq *seq, struct te_stream *stream,
		      int (*passes)(void *arg, struct te_stream *stream), void *arg, const char *fn)
{
	uint64_t seed, offset;
	int r = te__quant_is_fresh(seq->quant, fn, 2 * seq->nops);

	if (r <= 0)
		return r;
	r = te_seq_rng_get(seq, &seed, &offset);
	for (int i = 0; i < TIMES && !r; i++) {
		/* copies of weights are cast again, with the present scales */
		r = te_seq_weights_changed(seq, stream);
		if (!r && i)
			r = te__quant_forget(seq->quant, stream);
		if (!r)
			r = passes(arg, stream);
	}
	if (!r)
		r = te_seq_weights_changed(seq, stream);
	return r ? r : te_seq_rng_set(seq, seed, offset);
}
