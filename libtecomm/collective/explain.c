/* explain.c - te_comm_explain(3). */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>

#include "libtecomm/collective/norm.h"

_Static_assert(TE_COMM_CALL_ALLREDUCE == (int)TE_K_COLL_ALLREDUCE &&
		       TE_COMM_CALL_REDUCE_SCATTER == (int)TE_K_COLL_REDUCE_SCATTER &&
		       TE_COMM_CALL_ALL_GATHER == (int)TE_K_COLL_ALL_GATHER &&
		       TE_COMM_CALL_BROADCAST == (int)TE_K_COLL_BROADCAST,
	       "functions have the kernels' numbers");

int te_comm_explain(struct te_comm *comm, const struct te_comm_call *call,
		    struct te_comm_choice *ret_choice)
{
	struct te_comm_choice choice = TE_COMM_CHOICE_INIT;
	struct te_comm_call c = TE_COMM_CALL_INIT;
	int r = te__sized_check("te_comm_explain", te_comm_choice, ret_choice);

	if (!r)
		r = te__sized_in("te_comm_explain", te_comm_call, call, &c);
	if (r)
		return r;
	if ((unsigned)c.function > TE_COMM_CALL_ALLREDUCE_NORM_BACKWARD)
		return te__fail(-EINVAL, "te_comm_explain: function %d is unknown",
				(int)c.function);
	if (c.function == TE_COMM_CALL_ALLREDUCE_NORM ||
	    c.function == TE_COMM_CALL_ALLREDUCE_NORM_BACKWARD) {
		r = te__comm_norm_explain(comm, &c, &choice);
	} else {
		const struct te__call a = {
			"te_comm_explain", comm,
			c.function == TE_COMM_CALL_BROADCAST ? c.out : c.in, c.out, c.count,
			c.dtype, c.op, (enum te_k_comm_collective)c.function, c.root,
		};

		r = te__comm_explain(&a, c.opts, &choice);
	}
	if (!r)
		te__sized_out(te_comm_choice, &choice, ret_choice);
	return r;
}
