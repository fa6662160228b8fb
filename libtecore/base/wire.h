/*
 * wire.h - messages between ted(8) and its clients: packets of a socket of type SOCK_SEQPACKET,
 * each with at most one file descriptor (daemon/ted.h). Not installed.
 *
 * A packet is struct te__wire; data follow it in some replies. ted answers each request with a
 * REPLY, which has a code and, if the code is negative, an error message as its text.
 */
#ifndef TE__WIRE_H
#define TE__WIRE_H

#include <stddef.h>
#include <stdint.h>

#include <te/export.h>

#define TE__WIRE_MAGIC 0x74656233u /* "teb3": the version of the protocol */
#define TE__WIRE_KEY_NBYTES 16
#define TE__WIRE_DATA_MAX 65280u /* bytes; 64 KiB with the struct */

enum te__wire_kind {
	TE__WIRE_HELLO = 1,
	TE__WIRE_REPLY = 5,
	TE__WIRE_GRANT,
	TE__WIRE_STATUS,
	TE__WIRE_JOBS,
	TE__WIRE_REVOKE,
	TE__WIRE_HOLD,
	TE__WIRE_WROTE,
};

struct te__wire {
	uint32_t magic;
	uint32_t kind;
	int32_t code;
	uint32_t rank;
	uint64_t nbytes;
	uint32_t item;
	uint8_t key[TE__WIRE_KEY_NBYTES];
	char text[212]; /* ends with a zero byte */
};

/* the data of the reply to JOBS is an array of these */
struct te__wire_job {
	uint64_t spill_nbytes, written_nbytes; /* written_nbytes: today */
	uint32_t id, uid;
	uint32_t nclients, nfiles;
	uint32_t revoked, reserved;
};

/* buffer for data after the struct */
struct te__wire_data {
	void *buf;
	size_t cap;
	size_t nbytes; /* bytes received */
};

/* send without waiting; fd: descriptor to send along, or -1. Errors: -EAGAIN, -errno, without a
 * message */
TE_EXPORT int te__wire_send(int sock, const struct te__wire *m, const void *data, size_t nbytes,
			    int fd);
/*
 * Returns 1 with a message, 0 at the end of the connection; -EAGAIN; -EPROTO (also for data if data
 * is NULL), -EMFILE (a descriptor did not arrive) and other codes with an error message. *ret_fd
 * must be -1; it may become a descriptor, which the caller closes, also after errors.
 */
TE_EXPORT int te__wire_recv(int sock, struct te__wire *m, struct te__wire_data *data, int *ret_fd);

/*
 * Connects to the socket of ted. Waits until the deadline for room in the queue of connections, and
 * for no other event.
 */
TE_EXPORT int te__wire_dial(const char *path, int64_t deadline_ns, int *ret_sock);
/* the key of a named job's offload files: equal for equal names */
void te__wire_job_key(const char *job, uint8_t ret_key[TE__WIRE_KEY_NBYTES]);

/* a request and its reply */
struct te__wire_call {
	int sock;
	const char *who;  /* name of the other end, for messages */
	const char *what; /* name of the request, for messages */
	const char *late; /* event that is missing at the deadline, for messages */
	int64_t deadline_ns; /* by CLOCK_MONOTONIC */
	int fd;		 /* descriptor to send along; or -1 */
	int wants_fd;	 /* 1: the reply has a descriptor; 0: it has none */
	struct te__wire_data *ret_data; /* buffer for data of the reply; or NULL */
	int ret_fd;	 /* descriptor of the reply, which the caller closes */
};
/*
 * m becomes the reply. Errors, with a message: the code of the reply, -ETIMEDOUT, -TE_EPEER (the
 * other end has disconnected), -EPROTO and other codes of te__wire_recv.
 */
TE_EXPORT int te__wire_call(struct te__wire_call *call, struct te__wire *m);

#endif
