/*
 * t/plan/optim_file.c - AdamW with moments in a file: the bits of moments in device memory; steps
 * that fail change nothing.
 */
#include "config.h"

#include <dirent.h>
#include <pthread.h>
#include <unistd.h>

#include <te/checkpoint.h>
#include <te/errno.h>
#include "libtecore/base/base.h"
#include "libtecore/offload/spill_impl.h"
#include "libtecore/plan/optim.h"

#include "tt_num.h"
#include "optim_runs.h"

static const char *folder(void)
{
	return getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
}

static struct te_adamw_opts filed(enum te_moments moments, int32_t chunk)
{
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;

	o.moments = moments;
	o.where = TE_ADAMW_FILE;
	o.dir = folder();
	o.chunk_nelems = chunk;
	return o;
}

static struct te_adamw_opts on_device(enum te_moments moments)
{
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;

	o.moments = moments;
	return o;
}

CTX_CASE(filed_moments, backend, .name = "moments in a file");

/* _i: how weights and moments are stored; 32, 11, 2 and 2 chunks, with four slots */
TEST_EACH(filed_moments, has_the_bits_of_device_memory, 9)
{
	struct te_adamw_opts o = on_device((enum te_moments)(_i / 3)), f;
	struct run device = start(masters[_i % 3], &o), r;

	train(&device, EAGER);
	for (size_t i = 1; i < 5; i++) {
		f = filed(o.moments, chunks[i]);
		r = start(masters[_i % 3], &f);
		train(&r, EAGER);
		same(&device, &r);
		end(&r);
	}
	end(&device);
}

/* a chunk of each state in host memory goes through a buffer, too */
TEST_EACH(filed_moments, masters_and_gradients_in_host_memory_have_these_bits, 3)
{
	static const uint32_t flags[] = { TE_SEQ_BF16_MASTERS | TE_SEQ_HOST_MASTERS,
					  TE_SEQ_BF16_MASTERS | TE_SEQ_HOST_MASTERS |
						  TE_SEQ_HOST_GRADS,
					  TE_SEQ_BF16_MASTERS | TE_SEQ_HOST_MASTERS |
						  TE_SEQ_REMAINDERS };
	struct te_adamw_opts o = on_device(TE_MOMENTS_FP8), f = filed(TE_MOMENTS_FP8, 192);
	struct run device = start(masters[_i == 2 ? 1 : 2], &o), r = start(flags[_i], &f);

	train(&device, EAGER);
	train(&r, EAGER);
	same(&device, &r);
	end(&device);
	end(&r);
}

/* one of three parts: its elements, and the tail */
TEST_EACH(filed_moments, parts_have_the_same_bits, 3)
{
	struct te_adamw_opts o[2] = { on_device((enum te_moments)_i),
				      filed((enum te_moments)_i, 192) };
	struct part p[2] = { { 0 } };
	struct run r[2];

	for (int part = 0; part < 3; part++) {
		for (int i = 0; i < 2; i++) {
			o[i].nparts = 3;
			o[i].part = part;
			o[i].gather = gather;
			o[i].gather_arg = &p[i];
			p[i].part = part;
			r[i] = start(masters[1], &o[i]);
			train(&r[i], EAGER);
		}
		ck_assert_int_eq(p[0].ncalls, p[1].ncalls);
		same(&r[0], &r[1]);
		end(&r[0]);
		end(&r[1]);
	}
}

/* moments as the program reads and writes them; neither changes the other one */
TEST_EACH(filed_moments, moments_are_read_and_written, 3)
{
	const struct te_adamw_opts f = filed((enum te_moments)_i, 128);
	struct run r = start(0, &f);
	const size_t nbytes = te_moments_nbytes(f.moments, (int64_t)r.n);
	uint8_t *m = moment_of(&r, 1), *back;

	for (size_t i = 0; i < nbytes; i++)
		ck_assert_uint_eq(m[i], 0);
	free(m);
	train(&r, EAGER);
	m = moment_of(&r, 1);
	DO(te_adamw_moments_set(r.opt, 0, m));
	for (int second = 0; second < 2; second++) {
		back = moment_of(&r, second);
		ck_assert_mem_eq(m, back, nbytes);
		free(back);
	}
	free(m);
	ck_assert_ptr_null(te_adamw_m(r.opt));
	ck_assert_ptr_null(te_adamw_v(r.opt));
	ck_assert_int_eq((int)te_adamw_moments(r.opt), _i);
	end(&r);
}

static int no_moments(void *arg, const struct te_region *region)
{
	++*(int *)arg;
	ck_assert_msg(!strstr(region->name, "moments"), "%s", region->name);
	return 0;
}

/* device memory is that of a chunk, pinned memory that of four, and two records are in the file */
TEST(filed_moments, takes_the_memory_of_chunks)
{
	const struct te_adamw_opts o = on_device(TE_MOMENTS_FP32);
	struct te_adamw_opts f = filed(TE_MOMENTS_FP32, 256), h = f;
	struct run r = start(0, &f);
	struct te__spill_stats stats;
	int nregions = 0, nnames = 0;
	DIR *dir = opendir(folder());

	h.where = TE_ADAMW_HOST;
	h.dir = NULL;
	ck_assert_uint_eq(te_adamw_nbytes(r.seq, &o) - te_adamw_nbytes(r.seq, &f),
			  2 * 4 * (2048 - 256));
	ck_assert_uint_eq(te_adamw_host_nbytes(r.seq, &f),
			  4 * 4096 + sizeof(struct te_k_adamw_state));
	ck_assert_uint_eq(te_adamw_file_nbytes(r.seq, &f), 2 * 8 * 4096); /* 3 KiB, rounded up */
	ck_assert_uint_eq(te_adamw_host_nbytes(r.seq, &h), 2 * 4 * 2048);
	ck_assert_uint_eq(te_adamw_file_nbytes(r.seq, &h), 0);
	ck_assert_uint_eq(te_adamw_host_nbytes(r.seq, &o), 0);
	te__spill_stats(te__adamw_file_spill(r.opt), &stats);
	ck_assert_uint_eq(stats.file_nbytes, te_adamw_file_nbytes(r.seq, &f));
	DO(te_adamw_regions(r.opt, no_moments, &nregions));
	ck_assert_int_ge(nregions, 2);
	ck_assert_ptr_nonnull(dir);
	for (struct dirent *e; (e = readdir(dir));)
		nnames += !strncmp(e->d_name, "te-", 3);
	closedir(dir);
	ck_assert_int_eq(nnames, 0); /* the file has no name */
	end(&r);
}

/* checkpoints do not depend on the memory of moments, and load into either; _i: moments */
TEST_EACH(filed_moments, checkpoints_load_into_either, 3)
{
	struct te_adamw_opts o[2] = { on_device((enum te_moments)_i),
				      filed((enum te_moments)_i, 192) };
	struct te_adamw_opts other = filed((enum te_moments)((_i + 1) % 3), 192);
	struct run r[2], back;
	char path[2][256];

	for (int i = 0; i < 2; i++) {
		snprintf(path[i], sizeof(path[i]), "%s/te-optim-file-%d-%d", folder(),
			 (int)getpid(), i);
		r[i] = start(masters[1], &o[i]);
		train(&r[i], EAGER);
		DO(te_checkpoint_save(r[i].seq, r[i].opt, path[i]));
	}
	for (int i = 0; i < 2; i++) {
		back = start(masters[1], &o[i]);
		ck_assert_int_ge(te_checkpoint_load(back.seq, back.opt, path[!i], 0, NULL), 0);
		same(&back, &r[0]);
		end(&back);
	}
	/* stored in another way, in the memory of the device and in a file */
	for (int i = 0; i < 2; i++) {
		end(&r[i]);
		r[i] = start(masters[1], &other);
		ck_assert_int_ge(te_checkpoint_load(r[i].seq, r[i].opt, path[1], 0, NULL), 0);
		other = on_device(other.moments);
	}
	same(&r[0], &r[1]);
	for (int i = 0; i < 2; i++) {
		unlink(path[i]);
		end(&r[i]);
	}
}

/* ---- failures ---- */

/* the engine of a spill, some of whose blocks fail, or never end */
static struct {
	struct te__spill_ops ops;
	const struct te__spill_ops *real;
	enum te__spill_dir dir;
	int left;  /* blocks until then */
	int nbad;  /* blocks of any direction from there on */
	int drops; /* 1: they do not end */
	int fired;
	uint32_t timeout_ms;
} broken;

static void submit_broken(void *impl, const struct te__blk *blk)
{
	struct te__blk b = *blk;

	if (b.dir == broken.dir && broken.left > 0) {
		broken.left--;
	} else if ((b.dir == broken.dir || broken.fired) && broken.fired < broken.nbad) {
		broken.fired++;
		if (broken.drops)
			return;
		b.offset = (uint64_t)1 << 62; /* no file reaches so far */
	}
	broken.real->submit(impl, &b);
}

static void break_file(const struct run *r, enum te__spill_dir dir, int left, int nbad, int drops)
{
	struct te__spill *s = te__adamw_file_spill(r->opt);

	pthread_mutex_lock(&s->lock);
	broken.real = s->ops;
	broken.ops = *s->ops;
	broken.ops.submit = submit_broken;
	broken.timeout_ms = s->timeout_ms;
	s->timeout_ms = drops ? TT_SLOWER(200) : s->timeout_ms;
	broken.dir = dir;
	broken.left = left;
	broken.nbad = nbad;
	broken.drops = drops;
	broken.fired = 0;
	s->ops = &broken.ops;
	pthread_mutex_unlock(&s->lock);
}

/* returns the number of blocks that failed */
static int mend_file(const struct run *r)
{
	struct te__spill *s = te__adamw_file_spill(r->opt);
	int fired;

	pthread_mutex_lock(&s->lock);
	s->ops = broken.real;
	s->timeout_ms = broken.timeout_ms;
	fired = broken.fired;
	pthread_mutex_unlock(&s->lock);
	return fired;
}

/* Whichever block fails, the step reports it, and weights, moments and state are as before; later
 * steps have the bits that they would have had. _i: direction, and how weights are stored */
TEST_EACH(filed_moments, a_step_whose_file_fails_is_undone, 6)
{
	const struct te_adamw_opts f = filed((enum te_moments)(_i / 2), 192);
	const uint32_t flags = masters[_i / 2];
	struct run want = start(flags, &f), r = start(flags, &f);
	int nfailed = 0;

	train(&want, EAGER);
	for (int i = 0; i < NSTEPS; i++) {
		struct state before = state_of(&r);

		for (int left = 0;; left++) {
			int e, fired;

			put_grads(&r, i);
			break_file(&r, _i % 2 ? TE__SPILL_READ : TE__SPILL_WRITE, left, 1, 0);
			e = te_adamw_step(r.opt, st);
			fired = mend_file(&r);
			if (!fired) {
				DO(e);
				break;
			}
			ck_assert_int_lt(e, 0);
			ck_assert_ptr_nonnull(strstr(te_error_detail(), _i % 2 ? "read of group" :
										 "write of group"));
			same_state(&r, &before);
			nfailed++;
		}
		state_free(&before);
	}
	ck_assert_int_eq(nfailed, NSTEPS * 11); /* chunks */
	same(&want, &r);
	end(&want);
	end(&r);
}

/* a block that does not end is given up, and the step undone; the record cannot be written as long
 * as the block may still be, which is an error, too */
TEST_IF(filed_moments, a_step_whose_file_hangs_is_undone, ON_HOST)
{
	const struct te_adamw_opts f = filed(TE_MOMENTS_FP32, 512);
	struct run r = start(0, &f);
	struct state before;

	put_grads(&r, 0);
	DO(te_adamw_step(r.opt, st));
	before = state_of(&r);
	break_file(&r, TE__SPILL_WRITE, 1, 1, 1);
	put_grads(&r, 1);
	fails(te_adamw_step(r.opt, st), -ETIMEDOUT, "write of group");
	ck_assert_int_eq(mend_file(&r), 1);
	same_state(&r, &before);
	fails(te_adamw_step(r.opt, st), -EBUSY, "still in flight");
	same_state(&r, &before);
	state_free(&before);
	end(&r);
}

/* weights that cannot be restored, because the file fails for good, are not used further */
TEST(filed_moments, a_step_that_cannot_be_undone_is_the_last)
{
	const struct te_adamw_opts f = filed(TE_MOMENTS_FP32, 192);
	struct run r = start(0, &f);
	void *m;
	int e;

	m = moment_of(&r, 0);
	put_grads(&r, 0);
	break_file(&r, TE__SPILL_WRITE, 9, 1 << 20, 0); /* chunks 0 to 5 are in no slot any more */
	e = te_adamw_step(r.opt, st);
	ck_assert_int_lt(e, 0);
	ck_assert_int_ge(mend_file(&r), 2);
	fails(te_adamw_step(r.opt, st), e, "te_adamw_step: a step that failed could not be undone");
	fails(te_adamw_moments_get(r.opt, 0, m), e, "te_adamw_moments_get: a step that failed");
	fails(te_adamw_moments_set(r.opt, 0, m), e, "te_adamw_moments_set: a step that failed");
	free(m);
	end(&r);
}

/* likewise for te_adamw_moments_set(): the moment is as before */
TEST(filed_moments, moments_that_are_not_written_do_not_change)
{
	const struct te_adamw_opts f = filed(TE_MOMENTS_BF16, 192);
	struct run r = start(0, &f);
	const size_t nbytes = te_moments_nbytes(f.moments, (int64_t)r.n);
	uint8_t *m = calloc(nbytes, 1);
	struct state before;

	train(&r, EAGER);
	before = state_of(&r);
	for (int left = 0; left < 11; left += 5) {
		break_file(&r, TE__SPILL_WRITE, left, 1, 0);
		ck_assert_int_lt(te_adamw_moments_set(r.opt, 0, m), 0);
		ck_assert_int_eq(mend_file(&r), 1);
		same_state(&r, &before);
	}
	state_free(&before);
	free(m);
	end(&r);
}

/* whichever call fails */
TEST_IF(filed_moments, a_step_that_fails_changes_nothing, ON_HOST)
{
	const struct te_adamw_opts f = filed(TE_MOMENTS_FP8, 512);
	struct run want = start(masters[1], &f), r = start(masters[1], &f);
	int nfailed = 0;

	train(&want, EAGER);
	for (int i = 0; i < NSTEPS; i++) {
		struct state before = state_of(&r);

		put_grads(&r, i);
		for (uint64_t nth = 1;; nth++) {
			int e, fired;

			te__fault_set(nth);
			e = te_adamw_step(r.opt, st);
			fired = te__fault_fired();
			te__fault_set(0);
			if (!fired) {
				DO(e);
				break;
			}
			ck_assert_int_lt(e, 0);
			same_state(&r, &before);
			nfailed++;
		}
		state_free(&before);
	}
	ck_assert_int_ge(nfailed, 2 * NSTEPS);
	same(&want, &r);
	end(&want);
	end(&r);
}

TEST(filed_moments, names_the_option_at_fault)
{
	struct te_adamw_opts f = filed(TE_MOMENTS_FP32, 0);
	struct run r = start(0, NULL);
	struct te_adamw *opt = NULL;

	f.dir = NULL;
	fails(te_adamw_create(r.seq, &f, &opt), -EINVAL,
	      "te_adamw_create: TE_ADAMW_FILE, and dir is NULL");
	f.dir = ".";
	f.where = TE_ADAMW_HOST;
	fails(te_adamw_create(r.seq, &f, &opt), -EINVAL,
	      "te_adamw_create: dir ., expected NULL without TE_ADAMW_FILE");
	f = filed(TE_MOMENTS_FP32, 0);
	f.flags = TE_ADAMW_CAST;
	fails(te_adamw_create(r.seq, &f, &opt), -EINVAL,
	      "te_adamw_create: TE_ADAMW_CAST, expected no TE_ADAMW_FILE");
	ck_assert_uint_eq(te_adamw_file_nbytes(r.seq, &f), 0);
	f = filed(TE_MOMENTS_FP32, 0);
	f.dir = "/nowhere/at/all";
	fails(te_adamw_create(r.seq, &f, &opt), -ENOENT, "/nowhere/at/all");
	ck_assert_ptr_null(opt);
	end(&r);
}

TEST(filed_moments, steps_cannot_be_captured)
{
	const struct te_adamw_opts f = filed(TE_MOMENTS_FP32, 0);
	struct run r = start(0, &f);
	struct te_recording *rec = NULL;

	DO(te_capture_begin(st));
	fails(te_adamw_step(r.opt, st), -EBUSY, "te_adamw_step: moments in a file: the stream is "
						"capturing");
	(void)te_capture_end(st, &rec);
	te_recording_unref(rec);
	end(&r);
}

static int create(void)
{
	const struct te_adamw_opts f = filed(TE_MOMENTS_FP8, 1024);
	struct te_adamw *opt = NULL;
	struct te_ctx *c = NULL;
	struct te_seq *s = NULL;
	int r = tt_ctx_new(&c);

	if (r >= 0)
		r = build(c, masters[1], &s);
	if (r >= 0)
		r = te_adamw_create(s, &f, &opt);
	if (r >= 0)
		r = te_adamw_step(opt, te_ctx_stream(c));
	te_adamw_unref(opt);
	te_seq_unref(s);
	te_ctx_unref(c);
	return r;
}

CASE(file_faults, backend);

/* a ring that cannot be made is replaced by threads, which is no failure */
TEST_IF(file_faults, survives_every_failed_allocation, ON_HOST)
{
	const int64_t live = te__alloc_live();
	int nfailed = 0, nth = 1, fired = 1;

	for (; fired; nth++) {
		int r;

		te__fault_set((uint64_t)nth);
		r = create();
		fired = te__fault_fired();
		te__fault_set(0);
		ck_assert_msg(te__alloc_live() == live, "fault %d: a leak", nth);
		nfailed += r < 0;
	}
	ck_assert_int_ge(nfailed, 100);
	ck_assert_int_ge(nfailed, nth - 2 - 8);
}
