/*
 * t/comm/verbs_faults.c - cases of t/comm/verbs: peers, ports and devices that fail while links are
 * open, and each call of libibverbs failing.
 */
#include "config.h"

#include <unistd.h>

#include "verbs_lib.h"

#define LATE_MS 8000 /* on a busy machine: less than the heartbeat and the time-out otherwise */

static int until_failure(struct vb_rank *r)
{
	const int64_t deadline = te__boot_now() + 15000 * VB_MS;
	int e = 0;

	while (!e && te__boot_now() < deadline)
		e = te__link_poll(r->link, deadline);
	return e;
}

/* idle: requests need longer to time out than a peer may be silent */
static int cut_idle(struct vb_rank *r)
{
	vb_happens(r, &verbs_fake.cut, 2);
	return until_failure(r);
}

CASE(failures, "host");

TEST(failures, a_silent_peer_is_found_within_two_heartbeats)
{
	struct vb_rank r[VB_RANKS];

	setenv("TE_COMM_IB_TIMEOUT", "20", 1);
	vb_beat_ms = VB_BEAT_MS;
	vb_run(cut_idle, r);
	for (int i = 0; i < 2; i++) {
		vb_failed(&r[i], -ETIMEDOUT, i ? "rank 0 (host " : "rank 1 (host ");
		vb_failed(&r[i], -ETIMEDOUT, "has been silent for");
		vb_failed(&r[i], -ETIMEDOUT, "device fake1 port 2, active");
		ck_assert_msg(r[i].ms < 2 * VB_BEAT_MS + LATE_MS, "after %.0f ms", r[i].ms);
	}
}

static int cut_busy(struct vb_rank *r)
{
	int e = te__link_recv(r->link, 0, r->mem, 1000);

	if (e)
		return e;
	pthread_barrier_wait(&vb_ready);
	vb_happens(r, &verbs_fake.cut, 2);
	e = te__link_send(r->link, 0, r->mem + 1000, 1000);
	return e ? e : until_failure(r);
}

TEST(failures, requests_that_are_not_acknowledged_time_out)
{
	struct vb_rank r[VB_RANKS];

	setenv("TE_COMM_IB_TIMEOUT", "11", 1); /* 8.4 ms, 7 times */
	vb_run(cut_busy, r);
	for (int i = 0; i < 2; i++) {
		vb_failed(&r[i], -TE_EPEER, i ? "rank 0 (host " : "rank 1 (host ");
		vb_failed(&r[i], -TE_EPEER, "transport retry counter exceeded (status 12, vendor "
		       "error 0x81); device fake1 port 2, active");
		ck_assert_msg(r[i].ms > 55 && r[i].ms < 100 + LATE_MS, "after %.0f ms", r[i].ms);
	}
}

/* shorter than the time-out */
static int cut_shortly(struct vb_rank *r)
{
	int e = vb_exchange_all(r);

	vb_happens(r, &verbs_fake.cut, 3);
	if (!r->rank)
		usleep(30000);
	else
		e = e ? e : te__link_poll(r->link, te__boot_now() + 30 * VB_MS);
	pthread_barrier_wait(&vb_ready);
	verbs_fake.cut = 0;
	return e ? e : vb_exchange_all(r);
}

TEST(failures, a_link_that_comes_back_is_used)
{
	struct vb_rank r[VB_RANKS];

	setenv("TE_COMM_IB_TIMEOUT", "18", 1);
	vb_most = 3000;
	vb_count = 20;
	vb_depth = 4;
	vb_run(cut_shortly, r);
	vb_all_ok(r);
}

static int port_down(struct vb_rank *r)
{
	vb_happens(r, &verbs_fake.down, 1);
	if (!r->rank)
		verbs_fake_event(0, IBV_EVENT_PORT_ERR);
	return until_failure(r);
}

TEST(failures, a_port_that_is_down_is_named_on_both_sides)
{
	struct vb_rank r[VB_RANKS];

	setenv("TE_COMM_IB_TIMEOUT", "9", 1); /* 2.1 ms, 7 times */
	vb_beat_ms = VB_BEAT_MS;
	vb_run(port_down, r);
	vb_failed(&r[0], -TE_EPEER, "local QP operation error");
	vb_failed(&r[0], -TE_EPEER, "device fake1 port 2, down");
	vb_failed(&r[1], -TE_EPEER, "rank 0 (host ");
	for (int i = 0; i < 2; i++)
		ck_assert_msg(r[i].ms < 2 * VB_BEAT_MS + LATE_MS, "after %.0f ms", r[i].ms);
}

/* rank 0 has two ports and loses one, on which nothing but heartbeats goes */
TEST_EACH(failures, one_of_two_ports_that_is_down_is_named_on_both_sides, 2)
{
	struct vb_rank r[VB_RANKS];

	setenv("TE_COMM_IB_DEVICE", _i ? "fake0,fake1" : "fake1,fake0", 1);
	setenv("TE_COMM_IB_TIMEOUT", "9", 1);
	vb_beat_ms = VB_BEAT_MS;
	verbs_fake.down_device = 2;
	vb_run(port_down, r);
	/* one rank finds it, and tells the other over the port that is left */
	for (int i = 0; i < 2; i++) {
		ck_assert_msg(r[i].result == -TE_EPEER || r[i].result == -TE_EABORT, "%d: %s",
			      r[i].result, r[i].text);
		ck_assert_msg(strstr(r[i].text, "device fake1 port 2, ") != NULL, "%s", r[i].text);
		ck_assert_msg(r[i].ms < 3 * VB_BEAT_MS + LATE_MS, "after %.0f ms", r[i].ms);
	}
	/* rank 0 is told what rank 1 has found, or has found it */
	if (strcmp(r[0].text, r[1].text))
		vb_failed(&r[0], r[0].result,
			  r[0].result == -TE_EPEER ? "rank 1 (host " : "rank 0 (host ");
}

static int device_lost(struct vb_rank *r)
{
	pthread_barrier_wait(&vb_ready);
	if (!r->rank)
		verbs_fake_event(0, IBV_EVENT_DEVICE_FATAL);
	return until_failure(r);
}

TEST(failures, a_lost_device_ends_the_links_of_both_sides)
{
	struct vb_rank r[VB_RANKS];

	vb_run(device_lost, r);
	for (int i = 0; i < 2; i++) {
		vb_failed(&r[i], i ? -TE_EABORT : -EIO, "rank 0 (host ");
		vb_failed(&r[i], i ? -TE_EABORT : -EIO,
			  ": local catastrophic error; device fake1 port 2");
	}
}

static size_t received_nbytes;

/* rank 1 sends 500 bytes to rank 0, which receives so many */
static int receive_one(struct vb_rank *r)
{
	int e = r->rank ? te__link_send(r->link, 0, r->mem, 500)
			: te__link_recv(r->link, 0, r->mem, received_nbytes);

	return e ? e : until_failure(r);
}

/* rank 0 gives a wrong key of its memory, and of that for announcements and heartbeats */
TEST(failures, a_wrong_key_is_an_access_error)
{
	struct vb_rank r[VB_RANKS];

	received_nbytes = 500;
	verbs_fake.wrong_rkey = 1;
	vb_run(receive_one, r);
	vb_failed(&r[1], -EIO, "rank 0 (host ");
	vb_failed(&r[1], -EIO, "remote access error (status 10, vendor error 0x81)");
	ck_assert_int_lt(r[0].result, 0);
}

TEST(failures, sizes_that_differ_are_named_on_both_sides)
{
	struct vb_rank r[VB_RANKS];

	received_nbytes = 501;
	vb_run(receive_one, r);
	for (int i = 0; i < 2; i++) {
		vb_failed(&r[i], -TE_EMISMATCH, "rank 0 (host ");
		vb_failed(&r[i], -TE_EMISMATCH, "receives 501 bytes");
		vb_failed(&r[i], -TE_EMISMATCH, "sends 500");
	}
}

static int nothing_sent(struct vb_rank *r)
{
	int e;

	if (r->rank)
		return until_failure(r);
	e = te__link_recv(r->link, 0, r->mem, 500);
	return e ? e : te__link_wait_receives(r->link, 0, 1);
}

TEST(failures, a_wait_times_out)
{
	struct vb_rank r[VB_RANKS];

	vb_timeout_ms = 1000;
	vb_run(nothing_sent, r);
	vb_failed(&r[0], -ETIMEDOUT, "rank 1 (host ");
	vb_failed(&r[1], -ETIMEDOUT, "rank 1 (host "); /* what rank 0 says */
}

/* ---- a peer's hello ---- */

static int hello_case;

static const struct {
	int nports, nlanes, mtu;
	const char *text; /* error of rank 0 */
} hellos[] = {
	{ 0, 1, 3, "number of ports is 0, expected 1 to 4" },
	{ -1, 1, 3, "number of ports is -1, expected 1 to 4" },
	{ 5, 1, 3, "number of ports is 5, expected 1 to 4" },
	{ INT32_MAX, 1, 3, "number of ports is 2147483647, expected 1 to 4" },
	{ 1, 0, 3, "number of queue pairs is 0, expected 1 to 8" },
	{ 1, INT32_MIN, 3, "number of queue pairs is -2147483648, expected 1 to 8" },
	{ 1, 9, 3, "number of queue pairs is 9, expected 1 to 8" },
	{ 1, 1, 0, "MTU (enum ibv_mtu) is 0, expected 1 to 5" },
	{ 1, 1, 6, "MTU (enum ibv_mtu) is 6, expected 1 to 5" },
	{ 2, 1, 3, "MTU (enum ibv_mtu) is 0, expected 1 to 5" }, /* the second port */
};

static void set_hello(struct te__verbs_hello *h)
{
	h->nports = hellos[hello_case].nports;
	h->nlanes = hellos[hello_case].nlanes;
	h->port[0].mtu = (uint8_t)hellos[hello_case].mtu;
}

TEST_EACH(failures, numbers_that_no_rank_can_have_are_named, TT_LEN(hellos))
{
	struct vb_rank r[VB_RANKS];

	hello_case = _i;
	vb_hello = set_hello;
	vb_run(until_failure, r);
	vb_failed(&r[0], -TE_EMISMATCH, "verbs: rank 1 (host ");
	vb_failed(&r[0], -TE_EMISMATCH, hellos[_i].text);
}

/* ---- each call fails once ---- */

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

TEST_EACH(failures, each_call_that_fails_is_named, TT_LEN(calls), .parts = 3)
{
	const int last = calls[_i].most;
	struct vb_rank r[VB_RANKS];
	int n = 0;

	setenv("TE_COMM_IB_DEVICE", "fake1", 1);
	for (;;) {
		/* of many equal calls, the first ones and some later */
		n += n < 3 ? 1 : 1 + n / 2;
		verbs_fake.nfired = 0;
		verbs_fake.fail = calls[_i].name;
		verbs_fake.fail_nth = n;
		vb_run(vb_talk, r);
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
