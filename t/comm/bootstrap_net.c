/* t/comm/bootstrap_net.c - ranks meet where there is IPv4 only, IPv6 only, both, or none. */
#include "config.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <te/ctx.h>
#include <te/errno.h>

#include "libtecomm/meet/addr.h"
#include "libtecomm/meet/bootstrap.h"
#include "ranks.h"

/* a network namespace whose loopback interface has addresses of these families */
static void new_network(int v4, int v6)
{
	struct ifreq ifr = { .ifr_name = "lo" };
	struct sockaddr_in *in = (struct sockaddr_in *)(void *)&ifr.ifr_addr;
	int fd;

	ck_assert_int_eq(unshare(CLONE_NEWNET), 0);
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	ifr.ifr_flags = IFF_UP | IFF_RUNNING;
	ck_assert_int_eq(ioctl(fd, SIOCSIFFLAGS, &ifr), 0);
	if (!v4) { /* 0.0.0.0 removes the address */
		memset(in, 0, sizeof(*in));
		in->sin_family = AF_INET;
		ck_assert_int_eq(ioctl(fd, SIOCSIFADDR, &ifr), 0);
	}
	close(fd);
	if (!v6) {
		fd = open("/proc/sys/net/ipv6/conf/all/disable_ipv6", O_WRONLY | O_CLOEXEC);
		ck_assert_int_eq(write(fd, "1", 1), 1);
		close(fd);
	}
}

static int exchange(int rank, void *arg)
{
	struct te_comm_opts o = ranks_opts(rank);
	int mine = 7 * rank, all[3];
	struct te__boot *b;
	int r = te__boot_open(&o, &b);

	if (r)
		return r;
	r = te__boot_allgather(b, &mine, all, sizeof(mine), "numbers", 0);
	if (!r && (all[0] || all[1] != 7 || all[2] != 14))
		r = te_fail(-1, "%d %d %d", all[0], all[1], all[2]);
	te__boot_close(b);
	return r;
}

CASE(families, "host");

/* both, IPv6 only, IPv4 only */
TEST_EACH(families, ranks_meet_over_what_there_is, 3)
{
	char text[TE_COMM_ID_TEXT];
	struct ranks_result res[3];

	new_network(_i != 1, _i != 2);
	ranks_meet(MEET_ID, 3);
	ck_assert_int_eq(te_comm_id_format(ranks_id(), text, sizeof(text)), 0);
	ck_assert_msg(!strstr(text, ":127.0.0.1") == (_i == 1), "%s", text);
	ck_assert_msg(!strstr(text, "::1") == (_i == 2), "%s", text);
	ranks_run(3, exchange, NULL, res);
	ranks_part();
	ranks_ok(3, res);
}

/* ---- chosen interfaces ---- */

static void add_address(const char *name, const char *address)
{
	struct ifreq ifr = { 0 };
	struct sockaddr_in *in = (struct sockaddr_in *)(void *)&ifr.ifr_addr;
	const int fd = socket(AF_INET, SOCK_DGRAM, 0);

	strcpy(ifr.ifr_name, name);
	in->sin_family = AF_INET;
	ck_assert_int_eq(inet_pton(AF_INET, address, &in->sin_addr), 1);
	ck_assert_int_eq(ioctl(fd, SIOCSIFADDR, &ifr), 0);
	close(fd);
}

/* 0, or errno */
static int reach(const char *address, uint16_t port)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	const int v6 = strchr(address, ':') != NULL;
	const int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
	int r;

	inet_pton(v6 ? AF_INET6 : AF_INET, address,
		  v6 ? (void *)&in6.sin6_addr : (void *)&in.sin_addr);
	r = v6 ? connect(fd, (struct sockaddr *)&in6, sizeof(in6)) :
		 connect(fd, (struct sockaddr *)&in, sizeof(in));
	r = r ? errno : 0;
	close(fd);
	return r;
}

static const struct {
	const char *iface;
	int lo, lo6, one, two; /* error of a connection to each address; 0: accepted */
} chosen[] = {
	{ "lo", 0, 0, ECONNREFUSED, ECONNREFUSED },
	{ "lo:1", ECONNREFUSED, ECONNREFUSED, 0, ECONNREFUSED },
	{ "lo:1,lo:2", ECONNREFUSED, ECONNREFUSED, 0, 0 },
	{ "", 0, 0, 0, 0 },
};

CASE(interfaces, "host");

TEST_EACH(interfaces, only_chosen_interfaces_are_listened_at, TT_LEN(chosen))
{
	struct te__listen l = { 0 };
	struct te__addrs a;

	new_network(1, 1);
	add_address("lo:1", "10.1.0.1");
	add_address("lo:2", "10.2.0.1");
	setenv("TE_COMM_IFACE", chosen[_i].iface, 1);
	ck_assert_int_eq(te__addr_listen("test", &l, &a), 0);
	ck_assert_int_eq(reach("127.0.0.1", a.port), chosen[_i].lo);
	ck_assert_int_eq(reach("::1", a.port), chosen[_i].lo6);
	ck_assert_int_eq(reach("10.1.0.1", a.port), chosen[_i].one);
	ck_assert_int_eq(reach("10.2.0.1", a.port), chosen[_i].two);
	te__listen_close(&l);
	ck_assert_int_eq(reach("127.0.0.1", a.port), ECONNREFUSED);
}

static const char *const ifaces[] = { "lo", "lo:1,lo:2" };

/* all listeners use these interfaces: the root, ranks, recovery, links */
TEST_EACH(interfaces, ranks_meet_at_chosen_interfaces, TT_LEN(ifaces))
{
	struct ranks_result res[3];

	new_network(1, 1);
	add_address("lo:1", "10.1.0.1");
	add_address("lo:2", "10.2.0.1");
	setenv("TE_COMM_IFACE", ifaces[_i], 1);
	ranks_meet_run(MEET_ID, 3, exchange, NULL, res);
	ranks_ok(3, res);
}

/* ---- no network ---- */

static int splits(int rank, void *arg)
{
	struct te_comm_opts o = ranks_opts(rank), group = TE_COMM_OPTS_INIT;
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;
	struct te_comm *comm = NULL, *half = NULL;
	struct te_ctx *ctx = NULL;
	int r;

	co.backend = "host";
	o.pool_nbytes = group.pool_nbytes = 1 << 20;
	r = te_ctx_create(&co, &ctx);
	if (!r)
		r = te_comm_create(ctx, &o, &comm);
	if (!r)
		r = te_comm_split(comm, rank % 2, -rank, &group, &half);
	if (!r && (te_comm_nranks(half) != 2 || te_comm_rank(half) != (rank < 2)))
		r = te_fail(-1, "rank %d of %d", te_comm_rank(half), te_comm_nranks(half));
	te_comm_unref(half);
	te_comm_unref(comm);
	te_ctx_unref(ctx);
	return r;
}

CASE(no_network, "host", .name = "no network");

/* ranks of one host, of which no interface is up, not even the loopback */
TEST(no_network, groups_of_one_host_need_no_network)
{
	struct ranks_result res[4];

	ck_assert_int_eq(unshare(CLONE_NEWNET), 0);
	setenv("TE_COMM_PACKETS", "64K", 1);
	ranks_meet_run(MEET_DIR, 4, splits, NULL, res);
	ranks_ok(4, res);
}

TT_MAIN("comm/bootstrap_net", TT_NEED_NETNS)
