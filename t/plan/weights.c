/* t/plan/weights.c - frozen weights and weights without a master, on either backend. */
#include "config.h"

#include "tt_ctx.h"
#include "weights_cases.h"

struct te_weight_info weight(const struct te_seq *s, int i)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;

	DO(te_seq_weight(s, i, &w));
	return w;
}

TT_PAIR("plan/weights", TT_ONE_PROCESS)
