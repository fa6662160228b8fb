/* t/backend/cuda_exec_lib.c - see cuda_exec_lib.h. */
#include "config.h"

#include "cuda_exec_lib.h"

const struct te__backend_ops *const ops = &te__backend_cuda;
struct te__cuda_dev dev;
struct te__cuda_stream a, b;
unsigned char x[64], y[64], z[64];

static struct te__cuda_func fill_func = { .name = "te_k_fill", .func = &fake_handle };
static int64_t live;

void exec_setup(void)
{
	fake_graph_setup();
	memset(&dev, 0, sizeof(dev));
	dev.ctx = &fake_handle;
	dev.stream = &fake_handle;
	dev.total_nbytes = (size_t)1 << 30;
	dev.target = te__target_of(90);
	te__devmem_init(&dev.mem, 0, NULL);
	dev.funcs = &fill_func;
	dev.nfuncs = 1;
	pthread_mutex_init(&dev.lock, NULL);
	pthread_mutex_init(&dev.lt_lock, NULL);
	a = (struct te__cuda_stream){ .dev = &dev, .stream = fake_stream(0) };
	b = (struct te__cuda_stream){ .dev = &dev, .stream = fake_stream(1) };
	te_error_clear();
	live = te__alloc_live();
}

void exec_teardown(void)
{
	ck_assert_int_eq(fake.graphs, 0);
	ck_assert_int_eq(fake.execs, 0);
	ck_assert_int_eq(fake.events, 0);
	ck_assert_int_eq(fake.memory, 0);
	ck_assert_uint_eq(dev.ncaptures, 0);
	ck_assert_int_eq(te__alloc_live(), live);
	pthread_mutex_destroy(&dev.lt_lock);
	pthread_mutex_destroy(&dev.lock);
}

struct te__gnode node(void *graph, uint64_t index)
{
	struct te__gnode n;

	ops->graph_node(graph, index, &n);
	return n;
}

void nothing(void *arg)
{
}

void give_back(void *graph, void *exec)
{
	if (graph)
		ops->graph_destroy(graph);
	if (exec)
		ops->exec_destroy(exec);
}
