/*
 * mail.h - messages between any two ranks of a communicator whose nodes do not map each other's
 * memory, for te_comm_send(3) and the other functions of that page.
 *
 * A thread of each rank has a link to all other ranks, apart from rails, so messages of ranks and
 * pieces of collectives do not wait for each other. A message is a head, with its number and
 * signature, and then chunks. The receiver expects the head first, compares it, and only then
 * expects chunks, so it names a message of another size instead of receiving it.
 *
 * Chunks pass through memory of the mail, two for each rank and direction, of a piece of
 * TE_COMM_STAGE at most. All ends of an operation are in progress together, and the messages of two
 * ranks keep their order. A send is complete when its last chunk is in that memory.
 */
#ifndef TE__MAIL_H
#define TE__MAIL_H

#include "kernels/te_k.h"
#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/pool/pool.h"
#include "libtecomm/reach/link/link.h"

struct te__mail;

/* Collective, as te__nodes_create(): a link by this transport; piece: equal on all ranks */
int te__mail_create(struct te__boot *boot, struct te__pool *pool, const struct te__link_ops *ops,
		    size_t piece, struct te__mail **ret_mail);
/* start the thread, after all ranks have the link */
int te__mail_start(struct te__mail *m);
/* call it after the work of the context has ended; takes NULL, returns NULL */
struct te__mail *te__mail_destroy(struct te__mail *m);

/* any thread: the thread of the mail looks for an abort */
void te__mail_wake(struct te__mail *m);
/* in a host call: transfers n ends of messages with other ranks, and waits until they are complete
 * or the communicator has failed */
void te__mail_transfer(struct te__mail *m, const struct te_k_comm_end *ends, int32_t n);

#endif
