/* t/comm/threads.c - see threads.h. */
#include "config.h"

#include <te/collective.h>

#include "threads.h"

int threads_n;
uint64_t threads_pool_nbytes;
int threads_timeout_ms;
void (*threads_begin)(int rank);
static int expected;
static struct te_comm_id id;
static struct te_comm_root *root;

static int devices(void)
{
	struct te_backend_info b = TE_BACKEND_INFO_INIT;

	for (int i = 0; i < te_backend_count(); i++)
		if (!te_backend_info(i, &b) && !strcmp(b.name, backend))
			return b.ndevices;
	return 1;
}

int threads_apart(int n)
{
	const int most = strcmp(backend, "host") ? devices() : n;

	return n < most ? n : most;
}

static int join(struct thread_rank *r)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te_ctx_opts c = TE_CTX_OPTS_INIT;

	o.rank = r->rank;
	o.nranks = threads_n;
	o.id = &id;
	o.pool_nbytes = threads_pool_nbytes;
	o.timeout_ms = threads_timeout_ms ? threads_timeout_ms : 20000;
	c.backend = backend;
	c.device = r->rank % devices();
	STEP(te_ctx_create(&c, &r->ctx));
	STEP(te_comm_create(r->ctx, &o, &r->comm));
	/* a rank that fails before another one has left te_comm_create() would end that */
	STEP(te_comm_barrier(r->comm, te_ctx_stream(r->ctx)));
	STEP(te_stream_sync(te_ctx_stream(r->ctx)));
	return r->fn(r);
}

static void *work(void *arg)
{
	struct thread_rank *r = arg;

	te_error_clear();
	if (threads_begin)
		threads_begin(r->rank);
	r->result = join(r);
	snprintf(r->text, sizeof(r->text), "%s", te_error_detail());
	/* the others need not wait for this one until the time-out */
	if (r->result != expected && r->comm)
		te_comm_abort(r->comm, r->text);
	te_comm_unref(r->comm);
	te_ctx_unref(r->ctx);
	return NULL;
}

void threads_run(int n, int (*fn)(struct thread_rank *r), int code, const char *text)
{
	struct thread_rank r[THREADS_MOST];
	const int64_t live = te__alloc_live();

	threads_n = n;
	expected = code;
	DO(te_comm_id_create(&id, &root));
	for (int i = 0; i < n; i++) {
		r[i] = (struct thread_rank){ .rank = i, .fn = fn };
		ck_assert_int_eq(pthread_create(&r[i].thread, NULL, work, &r[i]), 0);
	}
	for (int i = 0; i < n; i++)
		pthread_join(r[i].thread, NULL);
	root = te_comm_root_unref(root);
	for (int i = 0; i < n; i++) {
		ck_assert_msg(r[i].result == code, "rank %d: %d: %s", i, r[i].result, r[i].text);
		ck_assert_msg(!text || strstr(r[i].text, text), "rank %d: \"%s\" has no \"%s\"", i,
			      r[i].text, text);
	}
	ck_assert_int_eq(te__alloc_live(), live);
}

int threads_queue(struct te_plan *plan, struct te_stream *s)
{
	STEP(te_plan_forward(plan, s, 0));
	return te_plan_backward(plan, s);
}
