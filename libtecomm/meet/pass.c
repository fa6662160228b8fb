/* pass.c - see pass.h. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libtecomm/meet/boot.h"
#include "libtecomm/meet/pass.h"

static const char what[] = "te_comm_create";

#define RETRY_NS INT64_C(1000000) /* pause before a message that could not be sent is sent again */
#define SILENT_NS INT64_C(100000000) /* limit for the message of a connection */

struct message {
	uint8_t proof[TE__KEY_NBYTES];
	int32_t from, code;
};

/* room for the descriptors of a message */
union ancillary {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(TE__PASS_MOST * sizeof(int))];
};

struct pass {
	struct te__boot *b;
	const int *fd;
	int nfds;
	te__pass_fn *take;
	void *arg;
	int32_t me, nsent, nreceived;
	int64_t deadline;
	uint8_t *received; /* [nlocal] */
	int code;	   /* the first error of this rank, and its message */
	char why[512];
};

static const char *peer_text(const struct pass *p, int32_t local)
{
	return te__boot_peer(p->b, te__boot_local(p->b, local));
}

static void prove(const struct pass *p, int32_t from, int32_t to, uint8_t *ret_proof)
{
	const int32_t ends[] = { from, to, p->b->npasses };

	te__key_derive(p->b->secret, "descriptors", ends, sizeof(ends), ret_proof);
}

/* ---- sending ---- */

static int send_message(int sock, struct message *m, const int *fd, int nfds)
{
	union ancillary a = { .bytes = { 0 } };
	struct iovec io = { m, sizeof(*m) };
	struct msghdr h = { .msg_iov = &io, .msg_iovlen = 1 };
	const size_t nbytes = (size_t)nfds * sizeof(*fd);

	if (nfds) {
		h.msg_control = a.bytes;
		h.msg_controllen = CMSG_SPACE(nbytes);
		*CMSG_FIRSTHDR(&h) = (struct cmsghdr){ .cmsg_len = CMSG_LEN(nbytes),
						       .cmsg_level = SOL_SOCKET,
						       .cmsg_type = SCM_RIGHTS };
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&h)), fd, nbytes);
	}
	if (te__fault_point())
		return -ENOBUFS;
	return sendmsg(sock, &h, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

/* 1: the message is sent; 0: it has to be sent again; errors */
static int send_to(const struct pass *p, int32_t to)
{
	struct message m = { .from = p->me, .code = p->code };
	struct sockaddr_un sa;
	const socklen_t len = te__local_address(p->b->again[te__boot_local(p->b, to)], &sa);
	const int s = te__fault_point() ? (errno = EMFILE, -1) :
				socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int pid, r;

	if (s < 0)
		return te__fail(-errno, "%s: %s: a local socket: %s", what, p->b->name,
				strerror(errno));
	prove(p, p->me, to, m.proof);
	r = connect(s, (const struct sockaddr *)&sa, len) ? -errno : 0;
	if (!r && te__peer_check(s, &pid)) {
		close(s);
		return -EACCES;
	}
	if (!r)
		r = send_message(s, &m, p->fd, p->code ? 0 : p->nfds);
	close(s);
	switch (r) {
	case 0:
		return 1;
	/* too many connections or descriptors wait; or the rank did not wait for the message */
	case -EAGAIN:
	case -EINTR:
	case -ETOOMANYREFS:
	case -EPIPE:
	case -ECONNRESET:
		return 0;
	case -ECONNREFUSED:
		return te__fail(-TE_EPEER, "%s: %s: %s has ended", what, p->b->name,
				peer_text(p, to));
	default:
		return te__fail(r, "%s: %s: descriptors for %s: %s", what, p->b->name,
				peer_text(p, to), strerror(-r));
	}
}

/* ---- receiving ---- */

static bool is_valid(const struct pass *p, const struct message *m)
{
	uint8_t proof[TE__KEY_NBYTES];

	if (m->from < 0 || m->from >= te__boot_nlocal(p->b) || p->received[m->from])
		return false;
	prove(p, m->from, p->me, proof);
	return !memcmp(proof, m->proof, sizeof(proof));
}

/* returns the number of descriptors */
static int fds_of(struct msghdr *h, int fd[TE__PASS_MOST])
{
	const struct cmsghdr *c = CMSG_FIRSTHDR(h);
	size_t n;

	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
		return 0;
	n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(*fd);
	memcpy(fd, CMSG_DATA(c), n * sizeof(*fd));
	return (int)n;
}

/* the message of a connection; a stranger's is ignored */
static int receive(struct pass *p, int sock)
{
	union ancillary a;
	struct message m;
	struct iovec io = { &m, sizeof(m) };
	struct msghdr h = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = a.bytes,
			    .msg_controllen = sizeof(a.bytes) };
	struct pollfd wait = { .fd = sock, .events = POLLIN };
	const int64_t now = te__boot_now();
	int fd[TE__PASS_MOST], nfds, pid = 0, r = 0;
	ssize_t n;

	(void)te__poll(&wait, 1, now + SILENT_NS < p->deadline ? now + SILENT_NS : p->deadline);
	/* the sender of a later message gets EPIPE, and sends it again */
	shutdown(sock, SHUT_RDWR);
	n = recvmsg(sock, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	nfds = n < 0 ? 0 : fds_of(&h, fd);
	if (n != sizeof(m) || !is_valid(p, &m)) {
		te__log_warn("%s: a connection is refused: it has no message of a rank",
			     p->b->name);
	} else {
		p->received[m.from] = 1;
		p->nreceived++;
		(void)te__peer_check(sock, &pid);
		if (m.code)
			r = te__fail(-TE_EPEER, "%s: %s: %s cannot share its memory", what,
				     p->b->name, peer_text(p, m.from));
		else if (h.msg_flags & MSG_CTRUNC || te__fault_point())
			r = te__fail(-EMFILE, "%s: %s: a file descriptor of %s did not arrive "
				     "(MSG_CTRUNC): too many files are open", what, p->b->name,
				     peer_text(p, m.from));
		else
			r = p->take(p->arg, m.from, pid, fd, nfds);
	}
	for (int i = 0; i < nfds; i++)
		close(fd[i]);
	return r;
}

static int receive_all(struct pass *p)
{
	const struct te__listen l = { 1, { p->b->again_fd } };
	int s, r = 0;

	while (!r && p->nreceived < te__boot_nlocal(p->b) && te__boot_now() < p->deadline) {
		r = te__conn_accept(&l, &s);
		if (!r)
			return 0;
		if (r < 0)
			return te__fail(r, "%s: %s: accept: %s", what, p->b->name, strerror(-r));
		r = receive(p, s);
		close(s);
	}
	return r;
}

/* ---- both ---- */

/* the first error counts */
static void fail(struct pass *p, int code)
{
	if (p->code)
		return;
	p->code = code;
	snprintf(p->why, sizeof(p->why), "%s", te_error_detail());
}

static void send_all(struct pass *p)
{
	const int32_t n = te__boot_nlocal(p->b);
	int r = 1;

	/* begin after the own rank, so that not all connect to the same one */
	for (; p->nsent < n; p->nsent++) {
		r = send_to(p, (p->me + p->nsent) % n);
		if (!r)
			return;
		if (r < 0)
			fail(p, r);
	}
}

static void late(struct pass *p)
{
	const int32_t n = te__boot_nlocal(p->b);
	const bool full = p->nreceived == n;
	int32_t i = full ? (p->me + p->nsent) % n : 0;

	while (!full && p->received[i])
		i++;
	fail(p, te__fail(-ETIMEDOUT, "%s: %s: %s has not %s memory in time", what, p->b->name,
			 peer_text(p, i), full ? "accepted" : "passed its"));
}

static void pass(struct pass *p)
{
	const int32_t n = te__boot_nlocal(p->b);
	int64_t now, wake;
	int r;

	for (;;) {
		send_all(p);
		r = p->code ? 0 : receive_all(p);
		if (r)
			fail(p, r);
		/* the other ranks learn of an error from the messages that are left */
		if (p->nsent == n && (p->code || p->nreceived == n))
			return;
		now = te__boot_now();
		if (now >= p->deadline) {
			late(p);
			return;
		}
		wake = p->nsent < n ? now + RETRY_NS : p->deadline;
		r = te__boot_watch(p->b, what, p->code ? -1 : p->b->again_fd, wake);
		if (r) {
			fail(p, r);
			return;
		}
	}
}

int te__pass(struct te__boot *b, int code, const int *fd, int nfds, te__pass_fn *take, void *arg,
	     int64_t deadline_ns)
{
	struct pass p = { .b = b, .fd = fd, .nfds = nfds, .take = take, .arg = arg,
			  .me = te__boot_local_rank(b, b->rank), .nsent = 1, .nreceived = 1,
			  .deadline = deadline_ns };

	b->npasses++;
	if (code)
		fail(&p, code);
	if (b->nlocal == 1)
		return code;
	p.received = te__calloc((size_t)b->nlocal, 1);
	if (!p.received) {
		te__boot_abort(b, "no memory to exchange descriptors");
		return te__fail(-ENOMEM, "%s: %s: no memory to exchange descriptors", what,
				b->name);
	}
	p.received[p.me] = 1;
	pass(&p);
	te__free(p.received);
	return p.code ? te__fail(p.code, "%s", p.why) : 0;
}
