/* t/comm/pmix_fake.c - see pmix_fake.h. Built as libpmix.so.2. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pmix_fake.h"

struct pmix_fake *pmix_fake;
uint32_t pmix_fake_rank;
_Atomic int pmix_fake_ninit;

/* as in pmix_common.h, versions 3 to 5 */
struct proc {
	char nspace[256];
	uint32_t rank;
};

struct value {
	uint16_t type;
	union {
		char *string;
		uint32_t u32;
		char room[32];
	} data;
};

#define STRING 3
#define UINT32 14
#define ERROR (-1)
#define TIMEOUT (-24)

typedef void got_fn(int status, struct value *value, void *arg);

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static int is(const char *name, const char *fn)
{
	return name && !strcmp(name, fn);
}

static int call(const char *fn)
{
	do
		nap(); /* each takes its time: what follows begins after a part of the time-out */
	while (is(pmix_fake->stall, fn));
	return is(pmix_fake->fail, fn) ? ERROR : 0;
}

TE_EXPORT int PMIx_Init(struct proc *proc, void *info, size_t ninfo);
int PMIx_Init(struct proc *proc, void *info, size_t ninfo)
{
	int r = call("PMIx_Init");

	(void)info;
	(void)ninfo;
	if (r)
		return r;
	snprintf(proc->nspace, sizeof(proc->nspace), "a job");
	proc->rank = pmix_fake_rank;
	pmix_fake_ninit++;
	return 0;
}

TE_EXPORT int PMIx_Finalize(const void *info, size_t ninfo);
int PMIx_Finalize(const void *info, size_t ninfo)
{
	(void)info;
	(void)ninfo;
	pmix_fake_ninit--;
	return call("PMIx_Finalize");
}

TE_EXPORT int PMIx_Put(uint8_t scope, const char *key, struct value *value);
int PMIx_Put(uint8_t scope, const char *key, struct value *value)
{
	int r = call("PMIx_Put");

	if (r || scope != 3 || value->type != STRING)
		return ERROR;
	memcpy(pmix_fake->key, key, sizeof(pmix_fake->key)); /* all of it, as libpmix may */
	snprintf(pmix_fake->text, sizeof(pmix_fake->text), "%s", value->data.string);
	return 0;
}

TE_EXPORT int PMIx_Commit(void);
int PMIx_Commit(void)
{
	int r = call("PMIx_Commit");

	if (!r)
		pmix_fake->published = 1;
	return r;
}

TE_EXPORT int PMIx_Get(const struct proc *proc, const char *key, const void *info, size_t ninfo,
		       struct value **ret_value);
int PMIx_Get(const struct proc *proc, const char *key, const void *info, size_t ninfo,
	     struct value **ret_value)
{
	int r = call("PMIx_Get");

	(void)info;
	(void)ninfo;
	if (r || strcmp(proc->nspace, "a job") || proc->rank != UINT32_MAX - 1 ||
	    strcmp(key, "pmix.job.size"))
		return ERROR;
	*ret_value = calloc(1, sizeof(**ret_value));
	(*ret_value)->type = UINT32;
	(*ret_value)->data.u32 = pmix_fake->nranks;
	return 0;
}

struct waiting {
	got_fn *done;
	void *arg;
};

/* its server waits for a time that is short here */
static void *answer(void *arg)
{
	struct waiting w = *(struct waiting *)arg;
	struct value v = { .type = STRING, .data.string = pmix_fake->text };
	int r;

	free(arg);
	for (int i = 0; i < 5 && !pmix_fake->published; i++)
		nap();
	r = call("PMIx_Get_nb");
	if (!r && !pmix_fake->published)
		r = TIMEOUT;
	w.done(r, r ? NULL : &v, w.arg);
	return NULL;
}

TE_EXPORT int PMIx_Get_nb(const struct proc *proc, const char *key, const void *info,
			  size_t ninfo, got_fn *done, void *arg);
int PMIx_Get_nb(const struct proc *proc, const char *key, const void *info, size_t ninfo,
		got_fn *done, void *arg)
{
	struct waiting *w;
	pthread_t thread;

	(void)info;
	(void)ninfo;
	pmix_fake->nget_nb++;
	if (proc->rank || is(pmix_fake->fail, "the call of PMIx_Get_nb") ||
	    (pmix_fake->published && strcmp(key, pmix_fake->key)))
		return ERROR;
	w = malloc(sizeof(*w));
	*w = (struct waiting){ done, arg };
	pthread_create(&thread, NULL, answer, w);
	pthread_detach(thread);
	return 0;
}

TE_EXPORT const char *PMIx_Error_string(int status);
const char *PMIx_Error_string(int status)
{
	return status == ERROR ? "ERROR" : "another status";
}
