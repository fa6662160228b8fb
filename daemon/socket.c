/* socket.c - the sockets of ted(8), given by the service manager or its own; see ted.h. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/ted.h"

#define FIRST_FD 3 /* sd_listen_fds(3) */

/* variables of the service manager, which are read once */
static int64_t take_number(const char *name, const char *pid_name)
{
	const char *s = getenv(name), *pid = getenv(pid_name);
	const int64_t mine = !pid || strtoll(pid, NULL, 10) == (long long)getpid();
	const int64_t n = s && mine ? strtoll(s, NULL, 10) : 0;

	unsetenv(name);
	unsetenv(pid_name);
	return n;
}

void ted_notify(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	const size_t n = path ? strlen(path) : 0;
	int fd;

	if (!n || n >= sizeof(sa.sun_path))
		return;
	memcpy(sa.sun_path, path, n);
	if (*path == '@')
		sa.sun_path[0] = 0;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&sa,
			     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0)
		ted_say("NOTIFY_SOCKET: %s", strerror(errno));
	if (fd >= 0)
		close(fd);
}

int64_t ted_watchdog_ns(void)
{
	/* half of the watchdog's time */
	const int64_t us = take_number("WATCHDOG_USEC", "WATCHDOG_PID");

	return us > 0 && us < INT64_MAX / 1000 ? us * 500 : 0;
}

/* why a descriptor is not a socket that clients can connect to; NULL: it is, of a type */
static const char *wrong_socket(int fd, int *ret_type)
{
	struct sockaddr_un sa = { .sun_family = AF_UNSPEC };
	socklen_t n = sizeof(sa), len = sizeof(int);
	int listens = 0;

	if (getsockname(fd, (struct sockaddr *)&sa, &n) || sa.sun_family != AF_UNIX)
		return "it is no UNIX domain socket";
	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, ret_type, &len) ||
	    (*ret_type != SOCK_SEQPACKET && *ret_type != SOCK_STREAM))
		return "it is neither of type SOCK_SEQPACKET nor SOCK_STREAM";
	len = sizeof(int);
	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) || !listens)
		return "it does not listen (Accept=no)";
	if (n <= offsetof(struct sockaddr_un, sun_path) || !sa.sun_path[0])
		return "its name is abstract, so it has no permissions";
	return NULL;
}

static int take_socket(struct ted *t, int fd)
{
	int type = 0;
	const char *wrong = wrong_socket(fd, &type);
	struct ted_socket *s = type == SOCK_STREAM ? &t->metrics : &t->listen;

	if (!wrong && s->fd >= 0)
		wrong = "there is one of this type already";
	if (wrong) {
		ted_say("LISTEN_FDS: descriptor %d: %s", fd, wrong);
		return TED_BAD;
	}
	if (fcntl(fd, F_SETFD, FD_CLOEXEC) || fcntl(fd, F_SETFL, O_NONBLOCK)) {
		ted_say("LISTEN_FDS: descriptor %d: %s", fd, strerror(errno));
		return TED_FAILED;
	}
	s->fd = fd;
	return TED_OK;
}

static int take_sockets(struct ted *t, int64_t n)
{
	int r = TED_OK;

	if (n != 1 && n != 2) {
		ted_say("LISTEN_FDS: %lld sockets, expected 1 or 2", (long long)n);
		return TED_BAD;
	}
	for (int i = 0; i < (int)n && !r; i++)
		r = take_socket(t, FIRST_FD + i);
	if (!r && t->listen.fd < 0) {
		ted_say("LISTEN_FDS: no socket of type SOCK_SEQPACKET (ListenSequentialPacket=)");
		r = TED_BAD;
	}
	return r;
}

/* default path of the socket; -1 with a message */
static int default_path(char *path, size_t nbytes)
{
	const char *dir = geteuid() ? getenv("XDG_RUNTIME_DIR") : "/run";

	if (!dir || *dir != '/') {
		ted_say("XDG_RUNTIME_DIR is not set: where is the socket to be? (socket = PATH)");
		return -1;
	}
	if (snprintf(path, nbytes, "%s/ted/sock", dir) >= (int)nbytes) {
		ted_say("XDG_RUNTIME_DIR: %s: the name is too long for a socket", dir);
		return -1;
	}
	return 0;
}

int ted_folder_shared(int dir, char *why, size_t nbytes)
{
	struct stat st;

	if (dir < 0 || fstat(dir, &st)) {
		snprintf(why, nbytes, "%s", strerror(errno));
		return 1;
	}
	if ((!st.st_uid || st.st_uid == geteuid()) && !(st.st_mode & 0022))
		return 0;
	snprintf(why, nbytes, "another user can write to the folder (mode %03o, user %u)",
		 (unsigned int)st.st_mode & 0777, (unsigned int)st.st_uid);
	return 1;
}

/* the folder of the socket, where no other user may replace it */
static int make_folder(const char *path, int shared, gid_t gid)
{
	char dir[108], why[96];
	int fd, wrong;

	snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(path, '/') - path), path);
	if (!*dir)
		strcpy(dir, "/");
	if (!mkdir(dir, 0700)) {
		if (shared && (chown(dir, (uid_t)-1, gid) || chmod(dir, 0750)))
			ted_say("%s: cannot give it to the group: %s", dir, strerror(errno));
	} else if (errno != EEXIST) {
		ted_say("%s: %s", dir, strerror(errno));
		return TED_FAILED;
	}
	fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	wrong = ted_folder_shared(fd, why, sizeof(why));
	if (wrong)
		ted_say("%s: %s", dir, why);
	if (fd < 0)
		return TED_FAILED;
	close(fd);
	return wrong ? TED_BAD : TED_OK;
}

/* held until the process ends: the holder may replace the file at the path */
static int lock(struct ted_socket *s, const char *path)
{
	char name[112], pid[24] = "";

	snprintf(name, sizeof(name), "%s.lock", path);
	s->lock = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (s->lock < 0) {
		ted_say("%s: %s", name, strerror(errno));
		return TED_FAILED;
	}
	if (flock(s->lock, LOCK_EX | LOCK_NB)) {
		if (pread(s->lock, pid, sizeof(pid) - 1, 0) <= 0)
			strcpy(pid, "?");
		ted_say("%s is served by another ted, process %s", path, pid);
		return TED_FAILED;
	}
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	if (ftruncate(s->lock, 0) || pwrite(s->lock, pid, strlen(pid), 0) < 0)
		ted_say("%s: %s", name, strerror(errno));
	return TED_OK;
}

static int bind_path(struct ted_socket *s, const char *path, int type, int shared, gid_t gid)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	struct stat st;
	mode_t mask;
	int r;

	if (!lstat(path, &st) && !S_ISSOCK(st.st_mode)) {
		ted_say("%s: there is a file that is no socket", path);
		return TED_BAD;
	}
	/* left by a ted that was killed: no process holds the lock */
	(void)unlink(path);
	strcpy(sa.sun_path, path);
	s->fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	mask = umask(0177);
	r = s->fd < 0 || bind(s->fd, (struct sockaddr *)&sa, sizeof(sa));
	umask(mask);
	if (!r) {
		strcpy(s->path, path);
		r = (shared && (chown(path, (uid_t)-1, gid) || chmod(path, 0660))) ||
		    listen(s->fd, 128);
	}
	if (!r)
		return TED_OK;
	ted_say("%s: %s", path, strerror(errno));
	return TED_FAILED;
}

static int open_one(struct ted_socket *s, const char *path, int type, int shared, gid_t gid)
{
	int r = make_folder(path, shared, gid);

	if (!r)
		r = lock(s, path);
	if (!r)
		r = bind_path(s, path, type, shared, gid);
	return r;
}

int ted_socket_open(struct ted *t)
{
	const int64_t n = take_number("LISTEN_FDS", "LISTEN_PID");
	char *path = t->conf.socket;
	const int shared = t->conf.group[0] != 0;
	const struct group *g;
	gid_t gid = (gid_t)-1;
	int r = TED_OK;

	if (!n && !*path && default_path(path, sizeof(t->conf.socket)))
		return TED_BAD;
	if (shared) {
		g = getgrnam(t->conf.group);
		if (!g) {
			ted_say("group = %s: there is no such group", t->conf.group);
			return TED_BAD;
		}
		gid = g->gr_gid;
	}
	if (n)
		r = take_sockets(t, n);
	else
		r = open_one(&t->listen, path, SOCK_SEQPACKET, shared, gid);
	if (!r && t->metrics.fd < 0 && *t->conf.metrics)
		r = open_one(&t->metrics, t->conf.metrics, SOCK_STREAM, shared, gid);
	return r;
}

static void close_one(struct ted_socket *s)
{
	if (s->fd >= 0)
		close(s->fd);
	if (*s->path)
		(void)unlink(s->path);
	if (s->lock >= 0)
		close(s->lock);
	*s = (struct ted_socket){ .fd = -1, .lock = -1 };
}

void ted_socket_close(struct ted *t)
{
	close_one(&t->listen);
	close_one(&t->metrics);
}
