/* ckpt_keep.c - kept checkpoints, and folders that another run has used. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt_files.h"
#include "tools/lib/say.h"
#include "tools/lib/tokenizer.h"

#define STEP_DIR "step-" /* folders of --keep */

/* the step of a checkpoint, and its parts; -1: it cannot be read */
static int64_t step_of(const char *path, struct ckpt_part *ret_part)
{
	struct st_file *f = NULL;
	int64_t step = -1;
	struct ckpt_run run;

	say_hush(1);
	if (!st_open(path, &f) && !ckpt_read_run(f, &run)) {
		step = run.p.step;
		*ret_part = run.part;
		json_decref(run.obj);
	}
	say_hush(0);
	st_close(f);
	return step;
}

/* a file of a run in the folder, for free(3); NULL: there is none, or no memory */
static char *find_saved(const char *dir, int *ret_is_state)
{
	static const char *const file[] = { STATE_ST, MODEL_ST, INDEX_JSON, ADAPTER_ST,
					    BEST_DIR "/" MODEL_ST, BEST_DIR "/" ADAPTER_ST };
	struct stat st;

	for (size_t i = 0; i < sizeof(file) / sizeof(file[0]); i++) {
		char *path;

		*ret_is_state = !i;
		if (asprintf(&path, "%s/%s", dir, file[i]) < 0)
			return NULL;
		if (!lstat(path, &st))
			return path;
		free(path);
	}
	return NULL;
}

int ckpt_is_free(const char *dir)
{
	int is_state;
	char *path = find_saved(dir, &is_state);

	free(path);
	return !path;
}

int64_t ckpt_written_ns(const char *dir)
{
	char *path = NULL;
	struct stat st;
	int64_t ns = 0;

	if (asprintf(&path, "%s/" STATE_ST, dir) < 0)
		return 0;
	if (!lstat(path, &st))
		ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
	free(path);
	return ns;
}

int ckpt_check_free(const char *dir)
{
	int is_state, r = STATUS_OK;
	char *path = find_saved(dir, &is_state);
	struct ckpt_part part;
	const int64_t step = path && is_state ? step_of(path, &part) : -1;

	if (step >= 0)
		r = say_bad("%s: has the checkpoint of step %lld of another run: expected "
			    "--resume %s to go on with it, another folder, or --overwrite",
			    dir, (long long)step, dir);
	else if (path)
		r = say_bad("%s: exists and is not of this run: expected another folder, or "
			    "--overwrite", path);
	free(path);
	return r;
}

/* removes a folder of weights in dir; it stays if it has other files */
static int drop_folder(const struct folder *dir, const char *name)
{
	struct folder in = { 0 };
	struct stat st;
	int r = STATUS_OK;

	if (fstatat(dir->fd, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(st.st_mode))
		return STATUS_OK;
	r = folder_open_in(dir, name, &in);
	for (int i = CKPT_NFILES; i-- > 0 && !r;)
		if (unlinkat(in.fd, ckpt_file[i], 0) && errno != ENOENT)
			r = say_bad("%s/%s: %s", in.path, ckpt_file[i], strerror(errno));
	if (!r)
		r = ckpt_drop_parts(&in, NULL);
	if (!r)
		r = tokenizer_remove(&in);
	if (!r && unlinkat(dir->fd, name, AT_REMOVEDIR) && errno != ENOTEMPTY && errno != EEXIST)
		r = say_bad("%s: %s", in.path, strerror(errno));
	folder_close(&in);
	return r;
}

/* the step of a folder "step-N" in dir, or -1 */
static int64_t step_of_name(const char *name)
{
	const size_t k = strlen(STEP_DIR);
	char *end;
	int64_t step;

	if (strncmp(name, STEP_DIR, k) || name[k] < '0' || name[k] > '9')
		return -1;
	step = strtoll(name + k, &end, 10);
	return *end || step > CKPT_MOST ? -1 : step;
}

/* the oldest step after `after`, and how many there are; -1: none */
static int find_oldest(const struct folder *dir, int64_t after, int64_t *ret_step, int64_t *ret_n)
{
	const int fd = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);

	*ret_step = -1;
	*ret_n = 0;
	if (!list) {
		say_bad("%s: %s", dir->path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return STATUS_BAD;
	}
	for (const struct dirent *e; (e = readdir(list));) {
		const int64_t step = step_of_name(e->d_name);

		if (step <= after)
			continue;
		++*ret_n;
		if (*ret_step < 0 || step < *ret_step)
			*ret_step = step;
	}
	closedir(list);
	return STATUS_OK;
}

/* removes the folders of the oldest steps until `most` are left; one with other files stays */
static int prune(const struct folder *dir, int64_t most)
{
	int64_t step = -1, n;
	char name[64];
	int r;

	for (;;) {
		r = find_oldest(dir, step, &step, &n);
		if (r || n <= most)
			return r;
		snprintf(name, sizeof(name), STEP_DIR "%lld", (long long)step);
		r = drop_folder(dir, name);
		if (r)
			return r;
	}
}

int ckpt_drop_others(const char *path)
{
	struct folder dir;
	int r = folder_open(path, &dir);

	if (r)
		return r;
	r = drop_folder(&dir, BEST_DIR);
	if (!r)
		r = prune(&dir, 0);
	folder_close(&dir);
	return r;
}

/* links of the files of the checkpoint in dir; a file system may have none */
static int link_files(const struct folder *dir, const char *name, const struct ckpt_part *part)
{
	struct folder in;
	int r = folder_open_in(dir, name, &in);

	if (r)
		return r;
	for (int i = CKPT_NFILES; i-- > 0 && !r;)
		if ((unlinkat(in.fd, ckpt_file[i], 0) && errno != ENOENT) ||
		    (folder_has(dir, ckpt_file[i]) &&
		     linkat(dir->fd, ckpt_file[i], in.fd, ckpt_file[i], 0)))
			r = say_bad("%s/%s: %s", in.path, ckpt_file[i], strerror(errno));
	if (!r)
		r = ckpt_link_parts(dir, &in, part);
	if (!r)
		r = tokenizer_copy(dir->path, dir->path, name, 1);
	if (!r)
		r = folder_sync(&in);
	folder_close(&in);
	return r;
}

/* dir/step-N for the checkpoint in dir, complete when it has this name */
static int keep_this(const struct folder *dir)
{
	char name[64], *path = folder_path(dir, STATE_ST);
	struct ckpt_part part = { .n = 0 };
	const int64_t step = path ? step_of(path, &part) : -1;
	int r = STATUS_OK;

	free(path);
	if (step < 0)
		return STATUS_OK;
	snprintf(name, sizeof(name), STEP_DIR "%lld", (long long)step);
	r = drop_folder(dir, STEP_DIR "new");
	if (!r)
		r = link_files(dir, STEP_DIR "new", &part);
	if (!r)
		r = drop_folder(dir, name); /* a run that went on from an older one */
	if (!r && renameat(dir->fd, STEP_DIR "new", dir->fd, name))
		r = say_bad("%s/%s: %s", dir->path, name, strerror(errno));
	return r ? r : folder_sync(dir);
}

int ckpt_keep(const char *path, int64_t most)
{
	struct folder dir;
	int r = folder_open(path, &dir);

	if (r)
		return r;
	r = most > 1 ? keep_this(&dir) : STATUS_OK;
	if (!r && most > 1)
		r = prune(&dir, most);
	folder_close(&dir);
	return r;
}
