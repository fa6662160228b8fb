/*
 * ckpt_files.c - replacing the files of a checkpoint together.
 *
 * Three files cannot be replaced atomically. All are first completed under ".new" names. Renaming
 * state.safetensors commits the checkpoint: it has the digest of the weights and the config.json
 * that belong to it. A crash after that leaves model.safetensors.new or config.json.new, which the
 * next use of the folder recognises and renames.
 *
 * Of a checkpoint in parts, the index replaces model.safetensors: see ckpt_parts.c.
 *
 * A file is synced before it is renamed, and the folder before, between and after the renames:
 * otherwise a crash may keep a later rename and lose an earlier one.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt_files.h"
#include "lock.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"

const char *const ckpt_file[CKPT_NFILES] = { STATE_ST, MODEL_ST, ADAPTER_ST, ADAPTER_JSON,
					     CONFIG_JSON, INDEX_JSON };

const char *ckpt_fresh_name(const char *file, char ret_name[64])
{
	snprintf(ret_name, 64, "%s.new", file);
	return ret_name;
}

/* sync the parent, which keeps the name of a new folder */
static int sync_parent(const char *path)
{
	const char *slash = strrchr(path, '/');
	struct folder parent;
	char name[4096];
	int r;

	snprintf(name, sizeof(name), "%.*s",
		 slash ? slash == path ? 1 : (int)(slash - path) : 1, slash ? path : ".");
	r = folder_open(name, &parent);
	if (r)
		return r;
	r = folder_sync(&parent);
	folder_close(&parent);
	return r;
}

int ckpt_make_folder(const char *dir)
{
	char *path = strdup(dir);
	struct stat st;
	int r = STATUS_OK;

	if (!path)
		return say_failed("%s: out of memory", dir);
	for (char *p = path + 1; !r; p++) {
		char c = *p;

		if (c != '/' && c)
			continue;
		*p = '\0';
		if (!mkdir(path, 0777))
			r = sync_parent(path);
		else if (errno != EEXIST)
			r = say_bad("%s: %s", path, strerror(errno));
		*p = c;
		if (!c)
			break;
	}
	free(path);
	if (!r && !stat(dir, &st) && !S_ISDIR(st.st_mode))
		return say_bad("%s: not a directory, expected a folder for checkpoints", dir);
	if (!r && access(dir, W_OK | X_OK))
		r = say_bad("%s: %s", dir, strerror(errno));
	return r;
}

size_t ckpt_existing(const char *dir)
{
	char *path = strdup(dir);
	struct stat st;
	size_t n = strlen(dir);

	if (!path)
		return n;
	while (n && lstat(path, &st)) {
		while (n && path[n - 1] != '/')
			n--;
		while (n && path[n - 1] == '/')
			n--;
		path[n] = '\0';
	}
	free(path);
	return n;
}

void ckpt_unmake_folder(const char *dir, size_t nkept)
{
	char *path = strdup(dir), *lock;

	if (asprintf(&lock, "%s/.lock", dir) >= 0) {
		if (path && nkept < strlen(dir))
			unlink(lock);
		free(lock);
	}
	/* a folder with other files stays, and so do those around it */
	for (size_t n = strlen(dir); path && n > nkept && !rmdir(path);) {
		while (n && path[n - 1] == '/')
			n--;
		while (n && path[n - 1] != '/')
			n--;
		while (n && path[n - 1] == '/')
			n--;
		path[n] = '\0';
	}
	free(path);
}

int ckpt_commit(const struct folder *dir, const char *file, int may_be_renamed)
{
	char from[64];

	if (!renameat(dir->fd, ckpt_fresh_name(file, from), dir->fd, file) ||
	    (errno == ENOENT && may_be_renamed))
		return STATUS_OK;
	return say_bad("%s/%s: %s", dir->path, file, strerror(errno));
}

void ckpt_drop(const struct folder *dir, const char *file)
{
	char name[64];

	unlinkat(dir->fd, ckpt_fresh_name(file, name), 0);
}

void ckpt_drop_kind(const struct folder *dir, int adapter)
{
	unlinkat(dir->fd, adapter ? ADAPTER_ST : MODEL_ST, 0);
	if (adapter)
		unlinkat(dir->fd, ADAPTER_JSON, 0);
}

int ckpt_open(const struct folder *dir, const char *name, struct st_file **ret_f)
{
	char *path = folder_path(dir, name);
	struct st_file *f = NULL;
	int r = path ? folder_check_link(dir, name) : STATUS_FAILED;

	if (!r)
		r = st_open(path, &f);
	free(path);
	if (!r)
		r = st_check_digest(f);
	if (r)
		st_close(f);
	else
		*ret_f = f;
	return r;
}

int ckpt_read_run(const struct st_file *f, struct ckpt_run *ret_run)
{
	struct record_reader rd = { .where = st_path(f) };
	struct ckpt_run run = { 0 };
	struct st_tensor t;
	int r;

	if (!st_find(f, "run", &t))
		return say_bad("%s: not a te_train checkpoint", st_path(f));
	r = record_parse((const char *)t.data, t.nbytes, st_path(f), &run.obj);
	if (r)
		return r;
	rd.obj = run.obj;
	if (record_get_int(&rd, "format", 0, CKPT_MOST) != CKPT_FORMAT && !rd.status)
		rd.status = say_bad("%s: a checkpoint with another format version", st_path(f));
	run.options = record_get_object(&rd, "options");
	run.digest = record_get_text(&rd, "model_digest");
	run.p.step = record_get_int(&rd, "step", 0, CKPT_MOST);
	run.p.best_val = record_get_real(&rd, "best_val_nats", INFINITY);
	run.p.best_step = record_get_int(&rd, "best_step", 0, CKPT_MOST);
	run.p.eval_step = record_get_int(&rd, "eval_step", -1, CKPT_MOST);
	snprintf(run.p.data_digest, sizeof(run.p.data_digest), "%s",
		 record_get_text(&rd, "data_digest"));
	run.p.ntrain = record_get_int(&rd, "train_tokens", 0, INT64_MAX);
	run.p.nval = record_get_int(&rd, "val_tokens", 0, INT64_MAX);
	/* checkpoints of 0.1 before --order have neither */
	if (json_object_get(run.obj, "drawn_windows")) {
		run.p.drawn = record_get_int(&rd, "drawn_windows", 0, CKPT_MOST);
		run.p.window = record_get_int(&rd, "window_tokens", 0, CKPT_MOST);
	}
	run.p.chunked = json_object_get(run.obj, "chunks_epoch") != NULL;
	if (run.p.chunked) {
		run.p.chunks.epoch = record_get_int(&rd, "chunks_epoch", 0, CKPT_MOST);
		run.p.chunks.group = record_get_int(&rd, "chunks_group", 0, CKPT_MOST);
		run.p.chunks.first = record_get_int(&rd, "chunks_first_window", 0, run.p.drawn);
	}
	if (json_object_get(run.obj, "parts")) {
		run.part.n = (int32_t)record_get_int(&rd, "parts", 1, CKPT_MOST_PARTS);
		run.part.digits = (int)record_get_int(&rd, "part_digits", 5, 6);
		run.digests = json_object_get(run.obj, "part_digests");
		if (json_array_size(run.digests) != 2 * (size_t)run.part.n && !rd.status)
			rd.status = say_bad("%s: expected two digests of each part", st_path(f));
	}
	run.seed = (uint64_t)record_get_int(&rd, "rng_seed", INT64_MIN, INT64_MAX);
	run.offset = (uint64_t)record_get_int(&rd, "rng_offset", 0, INT64_MAX);
	if (rd.status)
		json_decref(run.obj);
	else
		*ret_run = run;
	return rd.status;
}

static int weights_fit(const struct folder *dir, const char *file, const char *digest)
{
	struct st_file *f = NULL;
	const char *have;
	char name[64];
	int fits;

	ckpt_fresh_name(file, name);
	if (!folder_has(dir, name) || ckpt_open(dir, name, &f))
		return 0;
	have = st_get_meta(f, "digest");
	fits = have && !strcmp(have, digest);
	st_close(f);
	return fits;
}

static int config_fits(const struct folder *dir, const json_t *config)
{
	char name[64], *path = folder_path(dir, ckpt_fresh_name(CONFIG_JSON, name));
	json_t *have = NULL;
	int fits = path && !folder_check_link(dir, name) && !record_load(path, &have) &&
		   json_equal(have, config);

	json_decref(have);
	free(path);
	return fits;
}

/* does index.new belong to the state with this digest */
static int index_fits(const struct folder *dir, const char *digest)
{
	char name[64], *path = folder_path(dir, ckpt_fresh_name(INDEX_JSON, name));
	const char *have = NULL;
	json_t *obj = NULL;
	int fits = 0;

	if (path && !folder_check_link(dir, name) && !record_load(path, &obj))
		have = json_string_value(json_object_get(json_object_get(obj, "metadata"),
							 "digest"));
	fits = have && !strcmp(have, digest);
	json_decref(obj);
	free(path);
	return fits;
}

/* has a save left files that it had not renamed yet */
static int has_fresh(const struct folder *dir)
{
	char name[64];
	int has = 0;

	for (int i = 1; i < CKPT_NFILES; i++)
		has |= folder_has(dir, ckpt_fresh_name(ckpt_file[i], name));
	return has;
}

/* after a crash, files that belong to the state may not have been renamed yet */
static int finish_renames(const struct folder *dir, const struct ckpt_run *run)
{
	int model, adapter, config, index, r;

	if (!has_fresh(dir))
		return STATUS_OK;
	say_hush(1); /* errors in files of an incomplete save do not matter */
	model = weights_fit(dir, MODEL_ST, run->digest);
	adapter = weights_fit(dir, ADAPTER_ST, run->digest);
	config = config_fits(dir, json_object_get(run->obj, "config"));
	index = index_fits(dir, run->digest);
	say_hush(0);
	if (!model && !adapter && !config && !index)
		return STATUS_OK;
	r = folder_sync(dir); /* the rename of the state, by a process that was killed after it */
	if (!r && model)
		r = ckpt_commit(dir, MODEL_ST, 1);
	if (!r && adapter)
		r = ckpt_commit(dir, ADAPTER_ST, 1);
	if (!r && !model) /* written before the weights, and renamed before config.json */
		r = ckpt_commit(dir, ADAPTER_JSON, 1);
	if (!r && config)
		r = ckpt_commit(dir, CONFIG_JSON, 1);
	if (!r && index)
		r = ckpt_commit(dir, INDEX_JSON, 1);
	return r ? r : folder_sync(dir);
}

int ckpt_open_state(const struct folder *dir, struct st_file **ret_f, struct ckpt_run *ret_run)
{
	struct st_file *f = NULL;
	struct ckpt_run run;
	int r;

	if (!folder_has(dir, STATE_ST))
		return say_bad("%s: no checkpoint of te_train, which has %s; --init begins with a "
			       "folder's weights", dir->path, STATE_ST);
	r = ckpt_open(dir, STATE_ST, &f);
	if (r)
		return r;
	r = ckpt_read_run(f, &run);
	if (!r) {
		r = finish_renames(dir, &run);
		if (!r)
			r = folder_check_link(dir, CONFIG_JSON);
		if (r)
			json_decref(run.obj);
	}
	if (r) {
		st_close(f);
		return r;
	}
	*ret_f = f;
	*ret_run = run;
	return STATUS_OK;
}

int ckpt_complete(const struct folder *dir)
{
	struct st_file *f = NULL;
	struct ckpt_run run;
	int r;

	/* without a state nothing has been committed */
	if (!folder_has(dir, STATE_ST) || !has_fresh(dir))
		return STATUS_OK;
	r = ckpt_open_state(dir, &f, &run);
	if (r)
		return r;
	if (run.part.n)
		ckpt_drop_kind(dir, 0); /* Python would read it instead of the index */
	json_decref(run.obj);
	st_close(f);
	return STATUS_OK;
}

/* names that a save needs */
static int check_names(const struct folder *dir)
{
	int r = STATUS_OK;
	char name[64];

	for (int i = 0; i < CKPT_NFILES && !r; i++)
		r = folder_check_regular(dir, ckpt_fresh_name(ckpt_file[i], name));
	return r;
}
int ckpt_folder(const char *dir, double wait_s, int *lock_fd)
{
	struct folder f;
	int r = ckpt_make_folder(dir);

	if (!r)
		r = folder_open(dir, &f);
	if (r)
		return r;
	if (*lock_fd < 0)
		r = lock_folder(&f, wait_s, lock_fd);
	if (!r)
		r = ckpt_complete(&f);
	if (!r)
		r = check_names(&f);
	folder_close(&f);
	return r;
}

int ckpt_options(const char *path, json_t **ret_options)
{
	struct st_file *f = NULL;
	struct folder dir;
	struct ckpt_run run;
	int r = folder_open(path, &dir);

	if (r)
		return r;
	r = ckpt_open_state(&dir, &f, &run);
	folder_close(&dir);
	if (r)
		return r;
	*ret_options = json_incref((json_t *)(uintptr_t)run.options);
	json_decref(run.obj);
	st_close(f);
	return STATUS_OK;
}
