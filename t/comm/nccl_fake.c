/* t/comm/nccl_fake.c - see nccl_fake.h. Built as libnccl.so.2. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_fake.h"

struct nccl_fake nccl_fake;

struct id {
	char bytes[128];
};

static const char magic[] = "the id of a test";
static pthread_barrier_t all; /* of the ranks of the only communicator */

struct comm {
	int nranks, rank;
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

TE_EXPORT int ncclCommInitRank(void **ret, int nranks, struct id id, int rank);
int ncclCommInitRank(void **ret, int nranks, struct id id, int rank)
{
	struct comm *c;

	if (fails("ncclCommInitRank") || memcmp(id.bytes, magic, sizeof(magic)))
		return 5;
	c = malloc(sizeof(*c));
	*c = (struct comm){ nranks, rank };
	if (!rank)
		pthread_barrier_init(&all, NULL, (unsigned)nranks);
	nccl_fake.ninit++;
	while (nccl_fake.ninit < nranks)
		;
	*ret = c;
	return 0;
}

TE_EXPORT int ncclCommDestroy(void *comm);
int ncclCommDestroy(void *comm)
{
	nccl_fake.ndestroy++;
	free(comm);
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
	const struct comm *c = comm;
	float *sum;

	if (fails("ncclAllReduce"))
		return 5;
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
	return 0;
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
