/*
 * broker.h - passes file descriptors between the ranks of a node, and detects that a rank has
 * ended.
 *
 * The broker is a thread of the node's lowest rank. Each rank, that one too, is its client
 * by a socket of type SOCK_SEQPACKET, one message a packet:
 *	HELLO	proof, rank		identifies the client; first. The reply has the
 *					descriptor of the control page
 *	PUBLISH	item, nbytes, +fd	the broker keeps the descriptor until all fetched it
 *	FETCH	item			the reply has it, once it is published
 *	BYE	code, text		the client leaves; code 0: in order, else it aborts
 *
 * The broker replies with a code and a text, except to BYE. It sends BYE when it leaves in order. A
 * connection that ends without BYE means that the rank has ended: the broker writes this to the
 * control page, and answers waiting requests with -TE_EPEER. Clients do the same if the broker
 * ends.
 *
 * The socket has an abstract name (local.h), which ranks get by an exchange. Abstract names have no
 * permissions, so both sides check by SO_PEERCRED that the other has the same user id. A name is
 * visible within one network namespace, which the ranks of a node share by definition. A message
 * has one descriptor at most, and MSG_CTRUNC is an error.
 */
#ifndef TE__BROKER_H
#define TE__BROKER_H

#include <stddef.h>
#include <stdint.h>

#include "libtecomm/meet/auth.h"
#include "libtecomm/meet/local.h"
#include "libtecomm/reach/control.h"
#include "libtecore/base/wire.h"

struct te__broker;
struct te__client;

/* information that the broker and its clients share */
struct te__node_info {
	int nlocal;
	const uint8_t *key;	 /* TE__KEY_NBYTES */
	char *at;		 /* TE__LOCAL_NAME bytes: the broker's name */
	const char *const *name; /* [nlocal] names of the local ranks, for messages */
};
/* starts to listen, and sets info->at to the name; info must stay valid */
int te__broker_start(const struct te__node_info *info, struct te__broker **ret_broker);
/* sends BYE to the clients, ends the thread; takes NULL, returns NULL */
struct te__broker *te__broker_stop(struct te__broker *broker);

/* deadlines are by CLOCK_MONOTONIC, in ns. Errors: -ETIMEDOUT, -TE_EPEER, errno values */
/* ret_fd: the descriptor of the control page, which the caller closes; or NULL */
int te__client_open(const struct te__node_info *info, int rank, int64_t deadline_ns,
		    struct te__client **ret_client, int *ret_fd);
/* the control page, valid until te__client_close() */
struct te__control *te__client_control(const struct te__client *c);
/* the caller keeps fd; every other rank fetches it once */
int te__client_publish(struct te__client *c, uint32_t item, uint64_t nbytes, int fd,
		       int64_t deadline_ns);
/* the caller closes *ret_fd; of: the rank that publishes it, for messages */
int te__client_fetch(struct te__client *c, uint32_t item, int of, uint64_t *ret_nbytes,
		     int *ret_fd, int64_t deadline_ns);
/* start a thread that watches the connection; afterwards only te__client_close() may be called */
int te__client_watch(struct te__client *c);
/* code 0: the rank leaves in order; else it aborts for the reason why. Takes NULL, returns NULL */
struct te__client *te__client_close(struct te__client *c, int code, const char *why);

/* the key in a rank's HELLO; no other message of the communicator has it */
void te__broker_proof(const struct te__node_info *info, uint32_t rank,
		      uint8_t ret_proof[TE__WIRE_KEY_NBYTES]);

#endif
