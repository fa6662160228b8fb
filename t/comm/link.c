/* t/comm/link.c - messages between ranks of several nodes over TCP (link.h). */
#include "config.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <te/ctx.h>
#include <te/errno.h>
#include <te/param.h>

#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/reach/reach.h"
#include "ranks.h"

#define SEC INT64_C(1000000000)

/* a rank's end: it is linked with all others */
struct end {
	struct te__boot *b;
	struct te__link *l;
	int32_t peers[RANKS_MAX];
	int n; /* of them */
};

static int heartbeat_ms = 1000, timeout_ms = 10000;
static pid_t *pids; /* shared */

static int link_open(struct end *e, int rank)
{
	struct te__link_opts lo = { 0 };

	pids[rank] = getpid();
	e->n = 0;
	for (int i = 0; i < te__boot_nranks(e->b); i++)
		if (i != rank)
			e->peers[e->n++] = i;
	lo.boot = e->b;
	lo.peers = e->peers;
	lo.npeers = e->n;
	lo.timeout_ms = timeout_ms;
	lo.heartbeat_ms = heartbeat_ms;
	return te__link_open(&te__link_tcp, &lo, &e->l);
}

static int end_open(struct end *e, int rank)
{
	struct te_comm_opts o = ranks_opts(rank);
	int r = te__boot_open(&o, &e->b);

	return r ? r : link_open(e, rank);
}

static int end_meet(struct end *e)
{
	char none;

	return te__boot_allgather(e->b, NULL, &none, 0, "the test", 0);
}

static int end_close(struct end *e, int r)
{
	char why[600];

	snprintf(why, sizeof(why), "%s", te_error_detail());
	te__link_close(e->l);
	te__boot_close(e->b);
	return r ? te_fail(r, "%s", why) : 0;
}

static void run(int n, ranks_fn *fn, void *arg, struct ranks_result *res)
{
	pids = ranks_shared(RANKS_MAX * sizeof(*pids));
	ranks_meet_run(MEET_DIR, n, fn, arg, res);
}

/* ---- data ---- */

#define MESSAGES 150

/* message k from rank `from` to rank `to`: the same on both sides */
static size_t size_of(uint64_t seed, int from, int to, int k)
{
	uint64_t x = seed + (uint64_t)(from * 37 + to * 1009 + k) * 0x9e3779b97f4a7c15u;

	x ^= x >> 31;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 29;
	return k % 9 == 4 ? 0 : k % 50 == 7 ? 300000 + x % 700000 : x % 3000;
}

static uint8_t byte_of(uint64_t seed, int from, int to, int k, size_t at)
{
	return (uint8_t)((seed ^ (at * 31 + at / 251)) + (uint64_t)(from * 3 + to * 5 + k * 7));
}

struct flow {
	uint8_t *out[MESSAGES], *in[MESSAGES];
	int nout, nin, nchecked;
};

static int check_in(const struct end *e, struct flow *f, uint64_t seed, int from)
{
	const int me = te__boot_rank(e->b), k = f->nchecked++;
	const size_t n = size_of(seed, from, me, k);

	for (size_t i = 0; i < n; i++)
		if (f->in[k][i] != byte_of(seed, from, me, k, i))
			return te_fail(-EILSEQ, "byte %zu of message %d of rank %d", i, k, from);
	return 0;
}

/* queues as many messages as have room, in random portions, and checks the received ones */
static int flow_step(struct end *e, struct flow *f, uint64_t seed, int32_t i)
{
	const int me = te__boot_rank(e->b), peer = e->peers[i];
	int r = 0;

	for (int n = (int)tt_rand_int(0, 20); n && f->nout < MESSAGES && !r; n--) {
		const size_t nbytes = size_of(seed, me, peer, f->nout);

		r = te__link_send(e->l, i, f->out[f->nout], nbytes);
		f->nout += !r;
	}
	for (int n = (int)tt_rand_int(0, 20); n && f->nin < MESSAGES && (!r || r == -EAGAIN); n--) {
		r = te__link_recv(e->l, i, f->in[f->nin], size_of(seed, peer, me, f->nin));
		f->nin += !r;
	}
	r = r == -EAGAIN ? 0 : r;
	while (!r && (uint64_t)f->nchecked < e->l->receives[i].complete)
		r = check_in(e, f, seed, peer);
	return r;
}

static int flow_rank(int rank, void *arg)
{
	const uint64_t seed = *(uint64_t *)arg;
	struct flow *f = calloc(RANKS_MAX, sizeof(*f));
	struct end e = { 0 };
	int r = end_open(&e, rank), left = 1;

	for (int i = 0; i < e.n && !r; i++)
		for (int k = 0; k < MESSAGES; k++) {
			const size_t n = size_of(seed, rank, e.peers[i], k);

			f[i].out[k] = malloc(n + 1);
			f[i].in[k] = malloc(size_of(seed, e.peers[i], rank, k) + 1);
			for (size_t at = 0; at < n; at++)
				f[i].out[k][at] = byte_of(seed, rank, e.peers[i], k, at);
		}
	while (left && !r) {
		left = 0;
		for (int i = 0; i < e.n && !r; i++) {
			r = flow_step(&e, &f[i], seed, i);
			left += f[i].nchecked < MESSAGES || e.l->sends[i].complete < MESSAGES;
		}
		if (!r && left)
			r = te__link_poll(e.l, te__boot_now() + SEC / 1000);
	}
	r = end_close(&e, r);
	for (int i = 0; i < RANKS_MAX; i++)
		for (int k = 0; k < MESSAGES; k++) {
			free(f[i].out[k]);
			free(f[i].in[k]);
		}
	free(f);
	return r;
}

CASE(data, "host");

TEST_EACH(data, messages_arrive_in_order, 5, .from = 2)
{
	struct ranks_result res[4];
	uint64_t seed = tt_rand_u64();

	run(_i, flow_rank, &seed, res);
	ranks_ok(_i, res);
}

/* rank 0 has sent and closes; the others receive only then */
static int late_rank(int rank, void *arg)
{
	int *ready = arg;
	char data[100000];
	struct end e = { 0 };
	int r = end_open(&e, rank);

	memset(data, 7 + rank, sizeof(data));
	if (!r && !rank)
		for (int i = 0; i < e.n && !r; i++)
			for (int k = 0; k < 3 && !r; k++)
				r = te__link_send(e.l, i, data, k == 1 ? 0 : sizeof(data));
	for (int i = 0; i < e.n && !r && !rank; i++)
		r = te__link_wait_sends(e.l, i, 3);
	if (!r && rank) {
		while (!r && !__atomic_load_n(ready, __ATOMIC_ACQUIRE))
			r = te__link_poll(e.l, te__boot_now() + SEC / 500);
		for (int k = 0; k < 3 && !r; k++)
			r = te__link_recv(e.l, 0, data, k == 1 ? 0 : sizeof(data));
		if (!r)
			r = te__link_wait_receives(e.l, 0, 3);
		for (size_t i = 0; i < sizeof(data) && !r; i++)
			r = data[i] == 7 ? 0 : te_fail(-EILSEQ, "byte %zu", i);
	}
	if (!rank)
		__atomic_store_n(ready, 1, __ATOMIC_RELEASE);
	return end_close(&e, r);
}

TEST(data, what_was_sent_before_closing_arrives)
{
	struct ranks_result res[3];

	run(3, late_rank, ranks_shared(64), res);
	ranks_ok(3, res);
}

static int full_rank(int rank, void *arg)
{
	static char data[1];
	struct end e = { 0 };
	int r = end_open(&e, rank);

	for (int k = 0; k < TE__LINK_QUEUE && !r; k++)
		r = te__link_recv(e.l, 0, data, 1);
	if (!r && te__link_recv(e.l, 0, data, 1) != -EAGAIN)
		r = te_fail(-EILSEQ, "the queue is not full");
	for (int k = 0; k < TE__LINK_QUEUE && !r; k++) {
		r = te__link_send(e.l, 0, data, 1);
		while (r == -EAGAIN)
			r = te__link_poll(e.l, te__boot_now() + SEC);
	}
	if (!r)
		r = te__link_wait_receives(e.l, 0, TE__LINK_QUEUE);
	return end_close(&e, r);
}

TEST(data, queues_are_bounded)
{
	struct ranks_result res[2];

	run(2, full_rank, NULL, res);
	ranks_ok(2, res);
}

/* ---- failures ---- */

/*
 * FULL: stopped, and its buffers are full; the other rank has no beat to send to a third one.
 * UNTAKEN: as NOTHING_TAKEN, but no rank waits: they poll
 */
enum fault { KILLED, CLOSED, STOPPED, FULL, SIZE, NOTHING_SENT, NOTHING_TAKEN, UNTAKEN };

static const struct {
	int code;
	const char *text;
	double ms; /* from the fault on */
} fault[] = {
	[KILLED] = { -TE_EPEER, "has ended", 500 },
	[CLOSED] = { -TE_EPEER, "has closed its communicator", 500 },
	[STOPPED] = { -ETIMEDOUT, "has been silent for", 700 },
	[FULL] = { -ETIMEDOUT, "has been silent for", 3000 },
	[SIZE] = { -TE_EMISMATCH, "sends 24 bytes where rank", 500 },
	[NOTHING_SENT] = { -ETIMEDOUT, "has not sent what is expected by rank", 700 },
	[NOTHING_TAKEN] = { -ETIMEDOUT, "has not taken what was sent by rank", 700 },
	[UNTAKEN] = { -ETIMEDOUT, "has not taken what was sent by rank", 700 },
};

struct scene {
	enum fault fault;
	int64_t began; /* ns */
	double ms[RANKS_MAX];
	int nleft;
};

/* rank 1, which is at fault */
static int fault_of(struct end *e, struct scene *s)
{
	static char data[32];
	int r = 0;

	s->began = te__boot_now();
	switch (s->fault) {
	case KILLED:
		raise(SIGKILL);
		break;
	case CLOSED:
		return 0;
	case STOPPED:
	case FULL:
		raise(SIGSTOP); /* rank 0 ends it */
		break;
	case SIZE:
		for (int i = 0; i < e->n && !r; i++)
			r = te__link_send(e->l, i, data, 24);
		break;
	default:
		break;
	}
	while (!r && __atomic_load_n(&s->nleft, __ATOMIC_ACQUIRE))
		r = te__link_poll(e->l, te__boot_now() + SEC / 100);
	return r == -TE_EPEER || r == fault[s->fault].code ? 0 : r; /* the others close */
}

/* of the others: it waits for rank 1, or only polls */
static int suffer(struct end *e, struct scene *s, int rank, char *data)
{
	const int32_t i = rank == 0 ? 0 : 1; /* position of rank 1 */
	const int64_t deadline = te__boot_now() + 20 * SEC;
	int r = 0;

	if (s->fault == FULL || s->fault == NOTHING_TAKEN) {
		for (int k = 0; k < TE__LINK_QUEUE && !r; k++)
			r = te__link_send(e->l, i, data, 1 << 20);
		return r ? r : te__link_wait_sends(e->l, i, TE__LINK_QUEUE);
	}
	for (int k = 0; k < TE__LINK_QUEUE && !r && s->fault == UNTAKEN; k++)
		r = te__link_send(e->l, i, data, 1 << 20);
	if (s->fault >= SIZE && s->fault != UNTAKEN)
		r = te__link_recv(e->l, i, data, 25);
	if (!r && s->fault == NOTHING_SENT)
		return te__link_wait_receives(e->l, i, 1);
	if (s->fault == CLOSED && !r)
		r = te__link_recv(e->l, i, data, 25);
	while (!r && te__boot_now() < deadline)
		r = te__link_poll(e->l, te__boot_now() + SEC);
	return r;
}

static int fault_rank(int rank, void *arg)
{
	struct scene *s = arg;
	char *data = calloc(1, 1 << 20);
	struct end e = { 0 };
	int r = end_open(&e, rank), again;

	if (!r)
		r = end_meet(&e);
	if (!r && rank == 1) {
		r = fault_of(&e, s);
	} else if (!r) {
		r = suffer(&e, s, rank, data);
		s->ms[rank] = (double)(te__boot_now() - s->began) * 1e-6;
		again = te__link_poll(e.l, 0);
		if (again != r)
			r = te_fail(-EILSEQ, "%d, and then %d", r, again);
		if (!__atomic_sub_fetch(&s->nleft, 1, __ATOMIC_ACQ_REL) &&
		    (s->fault == STOPPED || s->fault == FULL))
			kill(pids[1], SIGKILL);
	}
	free(data);
	return end_close(&e, r);
}

CASE(failures, "host");

TEST_EACH(failures, names_the_rank_at_fault, TT_LEN(fault))
{
	struct scene *s = ranks_shared(sizeof(*s));
	const int stopped = _i == STOPPED || _i == FULL, n = _i == FULL ? 2 : 3;
	struct ranks_result res[3];

	heartbeat_ms = stopped ? TT_SLOWER(150) : 5000;
	timeout_ms = _i >= NOTHING_SENT ? TT_SLOWER(300) : 10000;
	s->fault = (enum fault)_i;
	s->nleft = n - 1;
	run(n, fault_rank, s, res);
	for (int i = 0; i < n; i += 2) {
		ranks_failed(&res[i], fault[_i].code, fault[_i].text, 60000);
		ck_assert_msg(strstr(res[i].text, "rank 1 (host ") != NULL, "%s", res[i].text);
		ck_assert_msg(s->ms[i] < TT_SLOWER(fault[_i].ms), "after %g ms", s->ms[i]);
		if (stopped)
			ck_assert_msg(s->ms[i] >= TT_SLOWER(290), "after %g ms", s->ms[i]);
	}
	if (_i != KILLED && !stopped)
		ck_assert_msg(!res[1].r, "%s", res[1].text);
}

/* ---- frames that are changed on their way ---- */

enum { DATA = 1, ABORT = 4, REASON = 40 }; /* types of frames; bytes after a head */

static const struct change {
	uint8_t type; /* frame type; 0: none is changed */
	int at;	      /* the byte that is changed, -1: the frame comes twice */
	int code;     /* error code at the receiving rank */
	const char *text;
} changes[] = {
	{ 0, 0, -TE_EABORT, "an end of rank 1" },
	{ ABORT, REASON + 4, -TE_EPEER, "sent bytes that are no message" },
	{ ABORT, REASON + 10, -TE_EPEER, "sent bytes that are no message" },
	{ DATA, 4, -TE_EPEER, "sent bytes that are no message" },
	{ DATA, 8, -TE_EPEER, "sent bytes that are no message" },
	{ DATA, 16, -TE_EPEER, "sent bytes that are no message" },
	{ DATA, 39, -TE_EPEER, "sent bytes that are no message" },
	{ DATA, -1, -TE_EPEER, "sent bytes that are no message" },
	{ DATA, REASON, -TE_EPEER, "was changed on its way to rank 0" },
	{ DATA, REASON + 63, -TE_EPEER, "was changed on its way to rank 0" },
	{ DATA, REASON + 99, -TE_EPEER, "was changed on its way to rank 0" },
};
static const struct change *change; /* in the rank that sends; or NULL */

/* in place of the C library's, for the library too */
ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	const uint8_t *head = m->msg_iov[0].iov_base;
	uint8_t bytes[1024];
	size_t n = 0;

	if (!change || m->msg_iov[0].iov_len < REASON || memcmp(head, "teLk", 4) ||
	    head[4] != change->type)
		return syscall(SYS_sendmsg, fd, m, flags);
	for (size_t i = 0; i < m->msg_iovlen; i++) {
		memcpy(bytes + n, m->msg_iov[i].iov_base, m->msg_iov[i].iov_len);
		n += m->msg_iov[i].iov_len;
	}
	if (change->at < 0)
		syscall(SYS_sendto, fd, bytes, n, flags, NULL, 0);
	else
		bytes[change->at] ^= 1;
	change = NULL;
	return syscall(SYS_sendto, fd, bytes, n, flags, NULL, 0);
}

ssize_t send(int fd, const void *p, size_t n, int flags)
{
	struct iovec v = { (void *)(uintptr_t)p, n };
	const struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };

	return sendmsg(fd, &m, flags);
}

/* rank 1 sends data once, which rank 0 expects twice, and then says why it fails */
static int changed_rank(int rank, void *arg)
{
	static char data[2][100];
	struct end e = { 0 };
	int r = end_open(&e, rank);

	if (!r)
		r = end_meet(&e);
	for (int k = 0; k < 2 && !r && !rank; k++)
		r = te__link_recv(e.l, 0, data[k], sizeof(data[k]));
	if (!r && !rank)
		r = te__link_wait_receives(e.l, 0, 2);
	if (!r && rank) {
		change = arg;
		r = te__link_send(e.l, 0, data[0], sizeof(data[0]));
		if (!r)
			r = te__link_wait_sends(e.l, 0, 1);
		if (!r)
			te__link_fail(e.l, -TE_EABORT, "an end of rank 1");
	}
	return end_close(&e, r);
}

TEST_EACH(failures, changed_frames_are_refused, TT_LEN(changes))
{
	struct ranks_result res[2];

	run(2, changed_rank, (void *)(uintptr_t)&changes[_i], res);
	ranks_failed(&res[0], changes[_i].code, changes[_i].text, 60000);
	ck_assert_msg(!res[1].r, "%s", res[1].text);
}

/*
 * Without messages, for several heartbeats; each rank polls once in a heartbeat. *arg is 1: none
 * polls for longer than two of them before, as if they had been stopped
 */
static int idle_rank(int rank, void *arg)
{
	struct end e = { 0 };
	int r = end_open(&e, rank);
	int64_t end;

	if (!r)
		r = end_meet(&e);
	if (!r && *(int *)arg)
		usleep(2500 * (useconds_t)heartbeat_ms);
	end = te__boot_now() + 3 * SEC / 1000 * heartbeat_ms;
	while (!r && te__boot_now() < end)
		r = te__link_poll(e.l, te__boot_now() + SEC);
	if (!r)
		r = end_meet(&e);
	return end_close(&e, r);
}

TEST_EACH(data, idle_links_stay, 2)
{
	struct ranks_result res[2];

	heartbeat_ms = TT_SLOWER(300); /* other work may stop a rank for a while */
	run(2, idle_rank, &_i, res);
	heartbeat_ms = 1000;
	ranks_ok(2, res);
}

/* opening without memory, or descriptors: all ranks fail soon, and nothing is left */
static int scarce_rank(int rank, void *arg)
{
	struct end e = { 0 };
	struct te_comm_opts o = ranks_opts(rank);
	int r = te__boot_open(&o, &e.b);

	if (r)
		return r;
	if (!rank)
		te__fault_set((uint64_t)*(int *)arg);
	r = link_open(&e, rank);
	te__fault_set(0);
	return end_close(&e, r);
}

TEST(failures, opening_fails_on_all_ranks)
{
	struct ranks_result res[2];
	int nth = 0, nfailed = 0;

	do {
		nth += 1 + nth / 12;
		run(2, scarce_rank, &nth, res);
		nfailed += !!res[0].r;
		for (int i = 0; i < 2 && res[0].r; i++) {
			ck_assert_msg(res[i].r < 0 && res[i].ms < 9000, "fault %d: rank %d: %d "
				      "after %g ms", nth, i, res[i].r, res[i].ms);
			ck_assert_msg(!res[i].nleft_fd && !res[i].nleft_alloc, "fault %d: rank %d "
				      "left %d and %d", nth, i, res[i].nleft_fd,
				      res[i].nleft_alloc);
		}
	} while (res[0].r);
	ck_assert_int_gt(nfailed, 10);
	ranks_ok(2, res);
}

/* rank 0 has descriptors to listen, and for one connection of two */
static int few_files_rank(int rank, void *arg)
{
	struct end e = { 0 };
	struct te_comm_opts o = ranks_opts(rank);
	int r = te__boot_open(&o, &e.b);

	if (r)
		return r;
	if (!rank)
		ranks_limit_files(3);
	r = link_open(&e, rank);
	return end_close(&e, r ? r : end_meet(&e)); /* the others close none before */
}

TEST(failures, too_few_descriptors_are_reported)
{
	struct ranks_result res[3];

	run(3, few_files_rank, NULL, res);
	ranks_failed(&res[0], -EMFILE, "cannot accept connections: Too many open files", 60000);
	for (int i = 1; i < 3; i++)
		ranks_failed(&res[i], -TE_EABORT, "cannot accept connections", 60000);
}

/* ---- te_transport_measure ---- */

static int measure_rank(int rank, void *arg)
{
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;
	struct te_comm_opts o = ranks_opts(rank);
	struct te_comm *c = NULL;
	struct te_ctx *ctx = NULL;
	double us[3];
	int r;

	setenv("TE_COMM_HEARTBEAT_MS", "4294967296", 1); /* 0 in 32 bits */
	co.backend = "host";
	r = te_ctx_create(&co, &ctx);
	if (!r)
		r = te_comm_create(ctx, &o, &c);
	if (!r && (te_transport_measure(c, "tcp", SIZE_MAX / 2 + 1, 0, 3, us) != -EINVAL ||
		   !strstr(te_error_detail(), "two buffers of 9223372036854775808 bytes")))
		r = te_fail(-EILSEQ, "a size that overflows: %s", te_error_detail());
	if (!r)
		r = te_transport_measure(c, "tcp", 1000, 0, 3, us);
	te_comm_unref(c);
	te_ctx_unref(ctx);
	return r;
}

TEST(data, large_arguments_do_not_overflow)
{
	struct ranks_result res[2];

	ranks_meet_run(MEET_DIR, 2, measure_rank, NULL, res);
	ranks_ok(2, res);
}

static int heartbeat_rank(int rank, void *arg)
{
	static const struct {
		const char *text;
		int32_t ms;
	} row[] = { { "-7", 1 }, { "0", 1 }, { "1500", 1500 }, { "4294967296", INT32_MAX } };

	setenv("TE_COMM_HEARTBEAT_MS", row[rank].text, 1);
	return te__link_heartbeat_ms() - row[rank].ms;
}

TEST(data, a_heartbeat_takes_1_ms_or_more)
{
	struct ranks_result res[4];

	ranks_run(4, heartbeat_rank, NULL, res);
	ranks_ok(4, res);
}

TEST(data, the_parameter_has_the_names_of_the_table)
{
	struct te_param_info info = TE_PARAM_INFO_INIT;
	char names[100] = "auto";

	for (size_t i = 0; i < te_param_count(); i++) {
		ck_assert_int_eq(te_param_info(i, &info), 0);
		if (!strcmp(info.name, "TE_COMM_TRANSPORT"))
			break;
	}
	for (int k = 0; k < TE__REACH_ROWS; k++)
		if (k == TE__REACH_FABRIC || te__reach_link(k))
			snprintf(names + strlen(names), sizeof(names) - strlen(names), "|%s",
				 te__reach_name(k));
	ck_assert_str_eq(info.unit, names);
}

TT_MAIN("comm/link", TT_NEED_NOTHING)
