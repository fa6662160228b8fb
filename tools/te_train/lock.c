/* lock.c - one run at a time saves to a folder. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "lock.h"
#include "say.h"

/* whoever has the lock wrote its process and host to the file */
static int refuse(const char *dir, int fd)
{
	char text[300] = "";
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return say_bad("%s: another run saves its checkpoints there: %s", dir,
		       *text ? text : "its process is not known");
}

static void sign(int fd)
{
	char host[256] = "", text[300];
	int n;

	gethostname(host, sizeof(host) - 1);
	n = snprintf(text, sizeof(text), "process %ld on %s\n", (long)getpid(), host);
	/* on a full disk the message of refuse() has less to tell */
	if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n)
		return;
}

/* 0, or -1 with errno */
static int wait_for_lock(int fd, double wait_s)
{
	const struct timespec pause = { 0, 20000000 };
	int r = flock(fd, LOCK_EX | LOCK_NB);

	for (; r && errno == EWOULDBLOCK && wait_s > 0; wait_s -= 1e-9 * (double)pause.tv_nsec) {
		nanosleep(&pause, NULL);
		r = flock(fd, LOCK_EX | LOCK_NB);
	}
	return r;
}

int lock_folder(const char *dir, double wait_s, int *ret_fd)
{
	char *path = NULL;
	int fd, r = STATUS_OK;

	*ret_fd = -1;
	if (asprintf(&path, "%s/.lock", dir) < 0)
		return say_failed("%s: out of memory", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0) {
		if (errno != ENOENT && errno != ENOTDIR)
			r = say_bad("%s: %s", path, strerror(errno));
	} else if (!wait_for_lock(fd, wait_s)) {
		sign(fd);
		*ret_fd = fd;
	} else {
		if (errno == EWOULDBLOCK)
			r = refuse(dir, fd);
		else
			say_note("%s: %s: another run could save there too", path, strerror(errno));
		close(fd);
	}
	free(path);
	return r;
}
