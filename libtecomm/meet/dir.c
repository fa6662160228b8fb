/*
 * dir.c - ranks of one host meet in a folder (TE_COMM_DIR).
 *
 * The first rank puts a random key into a file there, from which the key of the group is derived;
 * the last one that leaves removes it.
 * Each rank listens on a socket whose name is derived from the key, the job and the communicator,
 * and has the rank. The socket gets its name after it listens, so a rank that finds it can connect.
 * A socket without a listener is left from a process that was killed, and is replaced.
 *
 * The folder, the key and the sockets are for their user alone, regardless of the umask.
 */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "libtecomm/meet/boot.h"

#define NAME_MOST 32
#define KEY_NAME "te-key"
#define LEAVE_NS INT64_C(1000000000) /* for the lock; without it the key stays */

struct meeting {
	int dir_fd;
	uint64_t group;	      /* hash of key, job and name */
	char name[NAME_MOST]; /* this rank's socket, while it exists; or "" */
};

static int dir_chosen(void)
{
	return *te__param_str(TE_PARAM_COMM_DIR) != 0;
}

static int dir_who(struct te__boot *b)
{
	if (!dir_chosen())
		return te__create_fail(b, -EINVAL, "TE_COMM_DIR is not set");
	return te__who_by_environment(b);
}

static void name_of(const struct meeting *m, int32_t rank, char name[NAME_MOST])
{
	snprintf(name, NAME_MOST, "te-%016llx-%d", (unsigned long long)m->group, rank);
}

/* paths of sockets are limited to 107 bytes; paths of folders are not */
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
		return te__create_fail(b, -errno, "TE_COMM_DIR: %s: %s", dir, te_strerror(-errno));
	if (st.st_uid != geteuid())
		return te__create_fail(b, -EPERM, "TE_COMM_DIR: %s is of user %u, expected a "
				       "folder of user %u", dir, (unsigned int)st.st_uid,
				       (unsigned int)geteuid());
	if (st.st_mode & 077)
		return te__create_fail(b, -EPERM, "TE_COMM_DIR: others can enter %s, whose mode is "
				       "%03o: chmod 700 it, or use a folder of mktemp -d", dir,
				       (unsigned int)st.st_mode & 0777);
	return 0;
}

/*
 * The folder's lock: with it, a rank reads the key and publishes its socket, replaces a leftover,
 * or removes its socket and, after the last one, the key.
 */
static int lock_dir(struct te__boot *b, struct meeting *m, int64_t deadline)
{
	while (flock(m->dir_fd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return te__create_fail(b, -errno, "TE_COMM_DIR: flock: %s",
					       te_strerror(-errno));
		if (te__boot_now() >= deadline)
			return te__create_fail(b, -ETIMEDOUT, "TE_COMM_DIR: another process keeps "
					       "the folder locked");
		te__poll(NULL, 0, te__boot_now() + 1000000);
	}
	return 0;
}

/* ---- the key ---- */

/* unique name of an incomplete socket or file: pids may be equal in different containers */
static int temporary(char name[NAME_MOST])
{
	uint64_t nonce;
	int r = te__random(&nonce, sizeof(nonce));

	snprintf(name, NAME_MOST, "te-new-%016llx", (unsigned long long)nonce);
	return r;
}

static int make_key(struct te__boot *b, struct meeting *m)
{
	uint8_t key[TE__KEY_NBYTES];
	char tmp[NAME_MOST];
	int fd, r = te__random(key, sizeof(key));

	if (!r)
		r = temporary(tmp);
	if (r)
		return r;
	fd = te__fault_point() ? (errno = EMFILE, -1) :
	     openat(m->dir_fd, tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 || fchmod(fd, 0600) || write(fd, key, sizeof(key)) != (ssize_t)sizeof(key) ||
	    renameat(m->dir_fd, tmp, m->dir_fd, KEY_NAME))
		r = te__create_fail(b, -errno, "TE_COMM_DIR: cannot write %s there: %s", KEY_NAME,
				    te_strerror(-errno));
	if (r)
		unlinkat(m->dir_fd, tmp, 0);
	if (fd >= 0)
		close(fd);
	return r;
}

static int read_key(struct te__boot *b, struct meeting *m, uint8_t key[TE__KEY_NBYTES])
{
	const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	struct stat st;
	int fd = openat(m->dir_fd, KEY_NAME, flags), r = 0;

	if (fd < 0 && errno == ENOENT) {
		r = make_key(b, m);
		if (r)
			return r;
		fd = openat(m->dir_fd, KEY_NAME, flags);
	}
	if (fd < 0)
		return te__create_fail(b, -errno, "TE_COMM_DIR: %s: %s", KEY_NAME,
				       te_strerror(-errno));
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
	    (st.st_mode & 077) || st.st_size != TE__KEY_NBYTES ||
	    read(fd, key, TE__KEY_NBYTES) != TE__KEY_NBYTES)
		r = te__create_fail(b, -EPERM, "TE_COMM_DIR: %s is not a file of %d bytes that "
				    "only its user can read: remove it", KEY_NAME, TE__KEY_NBYTES);
	close(fd);
	return r;
}

/* the key of this group, and the name of its sockets */
static int find_key(struct te__boot *b, struct meeting *m)
{
	uint8_t key[TE__KEY_NBYTES], group[TE__KEY_NBYTES];
	const char *job = te__param_str(TE_PARAM_COMM_JOB);
	const size_t njob = strlen(job) + 1, n = njob + strlen(b->name);
	char *text;
	int r = read_key(b, m, key);

	if (r)
		return r;
	text = te__malloc(n + 1);
	if (!text)
		return te__create_fail(b, -ENOMEM, "not enough memory");
	memcpy(text, job, njob);
	strcpy(text + njob, b->name);
	te__key_derive(key, "folder", text, n, b->key);
	te__key_derive(key, "folder: names", text, n, group);
	memcpy(&m->group, group, sizeof(m->group));
	te__free(text);
	return 0;
}

/* ---- sockets ---- */

/* 1: a process listens, *ret_pid; 0: a leftover, or the socket does not exist any more */
static int listens(const struct meeting *m, const char *name, int *ret_pid)
{
	struct sockaddr_un un;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), r;

	*ret_pid = 0;
	path_of(m, name, &un);
	if (fd >= 0 && !connect(fd, (const struct sockaddr *)(const void *)&un, sizeof(un)))
		r = !te__peer_check(fd, ret_pid);
	else
		r = fd < 0 || errno == EAGAIN;
	if (fd >= 0)
		close(fd);
	return r;
}

static int publish(struct te__boot *b, struct meeting *m, const char *tmp)
{
	char name[NAME_MOST];
	int pid, r;

	name_of(m, b->rank, name);
	r = linkat(m->dir_fd, tmp, m->dir_fd, name, 0) ? -errno : 0;
	if (r == -EEXIST && listens(m, name, &pid)) {
		r = te__create_fail(b, -TE_EMISMATCH, "rank %d of job \"%s\" is in TE_COMM_DIR "
				    "already: pid %d", b->rank, te__param_str(TE_PARAM_COMM_JOB),
				    pid);
	} else if (r == -EEXIST) {
		te__log_info("%s: replaces %s, a leftover", b->name, name);
		r = renameat(m->dir_fd, tmp, m->dir_fd, name) ? -errno : 0;
	}
	if (!r)
		memcpy(m->name, name, sizeof(name));
	else if (r != -TE_EMISMATCH)
		te__create_fail(b, r, "TE_COMM_DIR: %s: %s", name, te_strerror(r));
	return r;
}

/* with the lock */
static int enter(struct te__boot *b, struct meeting *m)
{
	struct sockaddr_un un;
	char tmp[NAME_MOST];
	int fd, r = find_key(b, m);

	if (!r)
		r = temporary(tmp);
	if (r)
		return r;
	path_of(m, tmp, &un);
	fd = te__fault_point() ? (errno = EMFILE, -1) :
				 socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0)
		b->listen = (struct te__listen){ 1, { fd } };
	if (fd < 0 || bind(fd, (const struct sockaddr *)(const void *)&un, sizeof(un)) ||
	    fchmodat(m->dir_fd, tmp, 0600, 0) || listen(fd, TE__RANKS_MAX))
		r = te__create_fail(b, -errno, "TE_COMM_DIR: %s: cannot listen on a socket there: "
				    "%s", te__param_str(TE_PARAM_COMM_DIR), te_strerror(-errno));
	if (!r)
		r = publish(b, m, tmp);
	unlinkat(m->dir_fd, tmp, 0);
	return r;
}

static int dir_meet(struct te__boot *b)
{
	struct meeting *m = te__calloc(1, sizeof(*m));
	int r;

	if (!m)
		return te__create_fail(b, -ENOMEM, "not enough memory");
	b->meeting = m;
	m->dir_fd = -1;
	te__free(b->addrs);
	b->addrs = NULL;
	r = open_dir(b, m);
	if (!r)
		r = lock_dir(b, m, b->deadline);
	if (r)
		return r;
	r = enter(b, m);
	flock(m->dir_fd, LOCK_UN);
	return r;
}

static void dir_dial(const struct te__boot *b, int32_t rank, struct te__dial *d)
{
	const struct meeting *m = b->meeting;
	char name[NAME_MOST];

	name_of(m, rank, name);
	path_of(m, name, &d->path);
}

/* the key is removed with the last socket; a reader has a socket there before the lock ends. Takes
 * no descriptor: a rank that has failed may have none left. */
static void leave_key(struct meeting *m)
{
	DIR *d = fdopendir(m->dir_fd);
	const struct dirent *e;
	int used = !d;

	while (d && (e = readdir(d)))
		used |= !strncmp(e->d_name, "te-", 3) && strcmp(e->d_name, KEY_NAME);
	if (!used)
		unlinkat(m->dir_fd, KEY_NAME, 0);
	flock(m->dir_fd, LOCK_UN);
	if (d) {
		closedir(d); /* and the descriptor */
		m->dir_fd = -1;
	}
}

static void dir_leave(struct te__boot *b)
{
	struct meeting *m = b->meeting;
	int locked;

	if (!m)
		return;
	locked = m->dir_fd >= 0 && !lock_dir(b, m, te__boot_now() + LEAVE_NS);
	if (m->name[0])
		unlinkat(m->dir_fd, m->name, 0);
	if (locked)
		leave_key(m);
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
