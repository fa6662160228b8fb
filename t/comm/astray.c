/*
 * t/comm/astray.c - an address of a rank leads to another rank of the job at the first attempt, as
 * one does that several hosts have (of a bridge): that rank closes the connection, and the next
 * attempt finds the right one.
 */
#include "config.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <te/errno.h>

#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/reach/link/link.h"
#include "ranks.h"

/*
 * In the order in which this process first connects to them, ports are those of the root and of the
 * ranks it meets, then of the ranks that it connects to next. The first connection to the one with
 * this number goes to the one before instead; 0: none does.
 */
static int astray;
static in_port_t port[16];
static int nports;
static _Atomic int *ntries; /* connections to that port; shared */

/* instead of that of the C library */
int connect(int fd, __CONST_SOCKADDR_ARG to, socklen_t len)
{
	union {
		struct sockaddr sa;
		struct sockaddr_in in; /* the port is where sockaddr_in6 has it */
		struct sockaddr_storage ss;
	} u;
	int i = 0;

	memcpy(&u, to.__sockaddr__, len);
	if (u.sa.sa_family == AF_INET || u.sa.sa_family == AF_INET6) {
		while (i < nports && port[i] != u.in.sin_port)
			i++;
		if (i == nports && nports < (int)TT_LEN(port)) {
			port[nports++] = u.in.sin_port;
			if (i && i == astray)
				u.in.sin_port = port[i - 1];
		}
		*ntries += i && i == astray;
	}
	return (int)syscall(SYS_connect, fd, &u, len);
}

/* the ranks connect to the lower ones */
static int meets(int rank, void *arg)
{
	struct te_comm_opts o = ranks_opts(rank);
	struct te__boot *b;
	char none;
	int r;

	astray = rank == 2 ? 2 : 0; /* to rank 1: to rank 0 */
	r = te__boot_open(&o, &b);
	if (r)
		return r;
	r = te__boot_allgather(b, NULL, &none, 0, "the test", 0);
	te__boot_close(b);
	return r;
}

static int links(int rank, void *arg)
{
	struct te_comm_opts o = ranks_opts(rank);
	const int32_t peers[2] = { !rank, rank == 2 ? 1 : 2 };
	struct te__link_opts lo = {
		.peers = peers, .npeers = 2, .timeout_ms = 10000, .heartbeat_ms = 5000
	};
	struct te__link *l = NULL;
	struct te__boot *b;
	uint8_t out = (uint8_t)rank, in[2] = { 9, 9 };
	int r = te__boot_open(&o, &b);

	if (r)
		return r;
	astray = rank == 2 ? nports + 1 : 0; /* to rank 1: to rank 0 */
	lo.boot = b;
	r = te__link_open(&te__link_tcp, &lo, &l);
	for (int32_t i = 0; i < 2 && !r; i++)
		r = te__link_recv(l, i, &in[i], 1);
	for (int32_t i = 0; i < 2 && !r; i++)
		r = te__link_send(l, i, &out, 1);
	for (int32_t i = 0; i < 2 && !r; i++)
		r = te__link_wait_receives(l, i, 1);
	if (!r && (in[0] != peers[0] || in[1] != peers[1]))
		r = te_fail(-TE_EMISMATCH, "from %d and %d", in[0], in[1]);
	te__link_close(l);
	te__boot_close(b);
	return r;
}

/* rank 0 decides, and tells the others: rank 2 comes when it has connected to that one again */
static int settles(int rank, void *arg)
{
	static const char *const node[] = { "a", "b", "c" };
	struct te_comm_opts o = ranks_opts(rank);
	int32_t ranks[3];
	struct te__boot *b;
	int r;

	setenv("TE_COMM_NODE", node[rank], 1);
	r = te__boot_open(&o, &b);
	if (r)
		return r;
	astray = rank == 0 ? nports + 1 : 0; /* to rank 2: to rank 1 */
	for (int ms = 0; rank == 2 && *ntries < 2 && ms < 10000; ms++)
		usleep(1000);
	r = te__boot_settle(b, te__boot_now() + INT64_C(20000000000), ranks);
	if (r >= 0)
		r = r == 3 ? 0 : te_fail(-TE_EMISMATCH, "%d ranks", r);
	te__boot_close(b);
	return r;
}

static ranks_fn *const fn[] = { meets, links, settles };

CASE(astray, "host");

TEST_EACH(astray, the_next_attempt_finds_the_rank, TT_LEN(fn))
{
	struct ranks_result res[3];

	ntries = ranks_shared(sizeof(*ntries));
	ranks_meet_run(MEET_ID, 3, fn[_i], NULL, res);
	ranks_ok(3, res);
}

TT_MAIN("comm/astray", TT_NEED_NOTHING)
