/* boot.c - opening a bootstrap by one of its providers, and which ranks share a node. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "libtecomm/bootstrap/bootstrap.h"

struct te__boot {
	int32_t rank, nranks, timeout_ms;
	uint8_t key[TE__BOOT_KEY_NBYTES];
};

int64_t te__boot_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int te__boot_open(const struct te_comm_opts *opts, struct te__boot **ret_boot)
{
	struct te__boot *b;

	if (opts->nranks > 1)
		return te__fail(-EOPNOTSUPP, "te_comm_create: only 1 rank is supported");
	b = te__calloc(1, sizeof(*b));
	if (!b)
		return te__fail(-ENOMEM, "te_comm_create: not enough memory");
	b->nranks = 1;
	b->timeout_ms = opts->timeout_ms ? opts->timeout_ms :
					   (int32_t)te__param_int(TE_PARAM_COMM_TIMEOUT_MS);
	if (getrandom(b->key, sizeof(b->key), 0) != (ssize_t)sizeof(b->key)) {
		te__free(b);
		return te__fail(-EIO, "te_comm_create: getrandom: no random bytes");
	}
	*ret_boot = b;
	return 0;
}

struct te__boot *te__boot_close(struct te__boot *b)
{
	te__free(b);
	return NULL;
}

int32_t te__boot_rank(const struct te__boot *b)
{
	return b->rank;
}

int32_t te__boot_nranks(const struct te__boot *b)
{
	return b->nranks;
}

const char *te__boot_provider(const struct te__boot *b)
{
	(void)b;
	return "single";
}

int te__boot_allgather(struct te__boot *b, const void *send, void *recv, size_t nbytes,
		       const char *what, int64_t deadline_ns)
{
	(void)b;
	(void)what;
	(void)deadline_ns;
	memmove(recv, send, nbytes);
	return 0;
}

int te__boot_barrier(struct te__boot *b, const char *what, int64_t deadline_ns)
{
	return te__boot_allgather(b, "", &(char){ 0 }, 0, what, deadline_ns);
}

int64_t te__boot_deadline(const struct te__boot *b)
{
	return te__boot_now() + (int64_t)b->timeout_ms * 1000000;
}

void te__boot_abort(struct te__boot *b, const char *why)
{
	(void)b;
	(void)why;
}

const uint8_t *te__boot_key(const struct te__boot *b)
{
	return b->key;
}

int32_t te__boot_nnodes(const struct te__boot *b)
{
	(void)b;
	return 1;
}

int32_t te__boot_node(const struct te__boot *b, int32_t rank)
{
	(void)b;
	(void)rank;
	return 0;
}

int32_t te__boot_local_rank(const struct te__boot *b, int32_t rank)
{
	(void)b;
	return rank;
}

int32_t te__boot_nlocal(const struct te__boot *b)
{
	(void)b;
	return 1;
}

int32_t te__boot_local(const struct te__boot *b, int32_t i)
{
	(void)b;
	return i;
}

const char *te__boot_peer(const struct te__boot *b, int32_t rank)
{
	(void)b;
	(void)rank;
	return "rank 0";
}
