/*
 * t/comm/verbs.c - the transport over RDMA devices, with devices of the test (verbs_fake.c): its
 * ranks are threads.
 */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <te/collective.h>

#include "libtecore/base/private.h"
#include "link_lib.h"
#include "threads.h"
#include "tt.h"
#include "verbs_fake.h"

#define RANKS 3
#define BEAT_MS TT_SLOWER(100)
#define LATE_MS TT_SLOWER(150) /* a busy machine's */
#define MS INT64_C(1000000)

struct rank {
	int rank, nranks;
	int (*fn)(struct rank *r);
	pthread_t thread;
	struct te__boot *boot;
	struct te__link *link;
	uint8_t *mem;
	size_t nbytes;
	int result, opened;
	double ms; /* of fn */
	char text[600];
};

static struct te_comm_id id;
static int nranks = 2, timeout_ms = 10000, beat_ms = 20000;
static size_t mem_nbytes = 1 << 20;
static pthread_barrier_t ready; /* of fn, for what happens to open links */
static _Atomic int64_t fault_ns; /* when it happened */

static int32_t position(const struct rank *r, int rank)
{
	return rank - (rank > r->rank);
}

static int serve(struct rank *r)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te__link_opts lo = { .timeout_ms = timeout_ms, .heartbeat_ms = beat_ms };
	int32_t peers[RANKS];
	int e;

	o.rank = r->rank;
	o.nranks = r->nranks;
	o.id = &id;
	o.timeout_ms = 10000;
	e = te__boot_open(&o, &r->boot);
	if (e)
		return e;
	for (int i = 0; i < r->nranks; i++)
		if (i != r->rank)
			peers[lo.npeers++] = i;
	lo.boot = r->boot;
	lo.peers = peers;
	lo.mem = r->mem;
	lo.mem_nbytes = r->nbytes;
	e = te__link_open(&te__link_verbs, &lo, &r->link);
	r->opened = !e;
	return e ? e : r->fn(r);
}

static void *work(void *arg)
{
	struct rank *r = arg;

	verbs_fake_rank = r->rank;
	te_error_clear();
	r->result = serve(r);
	r->ms = (double)(te__boot_now() - fault_ns) * 1e-6;
	snprintf(r->text, sizeof(r->text), "%s", te_error_detail());
	te__link_close(r->link);
	te__boot_close(r->boot);
	return NULL;
}

/* each rank, a thread, opens a link and calls fn; then nothing of them is left */
static void run(int (*fn)(struct rank *r), struct rank *r)
{
	const int64_t live = te__alloc_live();
	struct te_comm_root *root;

	te__verbs_replace(&verbs_fake_lib);
	ck_assert_int_eq(te_comm_id_create(&id, &root), 0);
	pthread_barrier_init(&ready, NULL, (unsigned)nranks);
	for (int i = 0; i < nranks; i++) {
		r[i] = (struct rank){ .rank = i, .nranks = nranks, .fn = fn,
				      .nbytes = mem_nbytes };
		ck_assert_int_eq(posix_memalign((void **)&r[i].mem, 64, mem_nbytes), 0);
	}
	for (int i = 0; i < nranks; i++)
		ck_assert_int_eq(pthread_create(&r[i].thread, NULL, work, &r[i]), 0);
	for (int i = 0; i < nranks; i++)
		pthread_join(r[i].thread, NULL);
	for (int i = 0; i < nranks; i++)
		free(r[i].mem);
	te_comm_root_unref(root);
	pthread_barrier_destroy(&ready);
	ck_assert_int_eq(te__alloc_live(), live);
	ck_assert_int_eq(verbs_fake.nlive, 0);
	ck_assert_int_eq(verbs_fake.nmisuse, 0);
	ck_assert_int_eq(verbs_fake.nrnr, 0);
	ck_assert_int_le(verbs_fake.most_retries, 6);
}

static void all_ok(const struct rank *r)
{
	for (int i = 0; i < nranks; i++)
		ck_assert_msg(!r[i].result, "rank %d: %d: %s", i, r[i].result, r[i].text);
}

static void failed(const struct rank *r, int code, const char *text)
{
	ck_assert_msg(r->result == code, "rank %d: %d, not %d: %s", r->rank, r->result, code,
		      r->text);
	ck_assert_msg(strstr(r->text, text) != NULL, "rank %d: \"%s\" has no \"%s\"", r->rank,
		      r->text, text);
}

/* ---- data ---- */

static size_t most;
static int count, depth;

/* each pair of ranks in turn; the others poll nothing meanwhile */
static int exchange_all(struct rank *r)
{
	int e = 0;

	for (int a = 0; a < r->nranks; a++)
		for (int b = a + 1; b < r->nranks && !e; b++) {
			struct link_stream s = {
				.link = r->link, .rank = r->rank, .mem = r->mem, .most = most,
				.depth = depth, .seed = tt_seed() + (uint64_t)(a * 8 + b),
			};

			s.peer = r->rank == a ? b : a;
			if (r->rank != a && r->rank != b)
				continue;
			s.i = position(r, s.peer);
			e = link_exchange(&s, count);
		}
	return e;
}

static void exchange(size_t most_nbytes, int messages, int in_flight)
{
	struct rank r[RANKS];

	most = most_nbytes;
	count = messages;
	depth = in_flight;
	mem_nbytes = 2 * (size_t)depth * most;
	run(exchange_all, r);
	all_ok(r);
	ck_assert_int_eq(verbs_fake.most_retries, 6);
}

START_TEST(messages_arrive)
{
	verbs_fake.short_poll = _i & 1 ? 3 : 0;
	verbs_fake.delay_us = _i & 2 ? 300 : 0;
	nranks = 2 + _i / 2 % 2;
	exchange(40000, _i & 2 ? TT_FEWER(300) : 300, 1 + _i * 21);
	ck_assert_int_gt(verbs_fake.ninline, 0);
	ck_assert_int_gt(verbs_fake.nunsignalled, 0);
}
END_TEST

START_TEST(large_messages_arrive)
{
	verbs_fake.delay_us = _i ? 200 : 0;
	exchange(_i ? 1500001 : 6 << 20, TT_FEWER(8) + 4, 3);
}
END_TEST

START_TEST(messages_arrive_without_inline_data)
{
	verbs_fake.max_inline = 0;
	exchange(3000, 200, 20);
	ck_assert_int_eq(verbs_fake.ninline, 0);
}
END_TEST

START_TEST(messages_arrive_over_infiniband)
{
	verbs_fake.infiniband = 1;
	exchange(3000, 50, 20);
	ck_assert_int_eq(verbs_fake.ngid, -1);
}
END_TEST

/* over several queue pairs, whose messages overtake each other, on one device and on two */
START_TEST(messages_are_striped_over_queue_pairs)
{
	static const struct {
		const char *device, *qps;
		int nqps, used;
	} how[] = { { "", "3", 3, 2 }, { "fake0,fake1", "0", 2, 3 }, { "fake1,fake0:1", "5", 5, 3 },
		    { "fake0", "8", 8, 1 } };

	setenv("TE_COMM_IB_DEVICE", how[_i / 2].device, 1);
	setenv("TE_COMM_IB_QPS", how[_i / 2].qps, 1);
	verbs_fake.delay_us = 400;
	verbs_fake.short_poll = 2;
	if (_i & 1)
		exchange(3 << 20 | 12345, TT_FEWER(8) + 4, 3);
	else
		exchange(20000, TT_FEWER(200), 30);
	ck_assert_int_eq(verbs_fake.nqps, 2 * how[_i / 2].nqps);
	ck_assert_int_eq(verbs_fake.used, how[_i / 2].used);
}
END_TEST

static int fill_queues(struct rank *r)
{
	int e = 0;

	for (int k = 0; k < TE__LINK_QUEUE && !e; k++)
		e = te__link_send(r->link, 0, r->mem, 1);
	if (!e && te__link_send(r->link, 0, r->mem, 1) != -EAGAIN)
		e = te_fail(-EPROTO, "the queue of sends is not full");
	for (int k = 0; k < TE__LINK_QUEUE && !e; k++)
		e = te__link_recv(r->link, 0, r->mem + 64, 1);
	if (!e && r->link->receives[0].complete < TE__LINK_QUEUE &&
	    te__link_recv(r->link, 0, r->mem + 64, 1) != -EAGAIN)
		e = te_fail(-EPROTO, "the queue of receives is not full");
	return e ? e : te__link_wait_receives(r->link, 0, TE__LINK_QUEUE);
}

START_TEST(queues_are_bounded)
{
	struct rank r[RANKS];

	run(fill_queues, r);
	all_ok(r);
}
END_TEST

/* polls once a heartbeat, or longer than several */
static int idle(struct rank *r)
{
	const int64_t end = te__boot_now() + 5 * beat_ms * MS;
	int e = 0;

	while (!e && te__boot_now() < end) {
		if (r->rank)
			usleep((useconds_t)beat_ms * 900);
		e = te__link_poll(r->link, r->rank ? 0 : end);
	}
	return e;
}

START_TEST(idle_links_stay)
{
	struct rank r[RANKS];

	beat_ms = BEAT_MS;
	run(idle, r);
	all_ok(r);
}
END_TEST

/* rank 0 sends and closes at once; rank 1 looks later */
static int part(struct rank *r)
{
	int e;

	if (!r->rank) {
		for (int k = 0; k < 5; k++) {
			e = te__link_send(r->link, 0, r->mem, 1000);
			if (e)
				return e;
		}
		return te__link_wait_sends(r->link, 0, 5);
	}
	for (int k = 0; k < 5; k++) {
		e = te__link_recv(r->link, 0, r->mem, 1000);
		if (e)
			return e;
	}
	/* the data and the end arrive before it polls for the first time */
	usleep(20000);
	e = te__link_wait_receives(r->link, 0, 5);
	if (e)
		return e;
	while (!e)
		e = te__link_recv(r->link, 0, r->mem, 1000);
	return e == -EAGAIN ? te__link_wait_receives(r->link, 0, 6) : e;
}

START_TEST(a_rank_that_closes_is_named_when_it_is_needed)
{
	struct rank r[RANKS];

	run(part, r);
	ck_assert_msg(!r[0].result, "%s", r[0].text);
	failed(&r[1], -TE_EPEER, "rank 0 (host ");
	failed(&r[1], -TE_EPEER, "has closed its communicator");
}
END_TEST

static void happens(struct rank *r, _Atomic int *bits, int value)
{
	pthread_barrier_wait(&ready);
	if (!r->rank) {
		fault_ns = te__boot_now();
		*bits |= value;
	}
	pthread_barrier_wait(&ready);
}

/* rank 1 receives and closes; no acknowledgement of that comes to rank 0 */
static int part_unheard(struct rank *r)
{
	int e = 0;

	happens(r, &verbs_fake.unheard, 1);
	e = r->rank ? te__link_recv(r->link, 0, r->mem, 1000)
		    : te__link_send(r->link, 0, r->mem, 1000);
	if (e)
		return e;
	return r->rank ? te__link_wait_receives(r->link, 0, 1) : te__link_wait_sends(r->link, 0, 1);
}

START_TEST(what_a_closed_peer_has_received_is_complete)
{
	struct rank r[RANKS];

	run(part_unheard, r);
	all_ok(r);
}
END_TEST

/* ---- failures ---- */

static int until_failure(struct rank *r)
{
	const int64_t deadline = te__boot_now() + 15000 * MS;
	int e = 0;

	while (!e && te__boot_now() < deadline)
		e = te__link_poll(r->link, deadline);
	return e;
}

/* idle: requests need longer to time out than a peer may be silent */
static int cut_idle(struct rank *r)
{
	happens(r, &verbs_fake.cut, 2);
	return until_failure(r);
}

START_TEST(a_silent_peer_is_found_within_two_heartbeats)
{
	struct rank r[RANKS];

	setenv("TE_COMM_IB_TIMEOUT", "20", 1);
	beat_ms = BEAT_MS;
	run(cut_idle, r);
	for (int i = 0; i < 2; i++) {
		failed(&r[i], -ETIMEDOUT, i ? "rank 0 (host " : "rank 1 (host ");
		failed(&r[i], -ETIMEDOUT, "has been silent for");
		failed(&r[i], -ETIMEDOUT, "device fake1 port 2, active");
		ck_assert_msg(r[i].ms < 2 * BEAT_MS + LATE_MS, "after %.0f ms", r[i].ms);
	}
}
END_TEST

static int cut_busy(struct rank *r)
{
	int e = te__link_recv(r->link, 0, r->mem, 1000);

	if (e)
		return e;
	pthread_barrier_wait(&ready);
	happens(r, &verbs_fake.cut, 2);
	e = te__link_send(r->link, 0, r->mem + 1000, 1000);
	return e ? e : until_failure(r);
}

START_TEST(requests_that_are_not_acknowledged_time_out)
{
	struct rank r[RANKS];

	setenv("TE_COMM_IB_TIMEOUT", "11", 1); /* 8.4 ms, 7 times */
	run(cut_busy, r);
	for (int i = 0; i < 2; i++) {
		failed(&r[i], -TE_EPEER, i ? "rank 0 (host " : "rank 1 (host ");
		failed(&r[i], -TE_EPEER, "transport retry counter exceeded (status 12, vendor "
		       "error 0x81); device fake1 port 2, active");
		ck_assert_msg(r[i].ms > 55 && r[i].ms < 100 + LATE_MS, "after %.0f ms", r[i].ms);
	}
}
END_TEST

/* shorter than the time-out */
static int cut_shortly(struct rank *r)
{
	int e = exchange_all(r);

	happens(r, &verbs_fake.cut, 3);
	if (!r->rank)
		usleep(30000);
	else
		e = e ? e : te__link_poll(r->link, te__boot_now() + 30 * MS);
	pthread_barrier_wait(&ready);
	verbs_fake.cut = 0;
	return e ? e : exchange_all(r);
}

START_TEST(a_link_that_comes_back_is_used)
{
	struct rank r[RANKS];

	setenv("TE_COMM_IB_TIMEOUT", "14", 1);
	most = 3000;
	count = 20;
	depth = 4;
	run(cut_shortly, r);
	all_ok(r);
}
END_TEST

static int port_down(struct rank *r)
{
	happens(r, &verbs_fake.down, 1);
	if (!r->rank)
		verbs_fake_event(0, IBV_EVENT_PORT_ERR);
	return until_failure(r);
}

START_TEST(a_port_that_is_down_is_named_on_both_sides)
{
	struct rank r[RANKS];

	setenv("TE_COMM_IB_TIMEOUT", "9", 1); /* 2.1 ms, 7 times */
	beat_ms = BEAT_MS;
	run(port_down, r);
	failed(&r[0], -TE_EPEER, "local QP operation error");
	failed(&r[0], -TE_EPEER, "device fake1 port 2, down");
	failed(&r[1], -TE_EPEER, "rank 0 (host ");
	for (int i = 0; i < 2; i++)
		ck_assert_msg(r[i].ms < 2 * BEAT_MS + LATE_MS, "after %.0f ms", r[i].ms);
}
END_TEST

/* rank 0 has two ports and loses one, on which nothing but heartbeats goes */
START_TEST(one_of_two_ports_that_is_down_is_named_on_both_sides)
{
	struct rank r[RANKS];

	setenv("TE_COMM_IB_DEVICE", _i ? "fake0,fake1" : "fake1,fake0", 1);
	setenv("TE_COMM_IB_TIMEOUT", "9", 1);
	beat_ms = BEAT_MS;
	verbs_fake.down_device = 2;
	run(port_down, r);
	/* one rank finds it, and tells the other over the port that is left */
	for (int i = 0; i < 2; i++) {
		ck_assert_msg(r[i].result == -TE_EPEER || r[i].result == -TE_EABORT, "%d: %s",
			      r[i].result, r[i].text);
		ck_assert_msg(strstr(r[i].text, "device fake1 port 2, ") != NULL, "%s", r[i].text);
		ck_assert_msg(r[i].ms < 3 * BEAT_MS + LATE_MS, "after %.0f ms", r[i].ms);
	}
	failed(&r[0], r[0].result, r[0].result == -TE_EPEER ? "rank 1 (host " : "rank 0 (host ");
}
END_TEST

static int device_lost(struct rank *r)
{
	pthread_barrier_wait(&ready);
	if (!r->rank)
		verbs_fake_event(0, IBV_EVENT_DEVICE_FATAL);
	return until_failure(r);
}

START_TEST(a_lost_device_ends_the_links_of_both_sides)
{
	struct rank r[RANKS];

	run(device_lost, r);
	failed(&r[0], -EIO, "local catastrophic error; device fake1 port 2");
	failed(&r[1], -TE_EABORT, "local catastrophic error");
}
END_TEST

static size_t received_nbytes;

/* rank 1 sends 500 bytes to rank 0, which receives so many */
static int receive_one(struct rank *r)
{
	int e = r->rank ? te__link_send(r->link, 0, r->mem, 500)
			: te__link_recv(r->link, 0, r->mem, received_nbytes);

	return e ? e : until_failure(r);
}

/* rank 0 gives a wrong key of its memory, and of that for announcements and heartbeats */
START_TEST(a_wrong_key_is_an_access_error)
{
	struct rank r[RANKS];

	received_nbytes = 500;
	verbs_fake.wrong_rkey = 1;
	run(receive_one, r);
	failed(&r[1], -EIO, "rank 0 (host ");
	failed(&r[1], -EIO, "remote access error (status 10, vendor error 0x81)");
	ck_assert_int_lt(r[0].result, 0);
}
END_TEST

START_TEST(sizes_that_differ_are_named_on_both_sides)
{
	struct rank r[RANKS];

	received_nbytes = 501;
	run(receive_one, r);
	for (int i = 0; i < 2; i++) {
		failed(&r[i], -TE_EMISMATCH, "rank 0 (host ");
		failed(&r[i], -TE_EMISMATCH, "receives 501 bytes");
		failed(&r[i], -TE_EMISMATCH, "sends 500");
	}
}
END_TEST

static int nothing_sent(struct rank *r)
{
	int e;

	if (r->rank)
		return until_failure(r);
	e = te__link_recv(r->link, 0, r->mem, 500);
	return e ? e : te__link_wait_receives(r->link, 0, 1);
}

START_TEST(a_wait_times_out)
{
	struct rank r[RANKS];

	timeout_ms = 50;
	run(nothing_sent, r);
	failed(&r[0], -ETIMEDOUT, "rank 1 (host ");
	failed(&r[1], -ETIMEDOUT, "rank 1 (host "); /* what rank 0 says */
}
END_TEST

/* ---- each call fails once ---- */

/* a few messages, with sleeps */
static int talk(struct rank *r)
{
	const struct te__link_counts *c = r->link->receives;
	int e = 0;

	for (uint64_t k = 1; k <= 3 && !e; k++) {
		e = te__link_recv(r->link, 0, r->mem, 1000);
		if (r->rank)
			usleep(1000);
		e = e ? e : te__link_send(r->link, 0, r->mem + 1000, 1000);
		while (!e && (c->complete < k || r->link->sends[0].complete < k))
			e = te__link_poll(r->link, te__boot_now() + 1000 * MS);
	}
	return e;
}

static const struct {
	const char *name, *text; /* text: in the message */
	int most;		 /* calls that are tried; 0: all */
} calls[] = {
	{ "get_device_list", "ibv_get_device_list", 0 },
	{ "open_device", "ibv_open_device", -1 },
	{ "query_device", "ibv_query_device", -1 },
	{ "query_port", "ibv_query_port", -1 },
	{ "alloc_pd", "ibv_alloc_pd", 0 },
	{ "reg_mr", "ibv_reg_mr of", 0 },
	{ "create_comp_channel", "ibv_create_comp_channel", 0 },
	{ "create_cq", "ibv_create_cq", 0 },
	{ "create_qp", "ibv_create_qp", 0 },
	{ "modify_qp", "ibv_modify_qp", 0 },
	{ "post_recv", "ibv_post_recv", 150 },
	{ "post_send", "ibv_post_send", 6 },
	{ "poll_cq", "ibv_poll_cq", 2 },
	{ "req_notify_cq", "ibv_req_notify_cq", 1 },
	{ "get_cq_event", "ibv_get_cq_event", 1 },
};

START_TEST(each_call_that_fails_is_named)
{
	const int last = calls[_i].most;
	struct rank r[RANKS];
	int n = 0;

	setenv("TE_COMM_IB_DEVICE", "fake1", 1);
	for (;;) {
		/* of many equal calls, the first ones and some later */
		n += n < 3 ? 1 : 1 + n / 2;
		verbs_fake.nfired = 0;
		verbs_fake.fail = calls[_i].name;
		verbs_fake.fail_nth = n;
		run(talk, r);
		if (!verbs_fake.nfired || (last > 0 && n > last))
			break;
		ck_assert_msg(r[0].result < 0, "%s %d did not fail", calls[_i].name, n);
		ck_assert_msg(strstr(r[0].text, calls[_i].text) != NULL, "%s", r[0].text);
		ck_assert_msg(r[1].result < 0 || r[1].opened, "%s", r[1].text);
		if (!r[0].opened)
			ck_assert_msg(strstr(r[1].text, calls[_i].text) != NULL, "%s", r[1].text);
	}
	ck_assert_int_gt(n, 1);
}
END_TEST

/* ---- te_transport_measure ---- */

static int measure(struct thread_rank *r)
{
	double us[8];

	for (int depth = 0; depth < 8; depth += 7) {
		memset(us, 0xff, sizeof(us));
		STEP(te_transport_measure(r->comm, "verbs", 60001, depth, 7, us));
		for (int i = 0; i < 7; i++)
			HOLDS(r->rank < 2 ? us[i] > 0 : us[i] == 0);
		HOLDS(us[7] != us[7]); /* not written: a NaN */
	}
	STEP(te_transport_measure(r->comm, "verbs", 0, 64, 2, us));
	HOLDS(te_transport_measure(r->comm, "carrier", 1, 0, 1, us) == -EINVAL);
	HOLDS(te_transport_measure(r->comm, "verbs", 1, 65, 1, us) == -EINVAL);
	HOLDS(te_transport_measure(r->comm, "verbs", 1, -1, 1, us) == -EINVAL);
	HOLDS(te_transport_measure(r->comm, "verbs", 1, 0, 0, us) == -EINVAL);
	HOLDS(te_transport_measure(r->comm, "verbs", 1, 0, 1, NULL) == -EINVAL);
	return 0;
}

START_TEST(messages_of_a_communicator_are_timed)
{
	te__verbs_replace(&verbs_fake_lib);
	threads_run(_i, measure, 0, NULL);
	ck_assert_int_eq(verbs_fake.nlive, 0);
	ck_assert_int_eq(verbs_fake.nmisuse, 0);
}
END_TEST

static int measure_without(struct thread_rank *r)
{
	double us = -1;
	const int code = te_transport_measure(r->comm, "verbs", 1000, 0, 1, &us);

	HOLDS(us == -1);
	return code;
}

START_TEST(ranks_without_devices_are_told)
{
	verbs_fake.none = 1;
	te__verbs_replace(&verbs_fake_lib);
	threads_run(2, measure_without, -ENODEV, "there is no RDMA device");
}
END_TEST

/* ---- which device ---- */

static struct te__verbs_near near = { .pci = "0000:01:00.0" };

static int ports_open(struct te__verbs_port *p, const char *device, const char *gid)
{
	setenv("TE_COMM_IB_DEVICE", device, 1);
	setenv("TE_COMM_IB_GID", gid, 1);
	te__verbs_replace(&verbs_fake_lib);
	return te__verbs_ports_open(&near, p);
}

static const struct {
	const char *device, *gid, *name;
	int port, index;
} choice[] = {
	{ "", "-1", "fake1", 2, 3 },	{ "fake0", "-1", "fake0", 1, 3 },
	{ "fake1:2", "1", "fake1", 2, 1 }, { "fake0:1", "4", "fake0", 1, 4 },
};

START_TEST(the_fastest_active_port_and_an_ipv4_address_are_chosen)
{
	struct te__verbs_port p[TE__VERBS_PORTS_MOST];

	verbs_fake.near[0] = 5; /* which is not as fast */
	ck_assert_int_eq(ports_open(p, choice[_i].device, choice[_i].gid), 1);
	ck_assert_str_eq(p->name, choice[_i].name);
	ck_assert_int_eq(p->port, choice[_i].port);
	ck_assert_int_eq(p->gid.gid_index, choice[_i].index);
	te__verbs_port_close(p);
	ck_assert_int_eq(verbs_fake.nlive, 0);
}
END_TEST

/* of equally fast ones the nearest, of these each rank of a node another */
START_TEST(the_nearest_of_equals_is_chosen)
{
	struct te__verbs_port p[TE__VERBS_PORTS_MOST];

	verbs_fake.equal = 1;
	near.turn = _i / 3;
	verbs_fake.near[0] = _i % 3 == 1;
	verbs_fake.near[1] = _i % 3 == 2;
	ck_assert_int_eq(ports_open(p, "", "-1"), 1);
	ck_assert_str_eq(p->name, _i % 3 == 1	? "fake0"
				  : _i % 3 == 2 ? "fake1"
				  : _i / 3 % 2	? "fake1"
						: "fake0");
	ck_assert_str_eq(verbs_fake.pci, near.pci);
	te__verbs_port_close(p);
	ck_assert_int_eq(verbs_fake.nlive, 0);
}
END_TEST

START_TEST(several_ports_are_those_of_the_list)
{
	struct te__verbs_port p[TE__VERBS_PORTS_MOST];

	ck_assert_int_eq(ports_open(p, "fake1:2,fake0,fake1", "-1"), 3);
	for (int i = 0; i < 3; i++) {
		ck_assert_str_eq(p[i].name, i == 1 ? "fake0" : "fake1");
		ck_assert_int_eq(p[i].port, i == 1 ? 1 : 2);
		te__verbs_port_close(&p[i]);
	}
	ck_assert_int_eq(verbs_fake.nlive, 0);
}
END_TEST

START_TEST(devices_below_one_bridge_are_near)
{
	static const char gpu[] = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
	static const struct {
		const char *path;
		int common;
	} other[] = {
		{ "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", 6 },
		{ "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1", 5 },
		{ "/sys/devices/pci0000:3a/0000:3a:00.0", 5 },
		{ "/sys/devices/pci0000:3a/0000:3a:01.0/0000:3c:00.0", 4 },
		{ "/sys/devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0", 3 },
		{ "/", 1 },
	};

	for (size_t i = 0; i < TT_LEN(other); i++) {
		ck_assert_int_eq(te__verbs_common(gpu, other[i].path), other[i].common);
		ck_assert_int_eq(te__verbs_common(other[i].path, gpu), other[i].common);
	}
}
END_TEST

static const struct {
	const char *device, *gid, *text;
	int code, none;
} refusal[] = {
	{ "fake2", "-1", "there is no device fake2 (TE_COMM_IB_DEVICE)", -ENODEV, 0 },
	{ "fake1:1", "-1", "no port of fake1:1 is active", -ENODEV, 0 },
	{ "fake0:2", "-1", "no port of fake0:2 is active", -ENODEV, 0 },
	{ "fake0:x", "-1", "a port is 1 to 255", -EINVAL, 0 },
	{ "fake0:256", "-1", "a port is 1 to 255", -EINVAL, 0 },
	{ "fake0", "6", "has no address of index 6 (TE_COMM_IB_GID)", -ENODEV, 0 },
	{ "", "-1", "there is no RDMA device", -ENODEV, 1 },
	{ "fake0,fake1:1", "-1", "no port of fake1:1 is active", -ENODEV, 0 },
	{ "fake0,,fake1", "-1", "has an empty name", -EINVAL, 0 },
	{ "fake0,fake0,fake0,fake0,fake0", "-1", "has more than 4 ports", -EINVAL, 0 },
};

START_TEST(refusals_say_why)
{
	struct te__verbs_port p[TE__VERBS_PORTS_MOST];
	char why[200] = "";

	verbs_fake.none = refusal[_i].none;
	ck_assert_int_eq(ports_open(p, refusal[_i].device, refusal[_i].gid), refusal[_i].code);
	ck_assert_msg(strstr(te_error_detail(), refusal[_i].text) != NULL, "%s", te_error_detail());
	ck_assert_int_eq(te__link_verbs.probe(why, sizeof(why)), refusal[_i].code);
	ck_assert_msg(strstr(why, refusal[_i].text) != NULL, "%s", why);
	ck_assert_int_eq(verbs_fake.nlive, 0);
}
END_TEST

/* the library that is installed, or the reason why it cannot be used */
START_TEST(the_installed_library_is_tried)
{
	char why[200] = "";
	const int r = te__link_verbs.probe(why, sizeof(why));

	ck_assert_int_le(r, 0);
	ck_assert(!r == !why[0]);
}
END_TEST

static int open_alone(void)
{
	struct te__link_opts lo = { .timeout_ms = 1000, .heartbeat_ms = 1000 };
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te__link *l = NULL;
	int r;

	o.nranks = 1;
	r = te__boot_open(&o, &lo.boot);
	if (r)
		return r;
	r = te__link_open(&te__link_verbs, &lo, &l);
	if (!r)
		r = te__link_poll(l, 0);
	tt_fault_end();
	te__link_close(l);
	te__boot_close(lo.boot);
	return r;
}

START_TEST(allocations_that_fail_are_reported)
{
	te__verbs_replace(&verbs_fake_lib);
	ck_assert_int_gt(tt_fault_each(open_alone), 3);
	ck_assert_int_eq(verbs_fake.nlive, 0);
}
END_TEST

static const struct {
	const char *name, *value, *text;
} range[] = {
	{ "TE_COMM_IB_TIMEOUT", "0", "TE_COMM_IB_TIMEOUT is 0, expected 1 to 31" },
	{ "TE_COMM_IB_TIMEOUT", "32", "expected 1 to 31" },
	{ "TE_COMM_IB_QPS", "9", "TE_COMM_IB_QPS is 9, expected 0 to 8" },
	{ "TE_COMM_IB_QPS", "-1", "expected 0 to 8" },
};

START_TEST(parameters_out_of_range_are_refused)
{
	struct rank r[RANKS];

	setenv(range[_i].name, range[_i].value, 1);
	run(talk, r);
	for (int i = 0; i < 2; i++)
		failed(&r[i], -EINVAL, range[_i].text);
}
END_TEST

/* ---- recovery of a communicator ---- */

#define SUM 3000 /* floats */

static int cut_off; /* the last rank is, for a while; else it releases its communicator */
static pthread_barrier_t reduced;

static void begin_on_a_node(int rank)
{
	verbs_fake_rank = rank;
	te__boot_node_name = rank < 2 ? "a" : "b";
}

static float value(int who, int64_t i)
{
	return (float)((int64_t)(tt_seed() % 1000003 + (uint64_t)who * 7919) * (i + 1) % 8191) /
	       64;
}

static int sum(struct thread_rank *r, int who, const int32_t *was)
{
	struct te_stream *s = te_ctx_stream(r->ctx);
	float x[SUM], want;
	void *p;

	STEP(te_mem_alloc(s, sizeof(x), &p));
	for (int64_t i = 0; i < SUM; i++)
		x[i] = value(who, i);
	STEP(te_copy(s, p, x, sizeof(x)));
	STEP(te_stream_sync(s));
	STEP(te_comm_allreduce(r->comm, s, p, p, SUM, TE_DTYPE_FP32, TE_COMM_SUM, NULL));
	tt_poison(x, sizeof(x));
	STEP(te_copy(s, x, p, sizeof(x)));
	STEP(te_stream_sync(s));
	STEP(te_mem_free(s, p));
	STEP(te_comm_error(r->comm));
	for (int64_t i = 0; i < SUM; i++) {
		want = value(was[0], i);
		for (int k = 1; k < te_comm_nranks(r->comm); k++)
			want += value(was[k], i);
		HOLDS(x[i] == want);
	}
	return 0;
}

static int fail_and_recover(struct thread_rank *r)
{
	static const int32_t all[] = { 0, 1, 2, 3 };
	const int last = r->rank == 3, n = cut_off ? 4 : 3;
	struct te_comm_info info = TE_COMM_INFO_INIT;
	struct te_comm *next;
	int32_t was[4];
	int e;

	STEP(te_comm_info(r->comm, &info));
	HOLDS(!strcmp(info.transport, "verbs") && info.nnodes == 2);
	e = sum(r, r->rank, all);
	pthread_barrier_wait(&reduced);
	if (last && !cut_off) {
		r->comm = te_comm_unref(r->comm);
		return e;
	}
	if (last)
		verbs_fake.cut = 8;
	while (!e)
		e = sum(r, r->rank, all);
	HOLDS(e == -TE_EPEER || e == -TE_EABORT);
	verbs_fake.cut = 0;
	STEP(te_comm_recover(r->comm, NULL, was, &next));
	te_comm_unref(r->comm);
	r->comm = next;
	STEP(te_comm_info(next, &info));
	HOLDS(!strcmp(info.transport, "verbs") && info.nnodes == 2 && info.nranks == n);
	HOLDS(!memcmp(was, all, (size_t)n * sizeof(*was)));
	for (int k = 0; k < 3; k++)
		STEP(sum(r, r->rank, was));
	return 0;
}

START_TEST(ranks_recover)
{
	setenv("TE_COMM_IB_TIMEOUT", "11", 1);
	setenv("TE_COMM_STAGE", "256K", 1);
	te__verbs_replace(&verbs_fake_lib);
	threads_begin = begin_on_a_node;
	cut_off = _i;
	pthread_barrier_init(&reduced, NULL, 4);
	threads_run(4, fail_and_recover, 0, NULL);
	ck_assert_int_eq(verbs_fake.nlive, 0);
	ck_assert_int_eq(verbs_fake.nmisuse, 0);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("comm/verbs");
	TCase *c = tt_case(s, "data", "host");

	tcase_add_loop_test(c, messages_arrive, 0, 4);
	tcase_add_loop_test(c, large_messages_arrive, 0, 2);
	tcase_add_test(c, messages_arrive_without_inline_data);
	tcase_add_test(c, messages_arrive_over_infiniband);
	tcase_add_loop_test(c, messages_are_striped_over_queue_pairs, 0, 8);
	tcase_add_test(c, queues_are_bounded);
	tcase_add_test(c, idle_links_stay);
	tcase_add_test(c, a_rank_that_closes_is_named_when_it_is_needed);
	tcase_add_test(c, what_a_closed_peer_has_received_is_complete);
	c = tt_case(s, "failures", "host");
	tcase_add_test(c, a_silent_peer_is_found_within_two_heartbeats);
	tcase_add_test(c, requests_that_are_not_acknowledged_time_out);
	tcase_add_test(c, a_link_that_comes_back_is_used);
	tcase_add_test(c, a_port_that_is_down_is_named_on_both_sides);
	tcase_add_loop_test(c, one_of_two_ports_that_is_down_is_named_on_both_sides, 0, 2);
	tcase_add_test(c, a_lost_device_ends_the_links_of_both_sides);
	tcase_add_test(c, a_wrong_key_is_an_access_error);
	tcase_add_test(c, sizes_that_differ_are_named_on_both_sides);
	tcase_add_test(c, a_wait_times_out);
	TT_ADD_LOOP(c, each_call_that_fails_is_named, TT_LEN(calls), 3);
	c = tt_case(s, "measure", "host");
	backend = "host";
	threads_pool_nbytes = 1 << 20;
	setenv("TE_COMM_PACKETS", "64k", 1);
	tcase_add_loop_test(c, messages_of_a_communicator_are_timed, 2, 4);
	tcase_add_test(c, ranks_without_devices_are_told);
	tcase_add_loop_test(c, ranks_recover, 0, 2);
	c = tt_case(s, "devices", "host serial");
	tcase_add_loop_test(c, the_fastest_active_port_and_an_ipv4_address_are_chosen, 0,
			    TT_LEN(choice));
	tcase_add_loop_test(c, the_nearest_of_equals_is_chosen, 0, 9);
	tcase_add_test(c, several_ports_are_those_of_the_list);
	tcase_add_test(c, devices_below_one_bridge_are_near);
	tcase_add_loop_test(c, refusals_say_why, 0, TT_LEN(refusal));
	tcase_add_test(c, the_installed_library_is_tried);
	tcase_add_test(c, allocations_that_fail_are_reported);
	tcase_add_loop_test(c, parameters_out_of_range_are_refused, 0, TT_LEN(range));
	return s;
}

TT_MAIN("comm/verbs", TT_NEED_NOTHING, suite)
