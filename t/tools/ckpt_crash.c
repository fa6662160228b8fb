/*
 * t/tools/ckpt_crash.c - after a crash at any time of a save, and after saves that fail, a
 * checkpoint is complete: in one file of weights, in parts, and with both in turn.
 *
 * The program has its own open, openat, write, lseek, fsync, renameat and unlinkat, which record
 * what a save does. From the record follow the folders that a crash may leave: after each call,
 * data that were not synced are lost or kept, and any of the names that were changed since the
 * folder was synced are lost. Each folder is made, resumed from, and compared with both
 * checkpoints.
 */
#include "config.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tools/lib/digest.h"
#include "tools/lib/say.h"
#include "tools/lib/tensors.h"
#include "tools/te_train/ckpt.h"
#include "tt.h"

/* ---- recording ---- */

enum what { CREATE, WRITE, SYNC, SYNC_FOLDER, RENAME, UNLINK };

struct event {
	enum what what;
	int inode, to; /* of CREATE and WRITE and SYNC; names of RENAME */
	int name;
	size_t offset, nbytes;
	uint8_t *data;
};

#define MAX_EVENTS 400
#define MAX_INODES 40
#define MAX_NAMES 32
#define MAX_FDS 64

static char dir[64];
static int recording;
/* calls are counted; the one numbered fail_at fails, or it and all after it; -1: none */
static int ncalls, fail_at = -1, fails_on;
static struct event event[MAX_EVENTS];
static int nevents, ninodes, nnames;
static char name[MAX_NAMES][48];
static struct {
	int inode; /* -1: none, -2: the folder */
	size_t offset;
} fd_of[MAX_FDS];

static int name_of(const char *file)
{
	for (int i = 0; i < nnames; i++) {
		if (!strcmp(name[i], file))
			return i;
	}
	ck_assert_int_lt(nnames, MAX_NAMES);
	snprintf(name[nnames], sizeof(name[0]), "%s", file);
	return nnames++;
}

static struct event *add(enum what what, int inode)
{
	ck_assert_int_lt(nevents, MAX_EVENTS);
	event[nevents] = (struct event){ .what = what, .inode = inode };
	return &event[nevents++];
}

static int fails(int err)
{
	const int k = ncalls++;

	if (fail_at < 0 || k < fail_at || (k > fail_at && !fails_on))
		return 0;
	errno = err;
	return 1;
}

int open(const char *path, int flags, ...)
{
	/* only the folder and files to be read are opened by a path */
	int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0);

	if (!recording || fd < 0 || fd >= MAX_FDS)
		return fd;
	fd_of[fd].inode = strcmp(path, dir) ? -1 : -2;
	fd_of[fd].offset = 0;
	return fd;
}

int openat(int in, const char *file, int flags, ...)
{
	mode_t mode;
	va_list ap;
	int fd;

	va_start(ap, flags);
	mode = (mode_t)va_arg(ap, int);
	va_end(ap);
	/* a list of the folder */
	if (flags & O_DIRECTORY)
		return (int)syscall(SYS_openat, in, file, flags, 0);
	if (fails(ENOSPC))
		return -1;
	fd = (int)syscall(SYS_openat, in, file, flags, mode);
	if (!recording || fd < 0 || fd >= MAX_FDS)
		return fd;
	/* no file with that name is there: a new one */
	ck_assert_int_eq(flags & (O_CREAT | O_EXCL), O_CREAT | O_EXCL);
	fd_of[fd].inode = ninodes;
	fd_of[fd].offset = 0;
	add(CREATE, ninodes++)->name = name_of(file);
	return fd;
}

ssize_t write(int fd, const void *src, size_t nbytes)
{
	ssize_t n = syscall(SYS_write, fd, src, nbytes);

	if (recording && n > 0 && fd < MAX_FDS && fd_of[fd].inode >= 0) {
		struct event *e = add(WRITE, fd_of[fd].inode);

		e->offset = fd_of[fd].offset;
		e->nbytes = (size_t)n;
		e->data = malloc((size_t)n);
		memcpy(e->data, src, (size_t)n);
		fd_of[fd].offset += (size_t)n;
	}
	return n;
}

off_t lseek(int fd, off_t offset, int whence)
{
	off_t at = syscall(SYS_lseek, fd, offset, whence);

	if (recording && fd < MAX_FDS)
		fd_of[fd].offset = (size_t)at;
	return at;
}

int fsync(int fd)
{
	if (fails(EIO))
		return -1;
	if (recording && fd < MAX_FDS && fd_of[fd].inode != -1)
		add(fd_of[fd].inode == -2 ? SYNC_FOLDER : SYNC, fd_of[fd].inode);
	return (int)syscall(SYS_fsync, fd);
}

int renameat(int in, const char *from, int to_in, const char *to)
{
	if (fails(EIO))
		return -1;
	if (recording) {
		struct event *e = add(RENAME, -1);

		e->name = name_of(from);
		e->to = name_of(to);
	}
	return (int)syscall(SYS_renameat2, in, from, to_in, to, 0);
}

int unlinkat(int in, const char *file, int flags)
{
	if (recording)
		add(UNLINK, -1)->name = name_of(file);
	return (int)syscall(SYS_unlinkat, in, file, flags);
}

/* ---- what a crash leaves ---- */

struct inode {
	uint8_t *data;
	size_t nbytes;
	int synced;   /* nothing was written after it was synced */
	int nwritten; /* times */
};

struct names {
	int inode[MAX_NAMES]; /* by name; -1: none */
};

static struct inode inodes[MAX_INODES];

static int is_name_event(const struct event *e)
{
	return e->what == CREATE || e->what == RENAME || e->what == UNLINK;
}

static void change(struct names *f, const struct event *e)
{
	if (e->what == CREATE) {
		f->inode[e->name] = e->inode;
	} else if (e->what == UNLINK) {
		f->inode[e->name] = -1;
	} else if (f->inode[e->name] >= 0) {
		f->inode[e->to] = f->inode[e->name];
		f->inode[e->name] = -1;
	}
}

static void put(struct inode *i, const struct event *e)
{
	if (e->offset + e->nbytes > i->nbytes) {
		i->data = realloc(i->data, e->offset + e->nbytes);
		i->nbytes = e->offset + e->nbytes;
	}
	memcpy(i->data + e->offset, e->data, e->nbytes);
	i->synced = 0;
	i->nwritten++;
}

/* ---- the model ---- */

static const char config[] =
	"{\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":16,\"num_hidden_layers\":1,"
	"\"num_attention_heads\":1,\"intermediate_size\":16,\"max_position_embeddings\":16,"
	"\"tie_word_embeddings\":true}";

static struct te_ctx *ctx;
static struct config cfg;
static struct model model;
static struct te_adamw *opt;
static json_t *options;

static void setup(void)
{
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;
	json_t *obj = json_loads(config, 0, NULL);

	snprintf(dir, sizeof(dir), "%s/te-crash.XXXXXX", tt_tmpdir());
	ck_assert_ptr_nonnull(mkdtemp(dir));
	co.backend = "host";
	ck_assert_int_eq(te_ctx_create(&co, &ctx), 0);
	ck_assert_int_eq(config_parse(obj, "config", &cfg), 0);
	json_decref(obj);
	ck_assert_int_eq(model_create(ctx, &cfg, 1, &model), 0);
	ck_assert_int_eq(te_adamw_create(model.seq, NULL, &opt), 0);
	options = json_pack("{s:[]}", "files");
}

static void teardown(void)
{
	tt_remove(dir);
	for (int i = 0; i < nevents; i++)
		free(event[i].data);
	for (int i = 0; i < ninodes; i++)
		free(inodes[i].data);
	json_decref(options);
	te_adamw_unref(opt);
	model_free(&model);
	config_free(&cfg);
	te_ctx_unref(ctx);
}

/* weights and moments of a step are filled with one number */
static void fill(struct te_tensor *t, float x)
{
	size_t nbytes = te_tensor_nbytes(t);
	float *v = malloc(nbytes);

	for (size_t i = 0; i < nbytes / sizeof(*v); i++)
		v[i] = x;
	ck_assert_int_eq(te_tensor_write(t, v, nbytes), 0);
	free(v);
}

static float first_of(struct te_tensor *t)
{
	size_t nbytes = te_tensor_nbytes(t);
	float *v = malloc(nbytes), x;

	ck_assert_int_eq(te_tensor_read(t, v, nbytes), 0);
	x = v[0];
	free(v);
	return x;
}

enum { WHOLE, PARTS, IN_TURN, NMODES };
static int mode;

static int try_to_save(int step)
{
	struct progress p = { .step = step, .best_val = 1, .ntrain = 9, .nval = 9 };
	const int divided = mode == PARTS || (mode == IN_TURN && step % 2 == 0);
	struct ckpt_part part = { .n = 1 };
	struct ckpt_flat flat = { 0 };
	struct ckpt_copy *copy = NULL;
	int r = 0;

	fill(te_seq_masters(model.seq), (float)step);
	fill(te_adamw_m(opt), (float)step);
	model.cfg.drop_attn = 0.125 * step;
	if (divided) {
		part.digits = ckpt_next_digits(dir);
		r = part.digits ? ckpt_read_part(&model, opt, &part, &flat) : 1;
	}
	if (!r)
		r = ckpt_take(&model, opt, &flat, options, &p, &copy);
	if (!r && divided)
		r = ckpt_write_part(dir, &model, copy);
	if (!r)
		r = ckpt_write(dir, &model, copy);
	ckpt_copy_free(copy);
	return r;
}

static void save(int step)
{
	ck_assert_int_eq(try_to_save(step), 0);
}

/* the step of the checkpoint in the folder, all parts of which must be that step's */
static int step_there(void)
{
	char bf16[] = "bf16";
	const struct opts now = { .recipe = bf16, .head_recipe = bf16 };
	const struct ckpt_part own = { .n = 0 };
	struct config c = { 0 };
	struct progress p = { 0 };
	json_t *o = NULL;

	fill(te_seq_masters(model.seq), 0);
	fill(te_adamw_m(opt), 0);
	if (ckpt_options(dir, &o) || config_read(dir, &c) ||
	    ckpt_load(dir, &model, &now, opt, &own, &p))
		return -1;
	json_decref(o);
	config_free(&c);
	if (first_of(te_seq_masters(model.seq)) != (float)p.step ||
	    first_of(te_adamw_m(opt)) != (float)p.step || c.drop_attn != 0.125 * (double)p.step)
		return -2;
	return (int)p.step;
}

/* the step whose weights another program finds in the folder; -1: none, -2: of two steps */
static int weights_there(void)
{
	struct tensors ts;
	float x, first = 0;

	if (tensors_of_folder(dir, &ts))
		return -1;
	for (size_t i = 0; i < ts.n; i++) {
		memcpy(&x, ts.at[i].st.data, sizeof(x));
		if (i && x != first)
			first = -2;
		else
			first = x;
	}
	tensors_free(&ts);
	return (int)first;
}

/* ---- states ---- */

/* one folder that a crash may leave */
static void make(const struct names *f, int keep)
{
	for (int i = 0; i < nnames; i++) {
		const struct inode *in = f->inode[i] < 0 ? NULL : &inodes[f->inode[i]];
		char path[2048];
		FILE *file;

		snprintf(path, sizeof(path), "%s/%s", dir, name[i]);
		unlink(path);
		if (!in)
			continue;
		file = fopen(path, "w");
		ck_assert_ptr_nonnull(file);
		if (in->nbytes && (in->synced || keep))
			fwrite(in->data, 1, in->nbytes, file);
		fclose(file);
	}
}

static int is_lost(int i, int n)
{
	return i >= 0 && i < n && !inodes[i].synced;
}

#define MAX_SEEN 20000
static char seen[MAX_SEEN][DIGEST_NBYTES];
static int nseen;

/* whether the same names had files in the same state before, and the same was asked of them */
static int was_seen(const struct names *f, int keep, int least)
{
	struct digest d = { 0 };
	char text[DIGEST_NBYTES];

	digest_add(&d, &least, sizeof(least));
	for (int i = 0; i < nnames; i++) {
		const int lost = is_lost(f->inode[i], ninodes) && !keep;
		const struct inode *in = f->inode[i] < 0 ? NULL : &inodes[f->inode[i]];

		digest_add(&d, &f->inode[i], sizeof(f->inode[i]));
		digest_add(&d, &lost, sizeof(lost));
		if (in && !lost)
			digest_add(&d, &in->nwritten, sizeof(in->nwritten));
	}
	digest_end(&d, text);
	for (int i = 0; i < nseen; i++) {
		if (!strcmp(seen[i], text))
			return 1;
	}
	ck_assert_int_lt(nseen, MAX_SEEN);
	strcpy(seen[nseen++], text);
	return 0;
}

static int returned[4]; /* calls when the save of a step had returned */
static int found[4];	/* folders with the checkpoint of a step */

static void check_folder(const struct names *f, int keep, int after, uint32_t subset)
{
	int least = 1, step, weights;

	/* once a save has returned, a crash does not undo it */
	for (int k = 2; k <= 3 && after >= returned[k]; k++)
		least = k;
	if (was_seen(f, keep, least))
		return;
	make(f, keep);
	say_hush(1);
	weights = weights_there();
	step = step_there();
	say_hush(0);
	/* one of two renames may be lost, but no checkpoint is of two steps or without weights */
	ck_assert_msg(weights > 0 || (weights == -1 && mode == IN_TURN),
		      "crash after call %d of %d, name changes 0x%x kept: other programs find %s",
		      after, nevents, subset, weights == -1 ? "no weights" : "those of two steps");
	ck_assert_msg(step >= least && step <= 3,
		      "crash after call %d of %d, name changes 0x%x kept, other data %s: %s", after,
		      nevents, subset, keep ? "kept" : "lost",
		      step == -1 ? "it cannot be resumed" :
		      step == -2 ? "its files do not belong together" :
				   "a save that had returned is lost");
	found[step]++;
}

/* crash after these events: base is the folder as synced, pending what changed since */
static void check_crash(const struct names *base, const int *pending, int npending, int after)
{
	ck_assert_int_le(npending, 12);
	for (uint32_t subset = 0; subset < 1u << npending; subset++) {
		struct names f = *base;

		for (int k = 0; k < npending; k++) {
			if (subset & 1u << k)
				change(&f, &event[pending[k]]);
		}
		check_folder(&f, 0, after, subset);
		check_folder(&f, 1, after, subset);
	}
}

/* the files that are there before the record begins */
static void read_folder(struct names *f)
{
	static const char *const file[] = {
		"config.json", "model.safetensors", "state.safetensors",
		"model.safetensors.index.json", "model-00001-of-00001.safetensors",
		"state-00001-of-00001.safetensors"
	};

	memset(f, 0xff, sizeof(*f));
	for (size_t i = 0; i < TT_LEN(file); i++) {
		struct inode *in = &inodes[ninodes];
		char path[2048];
		struct stat st;
		FILE *in_file;

		snprintf(path, sizeof(path), "%s/%s", dir, file[i]);
		in_file = fopen(path, "r");
		if (!in_file)
			continue;
		fstat(fileno(in_file), &st);
		in->nbytes = (size_t)st.st_size;
		in->synced = 1;
		in->data = malloc(in->nbytes);
		ck_assert_uint_eq(fread(in->data, 1, in->nbytes, in_file), in->nbytes);
		fclose(in_file);
		f->inode[name_of(file[i])] = ninodes++;
	}
}

/* crash after each event of the record, which began with the folder base */
static void check_record(struct names *base)
{
	int pending[MAX_EVENTS], npending = 0;

	recording = 0;
	for (int i = 0; i <= nevents; i++) {
		const struct event *e = &event[i];

		check_crash(base, pending, npending, i);
		if (i == nevents)
			break;
		if (e->what == WRITE)
			put(&inodes[e->inode], e);
		else if (e->what == SYNC)
			inodes[e->inode].synced = 1;
		else if (is_name_event(e))
			pending[npending++] = i;
		if (e->what != SYNC_FOLDER)
			continue;
		for (int k = 0; k < npending; k++)
			change(base, &event[pending[k]]);
		npending = 0;
	}
}

CASE(crash, "host", .setup = setup, .teardown = teardown);

TEST_EACH(crash, a_crash_leaves_a_complete_checkpoint, NMODES)
{
	struct names base;

	mode = _i;
	save(1);
	read_folder(&base);
	recording = 1;
	for (int step = 2; step <= 3; step++) {
		save(step);
		returned[step] = nevents;
	}
	check_record(&base);
	/* the record was not empty */
	for (int step = 1; step <= 3; step++)
		ck_assert_int_gt(found[step], 3);
}

/* the calls of a save that may fail: files are created, synced and renamed */
static int count_calls(int step)
{
	ncalls = 0;
	save(step);
	return ncalls;
}

static int failing_save(int step, int at, int on)
{
	int r;

	ncalls = 0;
	fail_at = at;
	fails_on = on;
	say_hush(1);
	r = try_to_save(step);
	say_hush(0);
	fail_at = -1;
	return r;
}

/* the call of a save that syncs the folder after the rename of the state */
static int find_commit(void)
{
	int ncreated = 0, i;

	/* creations, syncs and renames are calls that may fail */
	const int state = name_of("state.safetensors");

	for (i = 0; i < nevents && (event[i].what != RENAME || event[i].to != state); i++)
		ncreated += event[i].what != WRITE && event[i].what != UNLINK;
	return ncreated + 1;
}

/* not IN_TURN, whose saves make unequal calls */
TEST_EACH(crash, a_crash_while_a_save_is_completed_leaves_a_complete_checkpoint, IN_TURN)
{
	struct names base;
	int commit, n;

	mode = _i;
	save(1);
	read_folder(&base);
	recording = 1;
	save(2);
	returned[2] = nevents;
	commit = find_commit();
	n = nevents;
	/* a process that is killed after it has renamed the state, and one that resumes */
	ck_assert_int_ne(failing_save(3, commit, 1), 0);
	ck_assert_int_eq(event[nevents - 1].what, RENAME);
	ck_assert_int_eq(step_there(), 3);
	returned[3] = nevents;
	ck_assert_int_gt(nevents, n + commit + 3);
	check_record(&base);
	ck_assert_int_gt(found[3], 3);
}

/* te_train tries again after a failure: neither may take away the only files that fit together */
TEST_EACH(crash, failed_saves_leave_a_complete_checkpoint, NMODES)
{
	int first, step, n;

	mode = _i;
	n = count_calls(1);
	ck_assert_int_gt(n, 8);
	for (int i = 0; i < n; i++) {
		for (int j = 0; j <= n; j += mode == WHOLE ? 1 : 4) {
			save(1);
			first = failing_save(2, i, 0);
			failing_save(3, j, 1);
			say_hush(1);
			step = step_there();
			say_hush(0);
			ck_assert_msg(step >= (first ? 1 : 2),
				      "call %d of a save and those from call %d of the next one "
				      "failed: %s", i, j,
				      step < 0 ? "it cannot be resumed" : "a step is lost");
			save(4);
			ck_assert_int_eq(step_there(), 4);
		}
	}
}

TT_MAIN("tools/ckpt_crash", TT_NEED_NOTHING)
