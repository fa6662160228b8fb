/* t/comm/bootstrap_net.c - ranks meet where there is IPv4 only, IPv6 only, or both. */
#include "config.h"

#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <te/ctx.h>
#include <te/errno.h>

#include "libtecomm/bootstrap/bootstrap.h"
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

	(void)arg;
	if (r)
		return r;
	r = te__boot_allgather(b, &mine, all, sizeof(mine), "numbers", 0);
	if (!r && (all[0] || all[1] != 7 || all[2] != 14))
		r = te_fail(-1, "%d %d %d", all[0], all[1], all[2]);
	te__boot_close(b);
	return r;
}

/* both, IPv6 only, IPv4 only */
START_TEST(ranks_meet_over_what_there_is)
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
END_TEST

/* ---- no network ---- */

static int splits(int rank, void *arg)
{
	struct te_comm_opts o = ranks_opts(rank), group = TE_COMM_OPTS_INIT;
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;
	struct te_comm *comm = NULL, *half = NULL;
	struct te_ctx *ctx = NULL;
	int r;

	(void)arg;
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

/* ranks of one host, of which no interface is up, not even the loopback */
START_TEST(groups_of_one_host_need_no_network)
{
	struct ranks_result res[4];

	ck_assert_int_eq(unshare(CLONE_NEWNET), 0);
	setenv("TE_COMM_PACKETS", "64K", 1);
	ranks_meet(MEET_DIR, 4);
	ranks_run(4, splits, NULL, res);
	ranks_part();
	ranks_ok(4, res);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("comm/bootstrap_net");
	TCase *c = tt_case(s, "families", "host");

	tcase_add_loop_test(c, ranks_meet_over_what_there_is, 0, 3);
	c = tt_case(s, "no network", "host");
	tcase_add_test(c, groups_of_one_host_need_no_network);
	return s;
}

TT_MAIN("comm/bootstrap_net", TT_NEED_NETNS, suite)
