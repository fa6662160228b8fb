/*
 * t/comm/broker_user.c - the broker of a node and clients of other users, also in user namespaces:
 * its socket has no permissions, so both sides look at the other's user. Needs root, to become
 * them.
 */
#include "config.h"

#include <unistd.h>

#include "broker_lib.h"

/* who connects: a user, and, unless it is NULL, the map of a namespace */
static struct {
	uid_t uid;
	const char *map;
} who;

static void become(void)
{
	if (setresuid(who.uid, who.uid, who.uid) || (who.map && tt_enter_userns(who.map)))
		_exit(99);
}

/* as the library does, and as a program that does not look at who listens */
static void connects(int rank)
{
	struct te__client *c = NULL;
	struct te__wire m = bk_hello(rank);
	char line[256];
	int r, s;

	become();
	r = te__client_open(&bk_info, rank, bk_in_ms(20000), &c, NULL);
	snprintf(line, sizeof(line), "%d %.200s", r, r ? te_error_detail() : "");
	bk_say(line);
	te__client_close(c, 0, NULL);
	s = bk_dial();
	/* it may be refused before it has sent this */
	(void)te__wire_send(s, &m, NULL, 0, -1);
	memset(&m, 0, sizeof(m));
	r = bk_next(s, &m);
	snprintf(line, sizeof(line), "%d %d %.200s", r, r == 1 ? m.code : 0, r == 1 ? m.text : "");
	bk_say(line);
	close(s);
}

static const struct {
	uid_t uid;
	const char *map;
	int client, broker; /* which side refuses */
} users[] = {
	{ 0, NULL, 0, 0 },
	{ 4321, NULL, 1, 1 },
	/* whoever it says that it is inside */
	{ 4321, "0 4321 1\n", 1, 1 },
	{ 4321, "", 1, 1 },
	/* the same user by another number */
	{ 0, "4321 0 1\n", 0, 0 },
};

CASE(users, "host serial", .setup = bk_setup);

TEST_EACH(users, other_users_are_refused, TT_LEN(users))
{
	const int before = bk_nfds();
	struct te__broker *b;
	const char *got;
	char text[64];

	who.uid = users[_i].uid;
	who.map = users[_i].map;
	bk_spawn(1, connects);
	DO(te__broker_start(&bk_info, &b));
	bk_let_go(1);
	got = bk_heard(1);
	snprintf(text, sizeof(text), "%d ", users[_i].client ? -EACCES : 0);
	ck_assert_msg(!strncmp(got, text, strlen(text)), "the client: %s", got);
	ck_assert_msg(!users[_i].client || strstr(got, "has user id "), "the client: %s", got);
	/* by itself: the broker's answer would name the client's user */
	ck_assert_msg(!users[_i].client || users[_i].map ||
		      strstr(got, "has user id 0, expected 4321"), "the client: %s", got);
	got = bk_heard(1);
	if (users[_i].broker) {
		snprintf(text, sizeof(text), "1 %d ", -EACCES);
		ck_assert_msg(!strncmp(got, text, strlen(text)), "the broker: %s", got);
		ck_assert_msg(strstr(got, "has user id 4321, expected 0"), "the broker: %s", got);
	} else {
		ck_assert_msg(!strstr(got, "user id"), "the broker: %s", got);
	}
	bk_reap(1, 0);
	te__broker_stop(b);
	ck_assert_int_eq(bk_nfds(), before);
}

TT_MAIN("comm/broker_user", TT_NEED_ROOT | TT_NEED_USERNS)
