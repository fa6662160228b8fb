/* offload.c - te_offload_create(3): options, pinned memory and the file that plans share. */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>

#include <te/stream.h>

#include "libtecore/base/base.h"
#include "libtecore/base/private.h"
#include "libtecore/offload/offload.h"
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

enum { SIGNAL_AUTO, SIGNAL_CALLS }; /* TE_OFFLOAD_SIGNAL */

/* ---- the file ---- */

int te__offload_check(struct te_offload *offload)
{
	struct te__spill_error e;
	const char *name;
	int r = offload->spill ? te__spill_error(offload->spill, &e) : 0;

	if (!r)
		return 0;
	pthread_mutex_lock(&offload->lock);
	name = offload->file[e.group].name;
	/* no value has the room if its plan was destroyed */
	r = te__fail(r, "%s: values from %s on", e.message, name ? name : "");
	pthread_mutex_unlock(&offload->lock);
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
	r = te__word_set(o->out, word);
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
	return r ? r : te__offload_find_file_rates(o);
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
		r = te__offload_find_rates(o);
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
