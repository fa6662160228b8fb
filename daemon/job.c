/* job.c - jobs: the clients of a user with one key; see ted.h. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/ted.h"

/* takes the same time for all keys */
static int same_key(const uint8_t *a, const uint8_t *b)
{
	volatile uint8_t diff = 0;

	for (int i = 0; i < TE__WIRE_KEY_NBYTES; i++)
		diff |= a[i] ^ b[i];
	return !diff;
}

struct ted_job *ted_job_join(struct ted *t, struct ted_client *c, const uint8_t *key)
{
	struct ted_job *j, *found = NULL;

	for (j = t->jobs; j; j = j->next)
		if (same_key(j->key, key) && j->uid == c->uid)
			found = j;
	j = found ? found : calloc(1, sizeof(*j));
	if (!j) {
		ted_error(t, c, -ENOMEM, "HELLO: no memory for a job");
		return NULL;
	}
	if (!found) {
		memcpy(j->key, key, sizeof(j->key));
		j->uid = c->uid;
		j->id = ++t->next_id;
		j->next = t->jobs;
		t->jobs = j;
	}
	j->nclients++;
	c->job = j;
	return j;
}

static void destroy(struct ted *t, struct ted_job *j)
{
	struct ted_job **at = &t->jobs;

	while (*at != j)
		at = &(*at)->next;
	*at = j->next;
	explicit_bzero(j->key, sizeof(j->key));
	free(j);
}

void ted_job_leave(struct ted *t, struct ted_client *c)
{
	struct ted_job *j = c->job;

	c->job = NULL;
	if (!--j->nclients && !j->ngrants)
		destroy(t, j);
}

void ted_job_release(struct ted *t, struct ted_job *j)
{
	if (!--j->ngrants && !j->nclients)
		destroy(t, j);
}
