/* t/offload/spill_lib.c - the fixture and the shim of the tests of the file tier. */
#include "config.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include "spill_lib.h"

const struct engine engines[NENGINES] = {
	{ "io_uring", TE__SPILL_URING, 0 },
	{ "io_uring, plain", TE__SPILL_URING, 1 },
	{ "threads", TE__SPILL_THREADS, 0 },
	{ "memory", TE__SPILL_MEMORY, 0 },
};

char spill_dir[64];
struct te__pinned *arena;
struct te__spill *spill;
struct te__spill_opts spill_opts;
struct shim shim;

/* the shim's table */

static int shim_open(const struct te__spill_io *io, void **ret_impl)
{
	struct te__spill_io more = *io;
	int r;

	/* more memory than can be registered: buffers are plain */
	if (shim.code == SHIM_DROP)
		more.mem_nbytes = (size_t)1 << 60;
	r = shim.real->open(&more, &shim.impl);
	if (!r)
		*ret_impl = &shim;
	return r;
}

static int shim_close(void *impl)
{
	struct shim *h = impl;

	return h->real->close(h->impl);
}

static void shim_submit(void *impl, const struct te__blk *blk)
{
	struct shim *h = impl;
	struct te__blk b = *blk;
	int32_t res = SHIM_PASS;

	if (h->on && h->on_submit)
		res = h->on_submit(h, &b, ++h->nsubmits);
	if (res == SHIM_PASS)
		h->real->submit(h->impl, &b);
	else if (res == SHIM_DROP)
		h->ndropped++;
	else
		h->ready[h->nready++] = (struct te__blk_done){ b.tag, res };
}

static int shim_reap(void *impl, struct te__blk_done *ret, uint32_t n, int64_t wait_ns)
{
	struct shim *h = impl;
	const int gate = atomic_load(&h->gate);
	int got;

	while (atomic_load(&h->stuck))
		usleep(1000);
	if (!gate && h->nheld) {
		memcpy(&h->ready[h->nready], h->held, h->nheld * sizeof(h->held[0]));
		h->nready += h->nheld;
		h->nheld = 0;
	}
	if (h->nready) {
		*ret = h->ready[--h->nready];
		return 1;
	}
	got = h->real->reap(h->impl, ret, n, gate && wait_ns < 0 ? 1000000 : wait_ns);
	if (gate && got > 0) {
		memcpy(&h->held[h->nheld], ret, (size_t)got * sizeof(*ret));
		h->nheld += (uint32_t)got;
		return 0;
	}
	for (int i = 0; i < got && h->on && h->on_done; i++)
		h->on_done(h, &ret[i], ++h->ndones);
	return got;
}

static void shim_wake(void *impl)
{
	struct shim *h = impl;

	h->real->wake(h->impl);
}

static const struct te__spill_ops shim_ops = {
	.name = "shim",
	.open = shim_open,
	.close = shim_close,
	.submit = shim_submit,
	.reap = shim_reap,
	.wake = shim_wake,
};

/* the fixture */

void arena_new(size_t nbytes)
{
	te__pinned_destroy(arena);
	DO(te__pinned_create(NULL, nbytes, &arena));
}

/* 1: there is a tmpfs, with the room that the tests need */
static int has_tmpfs(void)
{
	struct statvfs s;

	return !access("/dev/shm", W_OK) && !statvfs("/dev/shm", &s) &&
	       (uint64_t)s.f_bavail * s.f_frsize > 512 * MIB;
}

static void set_up_in(const char *dir)
{
	snprintf(spill_dir, sizeof(spill_dir), "%s/te-spill-XXXXXX", dir);
	ck_assert_ptr_nonnull(mkdtemp(spill_dir));
	arena = NULL;
	spill = NULL;
	arena_new(8 * MIB);
	memset(&shim, 0, sizeof(shim));
	spill_opts = (struct te__spill_opts){
		.dir = spill_dir,
		.quota_nbytes = 8 * MIB,
		.ngroups = 8,
		.block_nbytes = 64 * KIB,
		.verify = TE__SPILL_VERIFY_ALL,
	};
}

void spill_setup(void)
{
	set_up_in(has_tmpfs() ? "/dev/shm" : tt_tmpdir());
}

void spill_setup_disk(void)
{
	set_up_in(tt_tmpdir());
}

void spill_teardown(void)
{
	spill = te__spill_destroy(spill);
	arena = te__pinned_destroy(arena);
	/* fails unless it is empty */
	ck_assert_msg(!rmdir(spill_dir), "%s: %s", spill_dir, strerror(errno));
	ck_assert_int_eq(te__alloc_live(), 0);
}

int lacks_uring(const struct engine *e)
{
	struct te__spill_opts o = spill_opts;
	struct te__spill *s;
	int r;

	if (e->engine != TE__SPILL_URING)
		return 0;
	o.engine = TE__SPILL_URING;
	o.quota_nbytes = 4 * KIB;
	o.ops = NULL;
	r = te__spill_create(arena, &o, &s);
	if (!r)
		te__spill_destroy(s);
	return r == -EOPNOTSUPP;
}

void use_engine(const struct engine *e, int shimmed)
{
	static const struct te__spill_ops *const ops[] = {
		[TE__SPILL_URING] = &te__spill_uring,
		[TE__SPILL_THREADS] = &te__spill_threads,
		[TE__SPILL_MEMORY] = &te__spill_memory,
	};

	spill_opts.engine = e->engine;
	shim.real = ops[e->engine];
	shim.code = e->plain ? SHIM_DROP : 0;
	spill_opts.ops = shimmed || e->plain ? &shim_ops : NULL;
}

void spill_new(void)
{
	spill = te__spill_destroy(spill);
	shim.on = 0;
	shim.nsubmits = shim.ndones = 0;
	shim.nready = shim.ndropped = shim.nheld = 0;
	DO(te__spill_create(arena, &spill_opts, &spill));
	shim.on = 1;
}

int spill_begin(const struct engine *e, int shimmed, uint32_t n, size_t nbytes)
{
	if (lacks_uring(e))
		return 0;
	use_engine(e, shimmed);
	spill_new();
	for (uint32_t g = 0; g < n; g++)
		DO(te__spill_reserve(spill, g, nbytes));
	return 1;
}

uint8_t *slot_at(size_t offset)
{
	return (uint8_t *)te__pinned_base(arena) + offset;
}

int put(uint32_t group, const void *slot, size_t nbytes)
{
	DO(te__spill_write(spill, group, slot, nbytes, NULL, 0));
	return te__spill_wait(spill, TE__SPILL_WRITE, group, -1);
}

int get(uint32_t group, void *slot, size_t nbytes)
{
	tt_poison(slot, nbytes);
	DO(te__spill_read(spill, group, slot, nbytes, NULL, 0));
	return te__spill_wait(spill, TE__SPILL_READ, group, -1);
}

struct te__spill_stats stats(void)
{
	struct te__spill_stats s;

	te__spill_stats(spill, &s);
	return s;
}

/* ---- faults ---- */

/* what the library logs at level info and above, for "one line says why" */

char logged[4096];
int nlogged;

static void note(void *arg, enum te_log_level level, const char *category, const char *text)
{
	nlogged++;
	snprintf(logged, sizeof(logged), "%s", text);
}

void fault_setup(void)
{
	DO(te_log_filter("info"));
	te_log_set(note, NULL);
	spill_setup();
}

void fault_teardown(void)
{
	spill_teardown();
	te_log_set(NULL, NULL);
}

uint8_t *fresh(void)
{
	static uint8_t want[NBYTES];

	tt_fill_bytes(want, NBYTES);
	memcpy(slot_at(0), want, NBYTES);
	return want;
}

void works(void)
{
	uint8_t *want = fresh();

	DO(put(0, slot_at(0), NBYTES));
	DO(get(0, slot_at(MIB), NBYTES));
	ck_assert(!memcmp(slot_at(MIB), want, NBYTES));
}
