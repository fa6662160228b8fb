/* t/graph/orders.c - orders of passes for tests, by a slow reading of the rules. */
#include "config.h"

#include "orders.h"
#include "tt.h"

int order_before(const struct te_sched_entry *e, int i, int kind, int chunk)
{
	int n = 0;

	while (i--)
		n += (int)e[i].kind == kind && e[i].chunk == chunk;
	return n;
}

/* whether the (m+1)-th entry of kind and chunk lies before i */
int order_has(const struct te_sched_entry *e, int i, int kind, int chunk, int m)
{
	return order_before(e, i, kind, chunk) > m;
}

int order_valid(struct te_sched_entry *e, int nchunks, int nmicro, int train)
{
	int delayed[4], n = 0, total = 0;

	for (int c = 0; c < nchunks; c++) {
		delayed[c] = train && tt_rand_int(0, 1);
		total += nmicro * (1 + train + delayed[c]);
	}
	while (n < total) {
		int c = (int)tt_rand_int(0, nchunks - 1), k = (int)tt_rand_int(0, train ? 2 : 0);
		int m = order_before(e, n, k, c);

		if (k == TE_SCHED_W && !delayed[c])
			continue;
		e[n] = (struct te_sched_entry){ c, (enum te_sched_kind)k };
		if (m < nmicro && (k != TE_SCHED_F || !c || order_has(e, n, k, c - 1, m)) &&
		    (k == TE_SCHED_F || order_has(e, n, k - 1, c, m)) &&
		    (k != TE_SCHED_B || c == nchunks - 1 || order_has(e, n, k, c + 1, m)))
			n++;
	}
	return n;
}
