/*
 * spill_ted.c - a file of ted(8) for a spill; see daemon/ted.h for the messages.
 *
 * A thread keeps the connection while the file is open. It reports written bytes to ted. The file
 * survives the end of ted; the thread then reports the file to the next ted.
 */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "libtecore/base/base.h"
#include "libtecore/base/wire.h"
#include "libtecore/offload/spill_io.h"

#define OPEN_NS INT64_C(10000000000)
#define CALL_NS INT64_C(2000000000) /* time limit of a call, so that the thread can end soon */
#define TELL_MS 1000		    /* time between reports of written bytes */
#define PAUSE_MS 100		    /* pause before it connects again; doubled up to this */
#define PAUSE_MOST_MS 5000

struct te__spill_ted {
	uint8_t key[TE__WIRE_KEY_NBYTES];
	int sock; /* -1: ted has ended */
	int fd, stop;
	pid_t pid;
	pthread_t thread;
	int pause_ms, warned;
	_Atomic uint64_t nwritten;
	uint64_t ntold; /* bytes reported to ted */
	char path[];
};

/* fd: sent along, or -1; ret_fd: gets the reply's unless it is NULL */
static int ask(struct te__spill_ted *t, struct te__wire *m, int fd, int *ret_fd, int64_t limit_ns)
{
	struct te__wire_call c = {
		.sock = t->sock, .who = "ted", .what = "spill: ask ted for a file",
		.late = "it does not answer", .deadline_ns = (int64_t)te__now_ns() + limit_ns,
		.fd = fd, .wants_fd = ret_fd != NULL,
	};
	const int r = te__wire_call(&c, m);

	if (!r && ret_fd)
		*ret_fd = c.ret_fd;
	return r;
}

static int greet(struct te__spill_ted *t, int64_t limit_ns)
{
	struct te__wire m = { .kind = TE__WIRE_HELLO };
	int r = te__wire_dial(t->path, (int64_t)te__now_ns() + limit_ns, &t->sock);

	memcpy(m.key, t->key, sizeof(m.key));
	return r ? r : ask(t, &m, -1, NULL, limit_ns);
}

static void hang_up(struct te__spill_ted *t)
{
	if (t->sock >= 0)
		close(t->sock);
	t->sock = -1;
}

static void tell(struct te__spill_ted *t)
{
	const uint64_t n = atomic_load(&t->nwritten);
	struct te__wire m = { .kind = TE__WIRE_WROTE, .nbytes = n - t->ntold };
	int r;

	if (t->sock < 0 || n == t->ntold)
		return;
	r = ask(t, &m, -1, NULL, CALL_NS);
	/* late: the message was sent, and is read when ted continues */
	if (!r || r == -EDQUOT || r == -ETIMEDOUT)
		t->ntold = n;
	if (r == -EDQUOT && !t->warned) {
		te__log_warn("ted at %s: %s", t->path, te_error_detail());
		t->warned = 1;
	}
	if (r && r != -EDQUOT)
		hang_up(t);
}

static void connect_again(struct te__spill_ted *t)
{
	struct te__wire hold = { .kind = TE__WIRE_HOLD };
	int r = greet(t, CALL_NS);

	if (!r)
		r = ask(t, &hold, t->fd, NULL, CALL_NS);
	if (!r) {
		te__log_info("ted at %s: connected again, which has the file in its count",
			     t->path);
		t->pause_ms = PAUSE_MS;
		return;
	}
	hang_up(t);
	t->pause_ms = 2 * t->pause_ms < PAUSE_MOST_MS ? 2 * t->pause_ms : PAUSE_MOST_MS;
}

static void *work(void *arg)
{
	struct te__spill_ted *t = arg;

	for (;;) {
		struct pollfd p[] = { { .fd = t->stop, .events = POLLIN },
				      { .fd = t->sock, .events = POLLIN } };

		if (poll(p, 2, t->sock >= 0 ? TELL_MS : t->pause_ms) < 0)
			continue;
		if (p[0].revents)
			return NULL;
		if (p[1].revents) {
			te__log_warn("ted at %s has ended; the file stays", t->path);
			hang_up(t);
		} else if (t->sock < 0) {
			connect_again(t);
		}
		tell(t);
	}
}

static int start(struct te__spill_ted *t)
{
	int r;

	t->stop = te__fault_point() ? (errno = EMFILE, -1) : eventfd(0, EFD_CLOEXEC);
	if (t->stop < 0)
		return te__fail(-errno, "spill: eventfd: %s", strerror(errno));
	r = te__fault_point() ? EAGAIN : te__thread_create(&t->thread, "te-spill-ted", work, t);
	if (r)
		return te__fail(-r, "spill: cannot start the thread that keeps the connection to "
				"ted: %s", strerror(r));
	t->pid = getpid();
	return 0;
}

/* files of a named job count together; without a name each file is a separate job */
static int make_key(uint8_t *key)
{
	const char *job = te__param_str(TE_PARAM_COMM_JOB);

	if (*job)
		te__wire_job_key(job, key);
	else if (getrandom(key, TE__WIRE_KEY_NBYTES, 0) != TE__WIRE_KEY_NBYTES)
		return te__fail(-errno, "spill: getrandom: %s", strerror(errno));
	return 0;
}

int te__spill_ted_open(const char *path, uint64_t nbytes, int *ret_fd,
		       struct te__spill_ted **ret_ted)
{
	struct te__wire m = { .kind = TE__WIRE_GRANT, .nbytes = nbytes };
	struct te__spill_ted *t = te__calloc(1, sizeof(*t) + strlen(path) + 1);
	int r;

	if (!t)
		return te__fail(-ENOMEM, "spill: no memory for the connection to ted");
	strcpy(t->path, path);
	t->sock = t->fd = t->stop = -1;
	t->pause_ms = PAUSE_MS;
	r = make_key(t->key);
	if (!r)
		r = greet(t, OPEN_NS);
	if (!r)
		r = ask(t, &m, -1, &t->fd, OPEN_NS);
	if (!r)
		r = start(t);
	if (r) {
		if (t->fd >= 0)
			close(t->fd);
		te__spill_ted_close(t);
		return r;
	}
	*ret_fd = t->fd;
	*ret_ted = t;
	return 0;
}

void te__spill_ted_wrote(struct te__spill_ted *t, uint64_t nbytes)
{
	if (t)
		atomic_fetch_add_explicit(&t->nwritten, nbytes, memory_order_relaxed);
}

void te__spill_ted_close(struct te__spill_ted *t)
{
	if (!t)
		return;
	/* a forked child has no thread, and the connection is the parent's */
	if (t->pid == getpid()) {
		(void)eventfd_write(t->stop, 1);
		pthread_join(t->thread, NULL);
		tell(t);
	}
	hang_up(t);
	if (t->stop >= 0)
		close(t->stop);
	te__free(t);
}
