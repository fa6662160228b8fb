/*
 * lineage.h - the decision which ranks of a failed communicator of several nodes are in its
 * successor.
 *
 * A lineage is a communicator and its successors. The number of a rank in the lineage is its rank
 * in the first communicator. A rank listens at an address that all know until it releases the last
 * communicator of the lineage. So a refused connection means that the rank has ended, or has left
 * for good.
 *
 * Generations are sets of ranks, each a subset of the previous one. A rank that recovers connects
 * to all ranks of its generation and sends ARRIVE, again if the connection ends, until the next
 * generation is decided. The lowest rank that has not ended is the arbiter: when every other rank
 * has arrived or ended, or at the deadline of the first, it decides which ranks are in the next
 * generation and sends this as GROUP, also to ranks that are left out, which find it when they
 * call. If the arbiter has arrived and does not decide within a second, the next rank takes its
 * place.
 *
 * ARRIVE and GROUP must not wait for an answer to a challenge, because they wait in the socket of a
 * rank that has not called yet. Instead, all ranks know each other's random bytes (struct te__ends,
 * nonce) from the exchange of addresses, and number their connections: a number that is not above
 * all numbers seen is a replay.
 *
 * Ranks that did not arrive and have not ended may continue elsewhere. So a group that leaves out
 * such ranks must have more than half of the ranks that have not ended, or half including the
 * lowest.
 *
 * The decision precedes the creation of the successor. If the creation fails on some ranks, all of
 * them have the generation, and meet in the next recovery.
 */
#ifndef TE__LINEAGE_H
#define TE__LINEAGE_H

#include "libtecomm/meet/boot.h"

/* collective: b becomes the first communicator of a lineage */
int te__lineage_create(struct te__boot *b);
struct te__lineage *te__lineage_ref(struct te__lineage *l);
/* takes NULL, returns NULL */
struct te__lineage *te__lineage_unref(struct te__lineage *l);

/*
 * Decides or receives the next generation, until some seconds after the deadline. Errors:
 * -TE_ESTATE (this rank is not part of it), -ETIMEDOUT (too few ranks have arrived), -ENOMEM.
 */
int te__lineage_settle(struct te__lineage *l, int64_t deadline_ns);
/* records that a rank has ended: it is not waited for, and its arrivals are ignored */
void te__lineage_ended(struct te__lineage *l, int32_t number);
/* key of the generation's bootstrap, and the numbers of its ranks */
void te__lineage_key(const struct te__lineage *l, uint8_t key[TE__KEY_NBYTES]);
void te__lineage_numbers(const struct te__lineage *l, int32_t *ret_number);
int te__lineage_has(const struct te__lineage *l, int32_t number);
/* addresses of the generation's ranks, and duplicates of this rank's sockets */
int te__lineage_addrs(const struct te__lineage *l, struct te__addrs *ret_addrs,
		      struct te__listen *ret_listen);

#endif
