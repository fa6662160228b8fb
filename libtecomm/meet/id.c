/*
 * id.c - ranks meet by an id: the addresses of a root, which sends each rank all other addresses.
 *
 * The root is a thread. It only matches: a rank sends HELLO, and after the last one has, each is
 * sent the TABLE of addresses. If the group fails (a rank has another number of ranks or another
 * version, ends, or its time-out passes), all ranks get the reason. Strangers, and peers that send
 * slowly or nothing, do not block others.
 */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "libtecomm/meet/boot.h"
#include "libtecomm/meet/thread.h"

#define GUESTS_MAX 256 /* connections without a hello */
#define GUEST_NS INT64_C(5000000000)
#define GRACE_NS INT64_C(1000000000) /* for the root's answer about a time-out */

/* ---- ids ---- */

/* bytes of an id: magic, version, key, addresses; then zeros */
static const uint8_t id_magic[4] = { 't', 'e', 'i', 'd' };
#define ID_VERSION 1
#define ID_ADDRS (5 + TE__KEY_NBYTES)

_Static_assert(ID_ADDRS + TE__ADDRS_MOST <= sizeof(struct te_comm_id), "an id has room");

static void id_put(struct te_comm_id *id, const uint8_t *key, const struct te__addrs *addrs)
{
	memset(id, 0, sizeof(*id));
	memcpy(id->bytes, id_magic, sizeof(id_magic));
	id->bytes[4] = ID_VERSION;
	memcpy(id->bytes + 5, key, TE__KEY_NBYTES);
	te__addrs_put(id->bytes + ID_ADDRS, addrs);
}

static int id_get(const struct te_comm_id *id, uint8_t *ret_key, struct te__addrs *ret_addrs)
{
	if (memcmp(id->bytes, id_magic, sizeof(id_magic)) || id->bytes[4] != ID_VERSION ||
	    te__addrs_get(id->bytes + ID_ADDRS, sizeof(*id) - ID_ADDRS, ret_addrs) < 0 ||
	    !te__addrs_usable(ret_addrs))
		return -EINVAL;
	memcpy(ret_key, id->bytes + 5, TE__KEY_NBYTES);
	return 0;
}

int te_comm_id_format(const struct te_comm_id *id, char *ret_text, size_t nbytes)
{
	char text[TE_COMM_ID_TEXT], ip[INET6_ADDRSTRLEN];
	uint8_t key[TE__KEY_NBYTES];
	struct te__addrs l;
	size_t at;

	if (!id || id_get(id, key, &l))
		return te__fail(-EINVAL, "te_comm_id_format: not an id of te_comm_id_create");
	at = (size_t)snprintf(text, sizeof(text), "te1:");
	for (size_t i = 0; i < sizeof(key); i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%02x", key[i]);
	at += (size_t)snprintf(text + at, sizeof(text) - at, ":%u", l.port);
	for (int i = 0; i < l.n; i++) {
		inet_ntop(l.a[i].family == 6 ? AF_INET6 : AF_INET, l.a[i].ip, ip, sizeof(ip));
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%c%s", i ? ',' : ':', ip);
	}
	if (!ret_text || at >= nbytes)
		return te__fail(-EINVAL, "te_comm_id_format: the text has %zu bytes, and there is "
				"room for %zu", at + 1, nbytes);
	memcpy(ret_text, text, at + 1);
	return 0;
}

static int hex(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* the list after the port; 0 or -EINVAL */
static int parse_addrs(const char *s, struct te__addrs *l)
{
	for (;; s++) {
		const size_t len = strcspn(s, ",");
		char ip[INET6_ADDRSTRLEN];

		if (len >= sizeof(ip) || l->n == TE__ADDRS_MAX)
			return -EINVAL;
		memcpy(ip, s, len);
		ip[len] = 0;
		l->a[l->n].family = strchr(ip, ':') ? 6 : 4;
		if (inet_pton(l->a[l->n].family == 6 ? AF_INET6 : AF_INET, ip, l->a[l->n].ip) != 1)
			return -EINVAL;
		l->n++;
		s += len;
		if (!*s)
			return 0;
	}
}

static int parse(const char *s, uint8_t *key, struct te__addrs *l)
{
	unsigned long port;
	char *end;

	if (strncmp(s, "te1:", 4))
		return -EINVAL;
	s += 4;
	for (size_t i = 0; i < TE__KEY_NBYTES; i++, s += 2) {
		if (hex(s[0]) < 0 || hex(s[1]) < 0)
			return -EINVAL;
		key[i] = (uint8_t)(hex(s[0]) << 4 | hex(s[1]));
	}
	if (*s++ != ':' || *s < '0' || *s > '9')
		return -EINVAL;
	port = strtoul(s, &end, 10);
	if (*end != ':' || !port || port > 65535)
		return -EINVAL;
	l->port = (uint16_t)port;
	return parse_addrs(end + 1, l);
}

int te_comm_id_parse(const char *text, struct te_comm_id *ret_id)
{
	uint8_t key[TE__KEY_NBYTES];
	struct te__addrs l = { 0 };

	if (!text || strnlen(text, TE_COMM_ID_TEXT) == TE_COMM_ID_TEXT || parse(text, key, &l))
		return te__fail(-EINVAL, "te_comm_id_parse: \"%.40s\" is not the text of an id",
				text ? text : "");
	id_put(ret_id, key, &l);
	return 0;
}

/* ---- the root ---- */

/* a connection: a guest until its hello is valid, then a rank */
struct guest {
	struct te__conn c;
	int64_t until;	   /* guest: for its hello; rank: it waits for the others */
	int is_rank, done; /* done: nothing is to come from it, closed when all is sent */
	struct te__hello h;
};

struct te_comm_root {
	pthread_t thread;
	pid_t pid; /* process that created it: a forked child has no thread */
	struct te__listen listen;
	int wake_fd;
	uint8_t key[TE__KEY_NBYTES];
	char at[TE__ADDR_TEXT];
	int64_t begin;
	/* the thread's */
	struct guest **guest;
	size_t n, cap;
	struct pollfd *p;
	int32_t nranks, narrived;
	struct guest **rank; /* by rank; NULL: not arrived */
	uint8_t *table;
	int code; /* not 0: the group has failed, with this text */
	char text[TE__REFUSE_MOST];
	int complete;
	int deaf; /* connections can no longer be accepted */
};

static void answer(struct guest *g, enum te__frame_type type,
		   const void *body, size_t nbytes)
{
	const struct te__frame f = { .version = TE__FRAME_VERSION, .type = (uint16_t)type };

	te__conn_queue(&g->c, &f, body, nbytes);
	g->done = 1;
}

static void turn_away(struct guest *g, int code, const char *text)
{
	uint8_t body[TE__REFUSE_MOST];

	answer(g, TE__FRAME_REFUSE, body, te__refuse_put(body, code, text));
}

/* set the answer for all ranks, waiting and later ones */
static void fail_all(struct te_comm_root *root, int code, const char *text)
{
	if (root->code || root->complete)
		return;
	root->code = code;
	snprintf(root->text, sizeof(root->text), "%s", text);
	te__log_warn("root at %s: %s", root->at, text);
	for (size_t i = 0; i < root->n; i++)
		if (root->guest[i]->is_rank && !root->guest[i]->done)
			turn_away(root->guest[i], code, root->text);
}

static void late(struct te_comm_root *root, const struct guest *g)
{
	char text[TE__REFUSE_MOST], ranks[160], time[24];
	uint8_t missing[TE__RANKS_MAX];

	for (int32_t r = 0; r < root->nranks; r++)
		missing[r] = !root->rank[r];
	snprintf(text, sizeof(text), "%s did not arrive within %s at %s",
		 te__ranks_text(missing, root->nranks, ranks),
		 te__time_text((int64_t)g->h.timeout_ms * 1000000, time), root->at);
	fail_all(root, -ETIMEDOUT, text);
}

static void send_table(struct te_comm_root *root)
{
	size_t nbytes = 0;

	root->table = te__malloc((size_t)root->nranks * TE__ADDRS_MOST);
	if (!root->table) {
		fail_all(root, -TE_EPEER, "the root has not enough memory");
		return;
	}
	for (int32_t r = 0; r < root->nranks; r++)
		nbytes += te__addrs_put(root->table + nbytes, &root->rank[r]->h.addrs);
	root->complete = 1;
	for (int32_t r = 0; r < root->nranks; r++)
		answer(root->rank[r], TE__FRAME_TABLE, root->table, nbytes);
}

/* a valid hello */
static void arrive(struct te_comm_root *root, struct guest *g)
{
	char text[TE__REFUSE_MOST], me[TE__PEER_TEXT], other[TE__PEER_TEXT];
	const struct te__hello *h = &g->h;
	const char *why;

	te__hello_text(h, other);
	if (!root->rank && h->nranks > 0 && h->nranks <= TE__RANKS_MAX) {
		root->rank = te__calloc((size_t)h->nranks, sizeof(struct guest *));
		root->nranks = root->rank ? h->nranks : 0;
	}
	snprintf(me, sizeof(me), "the root at %s or the rank that came first", root->at);
	why = te__hello_differs(h, root->nranks, me, text);
	if (why) {
		turn_away(g, -TE_EMISMATCH, why);
		fail_all(root, -TE_EMISMATCH, why);
	} else if (root->code) {
		turn_away(g, root->code, root->text);
	} else if (root->complete) {
		snprintf(text, sizeof(text), "%s: all %d ranks have arrived at %s before", other,
			 root->nranks, root->at);
		turn_away(g, -TE_EMISMATCH, text);
	} else if (h->rank < 0 || h->rank >= root->nranks) {
		snprintf(text, sizeof(text), "%s: there are only %d ranks", other, root->nranks);
		turn_away(g, -TE_EMISMATCH, text);
	} else if (root->rank[h->rank]) {
		te__hello_text(&root->rank[h->rank]->h, me);
		snprintf(text, sizeof(text), "%s: there is another process with this rank: %s",
			 other, me);
		te__log_warn("root at %s: %s", root->at, text);
		turn_away(g, -TE_EMISMATCH, text);
	} else {
		g->is_rank = 1;
		g->until = te__boot_now() + (int64_t)h->left_ms * 1000000;
		root->rank[h->rank] = g;
		if (++root->narrived == root->nranks)
			send_table(root);
	}
}

/* input of a guest or rank; 1: the connection ends */
static int hear(struct te_comm_root *root, struct guest *g)
{
	char text[TE__REFUSE_MOST], other[TE__PEER_TEXT];
	const char *why;
	int r;

	if (g->done) { /* its answer was sent, and it has closed */
		r = te__conn_read(&g->c, 0);
		return r < 0;
	}
	r = te__conn_read(&g->c, TE__FRAME_STRANGER);
	if (g->is_rank && r) {
		te__hello_text(&g->h, other);
		snprintf(text, sizeof(text), "%s has ended before all ranks had arrived at %s",
			 other, root->at);
		fail_all(root, -TE_EPEER, text);
		return 1;
	}
	if (r != 1)
		return r < 0;
	te__conn_next(&g->c); /* its contents stay until the next read */
	why = te__frame_differs(&g->c.in, "the root", text);
	if (why) {
		turn_away(g, -TE_EMISMATCH, why);
		fail_all(root, -TE_EMISMATCH, why);
		return 0;
	}
	if (g->c.in.type != TE__FRAME_HELLO ||
	    te__hello_get(g->c.in_body, g->c.in.nbytes, &g->h) || g->h.rank != g->c.ends.peer ||
	    !te__addrs_usable(&g->h.addrs))
		return 1;
	arrive(root, g);
	return 0;
}

static void drop(struct te_comm_root *root, size_t i)
{
	struct guest *g = root->guest[i];

	for (int32_t r = 0; r < root->nranks && g->is_rank; r++)
		if (root->rank[r] == g)
			root->rank[r] = NULL;
	te__conn_close(&g->c);
	te__free(g);
	memmove(&root->guest[i], &root->guest[i + 1], (--root->n - i) * sizeof(struct guest *));
}

/* if there are many, close the oldest connection that has not sent HELLO */
static void make_room(struct te_comm_root *root)
{
	size_t nguests = 0, oldest = 0;

	for (size_t i = root->n; i-- > 0;)
		if (!root->guest[i]->is_rank && !root->guest[i]->done) {
			nguests++;
			oldest = i;
		}
	if (nguests >= GUESTS_MAX)
		drop(root, oldest);
}

static int grow(struct te_comm_root *root)
{
	const size_t cap = root->cap ? 2 * root->cap : 16;
	struct guest **g;
	struct pollfd *p;

	if (root->n < root->cap)
		return 0;
	g = te__realloc(root->guest, cap * sizeof(*g));
	if (g)
		root->guest = g;
	p = g ? te__realloc(root->p, (1 + TE__ADDRS_MAX + cap) * sizeof(*p)) : NULL;
	if (!p)
		return -ENOMEM;
	root->p = p;
	root->cap = cap;
	return 0;
}

static void cannot_accept(struct te_comm_root *root, int code)
{
	char text[TE__REFUSE_MOST];

	snprintf(text, sizeof(text), "the root at %s cannot accept connections: %s", root->at,
		 te_strerror(code));
	root->deaf = 1;
	fail_all(root, -TE_EPEER, text);
}

static void accept_some(struct te_comm_root *root)
{
	const struct te__ends ends = { .key = root->key, .purpose = TE__FOR_ROOT, .peer = -1 };

	/* then hellos are read, before guests without one make room */
	for (int i = 0; i < TE__ACCEPT_MOST; i++) {
		int fd, r = te__conn_accept(&root->listen, &fd);
		struct guest *g = NULL;

		if (r < 0)
			cannot_accept(root, r);
		if (r < 1)
			return;
		make_room(root);
		if (!grow(root))
			g = te__calloc(1, sizeof(*g));
		if (!g) {
			close(fd);
			return;
		}
		te__conn_open(&g->c, fd, &ends, 0);
		g->until = te__boot_now() + GUEST_NS;
		root->guest[root->n++] = g;
	}
}

static void step(struct te_comm_root *root, size_t i, short revents, int64_t now)
{
	struct guest *g = root->guest[i];
	int end = 0;

	if (revents & ~POLLOUT)
		end = hear(root, g);
	if (!end && te__conn_pending(&g->c))
		end = te__conn_write(&g->c) < 0;
	if (!end && g->done && !te__conn_pending(&g->c))
		end = 1;
	if (!end && now >= g->until && !g->done) {
		if (g->is_rank)
			late(root, g);
		else
			end = 1;
	}
	if (end)
		drop(root, i);
}

static void *root_run(void *arg)
{
	const struct te__listen none = { 0 };
	struct te_comm_root *root = arg;

	for (;;) {
		int64_t wake = INT64_MAX, now;
		const struct te__listen *l = root->deaf ? &none : &root->listen;
		const size_t first = 1 + (size_t)l->n; /* index of the guests in the set */
		size_t n = root->n;

		root->p[0] = (struct pollfd){ .fd = root->wake_fd, .events = POLLIN };
		te__listen_poll(l, &root->p[1]);
		for (size_t i = 0; i < n; i++) {
			struct guest *g = root->guest[i];
			const short out = te__conn_can_write(&g->c) ? POLLOUT : 0;

			root->p[first + i] = (struct pollfd){
				.fd = g->c.fd,
				.events = (short)(POLLIN | out),
			};
			if (g->until < wake && !g->done)
				wake = g->until;
		}
		if (te__poll(root->p, first + n, wake) || root->p[0].revents)
			return NULL;
		now = te__boot_now();
		for (size_t i = n; i-- > 0;)
			step(root, i, root->p[first + i].revents, now);
		/* answers to all, which a failure or the last rank has queued */
		for (size_t i = root->n; i-- > 0;)
			step(root, i, 0, now);
		if (te__listen_ready(l, &root->p[1]))
			accept_some(root);
	}
}

static void root_free(struct te_comm_root *root)
{
	while (root->n)
		drop(root, root->n - 1);
	te__listen_close(&root->listen);
	if (root->wake_fd >= 0)
		close(root->wake_fd);
	te__free(root->guest);
	te__free(root->p);
	te__free(root->rank);
	te__free(root->table);
	te__free(root);
}

/* key: NULL, or the key from which the root's key is derived, with the random bytes of the id */
static int root_create(const uint8_t *key, struct te_comm_id *ret_id,
		       struct te_comm_root **ret_root)
{
	uint8_t bytes[TE__KEY_NBYTES];
	struct te_comm_root *root;
	struct te__addrs addrs;
	int r = 0;

	if (!ret_id || !ret_root)
		return te__fail(-EINVAL, "te_comm_id_create: %s is NULL",
				ret_id ? "ret_root" : "ret_id");
	root = te__calloc(1, sizeof(*root));
	if (!root)
		return te__fail(-ENOMEM, "te_comm_id_create: not enough memory");
	root->pid = getpid();
	root->begin = te__boot_now();
	root->wake_fd = te__fault_point() ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (root->wake_fd < 0 || grow(root))
		r = te__fail(root->wake_fd < 0 ? -EMFILE : -ENOMEM,
			     "te_comm_id_create: no %s",
			     root->wake_fd < 0 ? "file descriptor" : "memory");
	if (!r)
		r = te__random(bytes, sizeof(bytes));
	if (!r && key)
		te__key_derive(key, "split by id", bytes, sizeof(bytes), root->key);
	else if (!r)
		memcpy(root->key, bytes, sizeof(bytes));
	if (!r)
		r = te__addr_listen("te_comm_id_create", &root->listen, &addrs);
	if (!r) {
		te__addr_text(&addrs, root->at);
		r = te__thread_start(&root->thread, root_run, root, "te_comm_id_create");
	}
	if (r) {
		root_free(root);
		return r;
	}
	id_put(ret_id, bytes, &addrs);
	*ret_root = root;
	return 0;
}

int te_comm_id_create(struct te_comm_id *ret_id, struct te_comm_root **ret_root)
{
	return root_create(NULL, ret_id, ret_root);
}

int te__id_split(const struct te__boot *of, struct te_comm_id *ret_id,
		 struct te_comm_root **ret_root)
{
	return root_create(of->secret, ret_id, ret_root);
}

struct te_comm_root *te_comm_root_unref(struct te_comm_root *root)
{
	if (!root)
		return NULL;
	if (getpid() != root->pid) {
		te__listen_close(&root->listen);
		return NULL;
	}
	te__thread_stop(root->thread, root->wake_fd);
	root_free(root);
	return NULL;
}

/* ---- ranks ---- */

static int id_chosen(void)
{
	return *te__param_str(TE_PARAM_COMM_ID) != 0;
}

static int id_who(struct te__boot *b)
{
	if (b->opts.id)
		return 0;
	if (!id_chosen())
		return te__create_fail(b, -EINVAL, "TE_COMM_ID is not set");
	return te__who_by_environment(b);
}

struct visit {
	struct te__boot *b;
	struct te__addrs root;
	struct te__conn c;
	struct te__dial dial;
	int greeted;
	char at[TE__ADDR_TEXT];
};

static int greet(struct visit *v)
{
	const struct te__frame f = { .version = TE__FRAME_VERSION, .type = TE__FRAME_HELLO };
	uint8_t body[TE__HELLO_MOST];
	struct te__hello h;

	te__boot_hello(v->b, &h);
	h.addrs = v->b->addrs[v->b->rank];
	te__conn_queue(&v->c, &f, body, te__hello_put(body, &h));
	v->greeted = 1;
	return 0;
}

/* 1: the table has arrived */
static int listen_to(struct visit *v)
{
	struct te__boot *b = v->b;
	struct te__conn *c = &v->c;
	char text[TE__REFUSE_MOST];
	const char *why;
	int code, r;

	r = te__conn_write(c);
	if (r >= 0)
		r = te__conn_read(c, TE__RANKS_MAX * TE__ADDRS_MOST);
	if (!r)
		return 0;
	if (r == -EPIPE || r == -ECONNRESET)
		return te__create_fail(b, -TE_EPEER, "the root at %s has ended before all ranks "
				       "had arrived", v->at);
	if (r < 0)
		return te__create_fail(b, -TE_EPEER, "the root at %s: %s", v->at,
				       r == -EACCES  ? "it does not know the key of the id" :
				       r == -EBADMSG ? "it sent bytes that are no message of "
						       "libtecomm" : te_strerror(r));
	why = te__frame_differs(&c->in, b->text[b->rank], text);
	if (why)
		return te__create_fail(b, -TE_EMISMATCH, "%s", why);
	if (c->in.type == TE__FRAME_REFUSE &&
	    !te__refuse_get(c->in_body, c->in.nbytes, &code, text))
		return te__create_fail(b, code, "%s", text);
	if (c->in.type == TE__FRAME_TABLE &&
	    !te__table_get(c->in_body, c->in.nbytes, b->nranks, b->addrs))
		return 1;
	return te__create_fail(b, -TE_EPEER, "the root at %s sent an answer that is none", v->at);
}

static int visit_round(struct visit *v)
{
	struct te__boot *b = v->b;
	/* at the deadline the root reports the missing ranks */
	int64_t wake = b->deadline + (v->greeted ? GRACE_NS : 0);
	struct pollfd p = { .fd = v->c.fd, .events = POLLIN };
	char time[24];
	int r = 0;

	if (!v->greeted)
		te__dial_poll(&v->dial, &p, &wake);
	else if (te__conn_can_write(&v->c))
		p.events |= POLLOUT;
	te__poll(&p, 1, wake);
	if (v->greeted)
		r = p.revents ? listen_to(v) : 0;
	else
		r = te__dial_step(&v->dial, &p, te__boot_now());
	if (!v->greeted && r == 1)
		r = greet(v);
	if (r == -ECONNREFUSED)
		return te__create_fail(b, -TE_EPEER, "nothing listens at %s: the root of the id "
				       "has ended", v->at);
	if (r || te__boot_now() < b->deadline + (v->greeted ? GRACE_NS : 0))
		return r;
	te__time_text(b->deadline - b->begin, time);
	if (v->greeted)
		return te__create_fail(b, -ETIMEDOUT, "the root at %s did not answer within %s",
				       v->at, time);
	return te__create_fail(b, -ETIMEDOUT, "the root at %s cannot be reached within %s: %s",
			       v->at, time,
			       v->dial.last ? te_strerror(-v->dial.last) : "no answer");
}

int te__id_make(struct te__boot *b, struct te_comm_id *ret_id)
{
	return te_comm_id_create(ret_id, &b->root);
}

int te__id_meet(struct te__boot *b, const struct te_comm_id *id)
{
	struct visit v = { .b = b, .c = TE__CONN_INIT };
	struct te__ends ends;
	int r;

	if (id_get(id, b->key, &v.root))
		return te__create_fail(b, -EINVAL, "the id is not one of te_comm_id_create");
	if (b->from)
		te__key_derive(b->from->old->secret, "split by id", b->key, sizeof(b->key), b->key);
	r = te__addr_listen("te_comm_create", &b->listen, &b->addrs[b->rank]);
	if (r)
		return r;
	te__addr_text(&v.root, v.at);
	ends = (struct te__ends){ .key = b->key, .purpose = TE__FOR_ROOT, .me = b->rank };
	te__dial_init(&v.dial, &v.c, &v.root, &ends);
	while (!r)
		r = visit_round(&v);
	te__dial_close(&v.dial);
	te__conn_close(&v.c);
	return r < 0 ? r : 0;
}

static int id_meet(struct te__boot *b)
{
	struct te_comm_id id;
	int r;

	if (b->opts.id)
		return te__id_meet(b, b->opts.id);
	r = te_comm_id_parse(te__param_str(TE_PARAM_COMM_ID), &id);
	return r ? r : te__id_meet(b, &id);
}

const struct te__boot_provider te__boot_id = {
	.name = "id",
	.chosen = id_chosen,
	.who = id_who,
	.meet = id_meet,
};
