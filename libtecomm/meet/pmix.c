/*
 * pmix.c - ranks started by a launcher with PMIx, such as mpirun, prterun and srun: the launcher
 * gives rank and nranks, and distributes the id of rank 0.
 *
 * libpmix is opened by dlopen. Functions that wait for the launcher without a limit are called on
 * threads, which are not waited for after the deadline. The structs are from the PMIx standard,
 * versions 3 to 5.
 */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libtecomm/meet/boot.h"
#include "libtecomm/meet/thread.h"

struct proc {
	char nspace[256];
	uint32_t rank;
};

struct value {
	uint16_t type;
	union {
		char *string;
		uint32_t u32;
		char room[64]; /* more than the library's */
	} data;
};

#define PMIX_STRING 3
#define PMIX_UINT32 14
#define PMIX_GLOBAL 3
#define PMIX_ERR_TIMEOUT (-24)
#define PMIX_ERR_NOT_FOUND (-46)
#define PMIX_RANK_WILDCARD (UINT32_MAX - 1)

static struct symbols {
	int (*init)(struct proc *proc, void *info, size_t ninfo);
	int (*finalize)(const void *info, size_t ninfo);
	int (*put)(uint8_t scope, const char *key, struct value *value);
	int (*commit)(void);
	int (*get)(const struct proc *proc, const char *key, const void *info, size_t ninfo,
		   struct value **ret_value);
	int (*get_nb)(const struct proc *proc, const char *key, const void *info, size_t ninfo,
		      void (*done)(int status, struct value *value, void *arg), void *arg);
	const char *(*error_string)(int status);
} pmix;

static const struct te__dl_sym sym[] = {
	{ "PMIx_Init", offsetof(struct symbols, init) },
	{ "PMIx_Finalize", offsetof(struct symbols, finalize) },
	{ "PMIx_Put", offsetof(struct symbols, put) },
	{ "PMIx_Commit", offsetof(struct symbols, commit) },
	{ "PMIx_Get", offsetof(struct symbols, get) },
	{ "PMIx_Get_nb", offsetof(struct symbols, get_nb) },
	{ "PMIx_Error_string", offsetof(struct symbols, error_string) },
};
static struct te__dl dl = TE__DL(sym, &pmix, "libpmix.so.2");
/* number of communicators that rank 0 has published an id for; all ranks count them */
static atomic_uint nmeetings;

static int failed(struct te__boot *b, const char *fn, int status)
{
	return te__create_fail(b, -TE_EPEER, "%s: %s", fn, pmix.error_string(status));
}

/* ---- requests ---- */

/* calls by a thread, or an awaited value; the last of its two users, worker and waiter, frees it */
struct request {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	int nusers;		 /* 2 while it works; then the waiter may read what follows */
	const char *_Atomic fn; /* function that is called or has failed; may be read at any time */
	int status;
	void (*work)(struct request *q);
	struct proc proc;
	int32_t nranks;
	char key[512]; /* as long as the library may copy */
	char text[TE_COMM_ID_TEXT];
};

static struct request *request_create(void (*work)(struct request *q))
{
	struct request *q = te__calloc(1, sizeof(*q));
	pthread_condattr_t attr;

	if (!q)
		return NULL;
	q->nusers = 1;
	q->work = work;
	pthread_mutex_init(&q->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&q->cond, &attr);
	pthread_condattr_destroy(&attr);
	return q;
}

/* 1: the other user has left before. Takes NULL */
static int request_leave(struct request *q)
{
	int last;

	if (!q)
		return 0;
	pthread_mutex_lock(&q->lock);
	last = !--q->nusers;
	pthread_cond_signal(&q->cond);
	pthread_mutex_unlock(&q->lock);
	if (!last)
		return 0;
	pthread_mutex_destroy(&q->lock);
	pthread_cond_destroy(&q->cond);
	te__free(q);
	return 1;
}

/* 1: it has ended */
static int request_wait(struct request *q, int64_t deadline)
{
	const struct timespec until = { deadline / 1000000000, deadline % 1000000000 };
	int ended;

	pthread_mutex_lock(&q->lock);
	while (q->nusers == 2 && te__boot_now() < deadline)
		pthread_cond_timedwait(&q->cond, &q->lock, &until);
	ended = q->nusers < 2;
	pthread_mutex_unlock(&q->lock);
	return ended;
}

/* a process that has initialised PMIx and does not finalise it has failed, for its launcher */
static void finalize(struct request *q)
{
	q->fn = "PMIx_Finalize";
	q->status = pmix.finalize(NULL, 0);
}

static void enter(struct request *q)
{
	struct value *size;
	struct proc all;

	q->fn = "PMIx_Init";
	q->status = pmix.init(&q->proc, NULL, 0);
	if (q->status)
		return;
	all = q->proc;
	all.rank = PMIX_RANK_WILDCARD;
	q->fn = "PMIx_Get of the job's size";
	q->status = pmix.get(&all, "pmix.job.size", NULL, 0, &size);
	if (q->status) {
		pmix.finalize(NULL, 0);
		return;
	}
	q->nranks = size->type == PMIX_UINT32 ? (int32_t)size->data.u32 : 0;
	te__free_libc(size);
}

static void publish(struct request *q)
{
	struct value v = { .type = PMIX_STRING, .data.string = q->text };

	q->fn = "PMIx_Put";
	q->status = pmix.put(PMIX_GLOBAL, q->key, &v);
	if (q->status)
		return;
	q->fn = "PMIx_Commit";
	q->status = pmix.commit();
}

static void *run(void *arg)
{
	struct request *q = arg;
	int entered;

	q->work(q);
	entered = q->work == enter && !q->status;
	if (request_leave(q) && entered)
		pmix.finalize(NULL, 0);
	return NULL;
}

/* function of the worker thread */
static int request_run(struct te__boot *b, struct request *q, int64_t deadline)
{
	pthread_t thread;
	int r;

	q->nusers = 2;
	r = te__thread_start(&thread, run, q, "te_comm_create");
	if (r) {
		request_leave(q);
		return r;
	}
	pthread_detach(thread);
	if (!request_wait(q, deadline))
		return te__create_fail(b, -ETIMEDOUT, "%s did not return within %s: the PMIx "
				       "server of the launcher does not answer", q->fn,
				       te__time_text((int64_t)b->timeout_ms * 1000000,
						     (char[24]){ 0 }));
	return q->status ? failed(b, q->fn, q->status) : 0;
}

/* ---- the provider ---- */

/* processes that a launcher has started without PMIx: they would not know of each other */
static int lonely(const char **ret_name)
{
	static const char *const names[] = {
		"SLURM_STEP_NUM_TASKS",
		"PMI_SIZE", /* MPICH, Intel MPI, Cray PALS */
		"OMPI_COMM_WORLD_SIZE",
		"MV2_COMM_WORLD_SIZE",
		"MPI_LOCALNRANKS",
		"FLUX_JOB_SIZE",
		"JSM_NAMESPACE_SIZE", /* jsrun */
		"WORLD_SIZE",	      /* torchrun */
	};
	int n = 0;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && n < 2; i++) {
		n = te__env(names[i]) ? atoi(te__env(names[i])) : 0;
		*ret_name = names[i];
	}
	return n > 1 ? n : 0;
}

static int pmix_chosen(void)
{
	const char *name;

	return te__env("PMIX_NAMESPACE") || lonely(&name);
}

static int pmix_who(struct te__boot *b)
{
	const char *name = NULL, *missing;
	struct request *q;
	struct proc *me;
	int r;

	if (!te__env("PMIX_NAMESPACE") && lonely(&name))
		return te__create_fail(b, -EINVAL, "this is one of %d processes (%s) of a launcher "
				       "without PMIx: start them by srun --mpi=pmix or by te_run, "
				       "or set TE_COMM_BOOTSTRAP=single if each is alone",
				       lonely(&name), name);
	missing = te__dl_open(&dl);
	if (missing)
		return te__create_fail(b, -ENOENT, "the launcher uses PMIx, and %s is not found: "
				       "install libpmix2, or start the program by te_run", missing);
	me = te__calloc(1, sizeof(*me));
	q = request_create(enter);
	r = me && q ? request_run(b, q, b->deadline) :
		      te__create_fail(b, -ENOMEM, "not enough memory");
	if (!r) {
		*me = q->proc;
		b->meeting = me;
		b->rank = (int32_t)me->rank;
		b->nranks = q->nranks;
	} else {
		te__free(me);
	}
	request_leave(q);
	return r;
}

/* by a thread of the library */
static void got(int status, struct value *value, void *arg)
{
	struct request *q = arg;

	q->status = status;
	if (!status && value && value->type == PMIX_STRING && value->data.string)
		snprintf(q->text, sizeof(q->text), "%s", value->data.string);
	request_leave(q);
}

/* 0; 1: rank 0 has not published it yet */
static int ask(struct te__boot *b, const struct proc *root, const char *key,
	       char text[TE_COMM_ID_TEXT])
{
	struct request *q = request_create(NULL);
	int r, ended, again;

	if (!q)
		return te__create_fail(b, -ENOMEM, "not enough memory");
	q->nusers = 2;
	r = pmix.get_nb(root, key, NULL, 0, got, q);
	if (r) { /* got() will not be called */
		request_leave(q);
		request_leave(q);
		return failed(b, "PMIx_Get_nb", r);
	}
	ended = request_wait(q, b->deadline);
	/* servers give up after some seconds (Open MPI 4: 2 s): the caller retries */
	again = ended && (q->status == PMIX_ERR_TIMEOUT || q->status == PMIX_ERR_NOT_FOUND);
	if (again && te__boot_now() < b->deadline)
		r = 1;
	else if (!ended || again)
		r = te__create_fail(b, -ETIMEDOUT, "rank 0 of %d did not arrive within %s",
				    b->nranks,
				    te__time_text(b->deadline - b->begin, (char[24]){ 0 }));
	else if (q->status)
		r = failed(b, "PMIx_Get of the id of rank 0", q->status);
	else
		memcpy(text, q->text, sizeof(q->text));
	request_leave(q);
	return r;
}

static int wait_for(struct te__boot *b, const struct proc *root, const char *key,
		    char text[TE_COMM_ID_TEXT])
{
	int r;

	while ((r = ask(b, root, key, text)) > 0)
		te__poll(NULL, 0, te__boot_now() + 10000000);
	return r;
}

static int offer(struct te__boot *b, const char *key, struct te_comm_id *id)
{
	struct request *q;
	int r = te__id_make(b, id);

	if (r)
		return r;
	q = request_create(publish);
	if (!q)
		return te__create_fail(b, -ENOMEM, "not enough memory");
	snprintf(q->key, sizeof(q->key), "%s", key);
	r = te_comm_id_format(id, q->text, sizeof(q->text));
	if (!r)
		r = request_run(b, q, b->deadline);
	request_leave(q);
	return r;
}

static int pmix_meet(struct te__boot *b)
{
	struct proc root = *(const struct proc *)b->meeting;
	char key[512] = "", text[TE_COMM_ID_TEXT]; /* as long as the library may copy */
	struct te_comm_id id;
	int r;

	root.rank = 0;
	snprintf(key, sizeof(key), "te.comm.%u.%s", atomic_fetch_add(&nmeetings, 1), b->name);
	if (!b->rank) {
		r = offer(b, key, &id);
	} else {
		r = wait_for(b, &root, key, text);
		if (!r)
			r = te_comm_id_parse(text, &id);
	}
	return r ? r : te__id_meet(b, &id);
}

static void pmix_close(struct te__boot *b)
{
	struct request *q;

	if (!b->meeting)
		return;
	q = request_create(finalize);
	if (!q || request_run(b, q, te__boot_deadline(b)))
		te__log_warn("%s: PMIx was not finalised: %s", b->name,
			     q ? te_error_detail() : "not enough memory");
	request_leave(q);
	te__free(b->meeting);
}

const struct te__boot_provider te__boot_pmix = {
	.name = "pmix",
	.chosen = pmix_chosen,
	.who = pmix_who,
	.meet = pmix_meet,
	.close = pmix_close,
};
