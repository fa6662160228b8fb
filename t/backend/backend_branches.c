/* t/backend/backend_branches.c - graphs with independent branches, which run concurrently. */
#include "config.h"

#include <stdatomic.h>

#include <te/errno.h>

#include "backend_lib.h"
#include "libtecore/base/private.h"
#include "tt_ctx.h"
#include "tt_gate.h"

#define MAX_MS 20000

/* until *flag is at least n; 0 where it was not within MAX_MS */
static int wait_until(atomic_int *flag, int n)
{
	for (int ms = 0; ms < MAX_MS && atomic_load(flag) < n; ms++)
		tt_sleep_ms(1);
	return atomic_load(flag) >= n;
}

static atomic_int arrived, met;

/* a host call that returns once another one has begun too */
static void meet(void *arg)
{
	atomic_fetch_add(&arrived, 1);
	if (wait_until(&arrived, 2))
		atomic_fetch_add(&met, 1);
}

/* what is queued on b from here on is a branch of the capture that begins on a; join_b ends it */
static void *fork_b(void)
{
	void *e;

	DO(ops->event_create(dev, &e));
	DO(ops->capture_begin(a));
	DO(ops->event_record(e, a));
	DO(ops->event_wait(e, b));
	return e;
}

static void *join_b(void *e)
{
	void *graph, *exec;

	DO(ops->event_record(e, b));
	DO(ops->event_wait(e, a));
	DO(ops->capture_end(a, &graph));
	ops->event_destroy(e);
	DO(ops->graph_instantiate(graph, &exec));
	return exec;
}

BK_CASE(branches);

/* on a GPU host calls of all streams share a thread */
TEST(branches, host_calls_of_two_branches_run_concurrently)
{
	void *e, *exec;

	if (!is_host)
		return;
	e = fork_b();
	DO(ops->host_call(a, meet, NULL, 0));
	DO(ops->host_call(b, meet, NULL, 0));
	exec = join_b(e);
	for (int i = 0; i < 20; i++) {
		atomic_store(&arrived, 0);
		atomic_store(&met, 0);
		DO(ops->graph_launch(exec, a));
		DO(ops->stream_sync(a));
		ck_assert_int_eq(atomic_load(&met), 2);
	}
	ops->exec_destroy(exec);
}

#define NNODES 60
#define NSTREAMS 4

/* what a node of the random graph writes: a function of the launch and of its dependencies */
struct mix {
	uint64_t *cell;
	const uint64_t *seed;
	int node, ndeps, dep[3];
};

static void mix(void *arg)
{
	const struct mix *m = arg;
	uint64_t x = *m->seed + (uint64_t)m->node;

	for (int i = 0; i < m->ndeps; i++)
		x = (x ^ m->cell[m->dep[i]]) * 0x9e3779b97f4a7c15u;
	m->cell[m->node] = x;
}

/* nodes wait for up to three earlier ones each; the last joins all */
TEST(branches, a_random_graph_gives_the_bits_of_its_nodes_in_order)
{
	uint64_t *cell = bk_get(PINNED, NNODES * sizeof(*cell));
	uint64_t *seed = bk_get(PINNED, sizeof(*seed)), want[NNODES];
	void *event[NNODES], *stream[NSTREAMS], *fork, *graph, *exec;
	struct mix m[NNODES];

	DO(ops->event_create(dev, &fork));
	stream[0] = a;
	for (int i = 1; i < NSTREAMS; i++)
		DO(ops->stream_create(dev, &stream[i]));
	DO(ops->capture_begin(a));
	DO(ops->event_record(fork, a));
	for (int i = 1; i < NSTREAMS; i++)
		DO(ops->event_wait(fork, stream[i]));
	for (int i = 0; i < NNODES; i++) {
		void *s = stream[i == NNODES - 1 ? 0 : tt_rand_int(0, NSTREAMS - 1)];

		m[i] = (struct mix){ cell, seed, i, (int)tt_rand_int(0, i < 3 ? i : 3), { 0 } };
		for (int d = 0; d < m[i].ndeps; d++) {
			m[i].dep[d] = (int)tt_rand_int(0, i - 1);
			DO(ops->event_wait(event[m[i].dep[d]], s));
		}
		for (int d = 0; i == NNODES - 1 && d < i; d++)
			DO(ops->event_wait(event[d], s));
		DO(ops->host_call(s, mix, &m[i], sizeof(m[i])));
		DO(ops->event_create(dev, &event[i]));
		DO(ops->event_record(event[i], s));
	}
	DO(ops->capture_end(a, &graph));
	DO(ops->graph_instantiate(graph, &exec));
	for (int k = 0; k < 50; k++) {
		*seed = tt_rand_u64();
		DO(ops->graph_launch(exec, k % 2 ? a : b));
		DO(ops->stream_sync(k % 2 ? a : b));
		memcpy(want, cell, sizeof(want));
		for (int i = 0; i < NNODES; i++)
			mix(&m[i]);
		ck_assert_mem_eq(cell, want, sizeof(want));
	}
	ops->exec_destroy(exec);
	for (int i = 0; i < NNODES; i++)
		ops->event_destroy(event[i]);
	for (int i = 1; i < NSTREAMS; i++)
		ops->stream_destroy(stream[i]);
	ops->event_destroy(fork);
}

static atomic_int failed_late, ran_after;

static void fail_late_node(void *arg)
{
	te__k_fail(te__fail(-EPROTO, "the node with the higher number failed"));
	atomic_store(&failed_late, 1);
}

static void fail_early_node(void *arg)
{
	if (wait_until(&failed_late, 1))
		te__k_fail(te__fail(-ENOSPC, "the node with the lower number failed"));
	else
		te__k_fail(te__fail(-ETIME, "the other branch did not run"));
}

static void note_run(void *arg)
{
	atomic_fetch_add(&ran_after, 1);
}

/* whichever fails first in time, the report is that of the node captured first */
TEST(branches, the_first_failing_node_is_reported)
{
	void *e, *exec;

	if (!is_host)
		return;
	atomic_store(&failed_late, 0);
	atomic_store(&ran_after, 0);
	e = fork_b();
	DO(ops->host_call(a, fail_early_node, NULL, 0));
	DO(ops->host_call(a, note_run, NULL, 0));
	DO(ops->host_call(b, fail_late_node, NULL, 0));
	DO(ops->host_call(b, note_run, NULL, 0));
	exec = join_b(e);
	DO(ops->graph_launch(exec, b));
	fails(ops->stream_sync(b), -ENOSPC, "the node with the lower number failed");
	ck_assert_int_eq(atomic_load(&ran_after), 0);
	/* other streams of the device and launches there are unharmed */
	fails(ops->graph_launch(exec, b), -ENOSPC, "");
	DO(ops->stream_sync(a));
	ops->exec_destroy(exec);
}

/* the node before it in the graph's order is in the other branch, and still runs */
TEST(branches, a_record_in_one_branch_does_not_wait_for_the_other)
{
	unsigned char *d = bk_get(DEVICE, 1), *out = bk_get(PINNED, 1);
	void *e, *outside, *exec;

	DO(ops->event_create(dev, &outside));
	e = fork_b();
	DO(ops->host_call(b, tt_gate_wait, NULL, 0));
	DO(ops->fill8(a, d, 0x71, 1));
	DO(ops->copy(a, out, d, 1));
	DO(ops->event_record_external(outside, a));
	exec = join_b(e);
	for (int i = 0; i < 3; i++) {
		*out = 0;
		tt_gate_close();
		DO(ops->graph_launch(exec, a));
		DO(ops->event_sync(outside));
		ck_assert(!tt_gate_is_open());
		ck_assert_int_eq(*out, 0x71);
		ck_assert_int_eq(ops->stream_query(a), 0);
		tt_gate_open();
		DO(ops->stream_sync(a));
	}
	ops->exec_destroy(exec);
	ops->event_destroy(outside);
}

static void nothing(void *arg)
{
}

/* more branches that block than the device has helpers, and a launch that finishes meanwhile */
TEST(branches, a_launch_does_not_wait_for_those_of_other_streams)
{
	unsigned char *d = bk_get(DEVICE, 2), *out = bk_get(PINNED, 2);
	void *blocked, *quick, *stream, *graph, *e;

	memset(out, 0, 2);
	DO(ops->stream_create(dev, &stream));
	DO(ops->event_create(dev, &e));
	DO(ops->capture_begin(a));
	for (int i = 0; i < 8; i++) {
		DO(ops->event_record(e, a));
		DO(ops->event_wait(e, b));
		DO(ops->host_call(b, tt_gate_wait, NULL, 0));
		DO(ops->host_call(a, nothing, NULL, 0));
	}
	DO(ops->event_record(e, b));
	DO(ops->event_wait(e, a));
	DO(ops->capture_end(a, &graph));
	ops->event_destroy(e);
	DO(ops->graph_instantiate(graph, &blocked));
	e = fork_b();
	DO(ops->fill8(a, d, 3, 1));
	DO(ops->fill8(b, d + 1, 4, 1));
	DO(ops->copy(a, out, d, 1));
	DO(ops->copy(b, out + 1, d + 1, 1));
	quick = join_b(e);
	tt_gate_close();
	DO(ops->graph_launch(blocked, stream));
	DO(ops->graph_launch(blocked, b));
	tt_sleep_ms(20);
	DO(ops->graph_launch(quick, a));
	DO(ops->stream_sync(a));
	ck_assert(!tt_gate_is_open());
	ck_assert_int_eq(out[0], 3);
	ck_assert_int_eq(out[1], 4);
	tt_gate_open();
	DO(ops->stream_sync(b));
	DO(ops->stream_sync(stream));
	ops->exec_destroy(blocked);
	ops->exec_destroy(quick);
	ops->stream_destroy(stream);
}

/* a device, a graph with branches, a launch: each allocation and thread fails once */
static int branches_once(void)
{
	void *d = NULL, *s = NULL, *t = NULL, *e = NULL, *graph = NULL, *exec = NULL;
	int r = ops->open(&(struct te__open){ 0 }, &d);

#define ROW(call) r = r ? r : (call)
	ROW(ops->stream_create(d, &s));
	ROW(ops->stream_create(d, &t));
	ROW(ops->event_create(d, &e));
	ROW(ops->capture_begin(s));
	ROW(ops->event_record(e, s));
	ROW(ops->event_wait(e, t));
	atomic_store(&ran_after, 0);
	ROW(ops->host_call(s, note_run, NULL, 0));
	ROW(ops->host_call(t, note_run, NULL, 0));
	ROW(ops->event_record(e, t));
	ROW(ops->event_wait(e, s));
	ROW(ops->capture_end(s, &graph));
	ROW(ops->graph_instantiate(graph, &exec));
	ROW(ops->graph_launch(exec, s));
	ROW(ops->stream_sync(s));
#undef ROW
	if (!r && !te__fault_fired()) {
		ck_assert_int_eq(atomic_load(&ran_after), 2);
		te__fault_set(0); /* nothing below can fail */
	}
	if (!exec)
		ops->graph_destroy(graph);
	ops->exec_destroy(exec);
	ops->event_destroy(e);
	ops->stream_destroy(t);
	ops->stream_destroy(s);
	if (d)
		ops->close(d);
	return r;
}

TEST(branches, launching_branches_fails_cleanly)
{
	const int64_t live = te__alloc_live();

	if (!is_host)
		return;
	/* 3 helpers are among what can fail */
	ck_assert_int_ge(tt_fault_each(branches_once), 20);
	ck_assert_int_eq(te__alloc_live(), live);
}
