/* boot.h - what the files of bootstrap/ share. */
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
 * A provider: how ranks that know nothing of each other meet. One row of the table in boot.c. In
 * the functions b->rank, b->nranks are set, from the options or 0 where these leave it to the
 * environment.
 */
struct te__boot_provider {
	const char *name;
	/* whether the environment sets it up; left out: only the options choose it */
	int (*chosen)(void);
	/* sets b->rank and b->nranks if b->nranks is 0; else checks them */
	int (*who)(struct te__boot *b);
	/* for more than 1 rank: sets b->listen, b->key, and b->addrs or dial()'s addresses */
	int (*meet)(struct te__boot *b);
	void (*dial)(const struct te__boot *b, int32_t rank, struct te__dial *d);
	/* after all ranks are connected, or on failure; called again by te__boot_close() */
	void (*leave)(struct te__boot *b);
	/* when the bootstrap is closed */
	void (*close)(struct te__boot *b);
};

/* of te__boot_reopen(), with b->key set */
extern const struct te__boot_provider te__boot_again;
extern const struct te__boot_provider te__boot_callback;
extern const struct te__boot_provider te__boot_dir;
extern const struct te__boot_provider te__boot_id;
extern const struct te__boot_provider te__boot_pmix;

struct te__boot {
	const struct te__boot_provider *provider;
	struct te_comm_opts opts; /* of te__boot_open; its pointers are valid during that only */
	char name[64];
	int32_t rank, nranks, timeout_ms;
	int64_t begin, deadline; /* of te__boot_open */

	/* of the provider, until leave() */
	void *meeting;
	struct te_comm_root *root; /* of te__id_make() */
	struct te__listen listen;
	uint8_t key[TE__KEY_NBYTES]; /* of the streams; follows from what the ranks meet by */
	struct te__addrs *addrs;    /* of each rank */

	/* mesh.c */
	pthread_mutex_t lock;  /* held during an exchange */
	struct te__conn *peer; /* of each rank; this rank's has no descriptor */
	_Atomic uint8_t *state;
	char (*text)[TE__PEER_TEXT];
	uint64_t seq;
	int wake_fd; /* readable after a failure was recorded */
	int told;    /* peers know of the failure */

	/* the failure: fail_code is written last */
	pthread_mutex_t fail_lock;
	atomic_int fail_code;
	char fail_text[TE__REFUSE_MOST];

	/* nodes */
	uint8_t secret[TE__KEY_NBYTES];
	int32_t nnodes, nlocal, *node, *local_rank, *local;

	/* of several nodes, now or before a recovery; NULL: of one; and the numbers of its ranks */
	struct te__lineage *lineage;
	int32_t *number;

	/* ranks of one node: where each listens for what follows this bootstrap */
	const struct te__boot_from *from; /* of te__boot_reopen(), valid during that only */
	int again_fd;
	char (*again)[TE__LOCAL_NAME];
};

/*
 * Records the failure of the bootstrap, of which the first counts, and tells the peers. The text
 * makes sense on every rank. Returns the code, with a message that `what` and the name open.
 */
int te__boot_fail(struct te__boot *b, int code, const char *what, const char *fmt, ...)
	TE_PRINTF(4, 5);
/* the failure that is recorded, or 0 */
int te__boot_failed(const struct te__boot *b, const char *what);

/* sets b->rank and b->nranks from TE_COMM_RANK and TE_COMM_NRANKS, unless the options have them */
int te__who_by_environment(struct te__boot *b);
/* what this rank says of itself */
void te__boot_hello(const struct te__boot *b, struct te__hello *ret_h);
/* "rank 3 (host nid17, pid 4711)" */
void te__hello_text(const struct te__hello *h, char text[TE__PEER_TEXT]);
/* NULL, or why a hello of a rank cannot be of this group; me: what this side is */
const char *te__hello_differs(const struct te__hello *h, int32_t nranks, const char *me,
			      char text[TE__REFUSE_MOST]);
/* the same for the version of a frame's head */
const char *te__frame_differs(const struct te__frame *f, const char *me,
			      char text[TE__REFUSE_MOST]);

/* ranks meet by an id, that of the rank 0 which has called te__id_make() */
int te__id_make(struct te__boot *b, struct te_comm_id *ret_id);
int te__id_meet(struct te__boot *b, const struct te_comm_id *id);

/* "ranks 3, 5 of 8", of those with in[rank] == value; at most 160 bytes */
const char *te__ranks_text(const uint8_t *in, uint8_t value, int32_t nranks, char text[160]);
/* "30 s" */
const char *te__time_text(int64_t ns, char text[24]);

/* connects all ranks; then te__boot_allgather works */
int te__mesh_open(struct te__boot *b);
void te__mesh_close(struct te__boot *b);
/* its stream has ended, and it had not said before that it fails or closes */
int te__mesh_has_ended(struct te__boot *b, int32_t rank);

/* poll(2) until *wake_ns at the latest; errno values */
int te__poll(struct pollfd *p, size_t n, int64_t wake_ns);

#endif
