/*
 * lineage.h - which ranks of a failed communicator of several nodes are in the one that follows it.
 *
 * A lineage is a communicator and its successors. Each rank of the first one has a number in it,
 * its rank there, and listens at an address that all know until it releases the last communicator
 * of the lineage. So a connection that is refused is a rank that has ended, or has left for good.
 *
 * Generations are sets of ranks, each a part of the one before. A rank that recovers connects to
 * all ranks of its generation and says ARRIVE, again if the connection ends, and does so until the
 * next generation is decided. The lowest rank that has not ended is the arbiter: when every other
 * one has arrived or ended, or at the deadline of the first, it decides which ranks are the next
 * generation and sends that as GROUP, also to those left out, who find it when they look. If the
 * arbiter has arrived and does not decide within a second, the next rank takes its place.
 *
 * ARRIVE and GROUP wait in the socket of a rank that has not called yet, so that they cannot wait
 * for its answer to a challenge. Instead, all ranks know the random bytes of each other one (struct
 * te__ends, nonce) from the exchange of addresses, and number the connections that they make: a
 * number that a rank has seen, or a lower one, is a copy of what was sent before.
 *
 * Ranks that were not heard of and have not ended may go on elsewhere, so that a group which leaves
 * out any has more than half of the ranks that have not ended, or half with the lowest of these.
 *
 * The decision comes before the successor is created. If that fails on some ranks, also if it does
 * so on one and not on others, all have the generation, and meet in the next recovery.
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
 * Decides the next generation, or is told of it, by the deadline and some seconds. Errors:
 * -TE_ESTATE (this rank is not part of it), -ETIMEDOUT (too few ranks have arrived), -ENOMEM.
 */
int te__lineage_settle(struct te__lineage *l, int64_t deadline_ns);
/* that rank of the lineage has ended: it is not waited for, nor is any arrival of it believed */
void te__lineage_ended(struct te__lineage *l, int32_t number);
/* for the bootstrap of that generation: its key, the numbers of its ranks */
void te__lineage_key(const struct te__lineage *l, uint8_t key[TE__KEY_NBYTES]);
void te__lineage_numbers(const struct te__lineage *l, int32_t *ret_number);
int te__lineage_has(const struct te__lineage *l, int32_t number);
/* where its ranks listen, and this one's sockets, of which *ret_listen has duplicates */
int te__lineage_addrs(const struct te__lineage *l, struct te__addrs *ret_addrs,
		      struct te__listen *ret_listen);

#endif
