/*
 * link.h - messages between this rank and ranks of other nodes. A transport (tcp.c, verbs/) is a
 * row of functions; link.c has the code common to all transports, such as waiting.
 *
 * Messages between two ranks are a sequence in each direction: the n-th send of one is received by
 * the n-th receive of the other, with the same number of bytes. Transfers are queued and complete
 * in order, so two counters for each peer tell which buffers are free.
 *
 * One thread at a time calls the functions of a link, except wake(). It calls te__link_poll() at
 * least once a heartbeat, also while nothing is queued: a peer that has ended or cannot be reached
 * is detected on idle links too, within two heartbeats.
 */
#ifndef TE__LINK_H
#define TE__LINK_H

#include "libtecomm/meet/bootstrap.h"

#define TE__LINK_QUEUE 64 /* limit of incomplete transfers for each peer and direction */

struct te__link_opts {
	struct te__boot *boot; /* for addresses: opening is collective over its ranks */
	const int32_t *peers;  /* [npeers] ranks to exchange messages with, ascending */
	int32_t npeers;
	/* host memory that contains all buffers of transfers, which stays until the link is closed:
	 * a transport registers it once */
	void *mem;
	size_t mem_nbytes;
	/* device memory that may also contain buffers if the link is direct, or NULL; its dma-buf,
	 * or -1 if it is memory of the process */
	void *device;
	size_t device_nbytes;
	int device_fd; /* may be closed after the link was opened */
	const char *pci; /* PCI address of the GPU that data comes from; NULL or "": none */
	int32_t timeout_ms; /* limit of a wait, and of a peer's silence */
	int32_t heartbeat_ms; /* a peer that is silent for two heartbeats has failed */
};

struct te__link {
	const struct te__link_ops *ops;
	struct te__link_opts o;
	struct te__link_counts {
		uint64_t queued, complete;
	} *sends, *receives; /* [npeers] each, by position in peers */
	int direct; /* 1: transfers accept device memory */
	int code; /* code of the first failure; sticky, with its message */
	char why[400];
};

struct te__link_ops {
	const char *name;
	/* 0: this machine can use it; otherwise a code, and the reason is recorded */
	int (*probe)(void);
	/* Collective, bounded by te__boot_deadline(). l is filled in, and begins the transport's
	 * struct of nbytes, the rest of which is zeros. On failure the caller calls close. */
	size_t nbytes;
	int (*open)(struct te__link *l);
	void (*close)(struct te__link *l);
	/* i: position in peers. nbytes may be 0. The number of a transfer is the queued counter,
	 * which the caller increments afterwards. */
	int (*send)(struct te__link *l, int32_t i, const void *buf, size_t nbytes);
	int (*recv)(struct te__link *l, int32_t i, void *buf, size_t nbytes);
	/* Makes progress and adds to the complete counters; waits for progress at most until
	 * deadline_ns. Any error ends the link: te__link_fail(). wake() ends a wait. */
	int (*poll)(struct te__link *l, int64_t deadline_ns);
	void (*wake)(struct te__link *l); /* any thread */
};

extern const struct te__link_ops te__link_tcp, te__link_verbs;

/* opts and its peers are copied */
int te__link_open(const struct te__link_ops *ops, const struct te__link_opts *opts,
		  struct te__link **ret_link);
/* takes NULL, returns NULL */
struct te__link *te__link_close(struct te__link *l);

/*
 * Queue a transfer with peer i. buf must not be changed (send) or used (receive) until it is
 * complete. -EAGAIN: TE__LINK_QUEUE transfers are incomplete.
 */
int te__link_send(struct te__link *l, int32_t i, const void *buf, size_t nbytes);
int te__link_recv(struct te__link *l, int32_t i, void *buf, size_t nbytes);
int te__link_poll(struct te__link *l, int64_t deadline_ns);
/*
 * Wait until n sends to (receives from) peer i have completed since the link was opened. -ETIMEDOUT
 * names the peer, and ends the link like each failure; -TE_EPEER: the peer has ended.
 */
int te__link_wait_sends(struct te__link *l, int32_t i, uint64_t n);
int te__link_wait_receives(struct te__link *l, int32_t i, uint64_t n);

/* TE_COMM_HEARTBEAT_MS, limited to 1 to INT32_MAX */
int32_t te__link_heartbeat_ms(void);

/* for transports: records the first failure and its message, and returns its code */
int te__link_fail(struct te__link *l, int code, const char *fmt, ...) TE_PRINTF(3, 4);

#endif
