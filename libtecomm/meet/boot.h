/* boot.h - the bootstrap, shared by the files of meet/. */
#ifndef TE__BOOT_H
#define TE__BOOT_H

#include <pthread.h>
#include <stdatomic.h>

#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/meet/dial.h"
#include "libtecomm/meet/local.h"

#define TE__RANKS_MAX 4096 /* each rank has a socket to each other one */
#define TE__PEER_TEXT 112

/*
 * A provider: a way for ranks to find each other's addresses; a row of the table in boot.c. When
 * its functions are called, b->rank and b->nranks are set from the options, or 0 if the environment
 * decides.
 */
struct te__boot_provider {
	const char *name;
	/* 1: the environment configures it; absent: only the options choose it */
	int (*chosen)(void);
	/* sets b->rank and b->nranks if b->nranks is 0; else checks them */
	int (*who)(struct te__boot *b);
	/* for more than 1 rank: sets b->listen, b->key, and b->addrs or the addresses of dial() */
	int (*meet)(struct te__boot *b);
	void (*dial)(const struct te__boot *b, int32_t rank, struct te__dial *d);
	/* called after all ranks are connected, or on failure; again by te__boot_close() */
	void (*leave)(struct te__boot *b);
	/* called when the bootstrap is closed */
	void (*close)(struct te__boot *b);
};
/* the provider for te__boot_reopen(), with b->key set */
extern const struct te__boot_provider te__boot_again;
extern const struct te__boot_provider te__boot_callback;
extern const struct te__boot_provider te__boot_dir;
extern const struct te__boot_provider te__boot_id;
extern const struct te__boot_provider te__boot_pmix;

struct te__boot {
	const struct te__boot_provider *provider;
	struct te_comm_opts opts; /* for te__boot_open, which its pointers do not outlive */
	char name[64];
	int32_t rank, nranks, timeout_ms;
	int64_t begin, deadline; /* times of te__boot_open, by te__boot_now() */
	/* state of the provider, until leave() */
	void *meeting;
	struct te_comm_root *root; /* from te__id_make() */
	struct te__listen listen;
	uint8_t key[TE__KEY_NBYTES]; /* key of the streams, derived from the provider's secret */
	struct te__addrs *addrs;    /* [nranks] */
	/* mesh.c */
	pthread_mutex_t lock;  /* held during an exchange */
	struct te__conn *peer; /* [nranks] connections; this rank's has no descriptor */
	_Atomic uint8_t *state;
	char (*text)[TE__PEER_TEXT];
	uint64_t seq;
	int wake_fd; /* readable after a failure was recorded */
	int told;    /* 1: the failure was sent to the peers */

	/* the failure: fail_code is written last */
	pthread_mutex_t fail_lock;
	atomic_int fail_code;
	char fail_text[TE__REFUSE_MOST];

	/* nodes */
	uint8_t secret[TE__KEY_NBYTES];
	int32_t nnodes, nlocal, *node, *local_rank, *local;

	/* set if the ranks span several nodes or did before a recovery; NULL on one node */
	struct te__lineage *lineage;
	int32_t *number; /* [nranks] numbers of the ranks in the lineage */
	/* ranks of one node: local sockets that listen for the next bootstrap, and their names */
	const struct te__boot_from *from; /* argument of te__boot_reopen(), valid during it only */
	int again_fd;
	int32_t npasses; /* calls of te__pass() */
	char (*again)[TE__LOCAL_NAME];
};

/*
 * Records a failure of the bootstrap, and tells the peers; the first one counts. The text must be
 * meaningful on every rank. Returns the code, with a message that begins with `what` and the name.
 */
int te__boot_fail(struct te__boot *b, int code, const char *what, const char *fmt, ...)
	TE_PRINTF(4, 5);
/* sends the failure to the peers, once; under b->lock, or before other threads know of b */
void te__boot_tell(struct te__boot *b);
/* the recorded failure, or 0 */
int te__boot_failed(const struct te__boot *b, const char *what);

/* an error message of te_comm_create() that begins with the communicator's name */
#define te__create_fail(b, code, fmt, ...) \
	te__fail(code, "te_comm_create: %s: " fmt, (b)->name, ##__VA_ARGS__)

/* sets b->rank and b->nranks from TE_COMM_RANK and TE_COMM_NRANKS, unless the options have them */
int te__who_by_environment(struct te__boot *b);
/* describes this rank */
void te__boot_hello(const struct te__boot *b, struct te__hello *ret_h);
/* "rank 3 (host nid17, pid 4711)" */
void te__hello_text(const struct te__hello *h, char text[TE__PEER_TEXT]);
/* NULL, or why a hello cannot come from a rank of this group; me: name of this side */
const char *te__hello_differs(const struct te__hello *h, int32_t nranks, const char *me,
			      char text[TE__REFUSE_MOST]);
/* te__hello_differs() for the version of a frame's head */
const char *te__frame_differs(const struct te__frame *f, const char *me,
			      char text[TE__REFUSE_MOST]);

/* let ranks meet by an id; rank 0 has called te__id_make() */
int te__id_make(struct te__boot *b, struct te_comm_id *ret_id);
int te__id_meet(struct te__boot *b, const struct te_comm_id *id);

/* "ranks 3, 5 of 8" for ranks whose in is 1, else 0; at most 160 bytes */
const char *te__ranks_text(const uint8_t *in, int32_t nranks, char text[160]);
/* "30 s" */
const char *te__time_text(int64_t ns, char text[24]);

/* join.c: connects all ranks; then te__boot_allgather works */
int te__mesh_open(struct te__boot *b);
/* input and output of a peer that is up; a frame of an exchange stays for that */
int te__mesh_step(struct te__boot *b, int32_t rank, short revents, const char *what);
void te__mesh_close(struct te__boot *b);
/* records that a rank's stream has ended without a failure or BYE before */
int te__mesh_has_ended(struct te__boot *b, int32_t rank);

/* poll(2) until wake_ns at the latest; errno values */
int te__poll(struct pollfd *p, size_t n, int64_t wake_ns);

#endif
