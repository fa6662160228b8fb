/*
 * link.h - messages between this rank and ranks of other nodes. A transport (tcp.c, verbs/) is a
 * row of functions; what all transports have in common, waiting among it, is in link.c.
 *
 * Between two ranks messages are a sequence in each direction: the n-th send of one is received by
 * the n-th receive of the other, and both give the same number of bytes. Transfers are queued and
 * complete in order, so two counters a peer say which buffers are free.
 *
 * One thread at a time calls the functions of a link, but for wake(). It calls
 * te__link_poll() at least once a heartbeat, also while nothing is queued: a peer that has ended
 * or cannot be reached is seen on idle links too, within two heartbeats.
 */
#ifndef TE__LINK_H
#define TE__LINK_H

#include "libtecomm/meet/bootstrap.h"

#define TE__LINK_QUEUE 64 /* transfers a peer and direction that have not completed */

struct te__link_opts {
	struct te__boot *boot; /* for addresses: opening is collective over its ranks */
	const int32_t *peers;  /* its ranks that messages are exchanged with, ascending */
	int32_t npeers;
	/* Every buffer of a transfer is within this memory of the host, which stays until the link
	 * is closed: a transport registers it once. */
	void *mem;
	size_t mem_nbytes;
	/* And, unless device is NULL, within this one, if the link is direct: of a device, with its
	 * dma-buf, or -1 where it is memory of the process. */
	void *device;
	size_t device_nbytes;
	int device_fd; /* may be closed when the link is open */
	const char *pci; /* address of the GPU that data comes from; NULL or "": it is none */
	int32_t timeout_ms; /* of a wait, and of a peer that acknowledges nothing */
	int32_t heartbeat_ms; /* a peer that is silent for two of them has failed */
};

struct te__link {
	const struct te__link_ops *ops;
	struct te__link_opts o;
	struct te__link_counts {
		uint64_t queued, complete;
	} *sends, *receives; /* [npeers] each, by position in peers */
	int direct; /* transfers take memory of the device */
	int code; /* of the first failure; sticky, with its message */
	char why[400];
};

struct te__link_ops {
	const char *name;
	/* 0: this machine can use it; otherwise a code, and the reason in one sentence */
	int (*probe)(char *ret_why, size_t nbytes);
	/* Collective, bounded by te__boot_deadline(). l is filled in, and begins a struct of the
	 * transport of nbytes, whose rest is zeros. On failure the caller calls close. */
	size_t nbytes;
	int (*open)(struct te__link *l);
	void (*close)(struct te__link *l);
	/* i: position in peers. A transfer of 0 bytes is one too. Its number is the queued counter,
	 * which the caller increments afterwards. */
	int (*send)(struct te__link *l, int32_t i, const void *buf, size_t nbytes);
	int (*recv)(struct te__link *l, int32_t i, void *buf, size_t nbytes);
	/* Makes progress, adds to the complete counters, waits at most until deadline_ns if there
	 * is none. Any error ends the link: te__link_fail(). wake() ends a wait. */
	int (*poll)(struct te__link *l, int64_t deadline_ns);
	void (*wake)(struct te__link *l); /* any thread */
};

extern const struct te__link_ops te__link_tcp, te__link_verbs;

/* by name, in the order of choice; NULL after the last */
const struct te__link_ops *te__link_transport(int i);
/* choices of TE_COMM_TRANSPORT; the transports above follow */
enum { TE__LINK_AUTO, TE__LINK_FABRIC, TE__LINK_FIRST };
/* the number of that which TE_COMM_TRANSPORT names; -1: none of them */
int te__link_wanted(void);

/* opts is copied, its peers too */
int te__link_open(const struct te__link_ops *ops, const struct te__link_opts *opts,
		  struct te__link **ret_link);
/* takes NULL, returns NULL */
struct te__link *te__link_close(struct te__link *l);

/*
 * Queue a transfer with peer i. buf is not to be changed (send) or used (receive) until it is
 * complete. -EAGAIN: TE__LINK_QUEUE transfers are under way.
 */
int te__link_send(struct te__link *l, int32_t i, const void *buf, size_t nbytes);
int te__link_recv(struct te__link *l, int32_t i, void *buf, size_t nbytes);
int te__link_poll(struct te__link *l, int64_t deadline_ns);
/*
 * Until `n` sends to (receives from) peer i are complete since the link was opened. -ETIMEDOUT
 * names the peer, and ends the link as each failure does; -TE_EPEER: it has ended.
 */
int te__link_wait_sends(struct te__link *l, int32_t i, uint64_t n);
int te__link_wait_receives(struct te__link *l, int32_t i, uint64_t n);

/* TE_COMM_HEARTBEAT_MS, from 1 to INT32_MAX */
int32_t te__link_heartbeat_ms(void);

/* for transports: records the first failure and its message, and returns its code */
int te__link_fail(struct te__link *l, int code, const char *fmt, ...) TE_PRINTF(3, 4);

#endif
