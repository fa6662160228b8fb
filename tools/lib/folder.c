/*
 * folder.c - a folder for checkpoints and the files in it.
 *
 * Another user may be able to create names there. Data is written to new files only, and names are
 * resolved in the open folder, so that a link that another user puts there, or in place of the
 * folder, has no effect.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "folder.h"
#include "say.h"

/* a link of another user, placed to make this user follow it */
static int is_planted(int dir, const char *name, struct stat *ret_st)
{
	return !fstatat(dir, name, ret_st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(ret_st->st_mode) &&
	       ret_st->st_uid && ret_st->st_uid != geteuid();
}

/* the owner of a folder may have links in it: models of the hub are links in its cache */
static int is_strange_link(const char *path)
{
	const char *slash = strrchr(path, '/');
	struct stat link, dir;
	char parent[4096];

	if (!is_planted(AT_FDCWD, path, &link))
		return 0;
	snprintf(parent, sizeof(parent), "%.*s",
		 slash ? slash == path ? 1 : (int)(slash - path) : 1, slash ? path : ".");
	return stat(parent, &dir) || dir.st_uid != link.st_uid;
}

static int refuse_link(const char *path)
{
	return say_bad("%s: is a link that another user has made, expected a file or a link of "
		       "this user or of root", path);
}

int file_open(const char *path, int *ret_fd)
{
	struct stat st;
	int fd;

	if (is_strange_link(path))
		return refuse_link(path);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return errno == ENOMEM ? say_failed("%s: out of memory", path) :
					 say_bad("%s: %s", path, strerror(errno));
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		close(fd);
		return say_bad("%s: not a file, expected a regular one", path);
	}
	*ret_fd = fd;
	return STATUS_OK;
}

static int take(const char *path, int fd, struct folder *ret_f)
{
	struct folder f = { .path = strdup(path), .fd = fd };

	if (fd >= 0 && f.path) {
		*ret_f = f;
		return STATUS_OK;
	}
	folder_close(&f);
	return fd < 0 ? say_bad("%s: %s", path, strerror(errno)) :
			say_failed("%s: out of memory", path);
}

int folder_open(const char *path, struct folder *ret_f)
{
	char bare[4096];
	size_t n;

	/* a slash at the end follows a link */
	snprintf(bare, sizeof(bare), "%s", path);
	for (n = strlen(bare); n > 1 && bare[n - 1] == '/'; n--)
		bare[n - 1] = '\0';
	if (is_strange_link(bare))
		return refuse_link(bare);
	return take(path, open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), ret_f);
}

int folder_open_in(const struct folder *parent, const char *name, struct folder *ret_f)
{
	char *path = folder_path(parent, name);
	int r = path ? STATUS_OK : STATUS_FAILED;

	if (!r && mkdirat(parent->fd, name, 0777) && errno != EEXIST)
		r = say_bad("%s: %s", path, strerror(errno));
	if (!r)
		r = take(path, openat(parent->fd, name,
				      O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), ret_f);
	free(path);
	return r;
}

void folder_close(struct folder *f)
{
	if (f->path && f->fd >= 0)
		close(f->fd);
	free(f->path);
	f->path = NULL;
}

char *folder_path(const struct folder *f, const char *name)
{
	char *path;

	if (asprintf(&path, "%s/%s", f->path, name) >= 0)
		return path;
	say_failed("%s: out of memory", f->path);
	return NULL;
}

int folder_has(const struct folder *f, const char *name)
{
	struct stat st;

	return !fstatat(f->fd, name, &st, AT_SYMLINK_NOFOLLOW);
}

int folder_check_link(const struct folder *f, const char *name)
{
	struct stat st;
	char *path;
	int r;

	if (!is_planted(f->fd, name, &st))
		return STATUS_OK;
	path = folder_path(f, name);
	r = path ? refuse_link(path) : STATUS_FAILED;
	free(path);
	return r;
}

int folder_sync(const struct folder *f)
{
	return fsync(f->fd) ? say_bad("%s: %s", f->path, strerror(errno)) : STATUS_OK;
}

int folder_check_regular(const struct folder *f, const char *name)
{
	struct stat st;

	if (fstatat(f->fd, name, &st, AT_SYMLINK_NOFOLLOW) || S_ISREG(st.st_mode))
		return STATUS_OK;
	return say_bad("%s/%s: is not a regular file, expected none or one that an earlier save "
		       "left; nothing was replaced", f->path, name);
}

int folder_create(const struct folder *f, const char *name, int *ret_fd)
{
	const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	int r = folder_check_regular(f, name), fd;

	if (r)
		return r;
	fd = openat(f->fd, name, flags, 0666);
	if (fd < 0 && errno == EEXIST && !unlinkat(f->fd, name, 0))
		fd = openat(f->fd, name, flags, 0666);
	if (fd < 0)
		return say_bad("%s/%s: %s; nothing was replaced", f->path, name, strerror(errno));
	*ret_fd = fd;
	return STATUS_OK;
}
