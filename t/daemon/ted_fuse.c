/*
 * t/daemon/ted_fuse.c - ted(8) and descriptors of a file system that does not answer: one of FUSE,
 * which the test serves; needs root, to mount it and to become another user.
 */
#include "config.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/fuse.h>

#include "tt_ted.h"

enum { ROOT = FUSE_ROOT_ID, FILE_ID, OTHER = 4321, MOST = 8 };

/* ---- the file system: a folder with a file ---- */

static char folder[96];
static pid_t server;

static void answer(int dev, const struct fuse_in_header *q, int error, const void *out,
		   size_t nbytes)
{
	struct fuse_out_header h = { (uint32_t)(sizeof(h) + nbytes), error, q->unique };
	struct iovec io[] = { { &h, sizeof(h) }, { (void *)(uintptr_t)out, nbytes } };

	(void)!writev(dev, io, 2);
}

/* flush and getattr of the file get no answer: close() and fstat() do not return */
static void serve_request(int dev, const struct fuse_in_header *q)
{
	const struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION,
					    .minor = FUSE_KERNEL_MINOR_VERSION,
					    .max_write = 4096 };
	/* valid for no time: fstat() asks */
	const struct fuse_attr_out root = { .attr = { .ino = ROOT, .mode = S_IFDIR | 0755,
						      .nlink = 2 } };
	const struct fuse_entry_out file = { .nodeid = FILE_ID, .entry_valid = 3600,
					     .attr = { .ino = FILE_ID, .mode = S_IFREG | 0666 } };
	const struct fuse_open_out opened = { .fh = 1 };

	if (q->opcode == FUSE_INIT)
		answer(dev, q, 0, &init, sizeof(init));
	else if (q->opcode == FUSE_GETATTR && q->nodeid == ROOT)
		answer(dev, q, 0, &root, sizeof(root));
	else if (q->opcode == FUSE_LOOKUP)
		answer(dev, q, 0, &file, sizeof(file));
	else if (q->opcode == FUSE_OPEN)
		answer(dev, q, 0, &opened, sizeof(opened));
	else if (q->opcode != FUSE_FLUSH && q->opcode != FUSE_GETATTR &&
		 q->opcode != FUSE_FORGET && q->opcode != FUSE_BATCH_FORGET &&
		 q->opcode != FUSE_INTERRUPT)
		answer(dev, q, -ENOSYS, NULL, 0);
}

/* in a child: the test itself would wait for ever for what it does not answer */
static void serve_files(int ready)
{
	static _Alignas(8) char request[FUSE_MIN_READ_BUFFER + 4096];
	const int dev = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	char text[80];

	/* a test that fails could not end while this runs */
	alarm(TT_SLOWER(60));
	snprintf(text, sizeof(text), "fd=%d,rootmode=40000,user_id=0,group_id=0", dev);
	if (mount("te", folder, "fuse", MS_NOSUID | MS_NODEV, text) || write(ready, "", 1) != 1)
		_exit(1);
	while (read(dev, request, sizeof(request)) > 0 || errno == EINTR)
		serve_request(dev, (void *)request);
	_exit(0);
}

/* a descriptor of the file; only the end of the server ends a close() of it */
static int open_file(void)
{
	int ready[2], fd;
	char path[112], byte;

	snprintf(folder, sizeof(folder), "%s/fuse", run.dir);
	ck_assert_int_eq(mkdir(folder, 0755), 0);
	/* what is mounted ends with the test */
	ck_assert_int_eq(unshare(CLONE_NEWNS), 0);
	ck_assert_int_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	ck_assert_int_eq(pipe(ready), 0);
	server = fork();
	if (!server)
		serve_files(ready[1]);
	close(ready[1]);
	ck_assert_int_eq((int)read(ready[0], &byte, 1), 1);
	close(ready[0]);
	snprintf(path, sizeof(path), "%s/file", folder);
	fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
	return fd;
}

static void end_server(void)
{
	int status;

	ck_assert_int_eq(kill(server, SIGKILL), 0);
	ck_assert_int_eq(waitpid(server, &status, 0), server);
	ck_assert_int_eq(umount2(folder, MNT_DETACH), 0);
}

/* ---- ted ---- */

/* messages with a descriptor, and what is wrong with them */
static const struct {
	uint32_t kind;
	const char *text;
} wrong[] = {
	{ TE__WIRE_HOLD, "is not of a file without a name in /dev/shm" },
	{ TE__WIRE_JOBS, "JOBS with a file descriptor" },
	{ 2, "is unknown" },
};

/* the code of a file of ted that the client shows again: 0 */
static int hold(int sock, int fd)
{
	struct te__wire m = message(TE__WIRE_HOLD);

	return call(sock, &m, fd, NULL, NULL);
}

CASE(fuse, "host serial");

TEST_EACH(fuse, a_file_system_that_does_not_answer_delays_nobody, TT_LEN(wrong))
{
	struct te__wire m;
	int a, b, fd, file, r = -1;

	run_begin_open("allow = any\nspill = @\nspill_keep = 0\n", NULL);
	fd = open_file();
	a = join(&run, key);
	ck_assert_int_eq(seteuid(OTHER), 0);
	b = join(&run, key);
	ck_assert_int_eq(seteuid(0), 0);
	ck_assert_int_eq(grant(b, 1, &file), 0);
	for (int i = 0; i < MOST; i++) {
		m = message(wrong[_i].kind);
		r = call(a, &m, fd, NULL, NULL);
		ck_assert(r == -EINVAL || r == -EOPNOTSUPP);
		ck_reply(wrong[_i].text);
		ck_assert_int_eq(ping(b), 0);
	}
	/* this user gets no more threads; all but its descriptors is served */
	for (int i = 0; i < 2; i++) {
		m = message(wrong[_i].kind);
		ck_assert_int_eq(call(a, &m, fd, NULL, NULL), -EBUSY);
		ck_reply("8 descriptors of user 0 are not closed, as their file systems do not");
	}
	ck_assert_int_eq(hold(a, file), -EBUSY);
	ck_assert_ptr_nonnull(strstr(run_log(&run), "user 0: a descriptor is refused"));
	ck_assert_int_eq(ping(a), 0);
	ck_assert_int_eq(hold(b, file), 0);
	end_server();
	/* soon the threads have ended */
	for (int ms = 0; r && ms < TT_SLOWER(20000); ms++) {
		r = hold(a, file);
		usleep(1000);
	}
	ck_assert_int_eq(r, 0);
	close(fd);
	close(file);
	close(a);
	close(b);
	run_end_open();
}

/* packets that are no messages may have one too */
TEST(fuse, packets_with_a_wrong_descriptor_delay_nobody)
{
	struct te__wire m = { .magic = 1 };
	int a, fd;

	run_begin_open("", NULL);
	fd = open_file();
	for (int i = 0; i < MOST; i++) {
		a = dial(&run);
		ck_assert_int_eq(call(a, &(struct te__wire){ .kind = 0 }, -1, NULL, NULL),
				 -EOPNOTSUPP);
		ck_assert_int_eq(te__wire_send(a, &m, NULL, 0, fd), 0);
		ck_assert_int_eq(next(a, &(struct te__wire){ 0 }, NULL, NULL), 1);
		ck_reply("is no message of this version");
		close(a);
	}
	a = join(&run, key);
	ck_assert_int_eq(hold(a, fd), -EBUSY);
	close(a);
	end_server();
	close(fd);
	run_end_open();
}

TT_MAIN("daemon/ted_fuse", TT_NEED_ROOT | TT_NEED_FUSE)
