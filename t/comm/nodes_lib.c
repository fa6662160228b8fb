/* t/comm/nodes_lib.c - see nodes_lib.h. */
#include "config.h"

#include <signal.h>
#include <unistd.h>

#include <te/collective.h>
#include <te/log.h>

#include "libtecore/base/private.h"
#include "libtecore/base/splitmix64.h"
#include "nodes_lib.h"
#include "threads.h"
#include "tt_ctx.h"

#define COUNT 30000 /* floats at most: both ways of an operation */

void nodes_init(struct joined *j, int who, uint64_t seed, int nfew)
{
	*j = (struct joined){ .who = who, .seed = seed, .nfew = nfew };
	for (int i = 0; i < RANKS_MAX; i++)
		j->was[i] = i;
}

int nodes_create(struct joined *j, const char *on, const struct te_comm_opts *o)
{
	struct te_ctx_opts c = TE_CTX_OPTS_INIT;

	c.backend = on;
	STEP(te_ctx_create(&c, &j->ctx));
	j->s = te_ctx_stream(j->ctx);
	STEP(te_comm_create(j->ctx, o, &j->comm));
	STEP(te_comm_barrier(j->comm, j->s));
	return te_stream_sync(j->s);
}

void nodes_begin(char node, int heartbeat_ms, uint64_t seed)
{
	const char letter[2] = { node, 0 };
	char beat[16];

	signal(SIGALRM, SIG_DFL); /* Check has a handler that kills all processes */
	alarm(110);
	snprintf(beat, sizeof(beat), "%d", heartbeat_ms);
	setenv("TE_COMM_NODE", letter, 1);
	setenv("TE_COMM_STAGE", "256K", 0);
	setenv("TE_COMM_HEARTBEAT_MS", beat, 1);
	setenv("TE_COMM_SUMS", seed & 1 ? "device" : "host", 1);
}

int nodes_join(struct joined *j, int rank, char node, int timeout_ms, int heartbeat_ms,
	       uint64_t seed, int nfew)
{
	struct te_comm_opts o = ranks_opts(rank);

	nodes_init(j, rank, seed, nfew);
	nodes_begin(node, heartbeat_ms, seed);
	o.timeout_ms = timeout_ms;
	o.pool_nbytes = 64 << 10;
	return nodes_create(j, "host", &o);
}

int nodes_leave(struct joined *j, int r)
{
	char text[512];

	snprintf(text, sizeof(text), "%s", te_error_detail());
	te_comm_unref(j->comm);
	te_ctx_unref(j->ctx);
	te_error_clear();
	return r ? te_fail(r, "%s", text) : 0;
}

float nodes_input(const struct joined *j, int who, int op, int64_t i)
{
	const uint32_t x = (uint32_t)(j->seed + (uint64_t)who * 1000003 + (uint64_t)op * 7919) +
			   (uint32_t)i * 2654435761u;

	return (float)((int32_t)x >> 8) * 0x1p-20f;
}

/* between nodes: a sum on all ranks, on one, or by messages to all */
enum { ON_ALL = -1, BY_MESSAGES = -2 };

/* one of these, or the rank that alone has the sum */
static int form_of(const struct joined *j, uint64_t *state)
{
	struct te_comm_info i = TE_COMM_INFO_INIT;
	const int n = te_comm_nranks(j->comm), root = (int)(te__splitmix64(state) % (uint64_t)n);

	if (te_comm_info(j->comm, &i) || i.nnodes < 2 || !strcmp(i.transport, "fabric"))
		return ON_ALL;
	switch (te__splitmix64(state) % 3) {
	case 0:
		return ON_ALL;
	case 1:
		return root;
	default:
		return BY_MESSAGES;
	}
}

static int send_to_all(const struct joined *j, const float *x, float *all, int64_t count)
{
	STEP(te_comm_group_begin(j->comm));
	for (int k = 0; k < te_comm_nranks(j->comm); k++) {
		STEP(te_comm_send(j->comm, j->s, x, count, TE_DTYPE_FP32, k, NULL));
		STEP(te_comm_recv(j->comm, j->s, all + k * count, count, TE_DTYPE_FP32, k, NULL));
	}
	return te_comm_group_end(j->comm);
}

/* all ranks send x to all, and add in rank order */
static int reduce_by_messages(const struct joined *j, float *x, int64_t count)
{
	const int n = te_comm_nranks(j->comm);
	const size_t nbytes = (size_t)count * sizeof(*x);
	const int64_t none[RANKS_MAX] = { 0 };
	int64_t counts[RANKS_MAX];
	float *all;
	void *p;

	for (int k = 0; k < n; k++)
		counts[k] = count;
	STEP(te_mem_alloc(j->s, (size_t)n * nbytes, &p));
	all = p; /* host memory: the backend is host */
	if (j->nops & 1)
		STEP(te_comm_alltoallv(j->comm, j->s, x, counts, none, p, counts, NULL,
				       TE_DTYPE_FP32, NULL));
	else
		STEP(send_to_all(j, x, all, count));
	STEP(te_stream_sync(j->s));
	for (int64_t i = 0; i < count; i++) {
		x[i] = all[i];
		for (int k = 1; k < n; k++)
			x[i] += all[k * count + i];
	}
	return te_mem_free(j->s, p);
}

int nodes_reduce(struct joined *j, int64_t more)
{
	float x[COUNT + 8], y[COUNT + 8]; /* ranks may be threads */
	const int op = j->nops++;
	uint64_t state = j->seed + (uint64_t)op;
	const int64_t most = te__splitmix64(&state) % (uint64_t)j->nfew ? 500 : COUNT;
	const int64_t count = 1 + (int64_t)(te__splitmix64(&state) % (uint64_t)most);
	const int root = form_of(j, &state), me = te_comm_rank(j->comm);
	void *p;

	STEP(te_mem_alloc(j->s, sizeof(x), &p));
	for (int64_t i = 0; i < count; i++)
		x[i] = nodes_input(j, j->who, op, i);
	tt_poison(y, (size_t)count * sizeof(*y));
	STEP(te_copy(j->s, p, x, (size_t)count * sizeof(*x)));
	STEP(te_stream_sync(j->s));
	STEP(root == BY_MESSAGES ? reduce_by_messages(j, p, count + more) :
	     root < 0 ? te_comm_allreduce(j->comm, j->s, p, p, count + more, TE_DTYPE_FP32,
					  TE_COMM_SUM, NULL) :
			te_comm_reduce(j->comm, j->s, p, root == me ? p : NULL, count + more,
				       TE_DTYPE_FP32, TE_COMM_SUM, root, NULL));
	STEP(te_copy(j->s, y, p, (size_t)count * sizeof(*x)));
	STEP(te_stream_sync(j->s));
	STEP(te_mem_free(j->s, p));
	STEP(te_comm_error(j->comm));
	for (int64_t i = 0; i < count && !more && (root < 0 || root == me); i++) {
		float want = nodes_input(j, j->was[0], op, i);

		for (int k = 1; k < te_comm_nranks(j->comm); k++)
			want += nodes_input(j, j->was[k], op, i);
		if (memcmp(&y[i], &want, sizeof(want)))
			return te_fail(-EPROTO, "operation %d: element %lld of %lld is %g, "
				       "expected %g", op, (long long)i, (long long)count,
				       (double)y[i], (double)want);
	}
	return 0;
}

void nodes_succeed(struct joined *j, struct te_comm *next, const int32_t *ranks)
{
	te_comm_unref(j->comm);
	j->comm = next;
	j->nops = 1000000; /* ranks may have failed at different ones */
	for (int i = 0; i < te_comm_nranks(next); i++)
		j->was[i] = j->was[ranks[i]];
}

uint32_t nodes_members(const struct joined *j)
{
	uint32_t members = 0;

	for (int i = 0; i < te_comm_nranks(j->comm); i++)
		members |= 1u << j->was[i];
	return members;
}

static int die_ms;

static void die_at(void *arg, enum te_log_level level, const char *category, const char *text)
{
	if (!strstr(text, arg))
		return;
	usleep((useconds_t)die_ms * 1000);
	raise(SIGKILL);
}

void nodes_die_at(const char *text, int ms)
{
	die_ms = ms;
	te_log_set(die_at, (char *)(uintptr_t)text);
	te_log_filter("info");
}

int nodes_local(const char *nodes, int rank)
{
	int nbefore = 0;

	for (int i = 0; i < rank; i++)
		nbefore += nodes[i] == nodes[rank];
	return nbefore;
}

int nodes_has_rail(const char *nodes, int rank)
{
	int fewest = RANKS_MAX;

	for (int i = 0; nodes[i]; i++) {
		int count = 0;

		for (int k = 0; nodes[k]; k++)
			count += nodes[k] == nodes[i];
		fewest = count < fewest ? count : fewest;
	}
	return nodes_local(nodes, rank) < fewest;
}
