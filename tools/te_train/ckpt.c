/*
 * ckpt.c - checkpoints.
 *
 * Three files cannot be replaced atomically. All are first completed under ".new" names. Renaming
 * state.safetensors commits the checkpoint: it has the digest of the weights and the config.json
 * that belong to it. A crash after that leaves model.safetensors.new or config.json.new, which the
 * next use of the folder recognises and renames.
 *
 * A file is synced before it is renamed, and the folder before, between and after the renames:
 * otherwise a crash may keep a later rename and lose an earlier one.
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
#include <sys/statvfs.h>
#include <unistd.h>

#include <te/errno.h>
#include <te/quant.h>
#include <te/seq.h>

#include "ckpt.h"
#include "lock.h"
#include "tokenizer.h"
#include "tools/lib/folder.h"
#include "tools/lib/record.h"
#include "tools/lib/safetensors.h"
#include "tools/lib/say.h"
#include "tools/lib/shard.h"
#include "tools/lib/weights.h"

#define FORMAT 1 /* version of state.safetensors */
#define MOST 1000000000000000 /* steps and tokens */

static const char config_json[] = "config.json";
static const char model_st[] = "model.safetensors";
static const char state_st[] = "state.safetensors";
static const char best_dir[] = "best";
#define STEP_DIR "step-" /* folders of --keep */

/* the name under which a file is written */
#define FRESH ".new"
static const char *fresh_name(const char *file, char ret_name[64])
{
	snprintf(ret_name, 64, "%s" FRESH, file);
	return ret_name;
}

/* a new folder is kept by its parent */
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

static int make_folder(const char *dir)
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

/* ---- files ---- */

static int write_all(int fd, const char *text, size_t n)
{
	while (n) {
		ssize_t k = write(fd, text, n);

		if (k < 0 && errno != EINTR)
			return -1;
		if (k > 0) {
			text += k;
			n -= (size_t)k;
		}
	}
	return 0;
}

/* with the fewest digits that are read as the same numbers; NULL after a failure */
static char *shortest_text(const json_t *obj, const char *path)
{
	for (int digits = 6;; digits++) {
		char *text = record_to_text(
			obj, JSON_INDENT(2) | JSON_REAL_PRECISION((size_t)digits), path);
		json_t *got = NULL;
		int same = text && !record_parse(text, strlen(text), path, &got) &&
			   json_equal(got, obj);

		json_decref(got);
		if (!text || same || digits == 17)
			return text;
		free(text);
	}
}

/* write, sync and read back; the caller removes it after a failure */
static int write_json(const struct folder *dir, const char *name, const json_t *obj)
{
	char *path = folder_path(dir, name), *text = path ? shortest_text(obj, path) : NULL;
	int fd = -1, r = text ? folder_create(dir, name, &fd) : STATUS_FAILED;
	json_t *got = NULL;

	if (!r && (write_all(fd, text, strlen(text)) || write_all(fd, "\n", 1) || fsync(fd) ||
		   lseek(fd, 0, SEEK_SET) < 0)) {
		r = say_bad("%s: %s; nothing was replaced", path, strerror(errno));
		close(fd);
	} else if (!r) {
		r = record_read(fd, path, &got);
	}
	if (!r && !json_equal(got, obj))
		r = say_failed("%s: is not what was written", path);
	json_decref(got);
	free(text);
	free(path);
	return r;
}

/* rename file.new to file; or, if it may be renamed, by another rank that resumes too, it was */
static int commit(const struct folder *dir, const char *file, int may_be_renamed)
{
	char from[64];

	if (!renameat(dir->fd, fresh_name(file, from), dir->fd, file) ||
	    (errno == ENOENT && may_be_renamed))
		return STATUS_OK;
	return say_bad("%s/%s: %s", dir->path, file, strerror(errno));
}

static void drop(const struct folder *dir, const char *file)
{
	char name[64];

	unlinkat(dir->fd, fresh_name(file, name), 0);
}

/* ---- models that ranks divide ---- */

int ckpt_gather(const struct model *m, struct te_adamw *opt, struct ckpt_flat *ret_flat)
{
	struct ckpt_flat flat = { 0 };
	float *tm = NULL, *tv = NULL;
	int r = shard_gather(m, te_seq_masters(m->seq), 0, &flat.weights);

	if (!r && opt)
		r = shard_gather(m, te_adamw_m(opt), 1, &tm);
	if (!r && opt)
		r = shard_gather(m, te_adamw_v(opt), 1, &tv);
	flat.m = tm;
	flat.v = tv;
	if (r)
		ckpt_flat_free(&flat);
	else
		*ret_flat = flat;
	return r;
}

void ckpt_flat_free(struct ckpt_flat *flat)
{
	free(flat->weights);
	free(flat->m);
	free(flat->v);
	memset(flat, 0, sizeof(*flat));
}

/* the quantizers of the whole model: a new reference, or NULL if there are none */
static int quant_of(const struct model *m, struct te_quant **ret_q)
{
	struct te_quant *q = te_seq_quant(m->seq);

	*ret_q = NULL;
	if (q && m->whole)
		return shard_quant_whole(m, q, ret_q);
	*ret_q = te_quant_ref(q);
	return STATUS_OK;
}

/* bytes of all weights in FP32, with padding */
static size_t weights_nbytes(const struct model *m)
{
	const struct model *whole = m->whole ? m->whole : m;

	return (size_t)te_seq_nelems(whole->seq) * sizeof(float);
}

/* elements of a moment of all weights */
static int64_t moment_nelems(const struct model *m)
{
	const struct model *whole = m->whole ? m->whole : m;

	return te_seq_grad_nelems(whole->seq);
}

/* how moments are stored: in tensors, and in files */
static const struct {
	const char *file; /* safetensors type; U8: codes and exponents of te/optim.h */
	enum te_dtype dtype;
} moments_types[] = {
	[TE_MOMENTS_FP32] = { "F32", TE_DTYPE_FP32 },
	[TE_MOMENTS_BF16] = { "BF16", TE_DTYPE_BF16 },
	[TE_MOMENTS_FP8] = { "U8", TE_DTYPE_UINT8 },
};
#define NMOMENTS ((int)(sizeof(moments_types) / sizeof(moments_types[0])))

static enum te_moments moments_of(const struct te_adamw *opt)
{
	int i = NMOMENTS - 1;

	while (i && moments_types[i].dtype != te_tensor_dtype(te_adamw_m(opt)))
		i--;
	return (enum te_moments)i;
}

/* ---- state ---- */

struct blob {
	const char *name, *dtype;
	const void *data;
	size_t nbytes;
};

/* all of a checkpoint, in host memory */
struct ckpt_copy {
	struct ckpt_flat flat;
	enum te_moments moments;
	void *adamw, *quant;
	size_t nquant; /* bytes */
	uint64_t seed, offset;
	struct progress p;
	json_t *options, *config;
};

static json_t *run_to_json(const struct ckpt_copy *c, const char *digest)
{
	const struct progress *p = &c->p;
	struct record rec;

	record_begin(&rec);
	record_int(&rec, "format", FORMAT);
	record_text(&rec, "model_digest", digest);
	record_int(&rec, "step", p->step);
	record_real(&rec, "best_val_nats", p->best_val);
	record_int(&rec, "best_step", p->best_step);
	record_int(&rec, "eval_step", p->eval_step);
	record_text(&rec, "data_digest", p->data_digest);
	record_int(&rec, "train_tokens", p->ntrain);
	record_int(&rec, "val_tokens", p->nval);
	record_int(&rec, "drawn_windows", p->drawn);
	record_int(&rec, "window_tokens", p->window);
	record_int(&rec, "rng_seed", (int64_t)c->seed);
	record_int(&rec, "rng_offset", (int64_t)c->offset);
	record_put(&rec, "options", json_incref(c->options));
	record_put(&rec, "config", json_incref(c->config));
	return record_end(&rec, state_st);
}

/* blobs without bytes are left out */
static int write_blobs(const struct folder *dir, const struct blob *blob, int n)
{
	struct st_writer *w = NULL;
	char digest[17];
	int r = st_create(dir, state_st, &w);

	for (int i = 0; i < n && !r; i++) {
		const size_t size = *blob[i].dtype == 'F' ? 4 : *blob[i].dtype == 'B' ? 2 : 1;
		const int64_t extent = (int64_t)(blob[i].nbytes / size);

		if (extent)
			st_declare(w, blob[i].name, blob[i].dtype, 1, &extent, blob[i].nbytes);
	}
	if (!r)
		r = st_begin(w);
	for (int i = 0; i < n && !r; i++)
		r = st_write(w, blob[i].data, blob[i].nbytes);
	if (!r)
		r = st_end(w, digest);
	st_free(w);
	return r;
}

static int write_state(const struct folder *dir, const struct model *m, const struct ckpt_copy *c,
		       json_t *run)
{
	char *text = record_to_text(run, JSON_COMPACT | JSON_REAL_PRECISION(17), state_st);
	const char *type = moments_types[c->moments].file;
	const size_t nmoment = te_moments_nbytes(c->moments, moment_nelems(m));
	const struct blob blob[] = {
		{ "run", "U8", text, text ? strlen(text) : 0 },
		{ "adamw.state", "U8", c->adamw, te_adamw_state_nbytes() },
		{ "adamw.m", type, c->flat.m, nmoment },
		{ "adamw.v", type, c->flat.v, nmoment },
		{ "quant", "U8", c->quant, c->nquant },
		/* if model.safetensors has rounded ones */
		{ "weights", "F32", c->flat.weights,
		  m->cfg.saved == TE_DTYPE_FP32 ? 0 : weights_nbytes(m) },
	};
	const int r = text ? write_blobs(dir, blob, sizeof(blob) / sizeof(blob[0])) : STATUS_FAILED;

	free(text);
	return r;
}

/* all files as .new; c NULL: no state, and weights from flat or the model */
static int write_fresh(const struct folder *dir, const struct model *m,
		       const struct ckpt_flat *flat, const struct ckpt_copy *c)
{
	json_t *config = c ? json_incref(c->config) : config_to_json(&m->cfg), *run = NULL;
	int r = config ? STATUS_OK : STATUS_FAILED;
	char name[64], digest[17];

	if (!r)
		r = write_json(dir, fresh_name(config_json, name), config);
	if (!r)
		r = weights_write(dir, model_st, m, c ? c->flat.weights : flat->weights, digest);
	if (!r && c) {
		run = run_to_json(c, digest);
		r = run ? write_state(dir, m, c, run) : STATUS_FAILED;
	}
	json_decref(run);
	json_decref(config);
	return r;
}

/* ---- copies ---- */

/* what a shard of a model has, unless the values of all shards are there */
static int read_flat(const struct te_tensor *t, void **flat)
{
	const size_t nbytes = te_tensor_nbytes(t);
	int te;

	if (*flat)
		return STATUS_OK;
	*flat = malloc(nbytes + 1);
	if (!*flat)
		return say_failed("out of memory");
	te = te_tensor_read(t, *flat, nbytes);
	return te < 0 ? say_te(te, "reading weights and moments") : STATUS_OK;
}

static int read_states(const struct model *m, struct te_adamw *opt, struct ckpt_copy *c)
{
	struct te_quant *q;
	int te, r = quant_of(m, &q);

	if (r)
		return r;
	c->nquant = q ? te_quant_nbytes(q) : 0;
	c->quant = malloc(c->nquant + 1);
	c->adamw = malloc(te_adamw_state_nbytes());
	te = c->quant && c->adamw ? te_adamw_state_get(opt, c->adamw, te_adamw_state_nbytes()) :
				    -ENOMEM;
	if (te >= 0 && q)
		te = te_quant_save(q, c->quant, c->nquant);
	if (te >= 0)
		te = te_seq_rng_get(m->seq, &c->seed, &c->offset);
	te_quant_unref(q);
	return te < 0 ? say_te(te, "reading the optimizer's state") : STATUS_OK;
}

int ckpt_take(const struct model *m, struct te_adamw *opt, struct ckpt_flat *flat,
	      const json_t *options, const struct progress *p, struct ckpt_copy **ret_copy)
{
	struct ckpt_copy *c = calloc(1, sizeof(*c));
	void *weights = flat->weights;
	json_t *config = config_to_json(&m->cfg);
	int r = c && config && options ? STATUS_OK : STATUS_FAILED;

	if (!c)
		say_failed("out of memory");
	if (c) {
		c->flat = *flat;
		memset(flat, 0, sizeof(*flat));
		c->moments = moments_of(opt);
		c->p = *p;
		/* nothing of them is shared with other threads */
		c->options = json_deep_copy(options);
		c->config = json_deep_copy(config);
		if (!r && (!c->options || !c->config))
			r = say_failed("out of memory");
	}
	json_decref(config);
	if (!r)
		r = read_flat(te_seq_masters(m->seq), &weights);
	if (c)
		c->flat.weights = weights;
	if (!r)
		r = read_flat(te_adamw_m(opt), &c->flat.m);
	if (!r)
		r = read_flat(te_adamw_v(opt), &c->flat.v);
	if (!r)
		r = read_states(m, opt, c);
	if (r)
		ckpt_copy_free(c);
	else
		*ret_copy = c;
	return r;
}

void ckpt_copy_free(struct ckpt_copy *c)
{
	if (!c)
		return;
	ckpt_flat_free(&c->flat);
	free(c->adamw);
	free(c->quant);
	json_decref(c->options);
	json_decref(c->config);
	free(c);
}

/* ---- contents of a folder ---- */

static int open_in(const struct folder *dir, const char *name, struct st_file **ret_f)
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

/* metadata of state.safetensors */
struct run {
	json_t *obj;
	const json_t *options; /* owned by obj, like the texts */
	const char *digest;    /* digest of the weights */
	uint64_t seed, offset;
	struct progress p;
};

static int read_run(const struct st_file *f, struct run *ret_run)
{
	struct record_reader rd = { .where = st_path(f) };
	struct run run = { 0 };
	struct st_tensor t;
	int r;

	if (!st_find(f, "run", &t))
		return say_bad("%s: not a te_train checkpoint", st_path(f));
	r = record_parse((const char *)t.data, t.nbytes, st_path(f), &run.obj);
	if (r)
		return r;
	rd.obj = run.obj;
	if (record_get_int(&rd, "format", 0, MOST) != FORMAT && !rd.status)
		rd.status = say_bad("%s: a checkpoint with another format version", st_path(f));
	run.options = record_get_object(&rd, "options");
	run.digest = record_get_text(&rd, "model_digest");
	run.p.step = record_get_int(&rd, "step", 0, MOST);
	run.p.best_val = record_get_real(&rd, "best_val_nats", 0, INFINITY);
	run.p.best_step = record_get_int(&rd, "best_step", 0, MOST);
	run.p.eval_step = record_get_int(&rd, "eval_step", -1, MOST);
	snprintf(run.p.data_digest, sizeof(run.p.data_digest), "%s",
		 record_get_text(&rd, "data_digest"));
	run.p.ntrain = record_get_int(&rd, "train_tokens", 0, INT64_MAX);
	run.p.nval = record_get_int(&rd, "val_tokens", 0, INT64_MAX);
	/* checkpoints of 0.1 before --order have neither */
	if (json_object_get(run.obj, "drawn_windows")) {
		run.p.drawn = record_get_int(&rd, "drawn_windows", 0, MOST);
		run.p.window = record_get_int(&rd, "window_tokens", 0, MOST);
	}
	run.seed = (uint64_t)record_get_int(&rd, "rng_seed", INT64_MIN, INT64_MAX);
	run.offset = (uint64_t)record_get_int(&rd, "rng_offset", 0, INT64_MAX);
	if (rd.status)
		json_decref(run.obj);
	else
		*ret_run = run;
	return rd.status;
}

static int weights_fit(const struct folder *dir, const char *digest)
{
	struct st_file *f = NULL;
	const char *have;
	char name[64];
	int fits;

	if (open_in(dir, fresh_name(model_st, name), &f))
		return 0;
	have = st_get_meta(f, "digest");
	fits = have && !strcmp(have, digest);
	st_close(f);
	return fits;
}

static int config_fits(const struct folder *dir, const json_t *config)
{
	char name[64], *path = folder_path(dir, fresh_name(config_json, name));
	json_t *have = NULL;
	int fits = path && !folder_check_link(dir, name) && !record_load(path, &have) &&
		   json_equal(have, config);

	json_decref(have);
	free(path);
	return fits;
}

/* has a save left files that it had not renamed yet */
static int has_fresh(const struct folder *dir)
{
	char name[64];

	return folder_has(dir, fresh_name(config_json, name)) ||
	       folder_has(dir, fresh_name(model_st, name));
}

/* after a crash, files that belong to the state may not have been renamed yet */
static int finish_renames(const struct folder *dir, const struct run *run)
{
	int model, config, r;

	if (!has_fresh(dir))
		return STATUS_OK;
	say_hush(1); /* errors in files of an incomplete save do not matter */
	model = weights_fit(dir, run->digest);
	config = config_fits(dir, json_object_get(run->obj, "config"));
	say_hush(0);
	if (!model && !config)
		return STATUS_OK;
	r = folder_sync(dir); /* the rename of the state, by a process that was killed after it */
	if (!r && model)
		r = commit(dir, model_st, 1);
	if (!r && config)
		r = commit(dir, config_json, 1);
	return r ? r : folder_sync(dir);
}

static int open_state(const struct folder *dir, struct st_file **ret_f, struct run *ret_run)
{
	struct st_file *f = NULL;
	struct run run;
	int r;

	if (!folder_has(dir, state_st))
		return say_bad("%s: no checkpoint of te_train, which has %s; --init begins with a "
			       "folder's weights", dir->path, state_st);
	r = open_in(dir, state_st, &f);
	if (r)
		return r;
	r = read_run(f, &run);
	if (!r) {
		r = finish_renames(dir, &run);
		if (!r)
			r = folder_check_link(dir, config_json);
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

/* complete the save that a crash interrupted after it was committed */
static int complete(const struct folder *dir)
{
	struct st_file *f = NULL;
	struct run run;
	int r;

	/* without a state nothing has been committed */
	if (!folder_has(dir, state_st) || !has_fresh(dir))
		return STATUS_OK;
	r = open_state(dir, &f, &run);
	if (r)
		return r;
	json_decref(run.obj);
	st_close(f);
	return STATUS_OK;
}

/* names that a save needs */
static int check_names(const struct folder *dir)
{
	static const char *const file[] = { config_json, model_st, state_st };
	int r = STATUS_OK;
	char name[64];

	for (int i = 0; i < 3 && !r; i++)
		r = folder_check_regular(dir, fresh_name(file[i], name));
	return r;
}

int ckpt_check_room(const char *path, const struct model *m, enum te_moments moments)
{
	/* without quantizers and the text of headers */
	const uint64_t saved = m->cfg.saved == TE_DTYPE_FP32 ? 4 * (uint64_t)m->nparams :
							       2 * (uint64_t)m->nparams +
								       weights_nbytes(m);
	const uint64_t need = 2 * te_moments_nbytes(moments, moment_nelems(m)) + saved;
	struct folder dir;
	struct statvfs st;
	uint64_t room;
	int r = folder_open(path, &dir);

	if (r)
		return r;
	/* some file systems do not know their size */
	room = fstatvfs(dir.fd, &st) || !st.f_blocks ? UINT64_MAX :
						       (uint64_t)st.f_bavail * st.f_frsize;
	if (room < need)
		r = say_bad("%s: %.2f MiB are free, a checkpoint needs %.2f MiB", path,
			    (double)room / (1 << 20), (double)need / (1 << 20));
	folder_close(&dir);
	return r;
}

int ckpt_folder(const char *dir, double wait_s, int *lock_fd)
{
	struct folder f;
	int r = make_folder(dir);

	if (!r)
		r = folder_open(dir, &f);
	if (r)
		return r;
	if (*lock_fd < 0)
		r = lock_folder(&f, wait_s, lock_fd);
	if (!r)
		r = complete(&f);
	if (!r)
		r = check_names(&f);
	folder_close(&f);
	return r;
}

/* the step of a checkpoint; -1: it cannot be read */
static int64_t step_of(const char *path)
{
	struct st_file *f = NULL;
	int64_t step = -1;
	struct run run;

	say_hush(1);
	if (!st_open(path, &f) && !read_run(f, &run)) {
		step = run.p.step;
		json_decref(run.obj);
	}
	say_hush(0);
	st_close(f);
	return step;
}

/* a file of a run in the folder, for free(3); NULL: there is none, or no memory */
static char *find_saved(const char *dir, int *ret_is_state)
{
	static const char *const file[] = { state_st, model_st, "best/model.safetensors" };
	struct stat st;

	for (int i = 0; i < 3; i++) {
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

int ckpt_check_free(const char *dir)
{
	int is_state, r = STATUS_OK;
	char *path = find_saved(dir, &is_state);
	const int64_t step = path && is_state ? step_of(path) : -1;

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
	static const char *const file[] = { model_st, config_json, state_st };
	struct folder in = { 0 };
	struct stat st;
	int r = STATUS_OK;

	if (fstatat(dir->fd, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(st.st_mode))
		return STATUS_OK;
	r = folder_open_in(dir, name, &in);
	for (int i = 0; i < 3 && !r; i++)
		if (unlinkat(in.fd, file[i], 0) && errno != ENOENT)
			r = say_bad("%s/%s: %s", in.path, file[i], strerror(errno));
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
	return *end || step > MOST ? -1 : step;
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
	r = drop_folder(&dir, best_dir);
	if (!r)
		r = prune(&dir, 0);
	folder_close(&dir);
	return r;
}

/* links of the files of the checkpoint in dir; a file system may have none */
static int link_files(const struct folder *dir, const char *name)
{
	static const char *const file[] = { model_st, config_json, state_st };
	struct folder in;
	int r = folder_open_in(dir, name, &in);

	if (r)
		return r;
	for (int i = 0; i < 3 && !r; i++)
		if ((unlinkat(in.fd, file[i], 0) && errno != ENOENT) ||
		    linkat(dir->fd, file[i], in.fd, file[i], 0))
			r = say_bad("%s/%s: %s", in.path, file[i], strerror(errno));
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
	char name[64], *path = folder_path(dir, state_st);
	const int64_t step = path ? step_of(path) : -1;
	int r = STATUS_OK;

	free(path);
	if (step < 0)
		return STATUS_OK;
	snprintf(name, sizeof(name), STEP_DIR "%lld", (long long)step);
	r = drop_folder(dir, STEP_DIR "new");
	if (!r)
		r = link_files(dir, STEP_DIR "new");
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

/* ---- saving ---- */

static int save(const struct folder *dir, const struct model *m, const struct ckpt_flat *flat,
		const struct ckpt_copy *c)
{
	int r = complete(dir); /* a save that failed after its commit has left files */

	if (r)
		return r;
	r = write_fresh(dir, m, flat, c);
	if (!r)
		r = folder_sync(dir);
	if (r) {
		drop(dir, config_json);
		drop(dir, model_st);
		drop(dir, state_st);
		return r;
	}
	if (c) {
		r = commit(dir, state_st, 0);
		if (!r)
			r = folder_sync(dir);
	}
	if (!r)
		r = commit(dir, model_st, 0);
	if (!r)
		r = commit(dir, config_json, 0);
	return r ? r : folder_sync(dir);
}

int ckpt_write(const char *path, const struct model *m, const struct ckpt_copy *copy)
{
	struct folder dir;
	int r = make_folder(path);

	if (!r)
		r = folder_open(path, &dir);
	if (r)
		return r;
	r = save(&dir, m, NULL, copy);
	folder_close(&dir);
	return r;
}

int ckpt_save_best(const char *path, const struct model *m, const struct ckpt_flat *flat)
{
	struct folder dir, best;
	int r = make_folder(path);

	if (!r)
		r = folder_open(path, &dir);
	if (r)
		return r;
	r = folder_open_in(&dir, best_dir, &best);
	if (!r) {
		r = save(&best, m, flat, NULL);
		folder_close(&best);
	}
	folder_close(&dir);
	return r;
}

/* ---- loading ---- */

int ckpt_options(const char *path, json_t **ret_options)
{
	struct st_file *f = NULL;
	struct folder dir;
	struct run run;
	int r = folder_open(path, &dir);

	if (r)
		return r;
	r = open_state(&dir, &f, &run);
	folder_close(&dir);
	if (r)
		return r;
	*ret_options = json_incref((json_t *)(uintptr_t)run.options);
	json_decref(run.obj);
	st_close(f);
	return STATUS_OK;
}

int ckpt_load_weights(const char *dir, const struct model *m)
{
	return weights_read_folder(dir, m);
}

static int get_blob(const struct st_file *f, const char *name, const char *dtype, size_t nbytes,
		    struct st_tensor *ret_t)
{
	if (!st_find(f, name, ret_t) || strcmp(ret_t->dtype, dtype))
		return say_bad("%s: there is no \"%s\"", st_path(f), name);
	if (ret_t->nbytes != nbytes)
		return say_bad("%s: \"%s\" has %zu bytes; this model makes %zu", st_path(f), name,
			       ret_t->nbytes, nbytes);
	return STATUS_OK;
}

/* 1: the option of the run that saved options, or bf16, its default, is now */
static int has_recipe(const json_t *options, const char *name, const char *now)
{
	const char *then = json_string_value(json_object_get(options, name));

	return !strcmp(then ? then : "bf16", now);
}

/* with another recipe than the checkpoint's, start with new quantizers */
static int load_quant(const struct st_file *f, const struct model *m, const struct opts *o,
		      const json_t *options)
{
	const struct te_quant *own = te_seq_quant(m->seq);
	struct te_quant *q = NULL;
	struct st_tensor t;
	int te, r;

	if (!own || !has_recipe(options, "recipe", o->recipe) ||
	    !has_recipe(options, "head-recipe", o->head_recipe) || !st_find(f, "quant", &t))
		return STATUS_OK;
	r = quant_of(m, &q);
	if (r)
		return r;
	te = te_quant_load(q, t.data, t.nbytes);
	r = te < 0 ? say_te(te, "%s", st_path(f)) : STATUS_OK;
	if (!r && m->whole)
		r = shard_quant_take(m, q);
	te_quant_unref(q);
	return r;
}

/* a copy, because tensors of files need not be aligned */
static void *copy_data(const struct st_tensor *t)
{
	void *copy = malloc(t->nbytes + 1);

	if (copy)
		memcpy(copy, t->data, t->nbytes);
	else
		say_failed("out of memory");
	return copy;
}

/* load a moment that is stored in one way from a file that may have it in another */
static int load_moment(const struct st_file *f, const struct model *m, const char *name,
		       enum te_moments moments, struct te_tensor *dst)
{
	const int64_t n = moment_nelems(m);
	const int second = !strcmp(name, "adamw.v");
	int from = NMOMENTS - 1, te, r;
	void *data, *stored = NULL;
	float *values = NULL;
	struct st_tensor t;

	while (from && (!st_find(f, name, &t) || strcmp(t.dtype, moments_types[from].file)))
		from--;
	r = get_blob(f, name, moments_types[from].file,
		     te_moments_nbytes((enum te_moments)from, n), &t);
	if (r)
		return r;
	if (from == (int)moments && !m->whole) {
		te = te_tensor_write(dst, t.data, t.nbytes);
		return te < 0 ? say_te(te, "%s", st_path(f)) : STATUS_OK;
	}
	data = copy_data(&t);
	values = malloc((size_t)n * sizeof(*values));
	stored = malloc(te_tensor_nbytes(dst));
	if (!data || !values || !stored)
		r = say_failed("out of memory");
	te = r ? 0 : te_moments_to_fp32((enum te_moments)from, second, n, data, values);
	if (!r && te >= 0 && m->whole) {
		r = shard_take(m, m->whole, values, 1, dst);
	} else if (!r && te >= 0) {
		te = te_moments_from_fp32(moments, second, n, values, stored);
		if (te >= 0)
			te = te_tensor_write(dst, stored, te_tensor_nbytes(dst));
	}
	free(data);
	free(values);
	free(stored);
	return te < 0 ? say_te(te, "%s", st_path(f)) : r;
}

/* the FP32 weights whose rounded values are in model.safetensors */
static int load_weights(const struct st_file *f, const struct model *m)
{
	struct te_tensor *masters = te_seq_masters(m->seq);
	struct st_tensor t;
	float *flat;
	int te = 0, r;

	if (!st_find(f, "weights", &t))
		return STATUS_OK;
	r = get_blob(f, "weights", "F32", weights_nbytes(m), &t);
	if (!r && m->whole) {
		flat = copy_data(&t);
		r = flat ? shard_take(m, m->whole, flat, 0, masters) : STATUS_FAILED;
		free(flat);
	} else if (!r)
		te = te_tensor_write(masters, t.data, t.nbytes);
	if (!r && te >= 0)
		te = te_seq_weights_changed(m->seq, te_ctx_stream(te_seq_ctx(m->seq)));
	return te < 0 ? say_te(te, "%s", st_path(f)) : r;
}

static int load_state(const struct st_file *f, const struct model *m, struct te_adamw *opt,
		      const struct opts *o, const json_t *options)
{
	struct st_tensor s;
	int te, r = get_blob(f, "adamw.state", "U8", te_adamw_state_nbytes(), &s);

	if (r)
		return r;
	te = te_adamw_state_set(opt, s.data, s.nbytes);
	if (te < 0)
		return say_te(te, "%s", st_path(f));
	r = load_moment(f, m, "adamw.m", moments_of(opt), te_adamw_m(opt));
	if (!r)
		r = load_moment(f, m, "adamw.v", moments_of(opt), te_adamw_v(opt));
	return r ? r : load_quant(f, m, o, options);
}

static int load_model(const struct folder *dir, const struct model *m, const char *digest,
		      const struct st_file *state)
{
	struct st_file *f = NULL;
	const char *have;
	int r = open_in(dir, model_st, &f);

	if (r)
		return r;
	have = st_get_meta(f, "digest");
	if (!have || strcmp(have, digest))
		r = say_bad("%s: not the weights that %s belongs to", st_path(f), st_path(state));
	if (!r)
		r = weights_read(f, m);
	st_close(f);
	return r;
}

/* moments belong to trained weights, in their order: a resumed run must train the same weights */
static int check_frozen(const struct st_file *state, const struct model *m, const struct run *run)
{
	const char *then = json_string_value(json_object_get(run->options, "freeze"));
	const char *now = m->frozen ? m->frozen : "";

	if (!then)
		then = "";
	if (!strcmp(then, now))
		return STATUS_OK;
	return say_bad("%s: was saved by a run with --freeze \"%s\", not \"%s\": to train other "
		       "weights, begin with --init", st_path(state), then, now);
}

int ckpt_load(const char *path, const struct model *m, const struct opts *o, struct te_adamw *opt,
	      struct progress *ret_p)
{
	struct st_file *state = NULL;
	struct folder dir;
	struct run run;
	int te, r = folder_open(path, &dir);

	if (r)
		return r;
	r = open_state(&dir, &state, &run);
	if (r) {
		folder_close(&dir);
		return r;
	}
	r = opt ? check_frozen(state, m, &run) : STATUS_OK;
	if (!r)
		r = load_model(&dir, m, run.digest, state);
	if (!r)
		r = load_weights(state, m);
	if (!r && opt)
		r = load_state(state, m, opt, o, run.options);
	if (!r) {
		te = te_seq_rng_set(m->seq, run.seed, run.offset);
		if (te < 0)
			r = say_te(te, "%s", st_path(state));
	}
	if (!r)
		*ret_p = run.p;
	json_decref(run.obj);
	st_close(state);
	folder_close(&dir);
	return r;
}
