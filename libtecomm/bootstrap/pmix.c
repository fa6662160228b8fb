/*
 * pmix.c - ranks started by a launcher with PMIx, as mpirun, prterun and srun are: the launcher
 * tells rank and nranks, and carries the id of rank 0.
 *
 * libpmix is opened by dlopen. The structs are those of the PMIx standard, versions 3 to 5.
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

#include "libtecomm/bootstrap/boot.h"

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
/* of communicators that rank 0 has published an id for, which all ranks count */
static atomic_uint nmeetings;

static int failed(struct te__boot *b, const char *fn, int status)
{
	return te__fail(-TE_EPEER, "te_comm_create: %s: %s: %s", b->name, fn,
			pmix.error_string(status));
}

/* processes that a launcher has started without PMIx: they would not know of each other */
static int lonely(const char **ret_name)
{
	static const char *const names[] = { "SLURM_STEP_NUM_TASKS", "PMI_SIZE" };
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
	struct value *size;
	struct proc *me;
	int r;

	if (!te__env("PMIX_NAMESPACE") && lonely(&name))
		return te__fail(-EINVAL,
				"te_comm_create: %s: this is one of %d processes (%s) of a "
				"launcher without PMIx: start them by srun --mpi=pmix or by "
				"te_run, or set TE_COMM_BOOTSTRAP=single if each is alone",
				b->name, lonely(&name), name);
	missing = te__dl_open(&dl);
	if (missing)
		return te__fail(-ENOENT,
				"te_comm_create: %s: the launcher uses PMIx, and %s is not "
				"found: install libpmix2, or start the program by te_run",
				b->name, missing);
	me = te__calloc(1, sizeof(*me));
	if (!me)
		return te__fail(-ENOMEM, "te_comm_create: %s: not enough memory", b->name);
	r = pmix.init(me, NULL, 0);
	if (r) {
		te__free(me);
		return failed(b, "PMIx_Init", r);
	}
	b->meeting = me;
	b->rank = (int32_t)me->rank;
	me->rank = PMIX_RANK_WILDCARD;
	r = pmix.get(me, "pmix.job.size", NULL, 0, &size);
	if (r)
		return failed(b, "PMIx_Get of the job's size", r);
	b->nranks = size->type == PMIX_UINT32 ? (int32_t)size->data.u32 : 0;
	te__free_libc(size);
	return 0;
}

/* a value that is waited for; of the waiter and of the library, the last one frees it */
struct request {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	int nusers, done, status;
	char text[TE_COMM_ID_TEXT];
};

static void request_free(struct request *q)
{
	pthread_mutex_destroy(&q->lock);
	pthread_cond_destroy(&q->cond);
	te__free(q);
}

/* by a thread of the library */
static void got(int status, struct value *value, void *arg)
{
	struct request *q = arg;
	int last;

	pthread_mutex_lock(&q->lock);
	q->done = 1;
	q->status = status;
	if (!status && value && value->type == PMIX_STRING && value->data.string)
		snprintf(q->text, sizeof(q->text), "%s", value->data.string);
	last = !--q->nusers;
	pthread_cond_signal(&q->cond);
	pthread_mutex_unlock(&q->lock);
	if (last)
		request_free(q);
}

/* 0; 1: rank 0 has not published it yet */
static int ask(struct te__boot *b, const struct proc *root, const char *key,
	       char text[TE_COMM_ID_TEXT])
{
	const struct timespec until = { b->deadline / 1000000000, b->deadline % 1000000000 };
	struct request *q = te__calloc(1, sizeof(*q));
	pthread_condattr_t attr;
	int r, status, done, last, again;

	if (!q)
		return te__fail(-ENOMEM, "te_comm_create: %s: not enough memory", b->name);
	q->nusers = 2;
	pthread_mutex_init(&q->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&q->cond, &attr);
	pthread_condattr_destroy(&attr);
	r = pmix.get_nb(root, key, NULL, 0, got, q);
	if (r) { /* got() will not be called */
		request_free(q);
		return failed(b, "PMIx_Get_nb", r);
	}
	pthread_mutex_lock(&q->lock);
	while (!q->done && te__boot_now() < b->deadline &&
	       !pthread_cond_timedwait(&q->cond, &q->lock, &until))
		;
	done = q->done;
	status = q->status;
	memcpy(text, q->text, sizeof(q->text));
	last = !--q->nusers;
	pthread_mutex_unlock(&q->lock);
	if (last)
		request_free(q);
	/* servers give up after some seconds (Open MPI 4: 2 s): the caller asks again */
	again = done && (status == PMIX_ERR_TIMEOUT || status == PMIX_ERR_NOT_FOUND);
	if (again && te__boot_now() < b->deadline)
		return 1;
	if (!done || again)
		return te__fail(-ETIMEDOUT,
				"te_comm_create: %s: rank 0 of %d did not arrive within %s",
				b->name, b->nranks,
				te__time_text(b->deadline - b->begin, (char[24]){ 0 }));
	return status ? failed(b, "PMIx_Get of the id of rank 0", status) : 0;
}

static int wait_for(struct te__boot *b, const struct proc *root, const char *key,
		    char text[TE_COMM_ID_TEXT])
{
	int r;

	while ((r = ask(b, root, key, text)) > 0)
		te__poll(NULL, 0, te__boot_now() + 10000000);
	return r;
}

static int publish(struct te__boot *b, const char *key, struct te_comm_id *id)
{
	char text[TE_COMM_ID_TEXT];
	struct value v = { .type = PMIX_STRING, .data.string = text };
	int r = te__id_make(b, id);

	if (!r)
		r = te_comm_id_format(id, text, sizeof(text));
	if (r)
		return r;
	r = pmix.put(PMIX_GLOBAL, key, &v);
	if (r)
		return failed(b, "PMIx_Put", r);
	r = pmix.commit();
	return r ? failed(b, "PMIx_Commit", r) : 0;
}

static int pmix_meet(struct te__boot *b)
{
	struct proc root = *(const struct proc *)b->meeting;
	char key[512] = "", text[TE_COMM_ID_TEXT]; /* of the length that the library may copy */
	struct te_comm_id id;
	int r;

	root.rank = 0;
	snprintf(key, sizeof(key), "te.comm.%u.%s", atomic_fetch_add(&nmeetings, 1), b->name);
	if (!b->rank) {
		r = publish(b, key, &id);
	} else {
		r = wait_for(b, &root, key, text);
		if (!r)
			r = te_comm_id_parse(text, &id);
	}
	return r ? r : te__id_meet(b, &id);
}

/* a process that has initialised PMIx and does not finalise it has failed, for its launcher */
static void pmix_close(struct te__boot *b)
{
	if (!b->meeting)
		return;
	pmix.finalize(NULL, 0);
	te__free(b->meeting);
}

const struct te__boot_provider te__boot_pmix = {
	.name = "pmix",
	.chosen = pmix_chosen,
	.who = pmix_who,
	.meet = pmix_meet,
	.close = pmix_close,
};
