/* t/backend/cuda_exec_batch.c - kernels that the cuda backend queues together. */
#include "config.h"

#include <te/errno.h>

#include "cuda_exec_lib.h"
#include "tt_num.h"

#define N 64

static unsigned char out[9][N];

static int launch(struct te__cuda_stream *s, unsigned char *dst, int64_t n, unsigned value)
{
	const struct te_k_fill args = { dst, n, value, 1 };

	return ops->launch(s, &(struct te__launch){ TE_K_FILL, &args, sizeof(args) });
}

static struct te__cuda_stream *stream_new(void)
{
	void *s;

	DO(ops->stream_wrap(&dev, fake_stream(0), &s));
	return s;
}

/* n fills of random length with random values; all that a graph takes are written at the end */
static void batch(struct te__cuda_stream *s, int n)
{
	unsigned value[9];
	size_t most[9];

	memset(out, 0, sizeof(out));
	ops->launch_hold(s);
	for (int i = 0; i < n; i++) {
		value[i] = (unsigned)tt_rand_int(1, 255);
		most[i] = (size_t)tt_rand_int(1, N);
		DO(launch(s, out[i], (int64_t)most[i], value[i]));
		ck_assert_uint_eq(out[0][0], n <= 8 || i < 8 ? 0 : value[0]);
	}
	DO(ops->launch_held(s, 0));
	for (int i = 0; i < 9; i++)
		for (size_t k = 0; k < N; k++)
			ck_assert_uint_eq(out[i][k], i < n && k < most[i] ? value[i] : 0);
}

CASE(batch, "host fast", .name = "kernels of a call", .setup = exec_setup,
     .teardown = exec_teardown);

/* a graph for each number of kernels; one kernel, and those after the eighth, need none */
TEST(batch, kernels_of_a_call_are_one_graph)
{
	struct te__cuda_stream *s = stream_new();

	for (int k = 0; k < 3; k++) {
		batch(s, 0);
		batch(s, 1);
	}
	ck_assert_int_eq(fake.graphs + fake.execs + fake.launches, 0);
	for (int k = 0; k < 3; k++) {
		batch(s, 2);
		batch(s, 8);
		batch(s, 9);
	}
	ck_assert_int_eq(fake.launches, 9);
	ck_assert_int_eq(fake.graphs, 2);
	ck_assert_int_eq(fake.execs, 2);
	/* not held */
	DO(launch(s, out[0], N, 9));
	ck_assert_uint_eq(out[0][N - 1], 9);
	ck_assert_int_eq(fake.launches, 9);
	ops->stream_destroy(s);
	ck_assert_int_eq(fake.graphs + fake.execs, 0);
}

TEST(batch, an_error_queues_none)
{
	struct te__cuda_stream *s = stream_new();

	memset(out, 0, sizeof(out));
	ops->launch_hold(s);
	DO(launch(s, out[0], N, 1));
	DO(launch(s, out[1], 0, 1)); /* nothing to do */
	ck_assert_int_eq(ops->launch(s, &(struct te__launch){ TE_K_COUNT, out, 8 }), -TE_EKERNEL);
	ck_assert_int_eq(ops->launch_held(s, -TE_EKERNEL), -TE_EKERNEL);
	te_error_clear();
	ck_assert_uint_eq(out[0][0], 0);
	batch(s, 2);
	ops->stream_destroy(s);
}

/* nodes of the program's capture, one by one */
TEST(batch, a_capture_has_each_kernel)
{
	struct te__cuda_stream *s = stream_new();
	void *graph;
	size_t n;

	DO(te__cu.cuStreamBeginCapture(fake_stream(0), 0));
	ops->launch_hold(s);
	for (int i = 0; i < 3; i++)
		DO(launch(s, out[i], N, 1));
	DO(ops->launch_held(s, 0));
	DO(te__cu.cuStreamEndCapture(fake_stream(0), &graph));
	DO(te__cu.cuGraphGetNodes(graph, NULL, &n));
	ck_assert_uint_eq(n, 3);
	ck_assert_int_eq(fake.launches, 0);
	te__cu.cuGraphDestroy(graph);
	ops->stream_destroy(s);
}

static int sweep(void)
{
	void *s = NULL;
	int r = ops->stream_wrap(&dev, fake_stream(0), &s);

	for (int k = 0; k < 2 && !r; k++) {
		memset(out, 0, sizeof(out));
		ops->launch_hold(s);
		for (int i = 0; i < 3 && !r; i++)
			r = launch(s, out[i], N, (unsigned)(i + 1));
		r = ops->launch_held(s, r);
		for (int i = 0; i < 3; i++)
			ck_assert_uint_eq(out[i][N - 1], r ? 0 : (unsigned)(i + 1));
	}
	if (s)
		ops->stream_destroy(s);
	ck_assert_int_eq(fake.graphs + fake.execs, 0);
	return r;
}

TEST(batch, each_call_fails_cleanly)
{
	ck_assert_int_gt(tt_fault_each(sweep), 3);
}
