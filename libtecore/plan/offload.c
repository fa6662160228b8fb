/* offload.c - te_offload_*(3): options, rates of the link and of kernels, limits, the report. */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/gemm.h>
#include <te/stream.h>
#include <te/tensor.h>

#include "libtecore/base/private.h"
#include "libtecore/plan/moves.h"
#include "libtecore/plan/offload.h"
#include "libtecore/tensor/ctx.h"

static const char fn[] = "te_offload_create";

/* ---- options ---- */

static int check_opts(const struct te_offload_opts *o)
{
	const double rate[] = { o->out_rate,  o->in_rate,    o->mem_rate,
				o->flop_rate, o->write_rate, o->read_rate };

	if (!(o->margin >= 0 && o->margin <= 0.9))
		return te__fail(-EINVAL, "%s: margin is %g, expected 0 to 0.9", fn, o->margin);
	if (o->timed > 1)
		return te__fail(-EINVAL, "%s: timed is %u, expected 0 or 1", fn,
				(unsigned)o->timed);
	if (o->verify > TE_OFFLOAD_VERIFY_OFF)
		return te__fail(-EINVAL, "%s: verify is %u", fn, (unsigned)o->verify);
	if (o->dir && !o->quota_nbytes)
		return te__fail(-EINVAL, "%s: quota_nbytes of dir %s is 0", fn, o->dir);
	for (size_t i = 0; i < sizeof(rate) / sizeof(rate[0]); i++)
		if (!(rate[i] >= 0 && rate[i] < 1e30))
			return te__fail(-EINVAL, "%s: a rate is %g per second", fn, rate[i]);
	return 0;
}

static int copy_patterns(int32_t n, const char *const *from, const char *const **ret)
{
	char **v = te__calloc((size_t)n + 1, sizeof(*v));

	*ret = (const char *const *)v;
	for (int32_t i = 0; v && i < n; i++) {
		v[i] = te__strdup(from[i]);
		if (!v[i])
			return te__no_memory(fn);
	}
	return v ? 0 : te__no_memory(fn);
}

static void free_patterns(int32_t n, const char *const *patterns)
{
	char **v = (char **)(uintptr_t)patterns;

	for (int32_t i = 0; v && i < n; i++)
		te__free(v[i]);
	te__free(v);
}

/* ---- rates ---- */

enum { SIGNAL_AUTO, SIGNAL_CALLS }; /* TE_OFFLOAD_SIGNAL */

#define NBYTES ((size_t)1 << 20) /* bytes of a measured copy; 16 times as many on a GPU */
#define NBYTES_LEAST ((size_t)1 << 17) /* minimum, if little memory is free */
#define GEMM_N 192
#define REPEATS 4

static double now(void)
{
	return 1e-9 * (double)te__now_ns();
}

/* seconds of the fastest copy */
static int time_copy(struct te_stream *st, void *dst, const void *src, size_t nbytes, double *ret)
{
	double best = 1e9;
	int r = 0;

	for (int i = 0; i < REPEATS && !r; i++) {
		const double begin = now();
		double t;

		r = te_copy(st, dst, src, nbytes);
		if (!r)
			r = te_stream_sync(st);
		t = now() - begin;
		best = t < best ? t : best;
	}
	*ret = best > 1e-9 ? best : 1e-9;
	return r;
}

/* dev: of 2 * nbytes */
static int measure_copies(struct te_stream *st, char *dev, void *pinned, size_t nbytes,
			  struct te__offload_rates *rates)
{
	double out = 1, in = 1, mem = 1;
	int r = te_fill(st, dev, 0, 2 * nbytes);

	if (!r)
		r = time_copy(st, pinned, dev, nbytes, &out);
	if (!r)
		r = time_copy(st, dev, pinned, nbytes, &in);
	if (!r)
		r = time_copy(st, dev + nbytes, dev, nbytes, &mem);
	rates->out = (double)nbytes / out;
	rates->in = (double)nbytes / in;
	rates->mem = 2 * (double)nbytes / mem;
	return r;
}

/* dev: filled with zeros */
static int measure_gemm(struct te_ctx *ctx, struct te_stream *st, char *dev, double *ret_flop)
{
	const int64_t shape[2] = { GEMM_N, GEMM_N };
	const size_t nbytes = 2 * GEMM_N * GEMM_N;
	struct te_tensor *t[3] = { NULL, NULL, NULL };
	double best = 1e9;
	int r = 0;

	for (int i = 0; i < 3 && !r; i++)
		r = te_tensor_wrap(ctx, TE_DTYPE_BF16, 2, shape, dev + (size_t)i * nbytes, NULL,
				   NULL, &t[i]);
	for (int i = 0; i < REPEATS && !r; i++) {
		const double begin = now();
		double s;

		r = te_gemm(st, t[0], t[1], t[2], NULL);
		if (!r)
			r = te_stream_sync(st);
		s = now() - begin;
		best = s < best ? s : best;
	}
	for (int i = 0; i < 3; i++)
		te_tensor_unref(t[i]);
	*ret_flop = 2.0 * GEMM_N * GEMM_N * GEMM_N / (best > 1e-9 ? best : 1e-9);
	return r;
}

static int measure(const struct te_offload *o, size_t nbytes, int gemm,
		   struct te__offload_rates *rates)
{
	void *dev = NULL, *pinned = NULL;
	int r = te_mem_alloc(o->out, 2 * nbytes, &dev);

	for (; r == -ENOMEM && nbytes > NBYTES_LEAST; r = te_mem_alloc(o->out, 2 * nbytes, &dev))
		nbytes /= 2;
	if (!r)
		r = te_pinned_alloc(o->ctx, nbytes, &pinned);
	if (!r)
		r = measure_copies(o->out, dev, pinned, nbytes, rates);
	if (!r && gemm)
		r = measure_gemm(o->ctx, o->out, dev, &rates->flop);
	if (dev)
		te_mem_free(o->out, dev);
	if (pinned)
		te_pinned_free(o->ctx, pinned);
	return r ? r : te_stream_sync(o->out);
}

/* Of GPUs the data sheet is known: kernels reach 0.8 of its bandwidth, 0.6 of its operations. */
static int find_rates(struct te_offload *o)
{
	struct te_device_info info = TE_DEVICE_INFO_INIT;
	const struct te_offload_opts *given = &o->opts;
	struct te__offload_rates *rates = &o->rates;
	int r = te_ctx_device_info(o->ctx, &info);

	rates->mem = 0.8 * info.peak_bandwidth;
	rates->flop = 0.6 * info.peak_bf16_flops;
	if (!r && !(given->out_rate > 0 && given->in_rate > 0 && given->mem_rate > 0 &&
		    given->flop_rate > 0)) {
		const int gpu = rates->mem > 0 && rates->flop > 0;
		struct te__offload_rates found = *rates;

		r = measure(o, gpu ? 16 * NBYTES : NBYTES, !gpu, &found);
		rates->out = found.out;
		rates->in = found.in;
		rates->mem = gpu ? rates->mem : found.mem;
		rates->flop = found.flop;
	}
	rates->out = given->out_rate > 0 ? given->out_rate : rates->out;
	rates->in = given->in_rate > 0 ? given->in_rate : rates->in;
	rates->mem = given->mem_rate > 0 ? given->mem_rate : rates->mem;
	rates->flop = given->flop_rate > 0 ? given->flop_rate : rates->flop;
	return r;
}

/* ---- the file ---- */

int te__offload_take_file(struct te_offload *o, size_t nbytes, uint32_t *ret_file)
{
	uint32_t i = o->nfiles;
	int r = 0;

	pthread_mutex_lock(&o->lock);
	/* find the smallest extent that has room */
	for (uint32_t k = 0; k < o->nfiles; k++)
		if (!o->file[k].used && o->file[k].nbytes >= nbytes &&
		    (i == o->nfiles || o->file[k].nbytes < o->file[i].nbytes))
			i = k;
	if (i == TE__OFFLOAD_FILES)
		r = te__fail(-ENOMEM, "te_offload: more than %d values in the file", i);
	else if (i == o->nfiles)
		r = te__spill_reserve(o->spill, i, nbytes);
	if (!r) {
		if (i == o->nfiles)
			o->file[o->nfiles++].nbytes = nbytes;
		o->file[i].used = 1;
		*ret_file = i;
	}
	pthread_mutex_unlock(&o->lock);
	return r;
}

void te__offload_give_file(struct te_offload *o, uint32_t file)
{
	pthread_mutex_lock(&o->lock);
	o->file[file].used = 0;
	pthread_mutex_unlock(&o->lock);
}

/* the first value that has this number in the file; "" if its plan was destroyed */
static const char *name_of(const struct te_offload *o, uint32_t file)
{
	for (const struct te_plan *p = o->plans; p; p = p->moves->next)
		for (int i = 0; i < p->moves->n; i++)
			if (p->moves->v[i].has_file && p->moves->v[i].file == file)
				return p->moves->v[i].name;
	return "";
}

int te__offload_check(struct te_offload *offload)
{
	struct te__spill_error e;
	int r = offload->spill ? te__spill_error(offload->spill, &e) : 0;

	if (!r)
		return 0;
	pthread_mutex_lock(&offload->lock);
	r = te__fail(r, "%s: values from %s on", e.message, name_of(offload, e.group));
	pthread_mutex_unlock(&offload->lock);
	return r;
}

static int time_file(struct te_offload *o, enum te__spill_dir dir, void *slot, double *ret_rate)
{
	double best = 1e9;
	int r = 0;

	for (int i = 0; i < 2 && !r; i++) {
		const double begin = now();
		double t;

		r = dir == TE__SPILL_WRITE ?
			    te__spill_write(o->spill, 0, slot, NBYTES, NULL, 0) :
			    te__spill_read(o->spill, 0, slot, NBYTES, NULL, 0);
		if (!r)
			r = te__spill_wait(o->spill, dir, 0, -1);
		t = now() - begin;
		best = t < best ? t : best;
	}
	*ret_rate = (double)NBYTES / (best > 1e-9 ? best : 1e-9);
	return r;
}

static int find_file_rates(struct te_offload *o)
{
	const struct te_offload_opts *given = &o->opts;
	void *slot = NULL;
	uint32_t file;
	int r = 0;

	o->rates.write = given->write_rate;
	o->rates.read = given->read_rate;
	if (given->write_rate > 0 && given->read_rate > 0)
		return 0;
	r = te__offload_take_file(o, NBYTES, &file);
	if (!r)
		r = te__pinned_take(o->slots, NBYTES, &slot);
	if (!r)
		r = time_file(o, TE__SPILL_WRITE, slot, &o->rates.write);
	if (!r)
		r = time_file(o, TE__SPILL_READ, slot, &o->rates.read);
	if (slot)
		te__pinned_give(o->slots, slot);
	if (o->nfiles)
		te__offload_give_file(o, file);
	o->measured_nbytes = NBYTES;
	o->rates.write = given->write_rate > 0 ? given->write_rate : o->rates.write;
	o->rates.read = given->read_rate > 0 ? given->read_rate : o->rates.read;
	return r;
}

#define SLOTS_NBYTES ((uint64_t)64 << 20)

/* one word, set and taken by the device */
static int try_words(struct te_offload *o)
{
	void *word = te__pinned_device_ptr(o->slots, (void *)te__pinned_word(o->slots, 0));
	int r;

	if (te__param_enum(TE_PARAM_OFFLOAD_SIGNAL) == SIGNAL_CALLS)
		return 0;
	r = te__word_set(o->out, word, 1);
	if (!r)
		r = te__word_take(o->out, word);
	if (!r)
		r = te_stream_sync(o->out);
	o->words = !r;
	if (r != -EOPNOTSUPP)
		return r;
	te__log_info("offload: %s: graphs call the host instead", te_error_detail());
	te_error_clear();
	return 0;
}

_Static_assert(TE_OFFLOAD_VERIFY_ALL == TE__SPILL_VERIFY_ALL &&
	       TE_OFFLOAD_VERIFY_OFF == TE__SPILL_VERIFY_OFF, "one numbering");

static int open_file(struct te_offload *o, const char *dir)
{
	const struct te__spill_opts so = {
		.dir = dir,
		.quota_nbytes = o->opts.quota_nbytes,
		.ngroups = TE__OFFLOAD_FILES,
		.verify = (enum te__spill_verify)o->opts.verify,
	};
	const uint64_t nbytes = o->opts.pinned_nbytes ? o->opts.pinned_nbytes : SLOTS_NBYTES;
	int r;

	o->file = te__calloc(TE__OFFLOAD_FILES, sizeof(*o->file));
	if (!o->file)
		return te__no_memory(fn);
	r = te__pinned_create(o->ctx, nbytes, &o->slots);
	if (!r)
		r = te__spill_create(o->slots, &so, &o->spill);
	if (!r)
		r = try_words(o);
	return r ? r : find_file_rates(o);
}

/* ---- life ---- */

static void offload_free(struct te_offload *o)
{
	te_stream_unref(o->out);
	te_stream_unref(o->in);
	te__spill_destroy(o->spill);
	te__pinned_destroy(o->slots);
	te__free(o->file);
	free_patterns(o->opts.nkeep, o->opts.keep);
	free_patterns(o->opts.nmove, o->opts.move);
	pthread_mutex_destroy(&o->lock);
	te_ctx_unref(o->ctx);
	te__free(o);
}

static int build(struct te_offload *o, const struct te_offload_opts *opts)
{
	int r = copy_patterns(opts->nkeep, opts->keep, &o->opts.keep);

	if (!r)
		r = copy_patterns(opts->nmove, opts->move, &o->opts.move);
	if (!r)
		r = te_stream_create(o->ctx, &o->out);
	if (!r)
		r = te_stream_create(o->ctx, &o->in);
	if (!r)
		r = find_rates(o);
	return r || !opts->dir ? r : open_file(o, opts->dir);
}

int te_offload_create(struct te_ctx *ctx, const struct te_offload_opts *opts,
		      struct te_offload **ret_offload)
{
	struct te_offload_opts given = TE_OFFLOAD_OPTS_INIT;
	struct te_offload *o;
	int r;

	if (!ctx || !ret_offload)
		return te__fail(-EINVAL, "%s: %s is NULL", fn, ctx ? "ret_offload" : "ctx");
	r = opts ? te__sized_in(fn, te_offload_opts, opts, &given) : 0;
	if (!r)
		r = check_opts(&given);
	if (!r)
		r = te__patterns_check(fn, "keep", given.nkeep, given.keep);
	if (!r)
		r = te__patterns_check(fn, "move", given.nmove, given.move);
	if (r)
		return r;
	o = te__calloc(1, sizeof(*o));
	if (!o)
		return te__no_memory(fn);
	atomic_init(&o->refs, 1);
	pthread_mutex_init(&o->lock, NULL);
	o->ctx = te_ctx_ref(ctx);
	o->opts = given;
	o->opts.keep = o->opts.move = NULL;
	o->opts.dir = NULL;
	o->opts.min_nbytes = given.min_nbytes ? given.min_nbytes : 16384;
	o->opts.move_nbytes = given.move_nbytes ? given.move_nbytes : UINT64_MAX;
	r = build(o, &given);
	if (r) {
		offload_free(o);
		return r;
	}
	*ret_offload = o;
	return 0;
}

int te_offload_set_target(struct te_offload *offload, uint64_t target_nbytes)
{
	if (!offload)
		return te__fail(-EINVAL, "te_offload_set_target: offload is NULL");
	offload->opts.target_nbytes = target_nbytes;
	return 0;
}

struct te_offload *te_offload_ref(struct te_offload *offload)
{
	if (offload)
		atomic_fetch_add(&offload->refs, 1);
	return offload;
}

struct te_offload *te_offload_unref(struct te_offload *offload)
{
	if (offload && atomic_fetch_sub(&offload->refs, 1) == 1)
		offload_free(offload);
	return NULL;
}

/* ---- limits ---- */

void te__offload_allow(struct te_offload *offload, uint64_t nbytes, enum te__waits waits)
{
	offload->directed = 1;
	offload->left_nbytes = nbytes;
	offload->waits = waits;
}

void te__offload_allowed(const struct te_offload *offload, uint64_t *ret_nbytes,
			 enum te__waits *ret_waits)
{
	*ret_nbytes = offload->left_nbytes;
	*ret_waits = offload->waits;
}

void te__offload_release(struct te_offload *offload)
{
	offload->directed = 0;
}

void te__offload_limits(const struct te_offload *offload, uint64_t *ret_target, uint64_t *ret_move)
{
	*ret_target = offload->opts.target_nbytes;
	*ret_move = offload->opts.move_nbytes;
}

uint64_t te__offload_room(struct te_offload *o)
{
	uint64_t most = o->opts.pinned_nbytes ? o->opts.pinned_nbytes : UINT64_MAX, taken = 0;

	pthread_mutex_lock(&o->lock);
	if (o->spill) {
		most = o->opts.quota_nbytes;
		taken = o->measured_nbytes;
		for (const struct te_plan *p = o->plans; p; p = p->moves->next)
			taken += p->moves->filed;
	} else {
		taken = o->pinned_nbytes;
	}
	pthread_mutex_unlock(&o->lock);
	return most > taken ? most - taken : 0;
}

/* invariant: hi bytes are enough, lo are not */
static int bisect(struct te_offload *o, uint64_t target, enum te__waits waits, uint64_t lo,
		  uint64_t hi, int (*peak)(void *arg, uint64_t *ret_nbytes), void *arg)
{
	const uint64_t close = hi / 128 + 65536;
	uint64_t have = UINT64_MAX;
	int r = 0;

	while (hi - lo > close && !r) {
		const uint64_t mid = lo + (hi - lo) / 2;

		te__offload_allow(o, mid, waits);
		r = peak(arg, &have);
		if (have <= target)
			hi = mid;
		else
			lo = mid;
	}
	te__offload_allow(o, hi, waits);
	return r ? r : peak(arg, &have);
}

int te__offload_fit(struct te_offload *offload, uint64_t target, const char *what,
		    int (*peak)(void *arg, uint64_t *ret_nbytes), void *arg)
{
	const enum te__waits last = offload->spill ? TE__WAITS_FILE : TE__WAITS_COPIES;
	const uint64_t most = offload->opts.move_nbytes;
	uint64_t have, least;
	int r;

	te__offload_allow(offload, 0, TE__WAITS_NONE);
	r = peak(arg, &have);
	least = have;
	for (enum te__waits w = TE__WAITS_NONE; w <= last && !r && least > target; w++) {
		te__offload_allow(offload, most, w);
		r = peak(arg, &have);
		least = !r && have < least ? have : least;
		if (!r && have <= target)
			r = bisect(offload, target, w, 0, most - offload->left_nbytes, peak, arg);
	}
	te__offload_release(offload);
	if (r || least <= target)
		return r;
	return te__fail(-ENOMEM, "te_offload: %s is %.2f MiB at least, expected %.2f MiB at most",
			what, (double)least / 1048576.0, (double)target / 1048576.0);
}

/* ---- reports ---- */

#define DAY_MS 86400e3

void te__offload_list(struct te_offload *o, struct te_plan *p, int add)
{
	struct te_plan **at = &o->plans;

	pthread_mutex_lock(&o->lock);
	while (*at && *at != p)
		at = &(*at)->moves->next;
	if (add)
		*at = p;
	else if (*at)
		*at = p->moves->next;
	o->pinned_nbytes += add ? p->moves->held : -p->moves->held;
	p->moves->listed = add;
	pthread_mutex_unlock(&o->lock);
}

static double copy_seconds(const struct te_offload *o, const struct te__move *v)
{
	return (double)v->nbytes * (1 / o->rates.out + 1 / o->rates.in);
}

static double hidden_of(double copy, double stall)
{
	return copy > stall ? 1 - stall / copy : copy > 0 ? 0 : 1;
}

static void add_plan(const struct te_offload *o, const struct te_plan *p,
		     struct te_offload_report *rep)
{
	const struct te__moves *m = p->moves;

	rep->nplans++;
	rep->ngroups += m->n;
	rep->moved_nbytes += m->nbytes;
	rep->peak_nbytes += p->arena_nbytes;
	rep->plain_nbytes += m->plain_nbytes;
	rep->pass_ms += 1e3 * m->start[p->ngroups];
	rep->waited_ms += te__moves_waited_ms(m);
	for (int i = 0; i < m->n; i++) {
		rep->copy_ms += 1e3 * copy_seconds(o, &m->v[i]);
		rep->stall_ms += 1e3 * m->v[i].stall;
	}
}

static void fill_report(const struct te_offload *o, struct te_offload_report *rep)
{
	struct te__spill_stats st;

	*rep = (struct te_offload_report)TE_OFFLOAD_REPORT_INIT;
	rep->pinned_nbytes = o->slots ? te__pinned_held_nbytes(o->slots) : o->pinned_nbytes;
	rep->write_rate = o->rates.write;
	rep->read_rate = o->rates.read;
	if (o->spill) {
		te__spill_stats(o->spill, &st);
		rep->written_nbytes = st.nbytes[TE__SPILL_WRITE];
		rep->read_nbytes = st.nbytes[TE__SPILL_READ];
		rep->write_ms = 1e-6 * (double)st.busy_ns[TE__SPILL_WRITE];
		rep->read_ms = 1e-6 * (double)st.busy_ns[TE__SPILL_READ];
		rep->nerrors = st.nerrors;
	}
	rep->out_rate = o->rates.out;
	rep->in_rate = o->rates.in;
	rep->mem_rate = o->rates.mem;
	rep->flop_rate = o->rates.flop;
	rep->nforwards = o->nforwards;
	rep->ncopies = o->ncopies;
	rep->out_nbytes = o->nbytes_out;
	rep->in_nbytes = o->nbytes_in;
	for (const struct te_plan *p = o->plans; p; p = p->moves->next)
		add_plan(o, p, rep);
	rep->hidden = hidden_of(rep->copy_ms, rep->stall_ms);
	rep->pass_ms += rep->stall_ms;
	if (o->spill && rep->moved_nbytes)
		rep->drive_days = (double)o->opts.endurance_nbytes / (double)rep->moved_nbytes *
				  rep->pass_ms / DAY_MS;
}

int te_offload_report(struct te_offload *offload, struct te_offload_report *ret_report)
{
	struct te_offload_report rep;
	int r = te__sized_check("te_offload_report", te_offload_report, ret_report);

	if (r)
		return r;
	if (!offload)
		return te__fail(-EINVAL, "te_offload_report: offload is NULL");
	pthread_mutex_lock(&offload->lock);
	fill_report(offload, &rep);
	pthread_mutex_unlock(&offload->lock);
	te__sized_out(te_offload_report, &rep, ret_report);
	return 0;
}

static double mib(uint64_t nbytes)
{
	return (double)nbytes / 1048576.0;
}

static void print_plan(FILE *f, const struct te_offload *o, const struct te_plan *p, int number)
{
	const struct te__moves *m = p->moves;

	fprintf(f, "plan %d: %d groups forward, %d backward; arena %.2f MiB, %.2f MiB if nothing "
		"moves; %.2f MiB move\n", number, p->fwd_groups, p->ngroups - p->fwd_groups,
		mib(p->arena_nbytes), mib(m->plain_nbytes), mib(m->nbytes));
	fprintf(f, "%10s %6s %6s %6s%s %6s %6s %8s%s  %s\n", "MiB", "values", "leaves", "free",
		o->spill ? "  filed  fetch" : "", "back", "read", "hidden",
		o->opts.timed ? "  waited ms" : "", "first value");
	for (int i = 0; i < m->n; i++) {
		const struct te__move *v = &m->v[i];

		fprintf(f, "%10.3f %6d %6d %6d", mib(v->nbytes), v->nvalues, v->out_after,
			v->free_after);
		if (o->spill)
			fprintf(f, " %6d %6d", v->written_by, v->read_before);
		fprintf(f, " %6d %6d %7.1f%%", v->in_before, v->needed,
			100 * hidden_of(copy_seconds(o, v), v->stall));
		if (o->opts.timed)
			fprintf(f, " %10.3f", te__move_waited_ms(v));
		fprintf(f, "  %s\n", v->name);
	}
}

/* bytes in use in each group; buffers that share memory count once. first, last: of nbufs */
static void add_used(const struct te__buf *buf, int nbufs, int ngroups, int *first, int *last,
		     uint64_t *ret)
{
	for (int i = 0; i < nbufs; i++) {
		first[i] = ngroups;
		last[i] = -1;
	}
	for (int i = 0; i < nbufs; i++) {
		int root = i;

		while (buf[root].share >= 0)
			root = buf[root].share;
		if (buf[i].first >= 0 && buf[i].first < first[root])
			first[root] = buf[i].first;
		if (buf[i].first >= 0 && buf[i].last > last[root])
			last[root] = buf[i].last;
	}
	for (int i = 0; i < nbufs; i++)
		for (int t = first[i]; t <= last[i] && t < ngroups; t++)
			ret[t] += buf[i].nbytes;
}

static uint64_t most_of(const uint64_t *v, int first, int end)
{
	uint64_t most = 0;

	for (int t = first; t < end; t++)
		most = v[t] > most ? v[t] : most;
	return most;
}

#define ROWS 24
#define BAR 48

/* plain: memory in use without moves */
static void draw(FILE *f, int ngroups, const uint64_t *used, const uint64_t *plain)
{
	const int rows = ngroups < ROWS ? ngroups : ROWS;
	const uint64_t most = most_of(plain, 0, ngroups);

	fprintf(f, "%13s %10s %10s  in use (#), in addition if nothing moves (.)\n", "groups",
		"MiB", "plain MiB");
	for (int i = 0; i < rows; i++) {
		const int first = i * ngroups / rows, end = (i + 1) * ngroups / rows;
		const uint64_t u = most_of(used, first, end), p = most_of(plain, first, end);
		const int nu = most ? (int)(u * BAR / most) : 0;
		const int np = most ? (int)(p * BAR / most) : 0;

		fprintf(f, "%6d-%-6d %10.3f %10.3f  ", first, end - 1, mib(u), mib(p));
		for (int k = 0; k < nu || k < np; k++)
			fputc(k < nu ? '#' : '.', f);
		fputc('\n', f);
	}
}

static int print_memory(FILE *f, const struct te_plan *p)
{
	const struct te__moves *m = p->moves;
	uint64_t *used = te__calloc(2 * (size_t)p->ngroups + 2, sizeof(*used));
	int *span = te__calloc(2 * (size_t)p->nbufs + 2, sizeof(*span));

	if (used && span) {
		uint64_t *plain = used + p->ngroups;

		add_used(p->buf, p->nbufs, p->ngroups, span, span + p->nbufs, used);
		add_used(m->buf, m->nbufs, p->ngroups, span, span + p->nbufs, plain);
		draw(f, p->ngroups, used, plain);
	}
	te__free(used);
	te__free(span);
	return used && span ? 0 : te__no_memory("te_offload_print");
}

static void print_file(FILE *f, const struct te_offload_report *rep)
{
	fprintf(f, "file: %.2f MiB are written a pass, %.2f TB a day if passes follow each other",
		mib(rep->moved_nbytes),
		rep->pass_ms > 0 ? 1e-12 * (double)rep->moved_nbytes * DAY_MS / rep->pass_ms : 0);
	if (rep->drive_days > 0)
		fprintf(f, ", for %.1f days of the drive's life", rep->drive_days);
	fprintf(f, "\nso far: %.2f MiB written in %.1f ms, %.2f MiB read in %.1f ms, %" PRIu64
		" requests failed\n", mib(rep->written_nbytes), rep->write_ms,
		mib(rep->read_nbytes), rep->read_ms, rep->nerrors);
}

static int print(FILE *f, const void *arg)
{
	const struct te_offload *offload = arg;
	struct te_offload_report rep;
	int number = 0, r = 0;

	fill_report(offload, &rep);
	fprintf(f, "offload: out %.2f GB/s, in %.2f GB/s; kernels %.1f GB/s, %.3f Tflop/s\n",
		1e-9 * rep.out_rate, 1e-9 * rep.in_rate, 1e-9 * rep.mem_rate,
		1e-12 * rep.flop_rate);
	if (offload->spill)
		fprintf(f, "file: writes %.2f GB/s, reads %.2f GB/s\n", 1e-9 * rep.write_rate,
			1e-9 * rep.read_rate);
	for (const struct te_plan *p = offload->plans; p && !r; p = p->moves->next) {
		print_plan(f, offload, p, number++);
		r = print_memory(f, p);
	}
	if (offload->spill)
		print_file(f, &rep);
	fprintf(f, "total: %.2f MiB move in %" PRId32 " groups of %" PRId32 " plans, %.2f MiB "
		"pinned, copies take %.3f ms, passes wait %.3f ms, hidden %.1f%%\n",
		mib(rep.moved_nbytes), rep.ngroups, rep.nplans, mib(rep.pinned_nbytes), rep.copy_ms,
		rep.stall_ms, 100 * rep.hidden);
	return r;
}

int te_offload_print(struct te_offload *offload, char **ret_text)
{
	int r;

	if (!offload || !ret_text)
		return te__fail(-EINVAL, "te_offload_print: %s is NULL",
				offload ? "ret_text" : "offload");
	pthread_mutex_lock(&offload->lock);
	r = te__text("te_offload_print", print, offload, ret_text);
	pthread_mutex_unlock(&offload->lock);
	return r;
}
