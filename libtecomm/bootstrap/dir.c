/*
 * dir.c - ranks of one host meet in a folder (TE_COMM_DIR).
 *
 * Each rank listens on a socket there whose name tells the job, the communicator and the rank. It
 * is linked to that name when it listens, so whoever finds it can connect. One that nothing
 * listens on is a leftover of a process that was killed, and is replaced.
 */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "libtecomm/bootstrap/boot.h"
#include "libtecore/base/wire.h"

#define NAME_MOST 32

struct meeting {
	int dir_fd;
	uint64_t group;	      /* of job and name */
	char name[NAME_MOST]; /* this rank's socket, while it exists; or "" */
};

static int dir_chosen(void)
{
	return *te__param_str(TE_PARAM_COMM_DIR) != 0;
}

static int dir_who(struct te__boot *b)
{
	if (!dir_chosen())
		return te__fail(-EINVAL, "te_comm_create: %s: TE_COMM_DIR is not set", b->name);
	return te__who_by_environment(b);
}

static void name_of(const struct meeting *m, int32_t rank, char name[NAME_MOST])
{
	snprintf(name, NAME_MOST, "te-%016llx-%d", (unsigned long long)m->group, rank);
}

/* paths of sockets are limited to 107 bytes, those of folders are not */
static void path_of(const struct meeting *m, const char *name, struct sockaddr_un *un)
{
	*un = (struct sockaddr_un){ .sun_family = AF_UNIX };
	snprintf(un->sun_path, sizeof(un->sun_path), "/proc/self/fd/%d/%s", m->dir_fd, name);
}

static int open_dir(struct te__boot *b, struct meeting *m)
{
	const char *dir = te__param_str(TE_PARAM_COMM_DIR);
	struct stat st;

	m->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (m->dir_fd < 0 || fstat(m->dir_fd, &st))
		return te__fail(-errno, "te_comm_create: %s: TE_COMM_DIR: %s: %s", b->name, dir,
				te_strerror(-errno));
	if (st.st_uid != geteuid() || (st.st_mode & 022))
		return te__fail(-EPERM,
				"te_comm_create: %s: TE_COMM_DIR: %s: others could write to "
				"it; use a folder of mktemp -d",
				b->name, dir);
	return 0;
}

/* 1: a process listens; 0: a leftover, or no more there; *ret_pid: of that process */
static int listens(const struct meeting *m, const char *name, pid_t *ret_pid)
{
	struct sockaddr_un un;
	struct ucred who = { 0 };
	socklen_t len = sizeof(who);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), r;

	path_of(m, name, &un);
	r = fd < 0 || !connect(fd, (const struct sockaddr *)(const void *)&un, sizeof(un)) ||
	    errno == EAGAIN;
	if (fd >= 0) {
		getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len);
		close(fd);
	}
	*ret_pid = who.pid;
	return r;
}

/* the folder's lock, so that two ranks that find a leftover do not remove each other's socket */
static int lock_dir(struct te__boot *b, struct meeting *m)
{
	while (flock(m->dir_fd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return te__fail(-errno, "te_comm_create: %s: TE_COMM_DIR: flock: %s",
					b->name, te_strerror(-errno));
		if (te__boot_now() >= b->deadline)
			return te__fail(-ETIMEDOUT,
					"te_comm_create: %s: TE_COMM_DIR: another process "
					"keeps the folder locked",
					b->name);
		te__poll(NULL, 0, te__boot_now() + 1000000);
	}
	return 0;
}

static int publish(struct te__boot *b, struct meeting *m, const char *tmp)
{
	char name[NAME_MOST];
	pid_t pid;
	int r = lock_dir(b, m);

	if (r)
		return r;
	name_of(m, b->rank, name);
	r = linkat(m->dir_fd, tmp, m->dir_fd, name, 0) ? -errno : 0;
	if (r == -EEXIST && listens(m, name, &pid)) {
		r = te__fail(-TE_EMISMATCH,
			     "te_comm_create: %s: rank %d of job \"%s\" is in "
			     "TE_COMM_DIR already: pid %d",
			     b->name, b->rank, te__param_str(TE_PARAM_COMM_JOB), (int)pid);
	} else if (r == -EEXIST) {
		te__log_info("%s: replaces %s, a leftover", b->name, name);
		r = renameat(m->dir_fd, tmp, m->dir_fd, name) ? -errno : 0;
	}
	flock(m->dir_fd, LOCK_UN);
	if (!r)
		memcpy(m->name, name, sizeof(name));
	else if (r != -TE_EMISMATCH)
		te__fail(r, "te_comm_create: %s: TE_COMM_DIR: %s: %s", b->name, name,
			 te_strerror(r));
	return r;
}

static int dir_meet(struct te__boot *b)
{
	struct meeting *m = te__calloc(1, sizeof(*m));
	struct sockaddr_un un;
	char tmp[NAME_MOST];
	uint64_t nonce;
	int r;

	if (!m)
		return te__fail(-ENOMEM, "te_comm_create: %s: not enough memory", b->name);
	b->meeting = m;
	m->dir_fd = -1;
	te__wire_job_key("dir", te__param_str(TE_PARAM_COMM_JOB), b->name, b->key);
	memcpy(&m->group, b->key, sizeof(m->group));
	te__free(b->addrs);
	b->addrs = NULL;
	r = open_dir(b, m);
	if (r)
		return r;
	/* there could be two processes of the rank, also with one pid, in different containers */
	r = te__random(&nonce, sizeof(nonce));
	if (r)
		return r;
	snprintf(tmp, sizeof(tmp), "te-new-%016llx", (unsigned long long)nonce);
	path_of(m, tmp, &un);
	b->listen_fd = te__fault_point() ?
			       (errno = EMFILE, -1) :
			       socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (b->listen_fd < 0 ||
	    bind(b->listen_fd, (const struct sockaddr *)(const void *)&un, sizeof(un)) ||
	    listen(b->listen_fd, TE__RANKS_MAX))
		r = te__fail(-errno,
			     "te_comm_create: %s: TE_COMM_DIR: %s: cannot "
			     "listen on a socket there: %s",
			     b->name, te__param_str(TE_PARAM_COMM_DIR), te_strerror(-errno));
	if (!r)
		r = publish(b, m, tmp);
	unlinkat(m->dir_fd, tmp, 0);
	return r;
}

static void dir_dial(const struct te__boot *b, int32_t rank, struct te__dial *d)
{
	const struct meeting *m = b->meeting;
	char name[NAME_MOST];

	name_of(m, rank, name);
	path_of(m, name, &d->path);
}

static void dir_leave(struct te__boot *b)
{
	struct meeting *m = b->meeting;

	if (!m)
		return;
	if (m->name[0])
		unlinkat(m->dir_fd, m->name, 0);
	if (m->dir_fd >= 0)
		close(m->dir_fd);
	te__free(m);
	b->meeting = NULL;
}

const struct te__boot_provider te__boot_dir = {
	.name = "dir",
	.chosen = dir_chosen,
	.who = dir_who,
	.meet = dir_meet,
	.dial = dir_dial,
	.leave = dir_leave,
};
