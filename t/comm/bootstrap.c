/* t/comm/bootstrap.c - ranks meet and exchange, in each of the ways: 1 to 8 processes. */
#include "config.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <te/ctx.h>
#include <te/errno.h>

#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/meet/dial.h"
#include "libtecore/base/splitmix64.h"
#include "ranks.h"

#define NRANKS_MAX 8

static const char *const how_name[] = { "id", "id", "dir", "callback" };

static int context(struct te_ctx **ret_ctx)
{
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;

	o.backend = "host";
	return te_ctx_create(&o, ret_ctx);
}

/* the data that rank r sends in exchange k */
static void fill(uint8_t *p, size_t nbytes, int r, int k)
{
	uint64_t s = tt_seed() ^ (uint64_t)r << 32 ^ (uint64_t)k;

	for (size_t i = 0; i < nbytes; i++)
		p[i] = (uint8_t)te__splitmix64(&s);
}

/* exchanges of these sizes; 2 MB, more than sockets hold, by a few ranks */
static const size_t sizes[] = { 0, 1, 7, 64, 1000, 4096, 65537, TT_FEWER(2 << 20), 3 };

static int exchanges(struct te__boot *b)
{
	const int rank = te__boot_rank(b), n = te__boot_nranks(b);

	for (size_t k = 0; k < TT_LEN(sizes); k++) {
		const size_t nbytes = n > 3 && sizes[k] > 70000 ? sizes[k] / 16 : sizes[k];
		uint8_t *send = malloc(nbytes + 1), *recv = malloc(nbytes * (size_t)n + 16);
		uint8_t *want = malloc(nbytes + 1);
		char what[32];
		int r;

		fill(send, nbytes, rank, (int)k);
		tt_poison(recv, nbytes * (size_t)n + 16);
		snprintf(what, sizeof(what), "exchange of %zu bytes", nbytes);
		if (k & 1) /* in place */
			memcpy(recv + (size_t)rank * nbytes, send, nbytes);
		r = te__boot_allgather(b, k & 1 ? recv + (size_t)rank * nbytes : send, recv, nbytes,
				       what, 0);
		for (int i = 0; i < n && !r; i++) {
			fill(want, nbytes, i, (int)k);
			if (memcmp(want, recv + (size_t)i * nbytes, nbytes))
				r = te_fail(-EILSEQ, "%s: wrong part of rank %d", what, i);
		}
		if (!r && !tt_is_poison(recv + nbytes * (size_t)n, 16))
			r = te_fail(-EILSEQ, "%s: wrote after its end", what);
		free(send);
		free(recv);
		free(want);
		if (r)
			return r;
	}
	return 0;
}

static int boot_rank(int rank, void *arg)
{
	struct te_comm_opts o = ranks_opts(rank);
	struct te__boot *b;
	int r;

	usleep((useconds_t)(tt_seed() >> 3 * rank) % 20000); /* in any order */
	r = te__boot_open(&o, &b);
	if (r)
		return r;
	if (te__boot_rank(b) != rank || te__boot_nranks(b) != *(const int *)arg)
		r = te_fail(-EILSEQ, "rank %d of %d", te__boot_rank(b), te__boot_nranks(b));
	if (!r)
		r = exchanges(b);
	te__boot_close(b);
	return r;
}

CASE(meet, "host");

/* _i: how ranks meet, times the number of ranks - 1 */
TEST_EACH(meet, exchanges_what_each_rank_sent, MEET_END * NRANKS_MAX)
{
	const int n = 1 + _i % NRANKS_MAX;
	struct ranks_result res[RANKS_MAX];

	ranks_meet_run((enum meet)(_i / NRANKS_MAX), n, boot_rank, (void *)&n, res);
	ranks_ok(n, res);
}

static int comm_rank(int rank, void *arg)
{
	struct te_comm_info info = TE_COMM_INFO_INIT;
	struct te_comm_opts o = ranks_opts(rank);
	const int n = *(const int *)arg;
	struct te_ctx *ctx;
	struct te_comm *c;
	int r = context(&ctx);

	if (r)
		return r;
	o.name = "train";
	r = te_comm_create(ctx, &o, &c);
	te_ctx_unref(ctx);
	if (r)
		return r;
	r = te_comm_info(c, &info);
	if (!r && (te_comm_rank(c) != rank || te_comm_nranks(c) != n || info.rank != rank ||
		   info.nranks != n || info.nlocal != n || info.local_rank != rank || info.node ||
		   info.nnodes != 1 || strcmp(info.name, "train")))
		r = te_fail(-EILSEQ, "rank %d of %d, local %d of %d, node %d of %d, %s", info.rank,
			    info.nranks, info.local_rank, info.nlocal, info.node, info.nnodes,
			    info.name);
	if (!r && strcmp(info.bootstrap, ((const char *const *)arg)[1]))
		r = te_fail(-EILSEQ, "met by %s", info.bootstrap);
	if (te_comm_ref(c) != c)
		r = -EILSEQ;
	te_comm_unref(c);
	te_comm_unref(c);
	return r;
}

TEST_EACH(meet, tells_ranks_and_nodes, MEET_END)
{
	struct ranks_result res[RANKS_MAX];
	struct {
		int n;
		const char *how;
	} arg = { 3, how_name[_i] };

	ranks_meet_run((enum meet)_i, arg.n, comm_rank, &arg, res);
	ranks_ok(arg.n, res);
}

static int one_alone(int rank, void *arg)
{
	struct te_comm_info info = TE_COMM_INFO_INIT;
	struct te_ctx *ctx;
	struct te_comm *c;
	int r = context(&ctx);

	if (!r)
		r = te_comm_create(ctx, NULL, &c);
	te_ctx_unref(ctx);
	if (r)
		return r;
	r = te_comm_info(c, &info);
	if (!r && (info.nranks != 1 || info.rank || strcmp(info.bootstrap, "single") ||
		   strcmp(info.name, "comm")))
		r = te_fail(-EILSEQ, "rank %d of %d by %s", info.rank, info.nranks, info.bootstrap);
	te_comm_unref(c);
	return r;
}

TEST(meet, one_rank_needs_nothing)
{
	struct ranks_result res[1];

	ranks_run(1, one_alone, NULL, res);
	ranks_ok(1, res);
}

/* six ranks on nodes a b a b c a */
static int node_rank(int rank, void *arg)
{
	static const char *const name[] = { "a", "b", "a", "b", "c", "a" };
	static const int node[] = { 0, 1, 0, 1, 2, 0 }, local[] = { 0, 0, 1, 1, 0, 2 };
	static const int nlocal[] = { 3, 2, 1 };
	struct te_comm_opts o = ranks_opts(rank);
	struct te__boot *b;
	int r;

	setenv("TE_COMM_NODE", name[rank], 1);
	r = te__boot_open(&o, &b);
	if (r)
		return r;
	if (te__boot_nnodes(b) != 3 || te__boot_nlocal(b) != nlocal[node[rank]])
		r = te_fail(-EILSEQ, "%d nodes, %d here", te__boot_nnodes(b), te__boot_nlocal(b));
	for (int i = 0; i < 6 && !r; i++)
		if (te__boot_node(b, i) != node[i] || te__boot_local_rank(b, i) != local[i])
			r = te_fail(-EILSEQ, "rank %d is %d of node %d", i,
				    te__boot_local_rank(b, i), te__boot_node(b, i));
	for (int i = 0; i < te__boot_nlocal(b) && !r; i++)
		if (te__boot_local_rank(b, te__boot_local(b, i)) != i ||
		    te__boot_node(b, te__boot_local(b, i)) != node[rank])
			r = te_fail(-EILSEQ, "local rank %d is rank %d", i, te__boot_local(b, i));
	if (!r && te__boot_local(b, local[rank]) != rank)
		r = te_fail(-EILSEQ, "this rank is not among those of its node");
	te__boot_close(b);
	return r;
}

TEST(meet, numbers_nodes_by_their_lowest_ranks)
{
	struct ranks_result res[6];

	ranks_meet_run(MEET_DIR, 6, node_rank, NULL, res);
	ranks_ok(6, res);
}

/* several, one after the other and at once, of one name and of two */
static int again_rank(int rank, void *arg)
{
	uint8_t key[8][TE__KEY_NBYTES], all[4][TE__KEY_NBYTES];
	struct te_comm_opts o = ranks_opts(rank);
	struct te__boot *b[8] = { 0 };
	int r = 0;

	for (int k = 0; k < 8 && !r; k++) {
		o.name = k % 3 ? "even" : NULL;
		r = te__boot_open(&o, &b[k]);
		if (r)
			break;
		memcpy(key[k], te__boot_key(b[k]), sizeof(key[k]));
		for (int j = 0; j < k; j++)
			if (!memcmp(key[k], key[j], sizeof(key[k])))
				r = te_fail(-EILSEQ, "%d and %d have one key", k, j);
		if (k & 1)
			b[k] = te__boot_close(b[k]);
	}
	for (int k = 0; k < 8; k += 2) {
		if (!r)
			r = te__boot_allgather(b[k], key[k], all, sizeof(key[k]), "keys", 0);
		for (int i = 0; i < 4 && !r; i++)
			if (memcmp(all[i], key[k], sizeof(key[k])))
				r = te_fail(-EILSEQ, "rank %d has another key", i);
		te__boot_close(b[k]);
	}
	return r;
}

TEST(meet, communicators_one_after_the_other)
{
	struct ranks_result res[4];

	ranks_meet_run(MEET_DIR, 4, again_rank, NULL, res);
	ranks_ok(4, res);
}

/* ---- ids and bytes ---- */

static const char *const texts[] = {
	"te1:000102030405060708090a0b0c0d0e0f:1:127.0.0.1",
	"te1:ffeeddccbbaa99887766554433221100:65535:10.0.0.5,2001:db8::5",
	"te1:ffeeddccbbaa99887766554433221100:4000:1.2.3.4,5.6.7.8,::1,fd00::1,fd00::2,9.9.9.9",
};

CASE(bytes, "host");

TEST_EACH(bytes, an_id_is_a_text_and_back, TT_LEN(texts))
{
	char text[TE_COMM_ID_TEXT];
	struct te_comm_id id, again;

	ck_assert_int_eq(te_comm_id_parse(texts[_i], &id), 0);
	ck_assert_int_eq(te_comm_id_format(&id, text, sizeof(text)), 0);
	ck_assert_str_eq(text, texts[_i]);
	ck_assert_int_eq(te_comm_id_parse(text, &again), 0);
	ck_assert_int_eq(memcmp(&id, &again, sizeof(id)), 0);
	/* room for all but the 0 */
	tt_poison(text, sizeof(text));
	ck_assert_int_eq(te_comm_id_format(&id, text, strlen(texts[_i])), -EINVAL);
	ck_assert(tt_is_poison(text, sizeof(text)));
}

static const char *const not_ids[] = {
	"",
	"te1",
	"te2:000102030405060708090a0b0c0d0e0f:1:127.0.0.1",
	"te1:000102030405060708090a0b0c0d0e0:1:127.0.0.1",
	"te1:000102030405060708090a0b0c0d0e0g:1:127.0.0.1",
	"te1:000102030405060708090a0b0c0d0e0f0:1:127.0.0.1",
	"te1:000102030405060708090a0b0c0d0e0f:0:127.0.0.1",
	"te1:000102030405060708090a0b0c0d0e0f:65536:127.0.0.1",
	"te1:000102030405060708090a0b0c0d0e0f:-1:127.0.0.1",
	"te1:000102030405060708090a0b0c0d0e0f:1:",
	"te1:000102030405060708090a0b0c0d0e0f:1",
	"te1:000102030405060708090a0b0c0d0e0f:1:127.0.0",
	"te1:000102030405060708090a0b0c0d0e0f:1:127.0.0.1,",
	"te1:000102030405060708090a0b0c0d0e0f:1:127.0.0.1 ",
	"te1:000102030405060708090a0b0c0d0e0f:1:::1,::1,::1,::1,::1,::1,::1",
};

TEST_EACH(bytes, refuses_texts_that_are_no_ids, TT_LEN(not_ids))
{
	struct te_comm_id id;

	tt_poison(&id, sizeof(id));
	te_error_clear();
	ck_assert_int_eq(te_comm_id_parse(not_ids[_i], &id), -EINVAL);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "te_comm_id_parse: "));
	ck_assert(tt_is_poison(&id, sizeof(id)));
}

TEST(bytes, refuses_bytes_that_are_no_id)
{
	char text[TE_COMM_ID_TEXT];
	struct te_comm_id id;

	memset(&id, 0, sizeof(id));
	ck_assert_int_eq(te_comm_id_format(&id, text, sizeof(text)), -EINVAL);
	ck_assert_int_eq(te_comm_id_parse(texts[0], &id), 0);
	id.bytes[4]++; /* the version */
	ck_assert_int_eq(te_comm_id_format(&id, text, sizeof(text)), -EINVAL);
}

/* ---- proofs ---- */

/* both ends of a stream, of which the test carries the bytes */
struct wire {
	struct te__conn a, b; /* a has connected */
	int far_a, far_b;     /* the other ends of their sockets */
};

static uint8_t wire_key[2][TE__KEY_NBYTES];

static struct te__ends ends_of(int32_t me, int32_t peer)
{
	return (struct te__ends){ .key = wire_key[0], .purpose = TE__FOR_MESH, .me = me,
				  .peer = peer };
}

static void wire_open(struct wire *w, const struct te__ends *a, const struct te__ends *b)
{
	int fd[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
	te__conn_open(&w->a, fd[0], a, 1);
	w->far_a = fd[1];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
	te__conn_open(&w->b, fd[0], b, 0);
	w->far_b = fd[1];
}

static void wire_close(struct wire *w)
{
	te__conn_close(&w->a);
	te__conn_close(&w->b);
	close(w->far_a);
	close(w->far_b);
}

/* reads the bytes that were sent there, at most nbytes; returns their number */
static size_t sent(int fd, uint8_t *p, size_t nbytes)
{
	const ssize_t n = recv(fd, p, nbytes, MSG_DONTWAIT);

	return n > 0 ? (size_t)n : 0;
}

static void deliver(int fd, const uint8_t *p, size_t nbytes)
{
	ck_assert_int_eq(send(fd, p, nbytes, MSG_NOSIGNAL), (ssize_t)nbytes);
}

static void post(struct te__conn *c, uint64_t seq, const void *body, size_t nbytes)
{
	const struct te__frame f = { .version = TE__FRAME_VERSION, .type = TE__FRAME_DATA,
				     .seq = seq, .what = "pool handles" };

	te__conn_queue(c, &f, body, nbytes);
	ck_assert_int_ge(te__conn_write(c), 0);
}

/* the challenge and its answer are carried */
static void wire_meet(struct wire *w)
{
	uint8_t bytes[512];

	deliver(w->far_b, bytes, sent(w->far_a, bytes, sizeof(bytes)));
	ck_assert_int_eq(te__conn_read(&w->b, 1000), 0);
	deliver(w->far_a, bytes, sent(w->far_b, bytes, sizeof(bytes)));
	ck_assert_int_eq(te__conn_read(&w->a, 1000), 0);
	ck_assert_int_eq(w->a.step, TE__CONN_PROVEN);
}

static void wire_up(struct wire *w)
{
	const struct te__ends a = ends_of(3, 1), b = ends_of(1, -1);

	tt_fill_bytes(wire_key, sizeof(wire_key));
	wire_open(w, &a, &b);
	wire_meet(w);
}

CASE(proofs, "host serial");

TEST(proofs, a_frame_with_any_bit_flipped_is_refused)
{
	uint8_t bytes[TE__FRAME_HEAD + 33], body[33];

	tt_fill_bytes(body, sizeof(body));
	for (size_t i = 0; i <= 8 * sizeof(bytes); i++) {
		struct wire w;
		int r;

		wire_up(&w);
		post(&w.a, 77, body, sizeof(body));
		ck_assert_uint_eq(sent(w.far_a, bytes, sizeof(bytes)), sizeof(bytes));
		if (i < 8 * sizeof(bytes))
			bytes[i / 8] ^= (uint8_t)(1 << i % 8);
		deliver(w.far_b, bytes, sizeof(bytes));
		shutdown(w.far_b, SHUT_WR); /* a longer one does not come */
		r = te__conn_read(&w.b, 64);
		if (i == 8 * sizeof(bytes)) {
			ck_assert_int_eq(r, 1);
			ck_assert_uint_eq(w.b.in.seq, 77);
			ck_assert_uint_eq(w.b.in.nbytes, 33);
			ck_assert_str_eq(w.b.in.what, "pool handles");
			ck_assert_int_eq(memcmp(w.b.in_body, body, 33), 0);
			ck_assert_int_eq(w.b.ends.peer, 3);
		} else {
			ck_assert_msg(r == -EBADMSG || r == -EPIPE, "bit %zu: %d", i, r);
		}
		wire_close(&w);
	}
}

enum { TWICE, SWAPPED, LEFT_OUT, BACK, OTHER_STREAM, NREPLAYS };

/* frames that were sent, and not as what follows here and now */
TEST_EACH(proofs, a_frame_is_taken_once_and_in_its_order, NREPLAYS)
{
	uint8_t one[TE__FRAME_HEAD + 5], two[TE__FRAME_HEAD + 5];
	struct wire w, w2;

	wire_up(&w);
	post(&w.a, 1, "first", 5);
	ck_assert_uint_eq(sent(w.far_a, one, sizeof(one)), sizeof(one));
	post(&w.a, 2, "other", 5);
	ck_assert_uint_eq(sent(w.far_a, two, sizeof(two)), sizeof(two));
	switch (_i) {
	case TWICE:
	case BACK:
	case OTHER_STREAM:
		deliver(w.far_b, one, sizeof(one));
		ck_assert_int_eq(te__conn_read(&w.b, 64), 1);
		te__conn_next(&w.b);
		break;
	case SWAPPED:
	case LEFT_OUT:
		break;
	}
	if (_i == BACK) { /* to the end that has sent it */
		deliver(w.far_a, one, sizeof(one));
		ck_assert_int_eq(te__conn_read(&w.a, 64), -EBADMSG);
	} else if (_i == OTHER_STREAM) {
		const struct te__ends a = ends_of(3, 1), b = ends_of(1, -1);

		wire_open(&w2, &a, &b); /* with the same key and ranks */
		wire_meet(&w2);
		deliver(w2.far_b, one, sizeof(one));
		ck_assert_int_eq(te__conn_read(&w2.b, 64), -EBADMSG);
		wire_close(&w2);
	} else {
		deliver(w.far_b, _i == TWICE ? one : two, sizeof(one));
		ck_assert_int_eq(te__conn_read(&w.b, 64), -EBADMSG);
	}
	wire_close(&w);
}

/* a frame that gives way to another one before a byte of it is sent leaves no gap */
TEST(proofs, a_frame_that_was_not_sent_is_not_missed)
{
	uint8_t fill[8192] = { 0 }, bytes[TE__FRAME_HEAD + 5];
	struct wire w;
	int n = 1;

	wire_up(&w);
	while (n > 0)
		n = (int)send(w.a.fd, fill, sizeof(fill), MSG_DONTWAIT | MSG_NOSIGNAL);
	post(&w.a, 1, "first", 5);
	ck_assert_uint_eq(w.a.out_sent, 0);
	while (sent(w.far_a, fill, sizeof(fill)))
		;
	post(&w.a, 2, "other", 5);
	ck_assert_uint_eq(sent(w.far_a, bytes, sizeof(bytes)), sizeof(bytes));
	deliver(w.far_b, bytes, sizeof(bytes));
	ck_assert_int_eq(te__conn_read(&w.b, 64), 1);
	ck_assert_uint_eq(w.b.in.seq, 2);
	wire_close(&w);
}

/* ends with different knowledge, and the result at the listening end */
static const struct stranger {
	const char *what;
	enum te__purpose purpose; /* 0: as there */
	int32_t to, key;
	int answers; /* the challenge is taken */
} strangers[] = {
	{ "another key", TE__FOR_MESH, 1, 1, 1 },
	{ "another rank", TE__FOR_MESH, 2, 0, 0 },
	{ "another purpose", TE__FOR_LINK, 1, 0, 0 },
};

TEST_EACH(proofs, who_differs_proves_nothing, TT_LEN(strangers))
{
	const struct stranger *s = &strangers[_i];
	struct te__ends a = ends_of(3, s->to), b = ends_of(1, -1);
	uint8_t bytes[512];
	struct wire w;
	size_t n;

	tt_fill_bytes(wire_key, sizeof(wire_key));
	a.key = wire_key[s->key];
	a.purpose = s->purpose;
	wire_open(&w, &a, &b);
	deliver(w.far_b, bytes, sent(w.far_a, bytes, sizeof(bytes)));
	ck_assert_int_eq(te__conn_read(&w.b, 1000), s->answers ? 0 : -EBADMSG);
	n = sent(w.far_b, bytes, sizeof(bytes));
	ck_assert_int_eq(n > 0, s->answers);
	if (n) { /* neither end takes the other one */
		deliver(w.far_a, bytes, n);
		post(&w.a, 1, "hello", 5);
		ck_assert_int_eq(te__conn_read(&w.a, 1000), -EACCES);
		ck_assert_uint_eq(sent(w.far_a, bytes, sizeof(bytes)), 0);
		w.a.step = TE__CONN_KEYED; /* as if it had */
		te__conn_write(&w.a);
		deliver(w.far_b, bytes, sent(w.far_a, bytes, sizeof(bytes)));
		ck_assert_int_eq(te__conn_read(&w.b, 1000), -EBADMSG);
	}
	wire_close(&w);
}

/* who does not know the key lets the end that asks answer itself */
TEST(proofs, a_challenge_cannot_be_reflected)
{
	const struct te__ends a = ends_of(3, 1), b = ends_of(1, -1);
	const struct te__frame f = { .version = TE__FRAME_VERSION, .type = TE__FRAME_CHALLENGE };
	uint8_t bytes[512], answer[512];
	struct wire w;
	size_t n, m;

	tt_fill_bytes(wire_key, sizeof(wire_key));
	wire_open(&w, &a, &b);
	n = sent(w.far_a, bytes, sizeof(bytes));
	/* the challenge itself */
	deliver(w.far_a, bytes, n);
	ck_assert_int_eq(te__conn_read(&w.a, 1000), -EBADMSG);
	wire_close(&w);
	/* the answer to it, as the first frame of who asked */
	wire_open(&w, &a, &b);
	deliver(w.far_b, bytes, sent(w.far_a, bytes, sizeof(bytes)));
	ck_assert_int_eq(te__conn_read(&w.b, 1000), 0);
	m = sent(w.far_b, answer, sizeof(answer));
	deliver(w.far_b, answer, m);
	ck_assert_int_eq(te__conn_read(&w.b, 1000), -EBADMSG);
	wire_close(&w);
	/* an answer without a MAC */
	wire_open(&w, &a, &b);
	te__frame_put(bytes, &f, TE__NONCE_NBYTES);
	deliver(w.far_a, bytes, TE__FRAME_HEAD + TE__NONCE_NBYTES);
	ck_assert_int_eq(te__conn_read(&w.a, 1000), -EACCES);
	wire_close(&w);
}

/* before a proof, no more than it needs is read, and no memory taken */
TEST_EACH(proofs, bodies_of_strangers_are_bounded, 3)
{
	static const size_t more[] = { TE__CHALLENGE_NBYTES + 1, 1 << 20, UINT32_MAX };
	struct te__frame f = { .version = TE__FRAME_VERSION, .type = TE__FRAME_CHALLENGE };
	const struct te__ends a = ends_of(3, 1), b = ends_of(1, -1);
	uint8_t head[512], first[512];
	struct wire w;

	te__frame_put(head, &f, more[_i]);
	wire_open(&w, &a, &b);
	deliver(w.far_a, head, TE__FRAME_HEAD);
	ck_assert_int_eq(te__conn_read(&w.a, UINT32_MAX), -EBADMSG);
	ck_assert_ptr_null(w.a.in_body);
	deliver(w.far_b, head, TE__FRAME_HEAD);
	ck_assert_int_eq(te__conn_read(&w.b, UINT32_MAX), -EBADMSG);
	ck_assert_ptr_null(w.b.in_body);
	wire_close(&w);
	/* after the answer: no more than a hello */
	wire_open(&w, &a, &b);
	deliver(w.far_b, first, sent(w.far_a, first, sizeof(first)));
	ck_assert_int_eq(te__conn_read(&w.b, UINT32_MAX), 0);
	te__frame_put(head, &f, _i ? more[_i] : TE__FRAME_STRANGER + 1);
	deliver(w.far_b, head, TE__FRAME_HEAD);
	ck_assert_int_eq(te__conn_read(&w.b, UINT32_MAX), -EBADMSG);
	wire_close(&w);
	/* then the reader's limit */
	wire_up(&w);
	post(&w.a, 1, "first", 5);
	deliver(w.far_b, first, sent(w.far_a, first, sizeof(first)));
	ck_assert_int_eq(te__conn_read(&w.b, 4), -EBADMSG);
	wire_close(&w);
}

/* ---- other users ---- */

/* an abstract socket that listens, with a name of the kernel */
static int listener(struct sockaddr_un *ret)
{
	socklen_t len = sizeof(*ret);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	*ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (bind(fd, (struct sockaddr *)ret, sizeof(sa_family_t)) || listen(fd, 5) ||
	    getsockname(fd, (struct sockaddr *)ret, &len))
		return -1;
	/* the length that te__dial_step() has for abstract names is that of the struct */
	close(fd);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	return bind(fd, (struct sockaddr *)ret, sizeof(*ret)) || listen(fd, 5) ? -1 : fd;
}

/* a process of another user that connects, or listens and waits for the end of go */
static pid_t other_user(struct sockaddr_un *un, int listens, int go)
{
	const pid_t pid = fork();
	char byte;

	if (pid)
		return pid;
	if (setuid(65534))
		_exit(1);
	if (listens) {
		if (listener(un) < 0)
			_exit(2);
	} else {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (connect(fd, (struct sockaddr *)un, sizeof(*un)))
			_exit(3);
	}
	if (write(go, un, sizeof(*un)) < 0 || read(go, &byte, 1) < 0)
		_exit(4);
	_exit(0);
}

TEST_EACH(proofs, processes_of_other_users_are_refused, 2)
{
	struct te__ends ends = ends_of(1, 0);
	struct te__conn c = TE__CONN_INIT;
	struct sockaddr_un un;
	struct te__dial d;
	int go[2], fd, accepted, status;
	pid_t pid;

	if (geteuid()) {
		printf("# not root: no process of another user is started\n");
		return;
	}
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, go), 0);
	fd = listener(&un);
	pid = other_user(&un, _i, go[1]);
	close(go[1]);
	ck_assert_int_eq(read(go[0], &un, sizeof(un)), (int)sizeof(un));
	if (_i) { /* one listens: it is not asked for anything */
		te__dial_init(&d, &c, NULL, &ends);
		d.path = un;
		ck_assert_int_eq(te__dial_step(&d, &(struct pollfd){ 0 }, te__boot_now()), 0);
		ck_assert_int_eq(d.last, EACCES);
		ck_assert_int_eq(c.fd, -1);
		te__dial_close(&d);
	} else { /* one has connected, and then another one of this user */
		const struct te__listen l = { 1, { fd } };
		int own = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

		ck_assert_int_eq(connect(own, (struct sockaddr *)&un, sizeof(un)), 0);
		ck_assert_int_eq(te__conn_accept(&l, &accepted), 1);
		ck_assert_int_eq(write(own, "x", 1), 1);
		ck_assert_int_eq(read(accepted, &un, 1), 1); /* the expected connection */
		ck_assert_int_eq(te__conn_accept(&l, &status), 0);
		close(own);
		close(accepted);
	}
	shutdown(go[0], SHUT_RDWR);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	close(go[0]);
	close(fd);
}

/* the sent bytes contain neither the key nor a value derived from it */
TEST(proofs, the_key_is_not_sent)
{
	uint8_t bytes[1024];
	struct wire w;
	size_t n;

	tt_fill_bytes(wire_key, sizeof(wire_key));
	wire_open(&w, &(struct te__ends){ .key = wire_key[0], .purpose = TE__FOR_MESH, .me = 3,
					  .peer = 1 },
		  &(struct te__ends){ .key = wire_key[0], .purpose = TE__FOR_MESH, .me = 1,
				      .peer = -1 });
	n = sent(w.far_a, bytes, 512);
	deliver(w.far_b, bytes, n);
	ck_assert_int_eq(te__conn_read(&w.b, 1000), 0);
	n += sent(w.far_b, bytes + n, 512);
	ck_assert_uint_gt(n, 2 * TE__FRAME_HEAD);
	ck_assert_ptr_null(memmem(bytes, n, wire_key[0], 8));
	ck_assert_ptr_null(memmem(bytes, n, w.b.session.in.key, 8));
	ck_assert_ptr_null(memmem(bytes, n, w.b.session.out.key, 8));
	ck_assert_int_ne(memcmp(w.b.session.in.key, w.b.session.out.key, 32), 0);
	wire_close(&w);
}

TEST(bytes, a_table_with_an_address_list_that_is_empty_is_refused)
{
	const struct te__addrs one = { .port = 7, .n = 1, .a = { { 4, { 127, 0, 0, 1 } } } };
	const struct {
		struct te__addrs second;
		int code;
	} row[] = {
		{ one, 0 },
		{ { .port = 7 }, -EBADMSG },
		{ { .n = 1, .a = { { 4, { 127, 0, 0, 1 } } } }, -EBADMSG },
	};

	for (size_t i = 0; i < TT_LEN(row); i++) {
		uint8_t bytes[2 * TE__ADDRS_MOST];
		struct te__addrs got[2];
		size_t n = te__addrs_put(bytes, &one);

		n += te__addrs_put(bytes + n, &row[i].second);
		ck_assert_int_eq(te__table_get(bytes, n, 2, got), row[i].code);
	}
}

TEST(bytes, without_an_address_none_is_connected_to)
{
	const struct te__addrs none = { .port = 7 };
	const struct te__ends ends = ends_of(1, 0);
	struct te__conn c = TE__CONN_INIT;
	struct pollfd p = { 0 };
	struct te__dial d;

	te__dial_init(&d, &c, &none, &ends);
	ck_assert_int_eq(te__dial_step(&d, &p, 1), 0);
	ck_assert_int_eq(d.last, EADDRNOTAVAIL);
	ck_assert_int_gt(d.next, 1); /* after a pause, though there is none to come */
}

TT_MAIN("comm/bootstrap", TT_NEED_NOTHING)
