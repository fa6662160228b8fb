/*
 * mpi.c - te_comm in an MPI program: all-reduce by both, compared and timed.
 *
 * MPI_Allgather tells the ranks of te_comm_create(3) of each other; MPI is not used by te_comm
 * afterwards. For each size, each of a number of rounds times calls of te_comm_allreduce(3) and
 * te_stream_sync(3), then calls of MPI_Allreduce, of the same FP32 arrays in ordinary memory. The
 * arrays are taken in turn from 64 MiB, so that large ones are not in a cache.
 *
 *	mpicc mpi.c -o mpi $(pkg-config --cflags --libs libtecomm)
 *	mpirun -n 2 ./mpi [LARGEST_BYTES [ROUNDS]]
 *
 * Prints, for each size, medians over the rounds of the slowest rank's time of a call. Exits 0 if
 * the sums of both are the same, bit by bit, which is so for two ranks: more are added in rank
 * order by te_comm, and in any order by MPI.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <te/collective.h>
#include <te/comm.h>
#include <te/ctx.h>
#include <te/errno.h>
#include <te/stream.h>

#define MEMORY ((size_t)64 << 20) /* bytes of inputs, and of outputs of each library */
#define MAX_ROUNDS 101

struct bench {
	struct te_ctx *ctx;
	struct te_comm *comm;
	struct te_stream *stream;
	float *in, *by_te, *by_mpi;
	int rank, nranks, nrounds;
};

static int allgather(void *user, const void *send, void *recv, size_t nbytes)
{
	(void)user;
	return MPI_Allgather(send, (int)nbytes, MPI_BYTE, recv, (int)nbytes, MPI_BYTE,
			     MPI_COMM_WORLD) == MPI_SUCCESS ? 0 : -TE_EPEER;
}

static int open_te(struct bench *b)
{
	struct te_comm_bootstrap boot = TE_COMM_BOOTSTRAP_INIT;
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;
	int r;

	boot.allgather = allgather;
	o.rank = b->rank;
	o.nranks = b->nranks;
	o.bootstrap = &boot;
	co.backend = "host";
	r = te_ctx_create(&co, &b->ctx);
	if (!r)
		r = te_comm_create(b->ctx, &o, &b->comm);
	if (!r)
		r = te_stream_create(b->ctx, &b->stream);
	return r;
}

static void close_te(struct bench *b)
{
	te_stream_unref(b->stream);
	te_comm_unref(b->comm);
	te_ctx_unref(b->ctx);
}

/* microseconds of a call, of the slowest rank; < 0: an error, on all ranks */
static double measure(const struct bench *b, size_t count, int ncalls, int by_mpi)
{
	const size_t narrays = MEMORY / (count * sizeof(float));
	double t, us;
	int r = 0;

	MPI_Barrier(MPI_COMM_WORLD);
	t = MPI_Wtime();
	for (int i = 0; i < ncalls && !r; i++) {
		const size_t at = (size_t)i % narrays * count;

		if (by_mpi) {
			MPI_Allreduce(b->in + at, b->by_mpi + at, (int)count, MPI_FLOAT, MPI_SUM,
				      MPI_COMM_WORLD);
			continue;
		}
		r = te_comm_allreduce(b->comm, b->stream, b->in + at, b->by_te + at,
				      (int64_t)count, TE_DTYPE_FP32, TE_COMM_SUM, NULL);
		if (!r)
			r = te_stream_sync(b->stream);
	}
	us = r ? 1e300 : (MPI_Wtime() - t) * 1e6 / ncalls;
	MPI_Allreduce(MPI_IN_PLACE, &us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	return us < 1e300 ? us : -1.0;
}

static int ascending(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* a line of the table; -1: an error, or sums that differ */
static int compare(const struct bench *b, size_t count)
{
	const size_t nbytes = count * sizeof(float);
	const int ncalls = nbytes < 4096 ? 1000 : 4096000 / (int)nbytes + 8;
	double te[MAX_ROUNDS], mpi[MAX_ROUNDS];
	int r;

	memset(b->by_te, 0xff, MEMORY);
	memset(b->by_mpi, 0xff, MEMORY);
	for (int i = 0; i < b->nrounds; i++) {
		te[i] = measure(b, count, ncalls, 0);
		mpi[i] = measure(b, count, ncalls, 1);
		if (te[i] < 0.0)
			return -1;
	}
	qsort(te, (size_t)b->nrounds, sizeof(*te), ascending);
	qsort(mpi, (size_t)b->nrounds, sizeof(*mpi), ascending);
	r = b->nranks > 2 ? 0 : memcmp(b->by_te, b->by_mpi, MEMORY);
	if (!b->rank)
		printf("%9zu %10.2f %10.2f %6.2f%s\n", nbytes, te[b->nrounds / 2],
		       mpi[b->nrounds / 2], te[b->nrounds / 2] / mpi[b->nrounds / 2],
		       r ? "  the sums differ" : "");
	return r ? -1 : 0;
}

int main(int argc, char **argv)
{
	struct bench b = { .nrounds = argc > 2 ? atoi(argv[2]) : 21 };
	const size_t most = argc > 1 ? strtoul(argv[1], NULL, 0) : (size_t)16 << 20;
	int r;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &b.nranks);
	if (b.nrounds < 1 || b.nrounds > MAX_ROUNDS)
		b.nrounds = MAX_ROUNDS;
	b.in = malloc(MEMORY);
	b.by_te = malloc(MEMORY);
	b.by_mpi = malloc(MEMORY);
	r = b.in && b.by_te && b.by_mpi ? open_te(&b) : -1;
	srand((unsigned)b.rank + 1);
	for (size_t i = 0; !r && i < MEMORY / sizeof(*b.in); i++)
		b.in[i] = (float)rand() / (float)RAND_MAX - 0.5f;
	if (!r && !b.rank)
		printf("    bytes      te us     MPI us  ratio\n");
	for (size_t nbytes = 8; !r && nbytes <= most && nbytes <= MEMORY; nbytes *= 2)
		r = compare(&b, nbytes / sizeof(float));
	if (r)
		fprintf(stderr, "mpi: rank %d: %s\n", b.rank, te_error_detail());
	close_te(&b);
	free(b.by_mpi);
	free(b.by_te);
	free(b.in);
	if (r)
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Finalize();
	return 0;
}
