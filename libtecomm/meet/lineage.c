/* lineage.c - see lineage.h. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <string.h>

#include "libtecomm/meet/lineage.h"

#define STRANGERS_MAX 64		/* accepted connections without identification */
#define STRANGER_NS INT64_C(5000000000) /* time limit for their identification */
#define SILENT_NS INT64_C(1000000000)	/* limit for an arbiter to decide */
#define BODY_MOST (16 + TE__RANKS_MAX / 8)

struct te__lineage {
	_Atomic uint32_t refs;
	int32_t n, me;
	uint8_t key[TE__KEY_NBYTES];
	char name[64];
	struct te__listen listen;
	struct contact {
		struct te__addrs addrs;
		uint8_t nonce[TE__NONCE_NBYTES];
	} *contact;
	uint64_t serial, *seen; /* last serial of this rank; last seen of each rank */
	char (*text)[TE__PEER_TEXT];
	uint8_t *ended; /* by rank; 1: nothing listens at its address */
	/* the generation */
	uint32_t generation;
	int32_t arbiter; /* number of the arbiter that decided it */
	uint8_t *in;
	int is_out; /* 1: there is a generation without this rank */
};

/* ---- a lineage ---- */

static struct te__lineage *destroy(struct te__lineage *l)
{
	te__listen_close(&l->listen);
	te__free(l->contact);
	te__free(l->seen);
	te__free(l->text);
	te__free(l->ended);
	te__free(l->in);
	te__free(l);
	return NULL;
}

static struct te__lineage *alloc(const struct te__boot *b)
{
	const size_t n = (size_t)b->nranks;
	struct te__lineage *l = te__calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	atomic_init(&l->refs, 1);
	l->n = b->nranks;
	l->me = b->rank;
	te__key_derive(b->secret, "lineage", NULL, 0, l->key);
	memcpy(l->name, b->name, sizeof(l->name));
	l->contact = te__calloc(n, sizeof(*l->contact));
	l->seen = te__calloc(n, sizeof(*l->seen));
	l->text = te__calloc(n, sizeof(*l->text));
	l->ended = te__calloc(n, 1);
	l->in = te__malloc(n);
	if (!l->contact || !l->seen || !l->text || !l->ended || !l->in)
		return destroy(l);
	memcpy(l->text, b->text, n * sizeof(*l->text));
	memset(l->in, 1, n);
	return l;
}

int te__lineage_create(struct te__boot *b)
{
	struct te__lineage *l = alloc(b);
	int r;

	if (!l)
		return te__boot_fail(b, -ENOMEM, "te_comm_create", "%s: not enough memory",
				     b->text[b->rank]);
	r = te__addr_listen("TCP", &l->listen, &l->contact[l->me].addrs);
	if (r)
		r = te__boot_fail(b, r, "te_comm_create", "%s cannot listen: %s", b->text[b->rank],
				  te_error_detail());
	if (!r) {
		r = te__random(l->contact[l->me].nonce, sizeof(l->contact->nonce));
		if (r)
			te__boot_fail(b, r, "te_comm_create", "%s has no random bytes",
				      b->text[b->rank]);
	}
	if (!r)
		r = te__boot_allgather(b, &l->contact[l->me], l->contact, sizeof(*l->contact),
				       "te_comm_create", b->deadline);
	for (int32_t i = 0; i < l->n && !r; i++)
		if (!te__addrs_usable(&l->contact[i].addrs))
			r = te__boot_fail(b, -TE_EPEER, "te_comm_create",
					  "%s sent an invalid address", b->text[i]);
	if (r) {
		destroy(l);
		return r;
	}
	b->lineage = l;
	return 0;
}

struct te__lineage *te__lineage_ref(struct te__lineage *l)
{
	if (l)
		atomic_fetch_add(&l->refs, 1);
	return l;
}

struct te__lineage *te__lineage_unref(struct te__lineage *l)
{
	return l && atomic_fetch_sub(&l->refs, 1) == 1 ? destroy(l) : NULL;
}

static void put32(uint8_t *p, int32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)((uint32_t)v >> 8 * i);
}

void te__lineage_key(const struct te__lineage *l, uint8_t key[TE__KEY_NBYTES])
{
	uint8_t decision[8];

	put32(decision, (int32_t)l->generation);
	put32(decision + 4, l->arbiter);
	te__key_derive(l->key, "generation", decision, sizeof(decision), key);
}

void te__lineage_numbers(const struct te__lineage *l, int32_t *ret_number)
{
	for (int32_t i = 0, k = 0; i < l->n; i++)
		if (l->in[i])
			ret_number[k++] = i;
}

int te__lineage_has(const struct te__lineage *l, int32_t number)
{
	return l->in[number];
}

int te__lineage_addrs(const struct te__lineage *l, struct te__addrs *ret_addrs,
		      struct te__listen *ret_listen)
{
	int r;

	for (int32_t i = 0; i < l->n; i++)
		if (l->in[i])
			*ret_addrs++ = l->contact[i].addrs;
	r = te__listen_dup(&l->listen, ret_listen);
	return r ? te__fail(r, "te_comm_recover: %s: no descriptor: %s", l->name, te_strerror(r)) :
		   0;
}

/* ---- messages: the sender, how long it waits, its generation, who decided that, whom it is to */

struct news {
	int32_t rank, left_ms, arbiter;
	uint8_t in[TE__RANKS_MAX];
};

static int32_t get32(const uint8_t *p)
{
	return (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
			 (uint32_t)p[3] << 24);
}

static size_t body_nbytes(const struct te__lineage *l)
{
	return 16 + ((size_t)l->n + 7) / 8;
}

static void news_put(const struct te__lineage *l, int32_t to, int64_t left_ms,
		     uint8_t body[BODY_MOST])
{
	memset(body, 0, BODY_MOST);
	put32(body, l->me);
	put32(body + 4, left_ms > INT32_MAX ? INT32_MAX : left_ms > 0 ? (int32_t)left_ms : 0);
	put32(body + 8, l->arbiter);
	put32(body + 12, to);
	for (int32_t i = 0; i < l->n; i++)
		body[16 + i / 8] |= (uint8_t)(l->in[i] << i % 8);
}

/* 0, or -EBADMSG: it is not of this lineage, or to another rank */
static int news_get(const struct te__lineage *l, const struct te__conn *c, struct news *ret)
{
	const uint8_t *body = c->in_body;

	if (c->in.version != TE__FRAME_VERSION ||
	    (c->in.type != TE__FRAME_ARRIVE && c->in.type != TE__FRAME_GROUP) ||
	    c->in.nbytes != body_nbytes(l) || c->in.seq > UINT32_MAX ||
	    get32(body + 12) != l->me)
		return -EBADMSG;
	ret->rank = get32(body);
	ret->left_ms = get32(body + 4);
	ret->arbiter = get32(body + 8);
	for (int32_t i = 0; i < l->n; i++)
		ret->in[i] = body[16 + i / 8] >> i % 8 & 1;
	return ret->rank < 0 || ret->rank >= l->n || ret->rank == l->me ||
	       ret->rank != c->ends.peer || ret->arbiter < 0 ||
	       ret->arbiter >= l->n || ret->left_ms < 0 || !ret->in[ret->rank] ? -EBADMSG : 0;
}

/* ---- settling ---- */

enum { NONE, DIALING, OPEN }; /* the state of a connection to a rank */

struct settle {
	struct te__lineage *l;
	/* to each rank */
	struct to {
		struct te__conn c;
		struct te__dial dial;
		int state, told; /* told: 1: the decision was sent */
		uint8_t body[BODY_MOST];
	} *to;
	/* from ranks */
	struct from {
		struct te__conn c;
		int64_t since;
		int proven;
		int32_t rank; /* -1: unknown yet */
		short revents;
	} *from;
	int nfrom, from_most;
	int64_t *arrived; /* deadline of a rank that has arrived; 0: it has not */
	struct pollfd *p;
	int64_t begin, own_deadline;
	int decided;
};

/* deadline of the first rank that has called */
static int64_t deadline_of(const struct settle *s)
{
	int64_t first = s->own_deadline;

	for (int32_t i = 0; i < s->l->n; i++)
		if (s->arrived[i] && s->arrived[i] < first)
			first = s->arrived[i];
	return first;
}

static void greet(struct settle *s, int32_t i)
{
	const struct te__lineage *l = s->l;
	const int group = s->decided || !l->in[i];
	struct te__frame f = { .version = TE__FRAME_VERSION, .seq = l->generation };
	struct to *t = &s->to[i];

	f.type = (uint16_t)(group ? TE__FRAME_GROUP : TE__FRAME_ARRIVE);
	news_put(l, i, (s->own_deadline - te__boot_now()) / 1000000, t->body);
	te__conn_queue(&t->c, &f, t->body, body_nbytes(l));
	te__conn_write(&t->c); /* poll() handles the rest */
	t->told = s->decided;
}

static void dial(struct settle *s, int32_t i)
{
	const struct te__ends ends = {
		.key = s->l->key,
		.purpose = TE__FOR_LINEAGE,
		.me = s->l->me,
		.peer = i,
		.nonce = s->l->contact[i].nonce,
	};

	if (s->to[i].state != NONE || i == s->l->me || s->l->ended[i])
		return;
	te__dial_init(&s->to[i].dial, &s->to[i].c, &s->l->contact[i].addrs, &ends);
	s->to[i].state = DIALING;
}

static void hang_up(struct settle *s, int32_t i)
{
	te__conn_close(&s->to[i].c);
	te__dial_close(&s->to[i].dial);
	s->to[i].state = NONE;
}

/* adopt a generation that another rank decided */
static int adopt(struct settle *s, uint32_t generation, const struct news *m)
{
	struct te__lineage *l = s->l;

	l->generation = generation;
	l->arbiter = m->arbiter;
	memcpy(l->in, m->in, (size_t)l->n);
	l->is_out = !l->in[l->me];
	for (int32_t i = 0; i < l->n; i++)
		if (!l->in[i] || !l->in[l->me])
			s->arrived[i] = 0;
	return l->is_out ? -TE_ESTATE : 0;
}

/* 1: ends; 0: continues; -TE_ESTATE */
static int take(struct settle *s, struct from *f)
{
	struct te__lineage *l = s->l;
	const uint32_t generation = (uint32_t)f->c.in.seq;
	int new;
	struct news m;

	if (news_get(l, &f->c, &m) || (!f->proven && f->c.ends.serial <= l->seen[m.rank]))
		return -EBADMSG;
	l->seen[m.rank] = f->c.ends.serial;
	f->proven = 1;
	if (f->c.in.type == TE__FRAME_GROUP) {
		if (generation <= l->generation)
			return 0;
		s->decided = 1;
		return adopt(s, generation, &m) ? -TE_ESTATE : 1;
	}
	if (l->ended[m.rank] && generation <= l->generation)
		return -EBADMSG;
	if (generation > l->generation) {
		/* this rank has missed a decision */
		if (adopt(s, generation, &m))
			return -TE_ESTATE;
		for (int32_t i = 0; i < l->n; i++)
			hang_up(s, i);
	}
	if (!l->in[m.rank]) {
		dial(s, m.rank); /* to tell it */
		return 0;
	}
	for (int k = 0; k < s->nfrom; k++)
		if (s->from[k].rank == m.rank && &s->from[k] != f)
			s->from[k].rank = -1; /* it has connected again */
	f->rank = m.rank;
	new = !s->arrived[m.rank];
	s->arrived[m.rank] = te__boot_now() + (int64_t)m.left_ms * 1000000;
	/* earlier messages to it may have waited for long, and have an old deadline */
	if (new && s->to[m.rank].state == OPEN && !te__conn_pending(&s->to[m.rank].c))
		greet(s, m.rank);
	return 0;
}

static void drop(struct settle *s, int k)
{
	if (s->from[k].rank >= 0)
		s->arrived[s->from[k].rank] = 0;
	te__conn_close(&s->from[k].c);
	memmove(&s->from[k], &s->from[k + 1], (size_t)(--s->nfrom - k) * sizeof(*s->from));
}

/* 1: a group has been received; -TE_ESTATE: without this rank; -EPIPE: it is to be dropped; 0 */
static int step_from(struct settle *s, struct from *f, int64_t now)
{
	int e = f->revents ? 1 : 0, r = 0;

	while (e > 0 && !r) {
		e = te__conn_read(&f->c, TE__FRAME_STRANGER);
		if (e <= 0)
			break;
		r = take(s, f);
		te__conn_next(&f->c);
	}
	if (r == 1 || r == -TE_ESTATE)
		return r;
	return e < 0 || r < 0 || (f->rank < 0 && now - f->since > STRANGER_NS) ? -EPIPE : 0;
}

static int accept_all(struct settle *s, int64_t now)
{
	const struct te__ends ends = {
		.key = s->l->key,
		.purpose = TE__FOR_LINEAGE,
		.me = s->l->me,
		.peer = -1,
		.nonce = s->l->contact[s->l->me].nonce,
	};
	int fd, r = 0;

	/* then others are read, and the deadline is looked at: a stranger may connect forever */
	for (int n = 0; n < TE__ACCEPT_MOST; n++) {
		r = te__conn_accept(&s->l->listen, &fd);
		if (r < 1)
			break;
		for (int k = 0; k < s->nfrom && s->nfrom == s->from_most; k++)
			if (s->from[k].rank < 0)
				drop(s, k); /* drop the oldest stranger */
		te__conn_open(&s->from[s->nfrom].c, fd, &ends, 0);
		s->from[s->nfrom].proven = 0;
		s->from[s->nfrom].since = now;
		s->from[s->nfrom].revents = 0;
		s->from[s->nfrom++].rank = -1;
	}
	return r >= 0 ? 0 : te__fail(r, "%s cannot accept connections: %s", s->l->text[s->l->me],
				 te_strerror(r));
}

static void step_to(struct settle *s, int32_t i, const struct pollfd *p, int64_t now)
{
	struct to *t = &s->to[i];
	int r;

	if (t->state == DIALING) {
		t->dial.ends.serial = s->l->serial + 1;
		r = te__dial_step(&t->dial, p, now);
		if (r == 1) {
			s->l->serial++;
			t->state = OPEN;
			greet(s, i);
		} else if (r < 0) {
			te__lineage_ended(s->l, i);
			hang_up(s, i);
		}
		return;
	}
	if (t->state != OPEN || !p->revents)
		return;
	r = p->revents & ~POLLOUT ? te__conn_read(&t->c, 0) : 0;
	if (r < 0 || te__conn_write(&t->c) < 0) {
		/* the rank stopped recovering, or has ended, and then refuses the next attempt */
		te__conn_close(&t->c);
		te__dial_again(&t->dial, now, ECONNRESET);
		t->state = DIALING;
	}
}

/* receive and send; 1: a group has been received, -TE_ESTATE: without this rank */
static int turn(struct settle *s, int64_t wake)
{
	struct te__lineage *l = s->l;
	const int nfrom = s->nfrom;
	int64_t now;
	int r = 0;

	te__listen_poll(&l->listen, s->p);
	for (int32_t i = 0; i < l->n; i++) {
		struct to *t = &s->to[i];
		const int out = t->state == OPEN && te__conn_can_write(&t->c) ? POLLOUT : 0;

		s->p[l->listen.n + i] = (struct pollfd){ .fd = t->state == OPEN ? t->c.fd : -1,
					       .events = (short)(POLLIN | out) };
		if (t->state == DIALING)
			te__dial_poll(&t->dial, &s->p[l->listen.n + i], &wake);
	}
	for (int k = 0; k < nfrom; k++)
		s->p[l->listen.n + l->n + k] = (struct pollfd){ .fd = s->from[k].c.fd,
								.events = POLLIN };
	r = te__poll(s->p, (size_t)l->listen.n + (size_t)l->n + (size_t)nfrom, wake);
	if (r)
		return te__fail(r, "poll: %s", te_strerror(r));
	now = te__boot_now();
	for (int k = 0; k < nfrom; k++)
		s->from[k].revents = s->p[l->listen.n + l->n + k].revents;
	/* in the order in which they were accepted: the latest of a rank counts */
	for (int k = 0; k < s->nfrom && !r;) {
		r = step_from(s, &s->from[k], now);
		if (r != -EPIPE)
			s->from[k++].revents = 0;
		else
			drop(s, k);
		r = r == -EPIPE ? 0 : r;
	}
	for (int32_t i = 0; i < l->n && !r; i++)
		step_to(s, i, &s->p[l->listen.n + i], now);
	return r ? r : accept_all(s, now);
}

/* ---- deciding ---- */

/*
 * The rank that must decide; *ret_wake: time of the next check. Before the deadline no rank
 * decides, unless all ranks have arrived or ended.
 */
static int32_t arbiter(const struct settle *s, int64_t now, int64_t *ret_wake)
{
	const struct te__lineage *l = s->l;
	const int64_t deadline = deadline_of(s);
	int64_t until = deadline;
	int all = 1;

	for (int32_t i = 0; i < l->n; i++)
		all &= !l->in[i] || l->ended[i] || s->arrived[i] || i == l->me;
	*ret_wake = deadline;
	if (!all && now < deadline)
		return -1;
	for (int32_t i = 0; i < l->me; i++) {
		if (!l->in[i] || l->ended[i] || !s->arrived[i])
			continue;
		until += SILENT_NS;
		*ret_wake = until;
		if (now < until)
			return i;
	}
	return l->me;
}

/* reason why too few ranks have arrived to continue */
static int too_few(const struct settle *s, int32_t ngroup, int32_t nleft)
{
	const struct te__lineage *l = s->l;
	uint8_t missing[TE__RANKS_MAX];
	char ranks[160], time[24];

	for (int32_t i = 0; i < l->n; i++)
		missing[i] = l->in[i] && !l->ended[i] && !s->arrived[i] && i != l->me;
	return te__fail(-ETIMEDOUT, "%s did not arrive within %s and may continue without %s: %d "
			"of %d ranks that have not ended are not enough for a successor",
			te__ranks_text(missing, l->n, ranks),
			te__time_text(te__boot_now() - s->begin, time), l->text[l->me], ngroup,
			nleft);
}

/* this rank is the arbiter: lower ones have ended, or are late */
static int decide(struct settle *s)
{
	struct te__lineage *l = s->l;
	int32_t ngroup = 1, nleft = 0, lowest = -1;

	for (int32_t i = 0; i < l->n; i++) {
		if (!l->in[i] || l->ended[i])
			continue;
		nleft++;
		lowest = lowest < 0 ? i : lowest;
		ngroup += i > l->me && s->arrived[i];
	}
	if (2 * ngroup < nleft || (2 * ngroup == nleft && lowest != l->me))
		return too_few(s, ngroup, nleft);
	l->generation++;
	l->arbiter = l->me;
	for (int32_t i = 0; i < l->n; i++) {
		const int in = i == l->me ||
			       (i > l->me && l->in[i] && s->arrived[i] && !l->ended[i]);

		if (l->in[i] && !in && !l->ended[i])
			te__log_info("%s: %s is left out: it has not arrived", l->name, l->text[i]);
		l->in[i] = (uint8_t)in;
	}
	s->decided = 1;
	return 1;
}

/* the arbiter sends the group to all ranks, others send it to ranks left out; ranks that do not
 * listen are not waited for */
static void announce(struct settle *s)
{
	struct te__lineage *l = s->l;
	const int64_t until = te__boot_now() + SILENT_NS;
	const int decided_here = l->arbiter == l->me;
	int pending = 1;

	while (pending && te__boot_now() < until) {
		pending = 0;
		for (int32_t i = 0; i < l->n; i++) {
			struct to *t = &s->to[i];

			if (t->state == OPEN && !t->told && !te__conn_pending(&t->c) &&
			    (decided_here || !l->in[i]))
				greet(s, i);
			pending |= decided_here && l->in[i] && i != l->me && !l->ended[i] &&
				   (!t->told || te__conn_pending(&t->c));
		}
		if (pending && turn(s, until))
			return;
	}
}

static int settle(struct settle *s)
{
	struct te__lineage *l = s->l;
	int64_t wake;
	int32_t who;
	int r = 0;

	/* a decision may wait to be accepted, and then to be read */
	for (int i = 0; i < 2 && !r; i++)
		r = turn(s, 0);
	while (!r) {
		for (int32_t i = 0; i < l->n; i++)
			if (l->in[i])
				dial(s, i);
		who = arbiter(s, te__boot_now(), &wake);
		r = who == l->me ? decide(s) : turn(s, wake);
	}
	if (r == 1) {
		announce(s);
		r = 0;
	}
	if (!r && l->is_out)
		r = -TE_ESTATE;
	return r;
}

void te__lineage_ended(struct te__lineage *l, int32_t number)
{
	if (!l->ended[number])
		te__log_info("%s: %s has ended", l->name, l->text[number]);
	l->ended[number] = 1;
}

int te__lineage_settle(struct te__lineage *l, int64_t deadline_ns)
{
	const size_t n = (size_t)l->n;
	struct settle s = {
		.l = l,
		.to = te__calloc(n, sizeof(*s.to)),
		.from_most = 2 * l->n + STRANGERS_MAX,
		.arrived = te__calloc(n, sizeof(*s.arrived)),
		.begin = te__boot_now(),
		.own_deadline = deadline_ns,
	};
	int r = l->is_out ? -TE_ESTATE : 0;

	s.from = te__calloc((size_t)s.from_most, sizeof(*s.from));
	s.p = te__calloc((size_t)l->listen.n + n + (size_t)s.from_most, sizeof(*s.p));
	for (size_t i = 0; i < n && s.to; i++)
		s.to[i].c.fd = s.to[i].dial.fd = -1;
	if (!s.to || !s.from || !s.arrived || !s.p) {
		r = te__fail(-ENOMEM, "not enough memory");
	} else if (!r) {
		r = settle(&s);
	}
	for (size_t i = 0; i < n && s.to; i++)
		hang_up(&s, (int32_t)i);
	while (s.nfrom)
		drop(&s, s.nfrom - 1);
	te__free(s.to);
	te__free(s.from);
	te__free(s.arrived);
	te__free(s.p);
	return r != -TE_ESTATE ? r : te__fail(r, "%s did not arrive in time, or failed: the other "
					      "ranks have recovered without it", l->text[l->me]);
}
