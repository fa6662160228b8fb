/* t/comm/broker_lib.c - see broker_lib.h. */
#include "config.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker_lib.h"

static const char *const name[BK_MOST] = { "rank 0", "rank 1", "rank 2", "rank 3",
					   "rank 4", "rank 5", "rank 6", "rank 7" };
uint8_t bk_key[TE__KEY_NBYTES];
struct te__node_info bk_info = { .key = bk_key, .name = name };
static char *at; /* name of the broker, in memory that all processes share */

int64_t bk_now_ms(void)
{
	return (int64_t)te__now_ns() / 1000000;
}

int64_t bk_in_ms(int ms)
{
	return (bk_now_ms() + ms) * 1000000;
}

int bk_nfds(void)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

int bk_fd(size_t nbytes, int value)
{
	const int fd = memfd_create("test", MFD_CLOEXEC);
	unsigned char *p;

	ck_assert_int_eq(ftruncate(fd, (off_t)nbytes), 0);
	p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	memset(p, value, nbytes);
	munmap(p, nbytes);
	return fd;
}

int bk_fd_byte(int fd, size_t at)
{
	unsigned char b = 0;

	ck_assert_int_eq(pread(fd, &b, 1, (off_t)at), 1);
	return b;
}

struct process {
	pid_t pid;
	int go, said; /* pipes */
};

static struct process process[BK_MOST];
static int said_fd, go_fd;

void bk_say(const char *text)
{
	char line[256];
	int n = snprintf(line, sizeof(line), "%s\n", text);

	if (write(said_fd, line, (size_t)n) != n)
		_exit(9);
}

void bk_await_go(void)
{
	char c;

	if (read(go_fd, &c, 1) != 1)
		_exit(8);
}

void bk_let_go(int rank)
{
	ck_assert_int_eq(write(process[rank].go, "g", 1), 1);
}

void bk_spawn(int rank, void (*fn)(int rank))
{
	int go[2], said[2];

	ck_assert_int_eq(pipe2(go, O_CLOEXEC), 0);
	ck_assert_int_eq(pipe2(said, O_CLOEXEC), 0);
	fflush(NULL);
	process[rank].pid = fork();
	if (!process[rank].pid) {
		/* other processes' pipes would keep this one from seeing their ends */
		for (int i = 0; i < rank; i++) {
			close(process[i].go);
			close(process[i].said);
		}
		close(go[1]);
		close(said[0]);
		go_fd = go[0];
		said_fd = said[1];
		bk_await_go();
		fn(rank);
		_exit(0);
	}
	close(go[0]);
	close(said[1]);
	process[rank].go = go[1];
	process[rank].said = said[0];
}

const char *bk_heard(int rank)
{
	static char line[256];
	size_t n = 0;

	while (n + 1 < sizeof(line) && read(process[rank].said, line + n, 1) == 1 &&
	       line[n] != '\n')
		n++;
	line[n] = 0;
	return line;
}

void bk_expect(int rank, const char *want)
{
	const char *line = bk_heard(rank);

	ck_assert_msg(strstr(line, want) != NULL, "rank %d said \"%s\", expected \"%s\"", rank,
		      line, want);
}

void bk_reap(int rank, int want)
{
	int status;

	ck_assert_int_eq(waitpid(process[rank].pid, &status, 0), process[rank].pid);
	ck_assert_int_eq(status, want);
	close(process[rank].go);
	close(process[rank].said);
}

pid_t bk_pid(int rank)
{
	return process[rank].pid;
}

void bk_kill(int rank)
{
	kill(process[rank].pid, SIGKILL);
	bk_reap(rank, SIGKILL);
}

int bk_result(const char *what, int r)
{
	char line[256];

	snprintf(line, sizeof(line), "%s: %d: %.200s", what, r, r < 0 ? te_error_detail() : "");
	if (r)
		bk_say(line);
	return r;
}

void bk_setup(void)
{
	tt_fill_bytes(bk_key, sizeof(bk_key));
	at = mmap(NULL, TE__LOCAL_NAME, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(at, MAP_FAILED);
	bk_info.at = at;
	bk_info.nlocal = 3;
}

struct te__client *bk_open(int rank)
{
	struct te__client *c = NULL;

	if (bk_result("open", te__client_open(&bk_info, rank, bk_in_ms(20000), &c, NULL)))
		_exit(1);
	return c;
}

int bk_dial(void)
{
	struct sockaddr_un sa;
	const socklen_t n = te__local_address(bk_info.at, &sa);
	const int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	ck_assert_int_eq(connect(s, (struct sockaddr *)&sa, n), 0);
	return s;
}

int bk_next(int s, struct te__wire *m)
{
	int r, fd = -1;

	while ((r = te__wire_recv(s, m, NULL, &fd)) == -EAGAIN)
		usleep(1000);
	if (fd >= 0)
		close(fd);
	return r;
}

struct te__wire bk_hello(int rank)
{
	struct te__wire m = { .magic = TE__WIRE_MAGIC, .kind = TE__WIRE_HELLO };

	m.rank = (uint32_t)rank;
	te__broker_proof(&bk_info, m.rank, m.key);
	return m;
}
