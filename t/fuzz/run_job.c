/*
 * t/fuzz/run_job.c - the job that te_run sends to its agents, of any bytes: as they are, and after
 * texts and numbers that are right, so that the lists are reached.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "tools/run/run.h"

/* a job that was taken is one: its bytes are those that its values make */
static void check(const struct buf *body, const struct job *j)
{
	struct buf b = { 0 };
	int argc = 0;

	if (j->nranks < 1 || j->nranks > RANKS_MAX || j->n < 1 || j->first < 0 ||
	    j->first + j->n > j->nranks || j->silence_s < 1 || j->respawn >> 1 ||
	    !j->cmd[0])
		abort();
	buf_put_text(&b, j->version);
	buf_put_text(&b, j->host);
	buf_put_text(&b, j->folder);
	buf_put_int(&b, j->nranks);
	buf_put_int(&b, j->first);
	buf_put_int(&b, j->n);
	buf_put_int(&b, j->per_node);
	buf_put_int(&b, j->grace_s);
	buf_put_int(&b, j->silence_s);
	buf_put_int(&b, j->respawn);
	for (char **v = j->env; *v; v++)
		buf_put_text(&b, *v);
	buf_put_text(&b, "");
	while (j->cmd[argc])
		argc++;
	buf_put_int(&b, argc);
	for (int i = 0; i < argc; i++)
		buf_put_text(&b, j->cmd[i]);
	if (b.failed || b.n != body->n || memcmp(b.p, body->p, b.n))
		abort();
	buf_free(&b);
}

static void take(const struct buf *from)
{
	/* without room at its end, so that reads past it are seen */
	struct buf b = { .p = malloc(from->n + !from->n), .n = from->n, .cap = from->n };
	struct job j;

	if (!b.p)
		abort();
	if (from->n)
		memcpy(b.p, from->p, from->n);
	if (!job_take(&b, &j))
		check(from, &j);
	/* what is told of a job that is none */
	else if (strlen(j.version) > from->n || strlen(j.host) > from->n)
		abort();
	free(j.env);
	free(j.cmd);
	buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	static const int v[] = { 4, 1, 2, 0, 5, 30, 1 };
	struct buf b = { 0 };

	buf_put(&b, data, nbytes);
	take(&b);
	buf_free(&b);
	for (int i = 0; i < 3; i++)
		buf_put_text(&b, "text");
	for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++)
		buf_put_int(&b, v[i]);
	buf_put(&b, data, nbytes);
	take(&b);
	buf_free(&b);
	return 0;
}
