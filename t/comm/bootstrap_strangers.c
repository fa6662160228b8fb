/* t/comm/bootstrap_strangers.c - ranks to which others connect, and ids whose root is not there. */
#include "config.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <te/errno.h>

#include "bootstrap_lib.h"
#include "libtecomm/meet/conn.h"
#include "libtecore/base/private.h"
#include "ranks.h"

/* ---- strangers ---- */

/* connects to the root of the id, or to the socket of rank 0 in the folder, when it is there */
static int connect_to(enum meet how)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct sockaddr_in in = { .sin_family = AF_INET };
	static char path[108];
	char text[TE_COMM_ID_TEXT], cmd[300];
	int fd = socket(how == MEET_DIR ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (how == MEET_DIR) {
		FILE *f;

		snprintf(cmd, sizeof(cmd), "ls %s/te-*-0 2>/dev/null", ranks_dir());
		for (; !path[0]; usleep(1000)) {
			f = popen(cmd, "r");
			if (fgets(path, sizeof(path), f))
				path[strcspn(path, "\n")] = 0;
			pclose(f);
		}
		strcpy(un.sun_path, path);
		connect(fd, (struct sockaddr *)&un, sizeof(un)); /* the ranks may have met by now */
		return fd;
	}
	ck_assert_int_eq(te_comm_id_format(ranks_id(), text, sizeof(text)), 0);
	in.sin_port = htons((uint16_t)atoi(strchr(text + 4, ':') + 1));
	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
	return fd;
}

/* ranks from this one on wait for the strangers, who need a socket of rank 0 in a folder */
static int waiting;

static int meet_all(int rank, void *arg)
{
	const _Atomic int *come = arg;

	while (come && rank >= waiting && !*come)
		usleep(1000);
	return bf_meet(rank, NULL);
}

/* ---- an end that says what a test wants ---- */

struct end {
	struct te__conn c;
	uint8_t key[TE__KEY_NBYTES];
};

/* the key of communicator "comm" and job "", once it exists */
static void dir_key(uint8_t key[TE__KEY_NBYTES])
{
	char path[300];
	FILE *f;

	snprintf(path, sizeof(path), "%s/te-key", ranks_dir());
	while (!(f = fopen(path, "r")))
		usleep(1000);
	ck_assert_uint_eq(fread(key, 1, TE__KEY_NBYTES, f), TE__KEY_NBYTES);
	fclose(f);
	te__key_derive(key, "folder", "\0comm", 5, key);
}

/* as rank 2 to the root, or to the rank */
static void end_open(struct end *e, enum meet how, int32_t to)
{
	const struct te__ends ends = { .key = e->key,
				       .purpose = how == MEET_DIR ? TE__FOR_MESH : TE__FOR_ROOT,
				       .me = 2, .peer = to };

	if (how == MEET_DIR)
		dir_key(e->key);
	else
		memcpy(e->key, ranks_id()->bytes + 5, sizeof(e->key));
	te__conn_open(&e->c, connect_to(how), &ends, 1);
}

/* waits for the answer of the other end, or for its frame; returns te__conn_read()'s code */
static int end_read(struct end *e, int frame)
{
	const int64_t until = te__boot_now() + INT64_C(20000000000);
	struct pollfd p = { .fd = e->c.fd, .events = POLLIN };
	int r = 0;

	while (!r && (frame || e->c.step == TE__CONN_ASKS) && te__boot_now() < until) {
		poll(&p, 1, 100);
		r = te__conn_read(&e->c, TE__REFUSE_MOST);
	}
	return r;
}

/* naddrs: 1, or 0 */
static void end_hello(struct end *e, uint16_t version, const char *library, int rank,
		      uint8_t naddrs)
{
	const struct te__frame f = { .version = version, .type = TE__FRAME_HELLO };
	struct te__hello h = {
		.rank = rank, .nranks = 3, .timeout_ms = 20000, .left_ms = 20000
	};
	uint8_t body[TE__HELLO_MOST];

	strcpy(h.version, library);
	strcpy(h.host, "elsewhere");
	h.addrs = (struct te__addrs){ .port = 1, .n = naddrs, .a = { { 4, { 127, 0, 0, 1 } } } };
	te__conn_queue(&e->c, &f, body, te__hello_put(body, &h));
	te__conn_write(&e->c);
}

enum stranger {
	SILENT,
	GARBAGE,
	HALF,
	DRIP,
	WRONG_KEY,
	HUGE_BODY,
	DAMAGED,
	NO_ADDRESS,
	OTHER_RANK,
	OTHER_PROOF,
	GONE,
	MANY,
	NSTRANGERS
};

/* sends its bytes and leaves the connection open; returns a descriptor */
static int stranger(enum meet how, enum stranger kind)
{
	static struct end e; /* the last end; its descriptor stays open */
	uint8_t noise[3000];
	int fd;

	if (kind == NO_ADDRESS && how == MEET_DIR) /* it needs none there */
		kind = SILENT;
	if (kind == SILENT || kind == GARBAGE || kind == GONE || kind == MANY) {
		fd = connect_to(how);
		tt_fill_bytes(noise, sizeof(noise));
		if (kind == GARBAGE)
			send(fd, noise, sizeof(noise), MSG_NOSIGNAL);
		if (kind == GONE)
			close(fd);
		return kind == GONE ? -1 : fd;
	}
	if (kind == HALF || kind == DRIP || kind == HUGE_BODY) {
		struct te__frame f = { .version = TE__FRAME_VERSION, .type = TE__FRAME_CHALLENGE };

		te__frame_put(noise, &f, kind == HUGE_BODY ? UINT32_MAX : TE__CHALLENGE_NBYTES);
		fd = connect_to(how);
		/* the rest comes from drip() */
		send(fd, noise, kind == DRIP ? 1 : TE__FRAME_HEAD, MSG_NOSIGNAL);
		return fd;
	}
	end_open(&e, how, kind == OTHER_RANK ? 1 : 0);
	if (kind == WRONG_KEY)
		e.key[3] ^= 1;
	if (end_read(&e, 0) == -EACCES)
		e.c.step = TE__CONN_KEYED; /* as if the answer were right */
	if (kind == DAMAGED)
		e.c.session.out.key[0] ^= 1;
	end_hello(&e, TE__FRAME_VERSION, PACKAGE_VERSION, kind == OTHER_PROOF ? 1 : 2,
		  kind != NO_ADDRESS);
	te__free(e.c.in_body);
	return e.c.fd;
}

CASE(strangers, "host");

TEST_EACH(strangers, strangers_do_not_keep_ranks_apart, 2 * NSTRANGERS)
{
	const enum meet how = _i / NSTRANGERS ? MEET_DIR : MEET_ID;
	const enum stranger kind = (enum stranger)(_i % NSTRANGERS);
	const int n = 3, many = kind == MANY ? 300 : 3;
	_Atomic int *come = ranks_shared(sizeof(*come));
	struct ranks_result res[3];
	int fd[300];

	ranks_meet(how, n);
	waiting = how == MEET_DIR ? n - 1 : 0;
	ranks_start(n, meet_all, come);
	for (int i = 0; i < many; i++)
		fd[i] = stranger(how, kind);
	*come = 1;
	for (int i = 0; kind == DRIP && i < 40; i++, usleep(20000))
		for (int k = 0; k < many; k++)
			send(fd[k], "e", 1, MSG_NOSIGNAL);
	ranks_wait(res);
	for (int i = 0; i < many; i++)
		if (fd[i] >= 0)
			close(fd[i]);
	ranks_part();
	ranks_ok(n, res);
	for (int i = 0; i < n; i++)
		ck_assert_msg(res[i].ms < SOON, "after %.0f ms", res[i].ms);
}

/* so many in one turn that rank 0 drops the connection of rank 1 among those that say nothing */
TEST(strangers, a_rank_that_is_dropped_comes_again)
{
	_Atomic int *come = ranks_shared(sizeof(*come));
	const int n = 2, many = 100;
	struct ranks_result res[2];
	int fd[100];

	ranks_meet(MEET_DIR, n);
	waiting = 1;
	ranks_start(n, meet_all, come);
	fd[0] = connect_to(MEET_DIR); /* rank 0 listens */
	kill(ranks_pid(0), SIGSTOP);
	*come = 1;
	tt_pause(300); /* rank 1 connects */
	for (int i = 1; i < many; i++)
		fd[i] = connect_to(MEET_DIR);
	kill(ranks_pid(0), SIGCONT);
	ranks_wait(res);
	for (int i = 0; i < many; i++)
		close(fd[i]);
	ranks_part();
	ranks_ok(n, res);
}

/* a rank of another version knows the key: it is told why, and so are the others */
TEST_EACH(strangers, another_version_is_named_on_both_sides, 2)
{
	const int n = 3;
	struct ranks_result res[2];
	char text[TE__REFUSE_MOST];
	struct end e;
	int code;

	ranks_meet(MEET_ID, n);
	ranks_start(2, meet_all, NULL);
	tt_pause(200);
	end_open(&e, MEET_ID, 0);
	/* versions of the protocol and of the library */
	end_hello(&e, TE__FRAME_VERSION + !_i, _i ? "1.1.0" : PACKAGE_VERSION, 2, 1);
	ck_assert_int_eq(end_read(&e, 1), 1);
	ck_assert_int_eq(e.c.in.type, TE__FRAME_REFUSE);
	ck_assert_int_eq(te__refuse_get(e.c.in_body, e.c.in.nbytes, &code, text), 0);
	te__conn_close(&e.c);
	ranks_wait(res);
	ranks_part();
	ck_assert_int_eq(code, -TE_EMISMATCH);
	ck_assert_msg(strstr(text, _i ? "runs libtecomm 1.1.0" : "different versions") != NULL,
		      "%s", text);
	for (int i = 0; i < 2; i++)
		ranks_failed(&res[i], -TE_EMISMATCH, text, SOON);
}

/* ---- ids whose root is not there ---- */

static int by_text(int rank, void *arg)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te_comm_id id;
	struct te__boot *b;
	int r = te_comm_id_parse(arg, &id);

	o.rank = rank;
	o.nranks = 2;
	o.id = &id;
	o.timeout_ms = TT_SLOWER(400);
	if (!r)
		r = te__boot_open(&o, &b);
	return r;
}

/* listeners at the root's port: none, a silent one, one that sends bytes */
TEST_EACH(strangers, a_port_that_is_not_the_roots, 3)
{
	struct sockaddr_in in = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM, 0), c;
	socklen_t len = sizeof(in);
	struct ranks_result res[1];
	char text[200];

	ck_assert_int_eq(bind(fd, (struct sockaddr *)&in, len), 0);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&in, &len), 0);
	if (_i)
		ck_assert_int_eq(listen(fd, 5), 0);
	snprintf(text, sizeof(text), "te1:000102030405060708090a0b0c0d0e0f:%d:127.0.0.1",
		 ntohs(in.sin_port));
	ranks_start(1, by_text, text);
	if (_i == 2) {
		c = accept(fd, NULL, NULL);
		send(c, "SSH-2.0-OpenSSH_9.2\r\n", 21, MSG_NOSIGNAL);
		tt_pause(100);
		close(c);
	}
	ranks_wait(res);
	close(fd);
	ranks_failed(&res[0], _i == 1 ? -ETIMEDOUT : -TE_EPEER,
		     _i == 0 ? "nothing listens at 127.0.0.1:" :
		     _i == 1 ? bf_within("did not answer", 400) :
			       "sent bytes that are no message of libtecomm",
		     SOON);
}
