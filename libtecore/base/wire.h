/*
 * wire.h - messages between a broker and its clients: packets of a socket of type SOCK_SEQPACKET,
 * each with at most one file descriptor. Not installed.
 *
 * Two services have these messages: the thread that passes descriptors between the ranks of a node
 * (libtecomm/reach/broker.h), and ted(8) (daemon/ted.h). A packet is struct te__wire, followed by
 * data in the replies that have some. The service answers each request but BYE with a REPLY, which
 * has a code and, if that is negative, an error message as its text.
 */
#ifndef TE__WIRE_H
#define TE__WIRE_H

#include <stddef.h>
#include <stdint.h>

#include <te/export.h>

#define TE__WIRE_MAGIC 0x74656232u /* "teb2": the version of the protocol */
#define TE__WIRE_KEY_NBYTES 16
#define TE__WIRE_DATA_MAX 65280u /* with the struct, 64 KiB */

enum te__wire_kind {
	TE__WIRE_HELLO = 1,
	TE__WIRE_CONTROL,
	TE__WIRE_PUBLISH,
	TE__WIRE_FETCH,
	TE__WIRE_BYE,
	TE__WIRE_REPLY,
	/* to ted(8) only */
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

/* ted(8): the data of the reply to JOBS are any number of these */
struct te__wire_job {
	uint64_t spill_nbytes, written_nbytes; /* written: today */
	uint32_t id, uid;
	uint32_t nclients, nfiles;
	uint32_t revoked, reserved;
};

/* what follows the struct */
struct te__wire_data {
	void *buf;
	size_t cap;
	size_t nbytes; /* received */
};

/* at once or -EAGAIN; -errno, without a message; fd: to send along, or -1 */
TE_EXPORT int te__wire_send(int sock, const struct te__wire *m, const void *data, size_t nbytes,
			    int fd);
/*
 * 1 with a message; 0 at the end of the connection; -EAGAIN; -EPROTO (data NULL: also if there is
 * data), -EMFILE (a descriptor did not arrive) and other errors with an error message. *ret_fd is
 * -1 before; afterwards it may be a descriptor to be closed, also after errors.
 */
TE_EXPORT int te__wire_recv(int sock, struct te__wire *m, struct te__wire_data *data, int *ret_fd);

/*
 * Connects to a socket that has a path; who: listens there, for messages. Until the deadline it
 * waits for room in the queue of connections, and for nothing else.
 */
TE_EXPORT int te__wire_dial(const char *path, const char *who, int64_t deadline_ns, int *ret_sock);
/* the key of a job with a name: the same for the same texts */
TE_EXPORT void te__wire_job_key(const char *purpose, const char *job, const char *name,
				uint8_t ret_key[TE__WIRE_KEY_NBYTES]);

/* a request and its reply */
struct te__wire_call {
	int sock;
	const char *who;  /* is at the other end, for messages */
	const char *what; /* is requested */
	const char *late; /* what has not happened at the deadline */
	int64_t deadline_ns; /* of CLOCK_MONOTONIC */
	int fd;		 /* sent along; or -1 */
	int wants_fd;	 /* 1: the reply has a descriptor; 0: it has none */
	struct te__wire_data *ret_data; /* of the reply; or NULL */
	int ret_fd;	 /* of the reply, to be closed */
};
/*
 * m becomes the reply. Errors with a message: the code of the reply, -ETIMEDOUT, -TE_EPEER if the
 * other end has gone, -EPROTO and others of te__wire_recv.
 */
TE_EXPORT int te__wire_call(struct te__wire_call *call, struct te__wire *m);

#endif
