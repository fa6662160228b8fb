/*
 * t/comm/pass_user.c - descriptors that ranks of a node pass to each other, if one of them has
 * another user, also in a user namespace: local sockets have no permissions, so both sides look at
 * the other's user. Needs root, to become them.
 */
#include "config.h"

#include <sys/socket.h>
#include <unistd.h>

#include <te/errno.h>

#include "bootstrap_lib.h"
#include "libtecomm/meet/boot.h"
#include "libtecomm/meet/pass.h"
#include "ranks.h"

static const struct {
	uid_t uid;
	const char *map; /* NULL, or the map of a namespace */
	const char *refused; /* NULL, or text of the error message of a rank */
	int both; /* rank 0 becomes that user in such a namespace, too */
} users[] = {
	{ 0, NULL, NULL, 0 },
	{ 4321, NULL, "has user id 0, expected 4321", 0 },
	/* whoever it says that it is inside */
	{ 4321, "0 4321 1\n", "has user id ", 0 },
	/* all users have one number there, but not for the other rank */
	{ 4321, "", "has a user without an id in this user namespace", 0 },
	/* and if they have for both, who has which? */
	{ 4321, "", "has a user without an id in this user namespace", 1 },
	/* the same user by another number */
	{ 0, "4321 0 1\n", NULL, 0 },
};

static int take(void *arg, int32_t local, int pid, const int *fd, int nfds)
{
	int *n = arg;

	*n += nfds;
	return 0;
}

static int passing_rank(int rank, void *arg)
{
	const int i = *(int *)arg, ms = users[i].refused ? TT_SLOWER(500) : 20000;
	struct te__boot *b = NULL;
	int in = 0, n = 0, r = bf_open(rank, 0, &b);

	if (!r && (rank || users[i].both) && (setresuid(users[i].uid, users[i].uid, users[i].uid) ||
			   (users[i].map && tt_enter_userns(users[i].map))))
		r = te_fail(-EPROTO, "it is not another user");
	if (!r)
		r = te__pass(b, 0, &in, 1, take, &n, te__boot_now() + ms * INT64_C(1000000));
	if (!r && n != 1)
		r = te_fail(-EPROTO, "%d descriptors", n);
	if (!r)
		r = bf_gather(b, "end", 0);
	te__boot_close(b);
	return r;
}

CASE(users, "host serial");

TEST_EACH(users, other_users_are_refused, TT_LEN(users))
{
	struct ranks_result res[2];
	int i = _i;

	ranks_meet_run(MEET_ID, 2, passing_rank, &i, res);
	if (!users[i].refused) {
		ranks_ok(2, res);
		return;
	}
	for (int k = 0; k < 2; k++) {
		ck_assert_int_lt(res[k].r, 0);
		ck_assert_int_ne(res[k].r, -EPROTO);
	}
	ck_assert_msg(strstr(res[0].text, users[i].refused) ||
		      strstr(res[1].text, users[i].refused), "%s; %s", res[0].text, res[1].text);
}

/* rank 0 waits for descriptors of the others, which connect to it until it ends */
static int crowding_rank(int rank, void *arg)
{
	struct te__boot *b = NULL;
	struct sockaddr_un sa;
	int in = 0, n = 0, s, on = 1, r = bf_open(rank, 0, &b);

	if (!r && !rank)
		r = te__pass(b, 0, &in, 1, take, &n,
			     te__boot_now() + TT_SLOWER(500) * INT64_C(1000000));
	else if (!r && setresuid(4321, 4321, 4321))
		r = te_fail(-EPROTO, "it is not another user");
	while (!r && on) {
		s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		on = !connect(s, (struct sockaddr *)&sa, te__local_address(b->again[0], &sa));
		close(s);
	}
	te__boot_close(b);
	return r;
}

TEST(users, others_that_connect_without_end_stall_no_rank)
{
	struct ranks_result res[3];

	ranks_meet_run(MEET_ID, 3, crowding_rank, NULL, res);
	ranks_failed(&res[0], -ETIMEDOUT, "has not passed its memory in time", SOON);
}

TT_MAIN("comm/pass_user", TT_NEED_ROOT | TT_NEED_USERNS)
