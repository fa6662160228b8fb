/* t/graph/orders.h - orders of passes for tests, by a slow reading of the rules. */
#ifndef ORDERS_H
#define ORDERS_H

#include <te/schedule.h>

/* how often entries before i are of the kind and chunk of (kind, chunk) */
int order_before(const struct te_sched_entry *e, int i, int kind, int chunk);
/* whether the (m+1)-th entry of kind and chunk lies before i */
int order_has(const struct te_sched_entry *e, int i, int kind, int chunk, int m);

/* a random order that runs, of at most ORDER_MOST entries: any entry that may come next, until all
 * have come; up to 4 chunks, some with weight gradients. Returns how many entries it has */
#define ORDER_MOST 96
int order_valid(struct te_sched_entry *e, int nchunks, int nmicro, int train);

#endif
