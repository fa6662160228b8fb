/*
 * t/comm/broker_messages.c - cases of t/comm/broker: strangers, and messages that are wrong in each
 * way or random. The broker names what is wrong, and serves the other ranks.
 */
#include "config.h"

#include <sys/socket.h>
#include <unistd.h>

#include "broker_lib.h"
#include "tt_wire.h"

/* the broker answers with the code and a text */
static void check_answer(int s, const struct te__wire *m, size_t nbytes, int fd, int code,
			 const char *text)
{
	struct te__wire r;

	if (nbytes == sizeof(*m))
		ck_assert_int_eq(te__wire_send(s, m, NULL, 0, fd), 0);
	else
		ck_assert_int_eq(send(s, m, nbytes, 0), (int)nbytes);
	ck_assert_int_eq(bk_next(s, &r), 1);
	ck_assert_int_eq(r.kind, TE__WIRE_REPLY);
	ck_assert_int_eq(r.code, code);
	ck_assert_msg(strstr(r.text, text) != NULL, "\"%s\" has no \"%s\"", r.text, text);
}

/* and ends the connection */
static void check_refused(int s, const struct te__wire *m, size_t nbytes, int fd, int code,
			  const char *text)
{
	struct te__wire r;

	check_answer(s, m, nbytes, fd, code, text);
	ck_assert_int_eq(bk_next(s, &r), 0);
	close(s);
}

CASE(messages, "host", .setup = bk_setup);

TEST(messages, strangers_are_refused)
{
	struct te__wire m = bk_hello(0), r;
	struct te__broker *b;
	const int fd = bk_fd(4096, 1), before = bk_nfds();
	int s;

	DO(te__broker_start(&bk_info, &b));
	m.key[3] ^= 1;
	check_refused(bk_dial(), &m, sizeof(m), -1, -TE_EMISMATCH, "key of another communicator");
	m = bk_hello(3);
	check_refused(bk_dial(), &m, sizeof(m), -1, -TE_EMISMATCH, "local rank 3, but there are 3");
	m = bk_hello(0);
	m.magic++;
	check_refused(bk_dial(), &m, sizeof(m), -1, -EPROTO, "no message of this version");
	m = bk_hello(0);
	check_refused(bk_dial(), &m, 100, -1, -EPROTO, "a packet of 100 bytes");
	m.kind = TE__WIRE_FETCH;
	check_refused(bk_dial(), &m, sizeof(m), -1, -EPROTO, "before HELLO");
	/* the ranks are not affected: one is served */
	s = bk_dial();
	m = bk_hello(1);
	ck_assert_int_eq(te__wire_send(s, &m, NULL, 0, -1), 0);
	ck_assert_int_eq(bk_next(s, &r), 1);
	ck_assert_int_eq(r.code, 0);
	/* but the same rank twice */
	check_refused(bk_dial(), &m, sizeof(m), -1, -TE_EMISMATCH, "rank 1 says HELLO twice");
	m.kind = TE__WIRE_PUBLISH;
	ck_assert_int_eq(te__wire_send(s, &m, NULL, 0, fd), 0);
	ck_assert_int_eq(bk_next(s, &r), 1);
	ck_assert_int_eq(r.code, 0);
	close(s);
	te__broker_stop(b);
	ck_assert_int_eq(bk_nfds(), before);
	close(fd);
}

static int greet(int rank)
{
	struct te__wire m = bk_hello(rank), r;
	const int s = bk_dial();

	ck_assert_int_eq(te__wire_send(s, &m, NULL, 0, -1), 0);
	ck_assert_int_eq(bk_next(s, &r), 1);
	ck_assert_int_eq(r.code, 0);
	return s;
}

TEST_EACH(messages, requests_that_make_no_sense_end_the_rank, 4)
{
	struct te__wire m = bk_hello(1);
	struct te__broker *b;
	const int fd = bk_fd(4096, 1), before = bk_nfds();
	char *text;
	int s;

	DO(te__broker_start(&bk_info, &b));
	switch (_i) {
	case 0:
		m.kind = TE__WIRE_PUBLISH;
		check_refused(greet(1), &m, sizeof(m), -1, -EPROTO, "without a file descriptor");
		break;
	case 1:
		m.kind = 77;
		check_refused(greet(1), &m, sizeof(m), -1, -EPROTO, "message 77 is unknown");
		break;
	case 2:
		/* the text has no end */
		text = m.text;
		memset(text, 'x', sizeof(m.text));
		m.kind = TE__WIRE_BYE;
		check_refused(greet(1), &m, sizeof(m), -1, -EPROTO, "no message of this version");
		break;
	default:
		/* a descriptor that came with no request is closed */
		check_refused(greet(1), &m, sizeof(m), fd, -TE_EMISMATCH, "HELLO twice");
	}
	/* which the others are told */
	m = bk_hello(2);
	s = bk_dial();
	check_answer(s, &m, sizeof(m), -1, -TE_EPEER, "rank 1 broke the protocol of the broker");
	close(s);
	te__broker_stop(b);
	ck_assert_int_eq(bk_nfds(), before);
	close(fd);
}

/* two descriptors in one message: the second does not fit, and MSG_CTRUNC says so */
/* a rank that publishes for ever does not take the broker's memory: four items a rank */
TEST_EACH(messages, items_are_published_once_and_are_so_many, 2)
{
	const int fd = bk_fd(4096, 1), before = bk_nfds(), most = 4 * bk_info.nlocal;
	struct te__wire m = bk_hello(1), r;
	struct te__broker *b;
	int s;

	DO(te__broker_start(&bk_info, &b));
	s = greet(1);
	m.kind = TE__WIRE_PUBLISH;
	for (int i = 0; i < (_i ? most : 1); i++) {
		m.item = (uint32_t)i;
		ck_assert_int_eq(te__wire_send(s, &m, NULL, 0, fd), 0);
		ck_assert_int_eq(bk_next(s, &r), 1);
		ck_assert_msg(!r.code, "item %d: %d: %s", i, r.code, r.text);
	}
	m.item = _i ? (uint32_t)most : 0;
	check_refused(s, &m, sizeof(m), fd, -EPROTO, _i ? "too many" : "published already");
	te__broker_stop(b);
	ck_assert_int_eq(bk_nfds(), before);
	close(fd);
}

TEST(messages, a_second_descriptor_is_an_error)
{
	struct te__wire m = bk_hello(1), r;
	const int fd = bk_fd(4096, 1), before = bk_nfds();
	struct te__broker *b;
	int s;

	DO(te__broker_start(&bk_info, &b));
	s = greet(1);
	m.kind = TE__WIRE_PUBLISH;
	ck_assert(tt_wire_send(s, &m, sizeof(m), 2, fd));
	ck_assert_int_eq(bk_next(s, &r), 1);
	ck_assert_int_eq(r.code, -EMFILE);
	ck_assert_ptr_nonnull(strstr(r.text, "MSG_CTRUNC"));
	ck_assert_int_eq(bk_next(s, &r), 0);
	close(s);
	te__broker_stop(b);
	ck_assert_int_eq(bk_nfds(), before);
	close(fd);
}

CASE(fuzz, "host", .setup = bk_setup, .limit_s = getenv("TT_WIRE_MESSAGES") ? 3600 : 0);

/* ranks that send anything, do not read, or end: a broker that stops has nothing open */
TEST(fuzz, copes_with_any_messages)
{
	enum { N = 4 };
	static uint8_t packet[TT_WIRE_MOST];
	const int64_t total = tt_wire_total();
	const int fd = bk_fd(4096, 1), before = bk_nfds();
	struct te__broker *b;
	char drain[64];
	int s[N];

	for (int64_t k = 0; k < total;) {
		DO(te__broker_start(&bk_info, &b));
		for (int i = 0; i < N; i++)
			s[i] = -1;
		for (int64_t n = tt_rand_int(1, 40); n > 0; n--) {
			const int i = (int)tt_rand_int(0, N - 1);
			struct te__wire m = bk_hello((int)tt_rand_int(0, bk_info.nlocal));

			if (s[i] < 0) {
				s[i] = bk_dial();
				if (tt_rand_int(0, 7))
					(void)te__wire_send(s[i], &m, NULL, 0, -1);
			}
			if (tt_wire_send(s[i], packet, tt_wire_draw(bk_key, packet),
					 tt_wire_draw_nfds(), fd))
				k++;
			else if (!close(s[i]))
				s[i] = -1;
			/* sometimes it does not read what comes */
			if (s[i] >= 0 && tt_rand_int(0, 3))
				while (recv(s[i], drain, sizeof(drain), MSG_DONTWAIT) > 0)
					;
		}
		for (int i = 0; i < N; i++)
			if (s[i] >= 0)
				close(s[i]);
		te__broker_stop(b);
		ck_assert_int_eq(bk_nfds(), before);
	}
	close(fd);
}
