/* loop.c - waits for connections, messages, deadlines and signals; see ted.h. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "daemon/ted.h"

/* sources of events; smaller numbers: a client's entry */
enum { LISTEN = 1 << 20, METRICS, TIMER, SIGNAL, INOTIFY };

#define NEVENTS 64

static int watch(struct ted *t, int fd, uint64_t what)
{
	struct epoll_event ev = { .events = EPOLLIN, .data = { .u64 = what } };

	if (fd >= 0 && !epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &ev))
		return 0;
	ted_say("cannot wait for events: %s", strerror(errno));
	return -1;
}

static volatile int stop_fd = -1;

static void stop(int signal)
{
	const uint64_t one = 1;
	const int err = errno;

	(void)signal;
	(void)!write(stop_fd, &one, sizeof(one));
	errno = err;
}

/* uses a handler, which any thread may run: a library, such as a BLAS, may have started threads
 * before main() that do not block the signals, as a signalfd would need. The parent process may
 * have blocked the signals */
static void watch_signals(int fd)
{
	static const int signals[] = { SIGINT, SIGTERM };
	struct sigaction act = { .sa_handler = stop, .sa_flags = SA_RESTART }, old;
	sigset_t set;

	stop_fd = fd;
	sigemptyset(&set);
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
		sigaddset(&set, signals[i]);
		if (!sigaction(signals[i], NULL, &old) && old.sa_handler != SIG_IGN)
			(void)sigaction(signals[i], &act, NULL);
	}
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static int set_up(struct ted *t)
{
	t->epoll = epoll_create1(EPOLL_CLOEXEC);
	t->signal = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	watch_signals(t->signal);
	t->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	t->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (t->epoll < 0 || t->spare < 0) {
		ted_say("cannot wait for events: %s", strerror(errno));
		return -1;
	}
	return watch(t, t->listen.fd, LISTEN) ||
	       (t->metrics.fd >= 0 && watch(t, t->metrics.fd, METRICS)) ||
	       watch(t, t->timer, TIMER) ||
	       watch(t, t->signal, SIGNAL) ||
	       (t->inotify >= 0 && watch(t, t->inotify, INOTIFY));
}

/* without a free descriptor the connection would stay, and epoll_wait() would always return */
static void refuse_one(struct ted *t, const struct ted_socket *from)
{
	const struct te__wire m = { .magic = TE__WIRE_MAGIC, .kind = TE__WIRE_REPLY,
				    .code = -EMFILE, .text = "ted has too many files open" };
	int fd;

	close(t->spare);
	fd = accept4(from->fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd >= 0) {
		(void)te__wire_send(fd, &m, NULL, 0, -1);
		close(fd);
	}
	t->n.refused++;
	t->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void accept_all(struct ted *t, const struct ted_socket *from)
{
	for (int i = 0; i < NEVENTS; i++) {
		const int fd = accept4(from->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0 && (errno == EMFILE || errno == ENFILE))
			refuse_one(t, from);
		if (fd < 0)
			return;
		if (from == &t->metrics)
			ted_metrics_serve(t, fd);
		else
			(void)ted_client_add(t, fd);
	}
}

/* sets the timer to the next deadline or watchdog message, whichever is first */
static void arm(struct ted *t, int64_t *armed)
{
	const int64_t alive = t->watchdog_ns ? t->next_watchdog_ns : INT64_MAX;
	const int64_t at = t->timer_ns < alive ? t->timer_ns : alive;
	struct itimerspec spec = { { 0, 0 }, { at / 1000000000, at % 1000000000 } };

	if (at == *armed)
		return;
	if (at == INT64_MAX)
		spec.it_value = (struct timespec){ 0, 0 };
	*armed = at;
	(void)timerfd_settime(t->timer, TFD_TIMER_ABSTIME, &spec, NULL);
}

static void tick(struct ted *t, int64_t *armed)
{
	const int64_t now = ted_now_ns();
	uint64_t n;

	if (read(t->timer, &n, sizeof(n)) == sizeof(n))
		*armed = INT64_MAX;
	ted_client_late(t, now);
	ted_written_late(t, now);
	if (t->watchdog_ns && now >= t->next_watchdog_ns) {
		ted_notify("WATCHDOG=1");
		t->next_watchdog_ns = now + t->watchdog_ns;
	}
}

static int serve(struct ted *t)
{
	struct epoll_event ev[NEVENTS];
	int64_t armed = INT64_MAX;

	for (;;) {
		int accepts = 0, ticks = 0, metrics = 0, n;

		arm(t, &armed);
		n = epoll_wait(t->epoll, ev, NEVENTS, -1);
		if (n < 0 && errno != EINTR) {
			ted_say("epoll_wait: %s", strerror(errno));
			return TED_FAILED;
		}
		for (int i = 0; i < n; i++) {
			const uint64_t what = ev[i].data.u64;

			if (what == SIGNAL) {
				stop_fd = -1; /* closed soon */
				return TED_OK;
			}
			accepts |= what == LISTEN;
			metrics |= what == METRICS;
			ticks |= what == TIMER;
			if (what == INOTIFY)
				ted_spill_read(t);
			if (what < LISTEN && t->client[what].fd >= 0)
				ted_client_read(t, &t->client[what]);
		}
		if (ticks)
			tick(t, &armed);
		ted_client_reap(t);
		/* last, so that no event of this round is taken for a new client's */
		if (accepts)
			accept_all(t, &t->listen);
		if (metrics)
			accept_all(t, &t->metrics);
	}
}

int ted_loop(struct ted *t)
{
	if (set_up(t))
		return TED_FAILED;
	t->watchdog_ns = ted_watchdog_ns();
	t->next_watchdog_ns = ted_now_ns() + t->watchdog_ns;
	ted_notify("READY=1");
	ted_say("ready, instance %.8s", t->instance);
	return serve(t);
}
