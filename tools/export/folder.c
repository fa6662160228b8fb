/*
 * folder.c - a model as a folder of transformers: config.json, model.safetensors and the files of
 * its tokenizer.
 *
 * The folder is written under a temporary name, and gets its own name when it is complete. An
 * earlier one is exchanged with it and then removed: rename(2) replaces empty folders only.
 */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <te/dtype.h>

#include "export.h"
#include "tools/lib/gguf_arch.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"
#include "tools/lib/tokenizer.h"
#include "tools/lib/tokens.h"

#define MODEL_ST "model.safetensors"
#define CONFIG_JSON "config.json"

/* ---- folders ---- */

/* 1: a file that an export writes, or ".new" after its name */
static int is_written(const char *name)
{
	const size_t n = strlen(name);
	char bare[256];

	snprintf(bare, sizeof(bare), "%s", name);
	if (n > 4 && n < sizeof(bare) && !strcmp(name + n - 4, ".new"))
		bare[n - 4] = '\0';
	return !strcmp(bare, CONFIG_JSON) || !strcmp(bare, MODEL_ST) || tokenizer_is_file(bare);
}

/* check that a folder has files of an export only, or remove them; ret_n: their number */
static int each_file(const struct folder *dir, int remove, int *ret_n)
{
	const int fd = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	int r = STATUS_OK;

	*ret_n = 0;
	if (!list) {
		r = say_bad("%s: %s", dir->path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return r;
	}
	for (const struct dirent *e; !r && (e = readdir(list));) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		++*ret_n;
		if (!is_written(e->d_name))
			r = say_bad("%s/%s: no export has written it: expected another folder, "
				    "which only has files of an export", dir->path, e->d_name);
		else if (remove && unlinkat(dir->fd, e->d_name, 0))
			r = say_bad("%s/%s: %s", dir->path, e->d_name, strerror(errno));
	}
	closedir(list);
	return r;
}

/* the folder name in dir, if it exists; ret_f->path NULL: it does not */
static int open_existing(const struct folder *dir, const char *name, struct folder *ret_f)
{
	struct stat st;

	ret_f->path = NULL;
	if (fstatat(dir->fd, name, &st, AT_SYMLINK_NOFOLLOW))
		return STATUS_OK;
	if (!S_ISDIR(st.st_mode))
		return say_bad("%s/%s: exists and is no folder: expected another name, or one that "
			       "ends with .gguf for a file", dir->path, name);
	return folder_open_in(dir, name, ret_f);
}

/* remove the folder of an export */
static int drop(const struct folder *dir, const char *name)
{
	struct folder f;
	int n, r = open_existing(dir, name, &f);

	if (r || !f.path)
		return r;
	r = each_file(&f, 0, &n);
	if (!r)
		r = each_file(&f, 1, &n);
	if (!r && unlinkat(dir->fd, name, AT_REMOVEDIR))
		r = say_bad("%s: %s", f.path, strerror(errno));
	folder_close(&f);
	return r;
}

/* ret_full: the name is a folder with files */
static int check_name(const struct folder *dir, const char *name, int overwrite, int *ret_full)
{
	struct folder f;
	int n = 0, r = open_existing(dir, name, &f);

	if (!r && f.path) {
		r = each_file(&f, 0, &n);
		if (!r && n && !overwrite)
			r = say_bad("%s: has a model: expected another folder, or --overwrite",
				    f.path);
		folder_close(&f);
	}
	*ret_full = n > 0;
	return r;
}

int export_folder_check(const char *path, int overwrite)
{
	struct folder dir;
	char name[256];
	int full, r = export_parent(path, &dir, name);

	if (r)
		return r;
	r = check_name(&dir, name, overwrite, &full);
	folder_close(&dir);
	return r;
}

/* ---- weights ---- */

struct output {
	struct export *x;
	enum te_dtype type;
	struct st_writer *w;
};

/* extents in the file */
static void shape_of(const struct weights_tensor *t, int64_t ret_shape[2])
{
	ret_shape[0] = t->shape[t->in_out ? 1 : 0];
	ret_shape[1] = t->ndim < 2 ? 1 : t->shape[t->in_out ? 0 : 1];
}

static int declare(void *arg, const struct weights_tensor *t)
{
	struct output *o = arg;
	int64_t shape[2];

	shape_of(t, shape);
	st_declare(o->w, t->name, o->type == TE_DTYPE_BF16 ? "BF16" : "F32", t->ndim, shape,
		   (size_t)(shape[0] * shape[1]) * (o->type == TE_DTYPE_BF16 ? 2 : 4));
	return STATUS_OK;
}

static int put(void *arg, const struct weights_tensor *t)
{
	struct output *o = arg;
	const float one = t->arch && export_adds_one(o->x, t) ? 1 : 0;
	int64_t shape[2];
	float *x;
	int r = STATUS_OK;

	shape_of(t, shape);
	x = malloc((size_t)shape[1] * sizeof(*x));
	if (!x)
		return say_failed("%s: out of memory", t->name);
	for (int64_t i = 0; i < shape[0] && !r; i++) {
		for (int64_t j = 0; j < shape[1] && !r; j++) {
			const int64_t row = t->in_out ? j : i, col = t->in_out ? i : j;

			x[j] = export_element(t, t->arch ? gguf_row(t->arch, &o->x->model.cfg,
								    t->part, row) : row, col);
			if (!isfinite(x[j]))
				r = say_bad("%s: tensor \"%s\" has a number that is not finite",
					    o->x->from, t->name);
			x[j] -= one;
		}
		if (!r)
			r = export_stopped() ? STATUS_FAILED :
					       weights_put(o->w, o->type, x, shape[1]);
	}
	free(x);
	return r;
}

static int write_weights(struct export *x, const struct folder *dir, enum te_dtype type)
{
	struct output o = { .x = x, .type = type };
	char digest[17];
	int r = st_create(dir, MODEL_ST, &o.w);

	if (!r)
		r = weights_each(&x->tensors, &x->model, x->adapter, 0, declare, &o);
	if (!r)
		r = st_begin(o.w);
	if (!r)
		r = weights_each(&x->tensors, &x->model, x->adapter, 1, put, &o);
	if (!r)
		r = st_end(o.w, digest);
	st_free(o.w);
	if (!r && renameat(dir->fd, MODEL_ST ".new", dir->fd, MODEL_ST))
		r = say_bad("%s/" MODEL_ST ": %s", dir->path, strerror(errno));
	return r;
}

/* ---- the folder ---- */

static int write_files(struct export *x, const struct folder *dir)
{
	const char *from = x->tokenizer ? x->tokenizer : x->from;
	struct config cfg = x->model.cfg;
	json_t *config;
	int r;

	cfg.saved = x->type == EXPORT_BF16 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	config = config_to_json(&cfg);
	r = config ? record_save(dir, CONFIG_JSON, config) : STATUS_FAILED;
	json_decref(config);
	if (!r)
		r = write_weights(x, dir, cfg.saved);
	if (!r)
		r = tokenizer_copy(from, dir->path, NULL, 0);
	if (!r && !tokenizer_in(dir->path))
		say_note("te_export: warning: %s: has no tokenizer: the folder will have none",
			 from);
	return r ? r : folder_sync(dir);
}

/* the complete folder gets its name */
static int commit(const struct folder *dir, const char *fresh, const char *name, int exchange)
{
	const unsigned flags = exchange ? RENAME_EXCHANGE : 0;
	int r = folder_sync(dir);

	if (!r && renameat2(dir->fd, fresh, dir->fd, name, flags))
		r = say_bad("%s/%s: %s", dir->path, name, strerror(errno));
	if (!r)
		r = folder_sync(dir);
	/* the earlier folder has the temporary name */
	return r || !exchange ? r : drop(dir, fresh);
}

int export_folder(struct export *x, const char *path)
{
	struct folder dir, in;
	char name[256], fresh[300];
	int full, r = export_parent(path, &dir, name);

	if (r)
		return r;
	snprintf(fresh, sizeof(fresh), "%s.new", name);
	r = check_name(&dir, name, x->overwrite, &full);
	if (!r)
		r = drop(&dir, fresh); /* an export that was killed */
	if (!r)
		r = folder_open_in(&dir, fresh, &in);
	if (!r) {
		r = write_files(x, &in);
		folder_close(&in);
		if (!r)
			r = commit(&dir, fresh, name, full);
		if (r) {
			say_hush(1);
			drop(&dir, fresh);
			say_hush(0);
		}
	}
	folder_close(&dir);
	return r;
}
