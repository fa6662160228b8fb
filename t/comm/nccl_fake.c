/* t/comm/nccl_fake.c - see nccl_fake.h. Built as libnccl.so.2. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl_fake.h"

struct nccl_fake nccl_fake;

#define IN_PROGRESS 7

struct id {
	char bytes[128];
};

static const char magic[] = "the id of a test";
static pthread_barrier_t all; /* barrier of the ranks of the only communicator */

/* as in nccl.h 2.14 */
struct config {
	size_t size;
	unsigned int magic, version;
	int blocking;
};

struct comm {
	int nranks, rank;
	const char *fn; /* in progress */
	int npolls;	/* of that */
};

static const void *in[NCCL_FAKE_RANKS];

static int fails(const char *fn)
{
	return nccl_fake.fail && !strcmp(nccl_fake.fail, fn) ? 5 : 0;
}

TE_EXPORT int ncclGetVersion(int *ret);
int ncclGetVersion(int *ret)
{
	*ret = nccl_fake.version[nccl_fake.nversion++ & 1];
	return fails("ncclGetVersion");
}

TE_EXPORT int ncclGetUniqueId(struct id *ret);
int ncclGetUniqueId(struct id *ret)
{
	nccl_fake.nid++;
	memcpy(ret->bytes, magic, sizeof(magic));
	return fails("ncclGetUniqueId");
}

/* a call of a communicator that does not block */
static int begin(struct comm *c, const char *fn)
{
	c->npolls = 0;
	c->fn = fn;
	return IN_PROGRESS;
}

TE_EXPORT int ncclCommInitRankConfig(void **ret, int nranks, struct id id, int rank,
				     const struct config *config);
int ncclCommInitRankConfig(void **ret, int nranks, struct id id, int rank,
			   const struct config *config)
{
	struct comm *c;

	if (config->size != sizeof(*config) || config->magic != 0xcafebeef ||
	    config->version != 21400 || config->blocking)
		return 4;
	if (fails("ncclCommInitRankConfig") || memcmp(id.bytes, magic, sizeof(magic)))
		return 5;
	while (rank == nccl_fake.held_rank && nccl_fake.npoll < nccl_fake.held_polls)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	c = calloc(1, sizeof(*c));
	c->nranks = nranks;
	c->rank = rank;
	if (!rank)
		pthread_barrier_init(&all, NULL, (unsigned)nranks);
	nccl_fake.ninit++;
	*ret = c;
	return begin(c, "ncclCommInitRankConfig");
}

TE_EXPORT int ncclCommGetAsyncError(void *comm, int *ret);
int ncclCommGetAsyncError(void *comm, int *ret)
{
	struct comm *c = comm;
	int done = 1;

	nccl_fake.npoll++;
	if (!c->fn) {
		*ret = 0;
		return 0;
	}
	/* all ranks must have called it */
	if (!strcmp(c->fn, "ncclCommInitRankConfig"))
		done = nccl_fake.ninit == c->nranks;
	if (!strcmp(c->fn, "ncclCommFinalize"))
		done = nccl_fake.nfinalize == c->nranks;
	if (nccl_fake.stall && !strcmp(nccl_fake.stall, c->fn))
		done = 0;
	*ret = done && ++c->npolls > 3 ? 0 : IN_PROGRESS;
	if (!*ret && nccl_fake.late && !strcmp(nccl_fake.late, c->fn))
		*ret = 5;
	if (!*ret)
		c->fn = NULL;
	return fails("ncclCommGetAsyncError");
}

TE_EXPORT int ncclCommFinalize(void *comm);
int ncclCommFinalize(void *comm)
{
	nccl_fake.nfinalize++;
	return fails("ncclCommFinalize") ? 5 : begin(comm, "ncclCommFinalize");
}

TE_EXPORT int ncclCommDestroy(void *comm);
int ncclCommDestroy(void *comm)
{
	struct comm *c = comm;

	/* it would wait for operations in progress */
	if (c->fn)
		return 5;
	nccl_fake.ndestroy++;
	free(c);
	return 0;
}

TE_EXPORT int ncclCommAbort(void *comm);
int ncclCommAbort(void *comm)
{
	nccl_fake.nabort++;
	free(comm);
	return 0;
}

TE_EXPORT int ncclAllReduce(const void *from, void *out, size_t count, int dtype, int op,
			    void *comm, void *stream);
int ncclAllReduce(const void *from, void *out, size_t count, int dtype, int op, void *comm,
		  void *stream)
{
	struct comm *c = comm;
	float *sum;

	/* the call before has to be complete */
	if (fails("ncclAllReduce") || c->fn)
		return 5;
	if (nccl_fake.stall && !strcmp(nccl_fake.stall, "ncclAllReduce"))
		return begin(c, "ncclAllReduce");
	nccl_fake.nreduce++;
	if (!c->rank) {
		nccl_fake.dtype = dtype;
		nccl_fake.op = op;
	}
	nccl_fake.stream = stream;
	in[c->rank] = from;
	pthread_barrier_wait(&all);
	if (dtype == 7) { /* ncclFloat32 */
		sum = calloc(count, sizeof(*sum));
		for (int r = 0; r < c->nranks; r++)
			for (size_t i = 0; i < count; i++)
				sum[i] += ((const float *)in[r])[i];
		pthread_barrier_wait(&all);
		memcpy(out, sum, count * sizeof(*sum));
		free(sum);
	}
	pthread_barrier_wait(&all);
	return begin(c, "ncclAllReduce");
}

/* ---- messages: one of each pair of ranks in a group, of which all ranks have one ---- */

static struct end {
	const void *in;
	size_t nbytes;
} sent[NCCL_FAKE_RANKS][NCCL_FAKE_RANKS];

static _Thread_local struct group {
	struct comm *comm;
	void *out[NCCL_FAKE_RANKS];
	size_t nbytes[NCCL_FAKE_RANKS];
} group;

TE_EXPORT int ncclGroupStart(void);
int ncclGroupStart(void)
{
	group = (struct group){ NULL, { NULL }, { 0 } };
	return fails("ncclGroupStart");
}

TE_EXPORT int ncclSend(const void *from, size_t count, int dtype, int to, void *comm, void *stream);
int ncclSend(const void *from, size_t count, int dtype, int to, void *comm, void *stream)
{
	group.comm = comm;
	nccl_fake.stream = stream;
	sent[group.comm->rank][to] = (struct end){ from, count };
	return dtype != 1 || fails("ncclSend") ? 5 : 0; /* ncclUint8 */
}

TE_EXPORT int ncclRecv(void *out, size_t count, int dtype, int from, void *comm, void *stream);
int ncclRecv(void *out, size_t count, int dtype, int from, void *comm, void *stream)
{
	group.comm = comm;
	nccl_fake.stream = stream;
	group.out[from] = out;
	group.nbytes[from] = count;
	return dtype != 1 || fails("ncclRecv") ? 5 : 0;
}

TE_EXPORT int ncclGroupEnd(void);
int ncclGroupEnd(void)
{
	struct comm *c = group.comm;

	nccl_fake.ngroup++;
	if (fails("ncclGroupEnd") || fails("ncclSend") || fails("ncclRecv") || c->fn)
		return 5;
	pthread_barrier_wait(&all);
	for (int r = 0; r < c->nranks; r++) {
		if (group.out[r] && sent[r][c->rank].nbytes != group.nbytes[r])
			return 5;
		if (group.out[r])
			memcpy(group.out[r], sent[r][c->rank].in, group.nbytes[r]);
	}
	pthread_barrier_wait(&all);
	return begin(c, "ncclGroupEnd");
}

TE_EXPORT const char *ncclGetErrorString(int code);
const char *ncclGetErrorString(int code)
{
	return code == 5 ? "invalid usage" : "another code";
}

TE_EXPORT const char *ncclGetLastError(void *comm);
const char *ncclGetLastError(void *comm)
{
	return comm ? "of a communicator" : "of none";
}
