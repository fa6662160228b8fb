/* tt_ted.c - runs ted(8) in a child process, and sends it messages; see tt_ted.h. */
#include "config.h"

#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/ted.h"
#include "libtecore/base/private.h"
#include "tt_ted.h"

#define LIMIT_MS TT_SLOWER(20000)

struct ted_run run;
uint8_t key[TE__WIRE_KEY_NBYTES];

void run_conf(struct ted_run *r, const char *fmt, ...)
{
	FILE *f = fopen(r->conf, "a");
	char text[1024];
	va_list ap;

	ck_assert_ptr_nonnull(f);
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	for (const char *p = text; *p; p++)
		if (*p == '@')
			fputs(r->space, f);
		else
			fputc(*p, f);
	ck_assert_int_eq(fclose(f), 0);
}

void run_init(struct ted_run *r, const char *conf)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };

	make_key(key);
	memset(r, 0, sizeof(*r));
	snprintf(r->dir, sizeof(r->dir), "%.40s/te-ted-XXXXXX", tt_tmpdir());
	ck_assert_ptr_nonnull(mkdtemp(r->dir));
	strcpy(r->space, "/dev/shm/te-ted-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(r->space));
	snprintf(r->sock, sizeof(r->sock), "%s/sock", r->dir);
	snprintf(r->conf, sizeof(r->conf), "%s/conf", r->dir);
	snprintf(r->log, sizeof(r->log), "%s/log", r->dir);
	run_conf(r, "socket = %s\n%s", r->sock, conf);
	r->notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/notify", r->dir);
	ck_assert_int_eq(bind(r->notify, (struct sockaddr *)&sa, sizeof(sa)), 0);
}

/* a thread that a library has started, which blocks no signals */
static void *idle(void *arg)
{
	for (;;)
		pause();
	return arg;
}

/* in the child */
static void serve(struct ted_run *r)
{
	char *argv[] = { "ted", "--config", r->conf, NULL }, text[112];
	const int out = open(r->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	pthread_t thread;

	dup2(out, STDERR_FILENO);
	close(out);
	snprintf(text, sizeof(text), "%s/notify", r->dir);
	setenv("NOTIFY_SOCKET", text, 1);
	if (r->npass) {
		snprintf(text, sizeof(text), "%d", (int)getpid());
		setenv("LISTEN_PID", text, 1);
		snprintf(text, sizeof(text), "%d", r->npass);
		setenv("LISTEN_FDS", text, 1);
		for (int i = 0; i < r->npass; i++)
			r->pass[i] = fcntl(r->pass[i], F_DUPFD, 100);
		for (int i = 0; i < r->npass; i++)
			dup2(r->pass[i], 3 + i);
	}
	/* without what Check and the test have opened */
	for (int fd = 3 + r->npass; fd < 1024; fd++)
		close(fd);
	if (r->watchdog_us) {
		snprintf(text, sizeof(text), "%d", r->watchdog_us);
		setenv("WATCHDOG_USEC", text, 1);
	}
	if (r->nofile)
		setrlimit(RLIMIT_NOFILE, &(struct rlimit){ (rlim_t)r->nofile, (rlim_t)r->nofile });
	if (r->map && tt_enter_userns(r->map))
		exit(99);
	if (pthread_create(&thread, NULL, idle, NULL))
		exit(98);
	optind = 1;
	exit(ted_main(3, argv));
}

static int readable(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int n;

	do
		n = poll(&p, 1, ms);
	while (n < 0 && errno == EINTR);
	return n;
}

const char *run_notified(struct ted_run *r)
{
	static char text[256];
	ssize_t n;

	ck_assert_msg(readable(r->notify, LIMIT_MS), "no message to the service manager");
	n = recv(r->notify, text, sizeof(text) - 1, 0);
	ck_assert_int_gt(n, 0);
	text[n] = 0;
	return text;
}

static int reap(struct ted_run *r, int flags)
{
	int status, pid = (int)waitpid(r->pid, &status, flags);

	if (!pid)
		return 1000;
	ck_assert_int_eq(pid, r->pid);
	r->pid = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int run_try(struct ted_run *r)
{
	int status;
	char old[64];

	while (recv(r->notify, old, sizeof(old), MSG_DONTWAIT) > 0)
		;
	fflush(NULL);
	r->pid = fork();
	ck_assert_int_ge(r->pid, 0);
	if (!r->pid)
		serve(r);
	for (int ms = 0; ms < LIMIT_MS; ms += 5) {
		if (readable(r->notify, 5)) {
			ck_assert_str_eq(run_notified(r), "READY=1");
			return 0;
		}
		status = reap(r, WNOHANG);
		if (status != 1000)
			return status;
	}
	ck_abort_msg("ted is neither ready nor has it ended");
	return -1;
}

void run_start(struct ted_run *r)
{
	const int status = run_try(r);

	ck_assert_msg(!status && r->pid, "status %d: %s", status, run_log(r));
}

void run_begin_open(const char *conf, const char *map)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };

	run_init(&run, conf);
	run.map = map;
	strcpy(sa.sun_path, run.sock);
	run.pass[0] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(run.pass[0], (struct sockaddr *)&sa, sizeof(sa)), 0);
	ck_assert_int_eq(listen(run.pass[0], 5), 0);
	ck_assert_int_eq(chmod(run.dir, 0755), 0);
	ck_assert_int_eq(chmod(run.sock, 0666), 0);
	run.npass = 1;
	run_start(&run);
}

void run_end_open(void)
{
	run_end(&run);
	close(run.pass[0]);
}

int run_stop(struct ted_run *r, int signal)
{
	ck_assert_int_eq(kill(r->pid, signal), 0);
	return reap(r, 0);
}

void run_begin(const char *conf)
{
	run_init(&run, conf);
	run_start(&run);
}

void run_end(struct ted_run *r)
{
	if (r->pid) {
		const int status = run_stop(r, SIGTERM);

		ck_assert_msg(!status, "status %d: %s", status, run_log(r));
	}
	close(r->notify);
	tt_remove(r->space);
	tt_remove(r->dir);
}

const char *run_log(const struct ted_run *r)
{
	static char text[65536];
	FILE *f = fopen(r->log, "r");
	const size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;

	if (f)
		fclose(f);
	text[n] = 0;
	return text;
}

int nfds_of(pid_t pid)
{
	char path[64];
	int n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	d = opendir(path);
	ck_assert_ptr_nonnull(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

void ck_nfds(const struct ted_run *r, int n)
{
	for (int ms = 0; ms < LIMIT_MS && nfds_of(r->pid) != n; ms++)
		usleep(1000);
	ck_assert_int_eq(nfds_of(r->pid), n);
}

/* clients */

char reply_text[sizeof(((struct te__wire *)0)->text)];

int dial(const struct ted_run *r)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	const int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(sa.sun_path, r->sock);
	ck_assert_msg(!connect(s, (struct sockaddr *)&sa, sizeof(sa)), "%s: %s", r->sock,
		      strerror(errno));
	return s;
}

void make_key(uint8_t *key)
{
	tt_fill_bytes(key, TE__WIRE_KEY_NBYTES);
	key[0] |= 1;
}

struct te__wire message(uint32_t kind)
{
	return (struct te__wire){ .magic = TE__WIRE_MAGIC, .kind = kind };
}

int next(int sock, struct te__wire *m, struct te__wire_data *ret, int *ret_fd)
{
	static uint8_t rest[TE__WIRE_DATA_MAX];
	struct te__wire_data some = { rest, sizeof(rest), 0 };
	int r, fd = -1;

	do {
		ck_assert_msg(readable(sock, LIMIT_MS), "no message from ted");
		r = te__wire_recv(sock, m, ret ? ret : &some, &fd);
	} while (r == -EAGAIN);
	ck_assert_int_ge(r, 0);
	snprintf(reply_text, sizeof(reply_text), "%s", r ? m->text : "");
	if (ret_fd)
		*ret_fd = fd;
	else if (fd >= 0)
		close(fd);
	return r;
}

int call(int sock, struct te__wire *m, int fd, struct te__wire_data *ret, int *ret_fd)
{
	m->magic = TE__WIRE_MAGIC;
	ck_assert_int_eq(te__wire_send(sock, m, NULL, 0, fd), 0);
	ck_assert_msg(next(sock, m, ret, ret_fd), "the connection has ended");
	ck_assert_uint_eq(m->kind, TE__WIRE_REPLY);
	return m->code;
}

void send_only(int sock, struct te__wire m)
{
	ck_assert_int_eq(te__wire_send(sock, &m, NULL, 0, -1), 0);
}

int hello(int sock, const uint8_t *key)
{
	struct te__wire m = message(TE__WIRE_HELLO);

	memcpy(m.key, key, sizeof(m.key));
	return call(sock, &m, -1, NULL, NULL);
}

int join(const struct ted_run *r, const uint8_t *key)
{
	const int s = dial(r);
	const int code = hello(s, key);

	ck_assert_msg(!code, "%s", reply_text);
	return s;
}

int ping(int sock)
{
	struct te__wire m = message(TE__WIRE_JOBS);

	return call(sock, &m, -1, NULL, NULL);
}

int grant(int sock, uint64_t nbytes, int *ret_fd)
{
	struct te__wire m = message(TE__WIRE_GRANT);

	m.nbytes = nbytes;
	return call(sock, &m, -1, NULL, ret_fd);
}

int memory(const char *text)
{
	const int fd = memfd_create("test", MFD_CLOEXEC);

	ck_assert_int_eq((int)write(fd, text, strlen(text)), (int)strlen(text));
	return fd;
}

int hello_as(uid_t uid, const uint8_t *as_key, const char *map)
{
	int status;
	const int pid = fork();

	if (!pid) {
		struct te__wire m = message(TE__WIRE_HELLO);
		int s;

		if (setresuid(uid, uid, uid) || (map && tt_enter_userns(map)))
			_exit(99);
		s = dial(&run);
		memcpy(m.key, as_key, sizeof(m.key));
		/* it may be refused before it has sent this */
		(void)te__wire_send(s, &m, NULL, 0, -1);
		_exit(next(s, &m, NULL, NULL) ? -m.code : 98);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}
