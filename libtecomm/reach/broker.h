/*
 * broker.h - passes file descriptors between the ranks of a node, and sees it when one ends.
 *
 * The broker is a thread of the node's lowest rank. Each rank, that one too, is its client
 * by a socket of type SOCK_SEQPACKET, one message a packet:
 *
 *	HELLO	proof, rank		who the client is; first
 *	CONTROL				the reply has the descriptor of the control page
 *	PUBLISH	item, nbytes, +fd	the broker keeps the descriptor until all fetched it
 *	FETCH	item			the reply has it, once it is published
 *	BYE	code, text		the client leaves; code 0: in order, else it aborts
 *
 * The broker replies to each with a code and a text, but to BYE. It sends BYE when it leaves in
 * order. A connection that ends without BYE is a rank that has ended: the broker writes that to the
 * control page, and answers all that wait with -TE_EPEER. So do clients if the broker ends.
 *
 * The socket has an abstract name (local.h), which ranks are told by an exchange. Abstract names
 * have no permissions, so both sides require by SO_PEERCRED that the other has their user id. A
 * name is visible within one network namespace, which the ranks of a node share by definition. A
 * descriptor comes alone in its message, and MSG_CTRUNC is an error.
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

/* what the broker and its clients know beforehand */
struct te__node_info {
	int nlocal;
	const uint8_t *key;	 /* TE__KEY_NBYTES */
	char *at;		 /* TE__LOCAL_NAME bytes: where the broker listens */
	const char *const *name; /* of each local rank, for messages */
};

/* listens from then on, at the name that info->at gets; info must stay valid */
int te__broker_start(const struct te__node_info *info, struct te__broker **ret_broker);
/* tells the clients, ends the thread; takes NULL, returns NULL */
struct te__broker *te__broker_stop(struct te__broker *broker);

/* deadlines are of CLOCK_MONOTONIC, in ns. Errors: -ETIMEDOUT, -TE_EPEER, errno values */
int te__client_open(const struct te__node_info *info, int rank, int64_t deadline_ns,
		    struct te__client **ret_client);
/* *ret_control is valid until te__client_close(); the caller closes *ret_fd, unless it is NULL */
int te__client_control(struct te__client *c, int64_t deadline_ns,
		       struct te__control **ret_control, int *ret_fd);
/* the caller keeps fd; it is fetched by all other ranks, once each */
int te__client_publish(struct te__client *c, uint32_t item, uint64_t nbytes, int fd,
		       int64_t deadline_ns);
/* the caller closes *ret_fd; of: the rank that publishes it, for messages */
int te__client_fetch(struct te__client *c, uint32_t item, int of, uint64_t *ret_nbytes,
		     int *ret_fd, int64_t deadline_ns);
/* from now on a thread watches the connection, and no other function but close is called */
int te__client_watch(struct te__client *c);
/* code 0: the rank leaves in order; else it aborts, why. Takes NULL, returns NULL */
struct te__client *te__client_close(struct te__client *c, int code, const char *why);

/* what HELLO of the rank has as its key, and no other message of the communicator */
void te__broker_proof(const struct te__node_info *info, uint32_t rank,
		      uint8_t ret_proof[TE__WIRE_KEY_NBYTES]);

#endif
