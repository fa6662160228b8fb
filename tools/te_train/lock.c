/* lock.c - one run at a time saves to a folder. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lock.h"
#include "tools/lib/say.h"

/* the holder of the lock wrote its process and host to the file */
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
	/* on a full disk the message of refuse() has no process and host */
	if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n)
		return;
}

int lock_wait(int fd, double wait_s)
{
	const struct timespec pause = { 0, 20000000 };
	int r = flock(fd, LOCK_EX | LOCK_NB);

	for (; r && errno == EWOULDBLOCK && wait_s > 0; wait_s -= 1e-9 * (double)pause.tv_nsec) {
		nanosleep(&pause, NULL);
		r = flock(fd, LOCK_EX | LOCK_NB);
	}
	return r;
}

/* a file that has no other name: writing to it changes no file of another folder */
static int open_lock(const struct folder *dir, int *ret_fd)
{
	int fd = openat(dir->fd, ".lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
			0666);
	int err = errno;
	struct stat st;

	if (fd >= 0 && (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_nlink != 1)) {
		close(fd);
		fd = -1;
		err = ELOOP;
	}
	if (fd < 0)
		return err == ELOOP ? say_bad("%s/.lock: is a link or not a regular file, expected "
					      "none or an earlier run's", dir->path) :
				      say_bad("%s/.lock: %s", dir->path, strerror(err));
	*ret_fd = fd;
	return STATUS_OK;
}

int lock_folder(const struct folder *dir, double wait_s, int *ret_fd)
{
	int fd = -1, r = open_lock(dir, &fd);

	*ret_fd = -1;
	if (r)
		return r;
	if (!lock_wait(fd, wait_s)) {
		sign(fd);
		*ret_fd = fd;
		return STATUS_OK;
	}
	if (errno == EWOULDBLOCK)
		r = refuse(dir->path, fd);
	else
		say_note("%s/.lock: %s: another run could save there too", dir->path,
			 strerror(errno));
	close(fd);
	return r;
}
