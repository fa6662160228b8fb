/*
 * t/comm/verbs.c - the transport over RDMA devices, with devices of the test (verbs_fake.c): data
 * arrives, and links that are idle or closed.
 */
#include "config.h"

#include <sys/mman.h>
#include <unistd.h>

#include "threads.h"
#include "verbs_lib.h"

static void exchange(size_t most_nbytes, int messages, int in_flight)
{
	struct vb_rank r[VB_RANKS];

	vb_most = most_nbytes;
	vb_count = messages;
	vb_depth = in_flight;
	vb_mem_nbytes = 2 * (size_t)vb_depth * vb_most;
	vb_run(vb_exchange_all, r);
	vb_all_ok(r);
	ck_assert_int_eq(verbs_fake.most_retries, 6);
}

CASE(data, "host");

TEST_EACH(data, messages_arrive, 4)
{
	verbs_fake.short_poll = _i & 1 ? 3 : 0;
	verbs_fake.delay_us = _i & 2 ? 300 : 0;
	vb_nranks = 2 + _i / 2 % 2;
	exchange(40000, _i & 2 ? TT_FEWER(300) : 300, 1 + _i * 21);
	ck_assert_int_gt(verbs_fake.ninline, 0);
	ck_assert_int_gt(verbs_fake.nunsignalled, 0);
}

TEST_EACH(data, large_messages_arrive, 2)
{
	verbs_fake.delay_us = _i ? 200 : 0;
	exchange(_i ? 1500001 : 6 << 20, TT_FEWER(8) + 4, 3);
}

TEST(data, messages_arrive_without_inline_data)
{
	verbs_fake.max_inline = 0;
	exchange(3000, 200, 20);
	ck_assert_int_eq(verbs_fake.ninline, 0);
}

TEST(data, messages_arrive_over_infiniband)
{
	verbs_fake.infiniband = 1;
	exchange(3000, 50, 20);
	ck_assert_int_eq(verbs_fake.ngid, -1);
}

TEST(data, packets_have_the_traffic_class)
{
	setenv("TE_COMM_IB_TC", "104", 1);
	exchange(3000, 5, 3);
	ck_assert_int_eq(verbs_fake.traffic_class, 104);
}

/* over several queue pairs, whose messages overtake each other, on one device and on two */
TEST_EACH(data, messages_are_striped_over_queue_pairs, 8)
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

/* memory of devices, by a dma-buf or an address: of all buffers, receives, half of them, none */
TEST_EACH(data, messages_pass_from_and_to_memory_of_a_device, 7)
{
	static const struct {
		int dmabuf, refused, fail_nth;
		size_t nbuffers[2];
		int extra; /* buffers that no message uses */
		int direct[2], ndmabuf;
		const char *device;
	} how[] = {
		{ 1, 0, 0, { 60, 60 }, 0, { 1, 1 }, 2, "fake1" },
		{ 1, 0, 0, { 30, 60 }, 0, { 1, 1 }, 4, "fake0,fake1" },
		{ 1, 0, 0, { 45, 0 }, 0, { 1, 0 }, 2, "fake1,fake0" },
		{ 1, 1, 0, { 15, 50 }, 0, { 1, 1 }, 0, "fake1" },
		{ 1, 1, 3, { 2, 2 }, 2, { 0, 1 }, 0, "fake1" },
		{ 1, 1, 6, { 2, 2 }, 2, { 0, 1 }, 0, "fake0,fake1" },
		{ 0, 0, 0, { 60, 7 }, 0, { 1, 1 }, 0, "fake0,fake1" },
	};
	struct vb_rank r[VB_RANKS];

	setenv("TE_COMM_IB_DEVICE", how[_i].device, 1);
	setenv("TE_COMM_IB_QPS", "3", 1);
	vb_device_fd = how[_i].dmabuf ? memfd_create("device", MFD_CLOEXEC) : -1;
	verbs_fake.no_dmabuf = how[_i].refused;
	verbs_fake.fail = how[_i].fail_nth ? "reg_mr" : NULL;
	verbs_fake.fail_nth = how[_i].fail_nth;
	verbs_fake.delay_us = 200;
	vb_most = 20000;
	vb_count = TT_FEWER(200);
	vb_depth = 30;
	vb_mem_nbytes = (2 * (size_t)vb_depth + (size_t)how[_i].extra) * vb_most;
	for (int i = 0; i < 2; i++)
		vb_device_nbytes[i] = how[_i].nbuffers[i] * vb_most;
	vb_run(vb_exchange_all, r);
	vb_all_ok(r);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(r[i].direct, how[_i].direct[i]);
	ck_assert_int_eq(verbs_fake.ndmabuf, how[_i].ndmabuf);
	ck_assert_int_eq(verbs_fake.nfired, how[_i].fail_nth != 0);
	if (vb_device_fd >= 0)
		close(vb_device_fd);
}

static int fill_queues(struct vb_rank *r)
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

TEST(data, queues_are_bounded)
{
	struct vb_rank r[VB_RANKS];

	vb_run(fill_queues, r);
	vb_all_ok(r);
}

/* polls once a heartbeat, or longer than several */
static int idle(struct vb_rank *r)
{
	const int64_t end = te__boot_now() + 5 * vb_beat_ms * VB_MS;
	int e = 0;

	while (!e && te__boot_now() < end) {
		if (r->rank)
			usleep((useconds_t)vb_beat_ms * 900);
		e = te__link_poll(r->link, r->rank ? 0 : end);
	}
	return e;
}

TEST(data, idle_links_stay)
{
	struct vb_rank r[VB_RANKS];

	vb_beat_ms = VB_BEAT_MS;
	vb_run(idle, r);
	vb_all_ok(r);
}

/* rank 0 sends and closes at once; rank 1 looks later */
static int part(struct vb_rank *r)
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

TEST(data, a_rank_that_closes_is_named_when_it_is_needed)
{
	struct vb_rank r[VB_RANKS];

	vb_run(part, r);
	ck_assert_msg(!r[0].result, "%s", r[0].text);
	vb_failed(&r[1], -TE_EPEER, "rank 0 (host ");
	vb_failed(&r[1], -TE_EPEER, "has closed its communicator");
}

/* rank 1 receives and closes; no acknowledgement of that comes to rank 0 */
static int part_unheard(struct vb_rank *r)
{
	int e = 0;

	vb_happens(r, &verbs_fake.unheard, 1);
	e = r->rank ? te__link_recv(r->link, 0, r->mem, 1000)
		    : te__link_send(r->link, 0, r->mem, 1000);
	if (e)
		return e;
	return r->rank ? te__link_wait_receives(r->link, 0, 1) : te__link_wait_sends(r->link, 0, 1);
}

TEST(data, what_a_closed_peer_has_received_is_complete)
{
	struct vb_rank r[VB_RANKS];

	vb_run(part_unheard, r);
	vb_all_ok(r);
}

TT_SUITE("comm/verbs", TT_NEED_NOTHING)
{
	threads_pool_nbytes = 1 << 20;
	setenv("TE_COMM_PACKETS", "64k", 1);
}
