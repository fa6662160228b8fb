/* request.c - the messages of clients and their answers; see ted.h. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <te/errno.h>

#include "daemon/ted.h"

static void ok(struct ted *t, struct ted_client *c)
{
	ted_reply(t, c, 0, "", 0, NULL, 0, -1);
}

static void hello(struct ted *t, struct ted_client *c, const struct te__wire *m, int fd)
{
	static const uint8_t none[TE__WIRE_KEY_NBYTES];

	(void)fd;
	if (c->job) {
		ted_error(t, c, -TE_ESTATE, "HELLO: it was said already");
	} else if (!memcmp(m->key, none, sizeof(none))) {
		ted_error(t, c, -EINVAL, "HELLO: the key of the job is zero");
	} else if (ted_job_join(t, c, m->key)) {
		c->deadline_ns = 0;
		ted_reply(t, c, 0, t->instance, 0, NULL, 0, -1);
	}
}

static void grant(struct ted *t, struct ted_client *c, const struct te__wire *m, int fd)
{
	(void)fd;
	ted_spill_grant(t, c, m->nbytes);
}

static void hold(struct ted *t, struct ted_client *c, const struct te__wire *m, int fd)
{
	(void)m;
	if (fd < 0)
		ted_error(t, c, -EINVAL, "HOLD without a file descriptor");
	else
		ted_spill_hold(t, c, fd);
}

/* all bytes count, also bytes above a limit */
static void wrote(struct ted *t, struct ted_client *c, const struct te__wire *m, int fd)
{
	char why[128];

	(void)fd;
	if (m->nbytes > INT64_MAX) {
		ted_error(t, c, -EINVAL, "WROTE: %" PRIu64 " bytes", m->nbytes);
		return;
	}
	ted_written_add(t, c, (int64_t)m->nbytes);
	if (ted_written_over(t, c, why, sizeof(why)))
		ted_error(t, c, -EDQUOT, "WROTE: %s", why);
	else
		ok(t, c);
}

static void status(struct ted *t, struct ted_client *c, const struct te__wire *m, int fd)
{
	size_t n = 0;
	char *text;

	(void)m;
	(void)fd;
	if (!ted_is_admin(c->uid)) {
		ted_error(t, c, -EACCES, "STATUS: for root and user %u only",
			  (unsigned int)geteuid());
		return;
	}
	text = ted_metrics_text(t, &n);
	if (!text || n > TE__WIRE_DATA_MAX)
		ted_error(t, c, -ENOMEM, "STATUS: no memory for %zu bytes", n);
	else
		ted_reply(t, c, 0, t->instance, n, text, n, -1);
	free(text);
}

static void jobs(struct ted *t, struct ted_client *c, const struct te__wire *m, int fd)
{
	const size_t most = TE__WIRE_DATA_MAX / sizeof(struct te__wire_job);
	struct te__wire_job *list = calloc(most, sizeof(*list));
	size_t n = 0;

	(void)fd;
	if (!list) {
		ted_error(t, c, -ENOMEM, "JOBS: no memory");
		return;
	}
	for (const struct ted_job *j = t->jobs; j && n < most; j = j->next) {
		if ((m->item && j->id >= m->item) ||
		    (!ted_is_admin(c->uid) && j->uid != c->uid))
			continue;
		list[n++] = (struct te__wire_job){
			.id = j->id, .uid = j->uid, .nclients = (uint32_t)j->nclients,
			.nfiles = (uint32_t)j->ngrants, .revoked = (uint32_t)j->revoked,
			.spill_nbytes = (uint64_t)ted_spill_granted(t, j, 0, 0),
			.written_nbytes = (uint64_t)ted_written(t, j->uid, j),
		};
	}
	ted_reply(t, c, 0, "", n, list, n * sizeof(*list), -1);
	free(list);
}

static void revoke_job(struct ted *t, struct ted_client *c, const struct te__wire *m, int fd)
{
	struct ted_job *j = t->jobs;

	(void)fd;
	while (j && j->id != m->item)
		j = j->next;
	if (!j || (!ted_is_admin(c->uid) && j->uid != c->uid)) {
		ted_error(t, c, -ENOENT, "REVOKE: there is no job %u", m->item);
		return;
	}
	j->revoked = 1;
	ok(t, c);
}

static const struct kind {
	const char *name;
	void (*fn)(struct ted *t, struct ted_client *c, const struct te__wire *m, int fd);
	int job; /* 1: after HELLO */
	int fd;	 /* 1: may have a descriptor */
} kinds[] = {
	[TE__WIRE_HELLO] = { "HELLO", hello, 0, 0 },
	[TE__WIRE_GRANT] = { "GRANT", grant, 1, 0 },
	[TE__WIRE_STATUS] = { "STATUS", status, 0, 0 },
	[TE__WIRE_JOBS] = { "JOBS", jobs, 0, 0 },
	[TE__WIRE_REVOKE] = { "REVOKE", revoke_job, 0, 0 },
	[TE__WIRE_HOLD] = { "HOLD", hold, 1, 1 },
	[TE__WIRE_WROTE] = { "WROTE", wrote, 1, 0 },
};

void ted_request(struct ted *t, struct ted_client *c, const struct te__wire *m, int fd)
{
	const struct kind *k = m->kind < sizeof(kinds) / sizeof(kinds[0]) ? &kinds[m->kind] : NULL;

	if (!k || !k->fn)
		ted_error(t, c, -EOPNOTSUPP, "message %u is unknown", m->kind);
	else if (k->job && !c->job)
		ted_error(t, c, -TE_ESTATE, "%s before HELLO", k->name);
	else if (fd >= 0 && !k->fd)
		ted_error(t, c, -EINVAL, "%s with a file descriptor", k->name);
	else
		k->fn(t, c, m, fd);
}
