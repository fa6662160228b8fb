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

/* a message, while it is served */
struct request {
	const struct te__wire *m;
	const void *data;
	size_t nbytes;
	int *fd;
};

static void ok(struct ted *t, struct ted_client *c)
{
	ted_reply(t, c, 0, "", 0, NULL, 0, -1);
}

/* the job has failed: its waits get that */
static void fail_job(struct ted *t, struct ted_job *j)
{
	for (int i = 0; i < t->end && j->nwaits; i++) {
		struct ted_client *c = &t->client[i];

		if (c->fd < 0 || c->job != j || !c->waits)
			continue;
		ted_client_unwait(t, c);
		ted_error(t, c, j->code, "%s", j->why);
	}
}

static void hello(struct ted *t, struct ted_client *c, const struct request *q)
{
	static const uint8_t none[TE__WIRE_KEY_NBYTES];
	const uint32_t rank = q->m->rank, nranks = q->m->item;
	struct ted_job *j;
	uint8_t *states;

	if (c->job) {
		ted_error(t, c, -TE_ESTATE, "HELLO: it was said already");
		return;
	}
	if (!memcmp(q->m->key, none, sizeof(none))) {
		ted_error(t, c, -EINVAL, "HELLO: the key of the job is zero");
		return;
	}
	if (rank != TE__WIRE_NO_RANK && (rank >= nranks || nranks > t->conf.clients)) {
		ted_error(t, c, -EINVAL,
			  "HELLO: rank %u of %u: expected a rank from 0, of 1 to %lld (clients)",
			  rank, nranks, (long long)t->conf.clients);
		return;
	}
	j = ted_job_join(t, c, q->m->key);
	if (!j)
		return;
	if (rank != TE__WIRE_NO_RANK && !j->nranks) {
		states = calloc(nranks, 1);
		if (!states) {
			ted_error(t, c, -ENOMEM, "HELLO: no memory for %u ranks", nranks);
			ted_job_leave(t, c);
			return;
		}
		j->rank = states;
		j->nranks = nranks;
	}
	if (j->code)
		ted_error(t, c, j->code, "%s", j->why);
	else if (rank != TE__WIRE_NO_RANK && j->nranks != nranks)
		ted_error(t, c, -TE_EMISMATCH, "HELLO: rank %u of %u, but the job has %u ranks",
			  rank, nranks, j->nranks);
	else if (rank != TE__WIRE_NO_RANK && j->rank[rank] != TED_RANK_AWAITED &&
		 j->rank[rank] != TED_RANK_LEFT)
		ted_error(t, c, -TE_EMISMATCH, "HELLO: rank %u is connected already", rank);
	else {
		c->rank = rank;
		c->deadline_ns = 0;
		if (rank != TE__WIRE_NO_RANK)
			j->rank[rank] = TED_RANK_HERE;
		ted_reply(t, c, 0, t->instance, 0, NULL, 0, -1);
		return;
	}
	ted_job_leave(t, c);
}

static void put(struct ted *t, struct ted_client *c, const struct request *q)
{
	struct ted_job *j = c->job;
	const struct ted_key *old = ted_job_key(j, q->m->text);
	const int64_t nbytes = j->nbytes + (int64_t)q->nbytes - (int64_t)(old ? old->nbytes : 0);
	const int64_t more = nbytes - j->nbytes + (old ? 0 : TED_KEY_NBYTES);
	struct ted_key *k;
	char why[128];

	if (!*q->m->text) {
		ted_error(t, c, -EINVAL, "PUT: the name is empty");
		return;
	}
	if (!old && (int64_t)j->nkeys >= t->conf.keys) {
		ted_error(t, c, -ENOSPC, "PUT: the job has %zu keys, the limit (keys)", j->nkeys);
		return;
	}
	if (nbytes > t->conf.store) {
		ted_error(t, c, -ENOSPC, "PUT: the values would have %lld bytes, the limit is %lld "
			  "(store)", (long long)nbytes, (long long)t->conf.store);
		return;
	}
	if (ted_over(t, c->uid, TED_STORE, more, why, sizeof(why))) {
		ted_error(t, c, -ENOSPC, "PUT: %" PRId64 " bytes more, but %s", more, why);
		return;
	}
	if (ted_job_put(j, q->m->text, q->data, q->nbytes)) {
		ted_error(t, c, -ENOMEM, "PUT: no memory for %zu bytes", q->nbytes);
		return;
	}
	k = ted_job_key(j, q->m->text);
	ok(t, c);
	for (int i = 0; i < t->end && j->nwaits > (int)j->nfence; i++) {
		struct ted_client *w = &t->client[i];

		if (w->fd < 0 || w->job != j || w->waits != TE__WIRE_GET ||
		    strcmp(w->name, k->name))
			continue;
		ted_client_unwait(t, w);
		ted_reply(t, w, 0, "", k->nbytes, k->data, k->nbytes, -1);
	}
}

static void get(struct ted *t, struct ted_client *c, const struct request *q)
{
	const struct ted_key *k = ted_job_key(c->job, q->m->text);

	if (k)
		ted_reply(t, c, 0, "", k->nbytes, k->data, k->nbytes, -1);
	else if (q->m->wait_ms)
		ted_client_wait(t, c, q->m);
	else
		ted_error(t, c, -ENOENT, "GET: there is no key %.100s", q->m->text);
}

static void fence(struct ted *t, struct ted_client *c, const struct request *q)
{
	struct ted_job *j = c->job;

	if (c->rank == TE__WIRE_NO_RANK) {
		ted_error(t, c, -EINVAL, "FENCE: the client is no rank");
		return;
	}
	ted_client_wait(t, c, q->m);
	if (j->nfence < j->nranks)
		return;
	for (int i = 0; i < t->end && j->nfence; i++) {
		struct ted_client *w = &t->client[i];

		if (w->fd < 0 || w->job != j || w->waits != TE__WIRE_FENCE)
			continue;
		ted_client_unwait(t, w);
		ok(t, w);
	}
}

static void publish(struct ted *t, struct ted_client *c, const struct request *q)
{
	struct ted_job *j = c->job;
	const uint32_t item = q->m->item;
	const int fd = *q->fd;
	char why[128];

	if (fd < 0)
		ted_error(t, c, -EINVAL, "PUBLISH of item %u without a file descriptor", item);
	else if (!ted_may_keep(t, fd))
		ted_error(t, c, -EINVAL, "PUBLISH of item %u: the descriptor is not of memory, "
			  "a device or a file of spill space", item);
	else if (ted_job_item(j, item))
		ted_error(t, c, -EEXIST, "PUBLISH of item %u: it is published already", item);
	else if (c->nfds >= t->conf.fds)
		ted_error(t, c, -ENOSPC, "PUBLISH of item %u: the client has %d descriptors here, "
			  "the limit (fds)", item, c->nfds);
	else if (ted_over(t, c->uid, TED_FDS, 1, why, sizeof(why)))
		ted_error(t, c, -EMFILE, "PUBLISH of item %u: %s", item, why);
	else if (ted_job_publish(c, item, q->m->nbytes, fd))
		ted_error(t, c, -ENOMEM, "PUBLISH of item %u: no memory", item);
	else {
		*q->fd = -1;
		ok(t, c);
		for (int i = 0; i < t->end && j->nwaits > (int)j->nfence; i++) {
			struct ted_client *w = &t->client[i];

			if (w->fd < 0 || w->job != j || w->waits != TE__WIRE_FETCH ||
			    w->item != item)
				continue;
			ted_client_unwait(t, w);
			ted_reply(t, w, 0, "", q->m->nbytes, NULL, 0, fd);
		}
	}
}

static void fetch(struct ted *t, struct ted_client *c, const struct request *q)
{
	const struct ted_item *it = ted_job_item(c->job, q->m->item);

	if (it)
		ted_reply(t, c, 0, "", it->nbytes, NULL, 0, it->fd);
	else if (q->m->wait_ms)
		ted_client_wait(t, c, q->m);
	else
		ted_error(t, c, -ENOENT, "FETCH: there is no item %u", q->m->item);
}

static void control(struct ted *t, struct ted_client *c, const struct request *q)
{
	struct ted_job *j = c->job;
	char why[128];
	int r = 0;

	(void)q;
	if (!j->nranks) {
		ted_error(t, c, -TE_ESTATE, "CONTROL: the job has no ranks yet");
		return;
	}
	if (!j->page && ted_over(t, c->uid, TED_FDS, 1, why, sizeof(why))) {
		ted_error(t, c, -EMFILE, "CONTROL: no abort page: %s", why);
		return;
	}
	if (!j->page)
		r = ted_job_page(j);
	if (r)
		ted_error(t, c, r, "CONTROL: no abort page: %s", strerror(-r));
	else
		ted_reply(t, c, 0, "", j->nranks * sizeof(*j->page), NULL, 0, j->page_fd);
}

static void grant(struct ted *t, struct ted_client *c, const struct request *q)
{
	ted_spill_grant(t, c, q->m->nbytes);
}

static void hold(struct ted *t, struct ted_client *c, const struct request *q)
{
	if (*q->fd < 0)
		ted_error(t, c, -EINVAL, "HOLD without a file descriptor");
	else
		ted_spill_hold(t, c, *q->fd);
}

/* the bytes count, also those that exceed a limit */
static void wrote(struct ted *t, struct ted_client *c, const struct request *q)
{
	char why[128];

	if (q->m->nbytes > INT64_MAX) {
		ted_error(t, c, -EINVAL, "WROTE: %" PRIu64 " bytes", q->m->nbytes);
		return;
	}
	ted_written_add(t, c, (int64_t)q->m->nbytes);
	if (ted_written_over(t, c, why, sizeof(why)))
		ted_error(t, c, -EDQUOT, "WROTE: %s", why);
	else
		ok(t, c);
}

static void status(struct ted *t, struct ted_client *c, const struct request *q)
{
	size_t n = 0;
	char *text;

	(void)q;
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

static void jobs(struct ted *t, struct ted_client *c, const struct request *q)
{
	const size_t most = TE__WIRE_DATA_MAX / sizeof(struct te__wire_job);
	struct te__wire_job *list = calloc(most, sizeof(*list));
	size_t n = 0;

	if (!list) {
		ted_error(t, c, -ENOMEM, "JOBS: no memory");
		return;
	}
	for (const struct ted_job *j = t->jobs; j && n < most; j = j->next) {
		if ((q->m->item && j->id >= q->m->item) ||
		    (!ted_is_admin(c->uid) && j->uid != c->uid))
			continue;
		list[n++] = (struct te__wire_job){
			.id = j->id, .uid = j->uid, .nclients = (uint32_t)j->nclients,
			.nranks = j->nranks, .nkeys = (uint32_t)j->nkeys,
			.nfds = (uint32_t)j->nitems, .nfiles = (uint32_t)j->ngrants,
			.revoked = (uint32_t)j->revoked, .store_nbytes = (uint64_t)j->nbytes,
			.spill_nbytes = (uint64_t)ted_spill_granted(t, j, 0, 0),
			.written_nbytes = (uint64_t)ted_written(t, j->uid, j),
		};
	}
	ted_reply(t, c, 0, "", n, list, n * sizeof(*list), -1);
	free(list);
}

static void revoke_job(struct ted *t, struct ted_client *c, const struct request *q)
{
	struct ted_job *j = t->jobs;

	while (j && j->id != q->m->item)
		j = j->next;
	if (!j || (!ted_is_admin(c->uid) && j->uid != c->uid)) {
		ted_error(t, c, -ENOENT, "REVOKE: there is no job %u", q->m->item);
		return;
	}
	j->revoked = 1;
	ok(t, c);
}

static void bye(struct ted *t, struct ted_client *c, const struct request *q)
{
	if (c->job)
		ted_request_leave(t, c, q->m->code ? -TE_EABORT : 0, q->m->text);
	ted_client_lose(t, c, "");
}

static const struct kind {
	const char *name;
	void (*fn)(struct ted *t, struct ted_client *c, const struct request *q);
	int job;  /* 1: after HELLO */
	int fd;	  /* 1: may have a descriptor */
	int data; /* 1: may have data */
} kinds[] = {
	[TE__WIRE_HELLO] = { "HELLO", hello, 0, 0, 0 },
	[TE__WIRE_CONTROL] = { "CONTROL", control, 1, 0, 0 },
	[TE__WIRE_PUBLISH] = { "PUBLISH", publish, 1, 1, 0 },
	[TE__WIRE_FETCH] = { "FETCH", fetch, 1, 0, 0 },
	[TE__WIRE_BYE] = { "BYE", bye, 0, 0, 0 },
	[TE__WIRE_PUT] = { "PUT", put, 1, 0, 1 },
	[TE__WIRE_GET] = { "GET", get, 1, 0, 0 },
	[TE__WIRE_FENCE] = { "FENCE", fence, 1, 0, 0 },
	[TE__WIRE_GRANT] = { "GRANT", grant, 1, 0, 0 },
	[TE__WIRE_STATUS] = { "STATUS", status, 0, 0, 0 },
	[TE__WIRE_JOBS] = { "JOBS", jobs, 0, 0, 0 },
	[TE__WIRE_REVOKE] = { "REVOKE", revoke_job, 0, 0, 0 },
	[TE__WIRE_HOLD] = { "HOLD", hold, 1, 1, 0 },
	[TE__WIRE_WROTE] = { "WROTE", wrote, 1, 0, 0 },
};

void ted_request(struct ted *t, struct ted_client *c, const struct te__wire *m, const void *data,
		 size_t nbytes, int *fd)
{
	const struct request q = { m, data, nbytes, fd };
	const struct kind *k = m->kind < sizeof(kinds) / sizeof(kinds[0]) ? &kinds[m->kind] : NULL;

	if (c->waits && m->kind != TE__WIRE_BYE) {
		t->n.protocol_errors++;
		ted_error(t, c, -EPROTO, "message %u before the reply to the request before",
			  m->kind);
		ted_client_lose(t, c, "broke the protocol");
	} else if (!k || !k->fn) {
		ted_error(t, c, -EOPNOTSUPP, "message %u is unknown", m->kind);
	} else if (k->job && !c->job) {
		ted_error(t, c, -TE_ESTATE, "%s before HELLO", k->name);
	} else if (k->job && c->job->code) {
		ted_error(t, c, c->job->code, "%s", c->job->why);
	} else if (*fd >= 0 && !k->fd) {
		ted_error(t, c, -EINVAL, "%s with a file descriptor", k->name);
	} else if (nbytes && !k->data) {
		ted_error(t, c, -EINVAL, "%s with %zu bytes of data", k->name, nbytes);
	} else {
		k->fn(t, c, &q);
	}
}

/* "2 (has not connected), 5" */
static void list_missing(const struct ted_job *j, char *text, size_t nbytes)
{
	size_t n = 0;
	uint32_t shown = 0, missing = j->nranks - j->nfence;

	*text = 0;
	for (uint32_t i = 0; i < j->nranks && shown < 5; i++) {
		if (j->rank[i] == TED_RANK_FENCE)
			continue;
		n += (size_t)snprintf(text + n, nbytes - n, "%s%u%s", shown ? ", " : "", i,
				      j->rank[i] == TED_RANK_AWAITED ? " (has not connected)" :
				      j->rank[i] == TED_RANK_LEFT ? " (has left)" : "");
		shown++;
	}
	if (missing > shown)
		snprintf(text + n, nbytes - n, " and %u more", missing - shown);
}

/* a fence lasts as long as its first client is willing to wait: the others get the same error */
static void late_fence(struct ted *t, const struct ted_client *c)
{
	const struct ted_job *j = c->job;
	const uint32_t ms = c->wait_ms, n = j->nranks - j->nfence;
	char missing[160];

	list_missing(j, missing, sizeof(missing));
	for (int i = 0; i < t->end && j->nfence; i++) {
		struct ted_client *w = &t->client[i];

		if (w->fd < 0 || w->job != j || w->waits != TE__WIRE_FENCE)
			continue;
		ted_client_unwait(t, w);
		ted_error(t, w, -ETIMEDOUT, "FENCE: after %u ms %u of %u ranks are missing: %s",
			  ms, n, j->nranks, missing);
	}
}

void ted_request_late(struct ted *t, struct ted_client *c)
{
	const uint32_t kind = c->waits, ms = c->wait_ms;

	t->n.timeouts++;
	if (kind == TE__WIRE_FENCE) {
		late_fence(t, c);
		return;
	}
	ted_client_unwait(t, c);
	if (kind == TE__WIRE_GET)
		ted_error(t, c, -ETIMEDOUT, "GET: after %u ms there is no key %.100s", ms, c->name);
	else
		ted_error(t, c, -ETIMEDOUT, "FETCH: after %u ms item %u is not published", ms,
			  c->item);
}

void ted_request_leave(struct ted *t, struct ted_client *c, int code, const char *text)
{
	struct ted_job *j = c->job;

	ted_client_unwait(t, c);
	if (c->rank != TE__WIRE_NO_RANK) {
		j->rank[c->rank] = TED_RANK_LEFT;
		if (code && !j->code) {
			j->code = code;
			snprintf(j->why, sizeof(j->why), "rank %u %.180s", c->rank, text);
			t->n.failures++;
			ted_job_abort(j);
			ted_say_client("job %u: %s", j->id, j->why);
			fail_job(t, j);
		}
	}
	ted_job_leave(t, c);
}
