/*
 * t/comm/verbs_devices.c - cases of t/comm/verbs: which devices, ports and addresses are chosen,
 * and what is refused.
 */
#include "config.h"

#include "verbs_lib.h"

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

CASE(devices, "host serial");

TEST_EACH(devices, the_fastest_active_port_and_an_ipv4_address_are_chosen, TT_LEN(choice))
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

/* of equally fast ones the nearest, of these each rank of a node another */
TEST_EACH(devices, the_nearest_of_equals_is_chosen, 9)
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

TEST(devices, several_ports_are_those_of_the_list)
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

TEST(devices, devices_below_one_bridge_are_near)
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

TEST_EACH(devices, refusals_say_why, TT_LEN(refusal))
{
	struct te__verbs_port p[TE__VERBS_PORTS_MOST];

	verbs_fake.none = refusal[_i].none;
	ck_assert_int_eq(ports_open(p, refusal[_i].device, refusal[_i].gid), refusal[_i].code);
	ck_assert_msg(strstr(te_error_detail(), refusal[_i].text) != NULL, "%s", te_error_detail());
	te_error_clear();
	ck_assert_int_eq(te__link_verbs.probe(), refusal[_i].code);
	ck_assert_msg(strstr(te_error_detail(), refusal[_i].text) != NULL, "%s", te_error_detail());
	ck_assert_int_eq(verbs_fake.nlive, 0);
}

/* the library that is installed, or the reason why it cannot be used */
TEST(devices, the_installed_library_is_tried)
{
	int r;

	te_error_clear();
	r = te__link_verbs.probe();
	ck_assert_int_le(r, 0);
	ck_assert(!r == !te_error_detail()[0]);
}

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

TEST(devices, allocations_that_fail_are_reported)
{
	te__verbs_replace(&verbs_fake_lib);
	ck_assert_int_gt(tt_fault_each(open_alone), 3);
	ck_assert_int_eq(verbs_fake.nlive, 0);
}

static const struct {
	const char *name, *value, *text;
} range[] = {
	{ "TE_COMM_IB_TIMEOUT", "0", "TE_COMM_IB_TIMEOUT is 0, expected 1 to 31" },
	{ "TE_COMM_IB_TIMEOUT", "32", "expected 1 to 31" },
	{ "TE_COMM_IB_QPS", "9", "TE_COMM_IB_QPS is 9, expected 0 to 8" },
	{ "TE_COMM_IB_QPS", "-1", "expected 0 to 8" },
	{ "TE_COMM_IB_TC", "256", "TE_COMM_IB_TC is 256, expected 0 to 255" },
	{ "TE_COMM_IB_TC", "-1", "expected 0 to 255" },
};

TEST_EACH(devices, parameters_out_of_range_are_refused, TT_LEN(range))
{
	struct vb_rank r[VB_RANKS];

	setenv(range[_i].name, range[_i].value, 1);
	vb_run(vb_talk, r);
	for (int i = 0; i < 2; i++)
		vb_failed(&r[i], -EINVAL, range[_i].text);
}
