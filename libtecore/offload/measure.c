/* measure.c - te_spill_info(3) and te_spill_measure(3): the file tier tried and timed. */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <te/spill.h>

#include "libtecore/base/base.h"
#include "libtecore/base/splitmix64.h"
#include "libtecore/offload/spill_io.h"

#define FILE_NBYTES ((uint64_t)256 << 20)
#define GROUP_BLOCKS 4u /* operations of a request */

static const char *folder(const char *dir)
{
	if (!dir)
		dir = te__param_str(TE_PARAM_OFFLOAD_DIR);
	return *dir ? dir : ".";
}

static int try_folder(const char *dir, struct te_spill_info *ret)
{
	const struct te__spill_opts o = { .dir = dir, .quota_nbytes = 1 << 20, .ngroups = 1 };
	struct te__pinned *arena;
	struct te__spill *spill;
	struct te__spill_stats stats;
	int r = te__pinned_create(NULL, 1, &arena);

	if (r)
		return r;
	r = te__spill_create(arena, &o, &spill);
	if (!r) {
		te__spill_stats(spill, &stats);
		snprintf(ret->engine, sizeof(ret->engine), "%s", stats.engine);
		snprintf(ret->reason, sizeof(ret->reason), "%s", stats.reason);
		ret->usable = 1;
		ret->direct = stats.direct;
		ret->align_bytes = (int32_t)stats.align;
		ret->registered = stats.fixed;
		te__spill_destroy(spill);
	}
	te__pinned_destroy(arena);
	return r;
}

int te_spill_info(const char *dir, struct te_spill_info *ret_info)
{
	struct te_spill_info info = TE_SPILL_INFO_INIT;
	struct rlimit limit;
	struct statvfs s;
	struct stat st;
	int r = te__sized_check("te_spill_info", te_spill_info, ret_info);

	if (r)
		return r;
	dir = folder(dir);
	r = try_folder(dir, &info);
	if (r == -ENOMEM)
		return r;
	if (r)
		snprintf(info.reason, sizeof(info.reason), "%s", te_error_detail());
	if (!stat(dir, &st) && S_ISDIR(st.st_mode) && !statvfs(dir, &s))
		info.free_nbytes = (uint64_t)s.f_bavail * s.f_frsize;
	info.memlock_nbytes = UINT64_MAX;
	if (!getrlimit(RLIMIT_MEMLOCK, &limit) && limit.rlim_cur != RLIM_INFINITY)
		info.memlock_nbytes = limit.rlim_cur;
	te__sized_out(te_spill_info, &info, ret_info);
	return 0;
}

/* The file as groups of equal size, which use the slots of the arena in turn. */
struct meter {
	struct te__pinned *arena;
	struct te__spill *spill;
	uint32_t ngroups, nslots; /* nslots: in each direction */
	size_t group_nbytes;
};

static void *slot_of(const struct meter *m, enum te__spill_dir dir, uint32_t i)
{
	return (uint8_t *)te__pinned_base(m->arena) +
	       ((size_t)dir * m->nslots + i % m->nslots) * m->group_nbytes;
}

static int request(const struct meter *m, enum te__spill_dir dir, uint32_t group, uint32_t i)
{
	void *slot = slot_of(m, dir, i);

	if (dir == TE__SPILL_WRITE)
		return te__spill_write(m->spill, group, slot, m->group_nbytes, NULL, 0);
	return te__spill_read(m->spill, group, slot, m->group_nbytes, NULL, 0);
}

/* n groups in each direction, from first[dir] on; a direction whose first is UINT32_MAX rests */
static int transfer(const struct meter *m, const uint32_t first[2], uint32_t n)
{
	int r = 0;

	for (uint32_t i = 0; i < n + m->nslots && !r; i++)
		for (int dir = 0; dir < 2 && !r; dir++) {
			if (first[dir] == UINT32_MAX)
				continue;
			/* the slot was used by the request nslots before */
			if (i >= m->nslots)
				r = te__spill_wait(m->spill, (enum te__spill_dir)dir,
						   first[dir] + i - m->nslots, -1);
			if (!r && i < n)
				r = request(m, (enum te__spill_dir)dir, first[dir] + i, i);
		}
	return r;
}

static double cpu_s(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
	       1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* the q-quantile of operations between two readings of the counters, in both directions */
static double quantile_us(const struct te__spill_stats *from, const struct te__spill_stats *to,
			  double q)
{
	uint64_t n[TE__SPILL_BINS], all = 0, seen = 0;
	int i;

	for (i = 0; i < TE__SPILL_BINS; i++) {
		n[i] = to->latency_bin[0][i] - from->latency_bin[0][i] + to->latency_bin[1][i] -
		       from->latency_bin[1][i];
		all += n[i];
	}
	for (i = 0; i < TE__SPILL_BINS - 1; i++) {
		seen += n[i];
		if ((double)seen >= q * (double)all)
			break;
	}
	/* the middle of the bin */
	return exp2((i + 0.5) / 4);
}

static int measure(const struct meter *m, const uint32_t first[2], uint32_t n,
		   struct te_spill_rate *ret)
{
	struct te__spill_stats from, to;
	const double cpu = cpu_s();
	const uint64_t ns = te__now_ns();
	double bytes, s;
	int r;

	te__spill_stats(m->spill, &from);
	te__spill_forget_max(m->spill);
	r = transfer(m, first, n);
	if (r)
		return r;
	s = 1e-9 * (double)(te__now_ns() - ns);
	te__spill_stats(m->spill, &to);
	bytes = (double)(to.nbytes[0] - from.nbytes[0] + to.nbytes[1] - from.nbytes[1]);
	ret->bytes_per_s = bytes / s;
	ret->cpu_s_per_gb = (cpu_s() - cpu) / bytes * 1e9;
	ret->p50_us = quantile_us(&from, &to, 0.5);
	ret->p99_us = quantile_us(&from, &to, 0.99);
	ret->max_us = 1e-3 * (double)(to.latency_max_ns[0] > to.latency_max_ns[1] ?
					      to.latency_max_ns[0] : to.latency_max_ns[1]);
	return 0;
}

static int measure_all(const struct meter *m, struct te_spill_rates *ret)
{
	const uint32_t half = m->ngroups / 2, none = UINT32_MAX;
	const uint32_t write[2] = { 0, none }, read[2] = { none, 0 }, both[2] = { 0, half };
	struct te__spill_stats stats;
	int r = 0;

	for (uint32_t g = 0; g < m->ngroups && !r; g++)
		r = te__spill_reserve(m->spill, g, m->group_nbytes);
	if (!r)
		r = transfer(m, write, m->ngroups);
	if (!r)
		r = measure(m, write, m->ngroups, &ret->write);
	if (!r)
		r = measure(m, read, m->ngroups, &ret->read);
	if (!r)
		r = measure(m, both, half, &ret->both);
	if (r)
		return r;
	te__spill_stats(m->spill, &stats);
	snprintf(ret->engine, sizeof(ret->engine), "%s", stats.engine);
	ret->direct = stats.direct;
	ret->registered = stats.fixed;
	return 0;
}

static int engine_of(const char *name, enum te__spill_engine *ret)
{
	*ret = TE__SPILL_AUTO;
	if (!name)
		return 0;
	if (!strcmp(name, te__spill_uring.name))
		*ret = TE__SPILL_URING;
	else if (!strcmp(name, te__spill_threads.name))
		*ret = TE__SPILL_THREADS;
	else
		return te__fail(-EINVAL, "te_spill_measure: no engine is named %s, only io_uring "
				"and threads", name);
	return 0;
}

static int check_opts(const struct te_spill_opts *o, struct te__spill_opts *ret)
{
	const uint64_t block = o->block_nbytes ? o->block_nbytes : (uint64_t)4 << 20;
	const uint64_t nbytes = o->nbytes ? o->nbytes : FILE_NBYTES;

	if (o->depth < 0 || o->verify < 0 || o->verify > TE_SPILL_VERIFY_OFF ||
	    block > UINT32_MAX)
		return te__fail(-EINVAL, "te_spill_measure: depth %d, verify %d, blocks of %" PRIu64
				" bytes", o->depth, o->verify, block);
	if (nbytes / (GROUP_BLOCKS * block) < 2 || nbytes / (GROUP_BLOCKS * block) > UINT32_MAX / 2)
		return te__fail(-EINVAL, "te_spill_measure: %" PRIu64 " bytes: at least %" PRIu64
				" are needed for blocks of %" PRIu64, nbytes,
				2 * GROUP_BLOCKS * block, block);
	*ret = (struct te__spill_opts){
		.dir = folder(o->dir),
		.quota_nbytes = nbytes,
		.ngroups = (uint32_t)(nbytes / (GROUP_BLOCKS * block)),
		.block_nbytes = block,
		.depth = (uint32_t)o->depth,
		.verify = (enum te__spill_verify)o->verify,
	};
	return engine_of(o->engine, &ret->engine);
}

/* zeros would not be written by every drive */
static void fill(uint64_t *p, size_t nbytes)
{
	uint64_t state = nbytes;

	for (size_t i = 0; i < nbytes / sizeof(*p); i++)
		p[i] = te__splitmix64(&state);
}

int te_spill_measure(const struct te_spill_opts *opts, struct te_spill_rates *ret_rates)
{
	struct te_spill_rates rates = TE_SPILL_RATES_INIT;
	struct te_spill_opts o = TE_SPILL_OPTS_INIT;
	struct te__spill_opts so;
	struct meter m = { 0 };
	int r = te__sized_check("te_spill_measure", te_spill_rates, ret_rates);

	if (!r && opts)
		r = te__sized_in("te_spill_measure", te_spill_opts, opts, &o);
	if (!r)
		r = check_opts(&o, &so);
	if (r)
		return r;
	m.ngroups = so.ngroups;
	m.group_nbytes = GROUP_BLOCKS * so.block_nbytes;
	/* enough to have depth blocks in flight while a group is exchanged */
	m.nslots = (so.depth ? so.depth : 8) / GROUP_BLOCKS + 2;
	r = te__pinned_create(NULL, 2 * (size_t)m.nslots * m.group_nbytes, &m.arena);
	if (!r) {
		fill(te__pinned_base(m.arena), te__pinned_nbytes(m.arena));
		r = te__spill_create(m.arena, &so, &m.spill);
	}
	if (!r)
		r = measure_all(&m, &rates);
	te__spill_destroy(m.spill);
	te__pinned_destroy(m.arena);
	if (!r)
		te__sized_out(te_spill_rates, &rates, ret_rates);
	return r;
}
