/*
 * ted.c - ranks of one node meet at the service ted(8), whose socket TE_COMM_DIR names in place of
 * a folder; see daemon/ted.h for the messages.
 *
 * Rank 0 draws the key of the group and puts it into the store of the job. After a fence of all
 * ranks each gets it. A second fence ends before any rank leaves: one that opens the next
 * communicator at once cannot get the key of this one. From then on the ranks need no service: they
 * connect to each other as after a failure, by local sockets whose names derive from the key.
 */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libtecomm/bootstrap/boot.h"
#include "libtecore/base/wire.h"

/* for the answer of ted, which names missing ranks at the deadline */
#define GRACE_NS INT64_C(1000000000)

static int ted_chosen(void)
{
	struct stat st;

	return !stat(te__param_str(TE_PARAM_COMM_DIR), &st) && S_ISSOCK(st.st_mode);
}

static int ted_who(struct te__boot *b)
{
	if (!*te__param_str(TE_PARAM_COMM_DIR))
		return te__fail(-EINVAL, "te_comm_create: %s: TE_COMM_DIR is not set", b->name);
	/* a folder is of one program; all programs of a user come to one socket */
	if (!*te__param_str(TE_PARAM_COMM_JOB))
		return te__fail(-EINVAL, "te_comm_create: %s: TE_COMM_JOB is not set: expected a "
				"name that no other program at the same time has", b->name);
	return te__who_by_environment(b);
}

static int ask(struct te__boot *b, struct te__wire_call *c, struct te__wire *m)
{
	const int64_t left = (b->deadline - te__boot_now()) / 1000000;

	m->wait_ms = left > 0 ? (uint32_t)left : 0;
	return te__wire_call(c, m);
}

static int exchange_key(struct te__boot *b, struct te__wire_call *c)
{
	struct te__wire_data key = { b->key, sizeof(b->key), 0 }, none = { NULL, 0, 0 };
	struct te__wire put = { .kind = TE__WIRE_PUT, .text = "key" };
	struct te__wire get = { .kind = TE__WIRE_GET, .text = "key" };
	struct te__wire all = { .kind = TE__WIRE_FENCE }, last = { .kind = TE__WIRE_FENCE };
	int r = 0;

	c->ret_data = &none;
	if (!b->rank) {
		r = te__random(b->key, sizeof(b->key));
		c->data = b->key;
		c->nbytes = sizeof(b->key);
		if (!r)
			r = ask(b, c, &put);
		c->data = NULL;
		c->nbytes = 0;
	}
	if (!r)
		r = ask(b, c, &all);
	c->ret_data = &key;
	if (!r)
		r = ask(b, c, &get);
	if (!r && key.nbytes != sizeof(b->key))
		r = te__fail(-EPROTO, "%s: the key has %zu bytes", c->what, key.nbytes);
	c->ret_data = &none;
	return r ? r : ask(b, c, &last);
}

/* when ted has closed the connection, the rank may come again, for the next communicator */
static void leave(struct te__wire_call *c, int code)
{
	struct te__wire m = { .magic = TE__WIRE_MAGIC, .kind = TE__WIRE_BYE };
	char rest[64];

	/* ted has told all ranks of a fence that it has lasted too long */
	if (code && code != -ETIMEDOUT) {
		m.code = code;
		snprintf(m.text, sizeof(m.text), "gives up: %s", te_error_detail());
	}
	if (!te__wire_send(c->sock, &m, NULL, 0, -1))
		while (recv(c->sock, rest, sizeof(rest), MSG_DONTWAIT) < 0 && errno == EAGAIN &&
		       te__boot_now() < c->deadline_ns)
			te__poll(&(struct pollfd){ .fd = c->sock, .events = POLLIN }, 1,
				 c->deadline_ns);
	close(c->sock);
}

static int ted_meet(struct te__boot *b)
{
	const char *path = te__param_str(TE_PARAM_COMM_DIR);
	struct te__wire hello = { .kind = TE__WIRE_HELLO, .rank = (uint32_t)b->rank,
				  .item = (uint32_t)b->nranks };
	char who[128], what[96];
	struct te__wire_call c = {
		.who = who, .what = what, .late = "it does not answer",
		.deadline_ns = b->deadline + GRACE_NS, .fd = -1,
	};
	int r;

	snprintf(who, sizeof(who), "ted at %s", path);
	snprintf(what, sizeof(what), "te_comm_create: %s", b->name);
	te__wire_job_key("te_comm_create", te__param_str(TE_PARAM_COMM_JOB), b->name, hello.key);
	r = te__wire_dial(path, "ted", b->deadline, &c.sock);
	if (r)
		return r;
	r = te__wire_call(&c, &hello);
	if (!r)
		r = exchange_key(b, &c);
	leave(&c, r);
	return r ? r : te__boot_again.meet(b);
}

static void ted_dial(const struct te__boot *b, int32_t rank, struct te__dial *d)
{
	te__boot_again.dial(b, rank, d);
}

const struct te__boot_provider te__boot_ted = {
	.name = "ted",
	.chosen = ted_chosen,
	.who = ted_who,
	.meet = ted_meet,
	.dial = ted_dial,
};
