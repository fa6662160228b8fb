/* optim.c - AdamW over the flat weight buffers of a sequence; all its state is in device memory. */
#define TE_LOG_CATEGORY "core/optim"
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include <te/capture.h>
#include <te/errno.h>
#include <te/optim.h>
#include "libtecore/base/private.h"

#include "kernels/optim/round.h"
#include "kernels/te_k.h"
#include "libtecore/plan/optim.h"
#include "libtecore/plan/seq.h"
#include "libtecore/tensor/ctx.h"

#define MOST_CHUNK ((int64_t)1 << 23) /* elements of a chunk by default: about 1 ms on a link */

static int decays(const struct te_adamw *opt, int i, const struct te_weight_info *w)
{
	(void)opt;
	(void)i;
	return (w->flags & TE_WEIGHT_DECAY) != 0;
}

static int is_uncounted(const struct te_adamw *opt, int i, const struct te_weight_info *w)
{
	(void)w;
	return opt->shards.uncounted[i];
}

/* write marks of runs of weights to device memory */
static int write_runs(struct te_adamw *opt, const char *fn, uint8_t *dst,
		      int (*marks)(const struct te_adamw *opt, int i,
				   const struct te_weight_info *w))
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	const size_t nruns = (size_t)te_seq_grad_nelems(opt->seq) / TE_K_ALIGN_WEIGHT;
	uint8_t *runs = te__calloc(nruns, 1);
	int r = 0;

	if (!runs)
		return te__no_memory(fn);
	for (int i = 0; i < te_seq_nweights(opt->seq) && !r; i++) {
		r = te_seq_weight(opt->seq, i, &w);
		if (!r && !(w.flags & TE_WEIGHT_FROZEN) && marks(opt, i, &w))
			memset(runs + w.offset_nelems / TE_K_ALIGN_WEIGHT, 1,
			       ((size_t)te_tensor_nelems(w.master) + TE_K_ALIGN_WEIGHT - 1) /
				       TE_K_ALIGN_WEIGHT);
	}
	if (!r)
		r = te__ctx_copy(opt->ctx, dst, runs, nruns);
	te__free(runs);
	return r;
}

/* options with defaults for those that were not given */
static int read_opts(const char *fn, const struct te_adamw_opts *opts, struct te_adamw_opts *ret)
{
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;
	int r = opts ? te__sized_in(fn, te_adamw_opts, opts, &o) : 0;

	if (r)
		return r;
	if ((unsigned)o.moments > TE_MOMENTS_FP8 || o.flags & ~TE_ADAMW_CAST)
		return te__fail(-EINVAL, "%s: moments %d and flags 0x%x, expected one of enum "
				"te_moments and 0 or TE_ADAMW_CAST", fn, (int)o.moments,
				(unsigned)o.flags);
	if (o.nparts < 0 || o.part < 0 || o.part >= (o.nparts ? o.nparts : 1))
		return te__fail(-EINVAL, "%s: part %d of %d parts", fn, o.part, o.nparts);
	if ((unsigned)o.where > TE_ADAMW_FILE || o.chunk_nelems < 0 ||
	    o.chunk_nelems % TE_K_ALIGN_WEIGHT || (o.chunk_nelems && !o.where))
		return te__fail(-EINVAL, "%s: where %d and chunk_nelems %d, expected one of enum "
				"te_adamw_where, and with TE_ADAMW_HOST or TE_ADAMW_FILE a "
				"multiple of %d", fn, (int)o.where, o.chunk_nelems,
				TE_K_ALIGN_WEIGHT);
	if ((o.where == TE_ADAMW_FILE) != (o.dir != NULL))
		return te__fail(-EINVAL, o.dir ? "%s: dir %s, expected NULL without TE_ADAMW_FILE" :
						 "%s: TE_ADAMW_FILE, and dir is NULL", fn, o.dir);
	if (o.dir && o.flags & TE_ADAMW_CAST)
		return te__fail(-EINVAL, "%s: TE_ADAMW_CAST, expected no TE_ADAMW_FILE", fn);
	r = te__adamw_check(fn, o.beta1, o.beta2, o.eps, o.weight_decay, o.max_grad_norm);
	if (!r)
		r = te__adamw_groups_check(fn, &o);
	if (!r)
		*ret = o;
	return r;
}

/* the elements of a part, of n in all */
static struct te__adamw_part part_of(const struct te_adamw_opts *o, int64_t n)
{
	const struct te__part p = te__part_of(o->nparts, o->part, n);

	return (struct te__adamw_part){
		.first = p.first, .nelems = p.nelems, .tail = p.tail, .ntail = p.ntail,
		.nparts = o->nparts > 1 ? o->nparts : 1, .part = o->part,
		.gather = o->gather, .arg = o->gather_arg,
	};
}

/* elements of this part's moments */
static int64_t own_nelems(const struct te__adamw_part *p)
{
	return p->nelems + p->ntail;
}

/* elements of a chunk; 0: moments are in device memory */
static int64_t chunk_nelems(const struct te_adamw_opts *o, const struct te__adamw_part *own)
{
	const int64_t n = own_nelems(own), run = TE_K_ALIGN_WEIGHT;
	int64_t chunk = (n / 16 + run - 1) / run * run;

	if (!o->where)
		return 0;
	if (o->chunk_nelems)
		chunk = o->chunk_nelems < n ? o->chunk_nelems : n;
	else if (chunk > MOST_CHUNK)
		chunk = MOST_CHUNK;
	return chunk > run ? chunk : run;
}

static struct te__adamw_chunks chunks_of(const struct te_seq *seq, const struct te_adamw_opts *o,
					 const struct te__adamw_part *own)
{
	const uint32_t flags = seq->binding.flags;

	return (struct te__adamw_chunks){
		.nelems = chunk_nelems(o, own),
		.rest = (flags & TE_SEQ_HOST_REMAINDERS) != 0,
		.w = flags & TE_SEQ_HOST_MASTERS && !(o->flags & TE_ADAMW_CAST) ? 2 : 0,
		.g = flags & TE_SEQ_HOST_GRADS ? (int)te_dtype_nbytes(te__seq_grad_dtype(seq)) : 0,
	};
}

/* device memory for moments, or for chunks of them */
static uint64_t held_nbytes(const struct te_seq *seq, const struct te_adamw_opts *o,
			    const struct te__adamw_part *own)
{
	const struct te__adamw_chunks c = chunks_of(seq, o, own);
	const uint64_t casts =
		o->flags & TE_ADAMW_CAST ? te__adamw_casts_nbytes(seq, c.nelems) : 0;

	/* chunks of a file are slower than copies: one at a time */
	return c.nelems ? (o->dir ? 1 : TE__ADAMW_NBUFS) *
					  (uint64_t)te__adamw_buf_nbytes(o->moments, &c) + casts :
			  2 * (uint64_t)te_moments_nbytes(o->moments, own_nelems(own));
}

/* pinned memory, and the file */
static uint64_t host_nbytes(const struct te_seq *seq, const struct te_adamw_opts *o,
			    const struct te__adamw_part *own, uint64_t *ret_file)
{
	uint64_t nbytes = 2 * (uint64_t)te_moments_nbytes(o->moments, own_nelems(own));

	*ret_file = 0;
	if (o->where == TE_ADAMW_FILE)
		*ret_file = te__adamw_file_size(seq, o, own, chunk_nelems(o, own), &nbytes);
	return o->where ? nbytes : 0;
}

/* partial sums for the norm, of each part of the gradients */
static size_t sums_nbytes(const struct te_seq *seq)
{
	return (te__seq_is_divided(seq) ? (size_t)seq->binding.nparts : 1) * TE_K_SUMSQ_PARTS *
	       sizeof(double);
}

uint64_t te_adamw_nbytes(const struct te_seq *seq, const struct te_adamw_opts *opts)
{
	const int64_t n = te_seq_grad_nelems(seq);
	struct te__adamw_part own;
	struct te_adamw_opts o;

	if (!n || read_opts("te_adamw_nbytes", opts, &o))
		return 0;
	own = part_of(&o, n);
	return held_nbytes(seq, &o, &own) +
	       sums_nbytes(seq) + (uint64_t)n / TE_K_ALIGN_WEIGHT +
	       sizeof(struct te_k_adamw_state) +
	       (uint64_t)o.ngroups * sizeof(struct te__adamw_group_state);
}

/* returns bytes of pinned memory */
static uint64_t read_sizes(const char *fn, const struct te_seq *seq,
			   const struct te_adamw_opts *opts, uint64_t *ret_file)
{
	const int64_t n = te_seq_grad_nelems(seq);
	struct te__adamw_part own;
	struct te_adamw_opts o;

	*ret_file = 0;
	if (!n || read_opts(fn, opts, &o))
		return 0;
	own = part_of(&o, n);
	return host_nbytes(seq, &o, &own, ret_file);
}

uint64_t te_adamw_host_nbytes(const struct te_seq *seq, const struct te_adamw_opts *opts)
{
	uint64_t file;

	return read_sizes("te_adamw_host_nbytes", seq, opts, &file);
}

uint64_t te_adamw_file_nbytes(const struct te_seq *seq, const struct te_adamw_opts *opts)
{
	uint64_t file;

	(void)read_sizes("te_adamw_file_nbytes", seq, opts, &file);
	return file;
}

/* at: its address in pinned memory, which is zero; or NULL */
static int make_moment(struct te_adamw *opt, char *at, struct te_tensor **ret)
{
	static const enum te_dtype dtypes[] = { TE_DTYPE_FP32, TE_DTYPE_BF16, TE_DTYPE_UINT8 };
	const enum te_dtype dtype = dtypes[opt->opts.moments];
	const int64_t n = (int64_t)(te_moments_nbytes(opt->opts.moments, own_nelems(&opt->own)) /
				    te_dtype_nbytes(dtype));
	static const uint8_t zeros[3];
	const size_t nbytes = (size_t)n * te_dtype_nbytes(dtype), tail = nbytes % sizeof(uint32_t);
	int r;

	if (at)
		return te_tensor_wrap(opt->ctx, dtype, 1, &n, at, NULL, NULL, ret);
	r = te_tensor_create(opt->ctx, dtype, 1, &n, NULL, ret);
	if (!r) /* whole words; the exponents of FP8 blocks may end between two */
		r = te__ctx_fill_u32(opt->ctx, te_tensor_data(*ret), 0, nbytes);
	if (!r && tail)
		r = te__ctx_copy(opt->ctx, (char *)te_tensor_data(*ret) + nbytes - tail, zeros,
				 tail);
	return r;
}

static int make_moments(struct te_adamw *opt)
{
	const size_t nbytes = te_moments_nbytes(opt->opts.moments, own_nelems(&opt->own));
	const size_t second = (nbytes + TE__SEQ_ALIGN - 1) / TE__SEQ_ALIGN * TE__SEQ_ALIGN;
	char *at;
	int r;

	opt->chunks = chunks_of(opt->seq, &opt->opts, &opt->own);
	if (!opt->chunks.nelems) {
		r = make_moment(opt, NULL, &opt->m);
		return r ? r : make_moment(opt, NULL, &opt->v);
	}
	r = opt->opts.dir ? te__adamw_file_open(opt) :
			    te__pinned_create(opt->ctx, second + nbytes, &opt->pinned);
	if (r)
		return r;
	at = opt->file ? TE__NOWHERE : te__pinned_base(opt->pinned);
	r = make_moment(opt, at, &opt->m);
	if (!r)
		r = make_moment(opt, at + second, &opt->v);
	if (!r)
		r = te__mem_get(opt->ctx, held_nbytes(opt->seq, &opt->opts, &opt->own),
				(void **)&opt->chunks.buf);
	if (r || !(opt->opts.flags & TE_ADAMW_CAST))
		return r;
	te__adamw_casts_init(opt, opt->chunks.buf + TE__ADAMW_NBUFS *
				     te__adamw_buf_nbytes(opt->opts.moments, &opt->chunks));
	return 0;
}

static int make_state(struct te_adamw *opt, const struct te_adamw_opts *opts)
{
	struct te_k_adamw_state s = { .beta1_t = 1, .beta2_t = 1, .lr = 1e-3f, .clip = 1 };
	const int64_t n = te_seq_grad_nelems(opt->seq);
	int r;

	r = make_moments(opt);
	if (!r)
		r = te__mem_get(opt->ctx, sums_nbytes(opt->seq), (void **)&opt->part);
	if (!r)
		r = te__mem_get(opt->ctx, (size_t)n / TE_K_ALIGN_WEIGHT, (void **)&opt->decay);
	if (!r)
		r = te__mem_get(opt->ctx, sizeof(s), (void **)&opt->state);
	if (!r)
		r = te__ctx_copy(opt->ctx, opt->state, &s, sizeof(s));
	if (!r)
		r = te__adamw_groups_make(opt, opts);
	return r ? r : write_runs(opt, "te_adamw_create", opt->decay, decays);
}

static int check_masters(const struct te_seq *seq)
{
	for (int i = 0; i < seq->nweights; i++) {
		const struct te__weight *w = &seq->weight[i];

		if (te__weight_trains(w) && w->value)
			return te__fail(-TE_ESTATE, "te_adamw_create: weight %s has no FP32 "
					"master: freeze it, or update it by other means", w->name);
	}
	return 0;
}

int te_adamw_create(struct te_seq *seq, const struct te_adamw_opts *opts, struct te_adamw **ret_opt)
{
	struct te_adamw_opts o;
	struct te_adamw *opt;
	int r;

	if (!seq || !ret_opt)
		return te__fail(-EINVAL, "te_adamw_create: no sequence or no place for the result");
	r = read_opts("te_adamw_create", opts, &o);
	if (r < 0)
		return r;
	if (!te_seq_masters(seq))
		return te__fail(-TE_ESTATE, "te_adamw_create: te_seq_init has not run");
	if (!te_seq_grads(seq))
		return te__fail(-TE_ESTATE, "te_adamw_create: the sequence has no gradients");
	r = check_masters(seq);
	if (!r && !o.where && seq->binding.flags & (TE_SEQ_HOST_MASTERS | TE_SEQ_HOST_GRADS))
		r = te__fail(-EINVAL, "te_adamw_create: masters or gradients are in host memory, "
			     "expected TE_ADAMW_HOST");
	if (!r && o.flags & TE_ADAMW_CAST &&
	    (!(seq->binding.flags & TE_SEQ_HOST_MASTERS) || seq->rest || o.nparts > 1))
		r = te__fail(-EINVAL, "te_adamw_create: TE_ADAMW_CAST, expected masters of "
			     "TE_SEQ_HOST_MASTERS without TE_SEQ_REMAINDERS, and one part");
	if (!r && te__seq_is_divided(seq) &&
	    (o.nparts != seq->binding.nparts || o.part != seq->binding.part))
		r = te__fail(-EINVAL, "te_adamw_create: part %d of %d parts, of gradients %d of %d",
			     o.part, o.nparts, seq->binding.part, seq->binding.nparts);
	if (!r && o.nparts > 1 && !o.gather)
		r = te__fail(-EINVAL, "te_adamw_create: %d parts, and no gather", o.nparts);
	if (r < 0)
		return r;
	opt = te__calloc(1, sizeof(*opt));
	if (!opt)
		return te__no_memory("te_adamw_create");
	atomic_init(&opt->refs, 1);
	opt->seq = te_seq_ref(seq);
	opt->ctx = te_seq_ctx(seq);
	opt->opts = o;
	opt->own = part_of(&o, te_seq_grad_nelems(seq));
	r = make_state(opt, &o);
	opt->opts.groups = NULL; /* the caller's, as dir is */
	opt->opts.dir = NULL;
	if (r < 0) {
		te_adamw_unref(opt);
		return r;
	}
	*ret_opt = opt;
	return 0;
}

struct te_adamw *te_adamw_ref(struct te_adamw *opt)
{
	if (opt)
		atomic_fetch_add(&opt->refs, 1);
	return opt;
}

struct te_adamw *te_adamw_unref(struct te_adamw *opt)
{
	if (!opt || atomic_fetch_sub(&opt->refs, 1) != 1)
		return NULL;
	if (opt->pinned && te__ctx_drain(opt->ctx, "te_adamw_unref"))
		te__pinned_keep(opt->pinned); /* copies may be queued */
	te_recording_unref(opt->update);
	te__adamw_casts_free(opt);
	te_tensor_unref(opt->m);
	te_tensor_unref(opt->v);
	te__adamw_file_close(opt->file);
	te__mem_put(opt->ctx, opt->chunks.buf);
	te__pinned_destroy(opt->pinned);
	te__mem_put(opt->ctx, opt->part);
	te__mem_put(opt->ctx, opt->decay);
	te__mem_put(opt->ctx, opt->skip);
	te__mem_put(opt->ctx, opt->state);
	te__adamw_groups_free(opt);
	te_seq_unref(opt->seq);
	te__free(opt);
	return NULL;
}

const struct te_seq *te__adamw_seq(const struct te_adamw *opt)
{
	return opt->seq;
}

static int check_shards(const struct te_adamw *opt, const struct te_adamw_shards *s)
{
	static const char fn[] = "te_adamw_set_shards";

	if (!opt)
		return te__fail(-EINVAL, "%s: no optimizer", fn);
	if (s->nshards < 1 || s->shard < 0 || s->shard >= s->nshards)
		return te__fail(-EINVAL, "%s: shard %d of %d shards", fn, s->shard, s->nshards);
	if (!s->gather)
		return te__fail(-EINVAL, "%s: no gather", fn);
	if (te__seq_is_divided(opt->seq))
		return te__fail(-EINVAL, "%s: the sequence has parts of its gradients", fn);
	return 0;
}

int te_adamw_set_shards(struct te_adamw *opt, const struct te_adamw_shards *shards)
{
	static const char fn[] = "te_adamw_set_shards";
	struct te_adamw_shards s = TE_ADAMW_SHARDS_INIT;
	uint8_t *skip = NULL;
	void *part = NULL;
	int r = te__sized_in(fn, te_adamw_shards, shards, &s);

	if (!r)
		r = check_shards(opt, &s);
	if (r)
		return r;
	r = te__mem_get(opt->ctx, (size_t)s.nshards * TE_K_SUMSQ_PARTS * sizeof(double), &part);
	if (!r && s.uncounted)
		r = te__mem_get(opt->ctx,
				(size_t)te_seq_grad_nelems(opt->seq) /
					TE_K_ALIGN_WEIGHT,
				(void **)&skip);
	opt->shards.uncounted = s.uncounted;
	if (!r && skip)
		r = write_runs(opt, fn, skip, is_uncounted);
	opt->shards.uncounted = NULL; /* the caller's */
	if (r) {
		te__mem_put(opt->ctx, part);
		te__mem_put(opt->ctx, skip);
		return r;
	}
	te__mem_put(opt->ctx, opt->part);
	te__mem_put(opt->ctx, opt->skip);
	opt->update = te_recording_unref(opt->update); /* it reads part */
	opt->part = part;
	opt->skip = skip;
	s.uncounted = NULL;
	opt->shards = s;
	return 0;
}

static int usable(const struct te_adamw *opt, const struct te_stream *stream, const char *fn)
{
	return opt ? te__stream_check(fn, stream, opt->ctx) :
		     te__fail(-EINVAL, "%s: opt is NULL", fn);
}

int te_adamw_set_lr(struct te_adamw *opt, struct te_stream *stream, float lr)
{
	static const char fn[] = "te_adamw_set_lr";
	int r = usable(opt, stream, fn);

	for (int32_t i = 0; !r && i <= opt->groups.n; i++)
		if (isinf(lr * opt->groups.lr_scale[i]))
			r = te__fail(-EINVAL, "%s: a learning rate of %g, %g times in group %d", fn,
				     (double)lr, (double)opt->groups.lr_scale[i], i - 1);
	for (int32_t i = 0; !r && i <= opt->groups.n; i++)
		r = te__adamw_set_lr(fn, stream, opt->groups.group[i].state,
				     lr * opt->groups.lr_scale[i]);
	return te__stream_queued(stream, r);
}

static struct te__adamw kernel_args(const struct te_adamw *opt)
{
	return (struct te__adamw){
		.n = te_seq_grad_nelems(opt->seq),
		.g = te_seq_grads(opt->seq),
		.own_g = te__seq_is_divided(opt->seq),
		.own_w = te__seq_divides_masters(opt->seq),
		.w = te_seq_masters(opt->seq),
		.remainder = opt->seq->rest,
		.m = opt->m,
		.v = opt->v,
		.chunks = opt->chunks.nelems ? &opt->chunks : NULL,
		.part = opt->part,
		.decay = opt->decay,
		.skip = opt->skip,
		.shards = opt->shards.gather ? &opt->shards : NULL,
		.own = opt->opts.nparts > 1 ? &opt->own : NULL,
		.group = opt->groups.group,
		.ngroups = opt->groups.n + 1,
		.range = opt->groups.range,
		.eps = opt->opts.eps,
		.max_grad_norm = opt->opts.max_grad_norm,
	};
}

/* record the update of eager steps with moments in host memory */
static int record(struct te_adamw *opt, const struct te__adamw *a)
{
	struct te_recording *rec = NULL;
	struct te_stream *stream;
	int r = te_stream_create(opt->ctx, &stream), end;

	if (r)
		return r;
	r = te_capture_begin(stream);
	if (!r) {
		r = te_capture_edges(stream, TE_CAPTURE_CONCURRENT | TE_CAPTURE_PDL);
		if (!r)
			r = te__adamw_update(stream, a);
		end = te_capture_end(stream, &rec);
		r = r < 0 ? r : end;
	}
	te_stream_unref(stream);
	if (r < 0)
		te_recording_unref(rec);
	else
		opt->update = rec;
	return r;
}

static int step(struct te_adamw *opt, struct te_stream *stream)
{
	int r = usable(opt, stream, "te_adamw_step");
	struct te__adamw a;

	if (r)
		return r;
	r = te__adamw_casts_find(opt);
	if (r)
		return r;
	a = kernel_args(opt);
	if (opt->file)
		return te__adamw_file_step(opt->file, stream, &a);
	if (a.chunks && !opt->ctx->ops->capture_active(stream->impl)) {
		r = opt->update ? 0 : record(opt, &a);
		a.update = opt->update;
	}
	return r < 0 ? r : te__adamw_step(stream, &a);
}

int te_adamw_step(struct te_adamw *opt, struct te_stream *stream)
{
	return te__stream_queued(stream, step(opt, stream));
}

/* between device and host, after all that was queued on the context */
static int copy_state(struct te_adamw *opt, const char *fn, void *dst, const void *src)
{
	int r = te__ctx_wait(opt->ctx, fn);

	return r ? r : te__ctx_copy(opt->ctx, dst, src, sizeof(struct te_k_adamw_state));
}

int te_adamw_stats(struct te_adamw *opt, struct te_adamw_stats *ret_stats)
{
	struct te_adamw_stats stats = TE_ADAMW_STATS_INIT;
	struct te_k_adamw_state s;
	int r = te__sized_check("te_adamw_stats", te_adamw_stats, ret_stats);

	if (r)
		return r;
	if (!opt)
		return te__fail(-EINVAL, "te_adamw_stats: opt is NULL");
	r = copy_state(opt, "te_adamw_stats", &s, opt->state);
	if (r < 0)
		return r;
	stats.nsteps = s.nsteps;
	stats.nskipped = s.nskipped;
	stats.grad_norm = s.grad_norm;
	stats.lr = s.lr;
	te__sized_out(te_adamw_stats, &stats, ret_stats);
	return 0;
}

struct te_tensor *te_adamw_m(const struct te_adamw *opt)
{
	return opt && !opt->file ? opt->m : NULL;
}

struct te_tensor *te_adamw_v(const struct te_adamw *opt)
{
	return opt && !opt->file ? opt->v : NULL;
}

enum te_moments te_adamw_moments(const struct te_adamw *opt)
{
	return opt ? opt->opts.moments : TE_MOMENTS_FP32;
}

int te__adamw_waits(const struct te_adamw *opt)
{
	return opt->file != NULL;
}

int te__adamw_nparts(const struct te_adamw *opt)
{
	return opt->opts.nparts > 1 ? opt->opts.nparts : 1;
}

/* ---- moments of all parts ---- */

#define PIECE ((size_t)1 << 20) /* bytes of each part in one exchange */

/* bytes of a moment: nbytes in each part, or in all of them the same */
struct span {
	size_t whole, own; /* offsets in the whole moment and in this part's */
	size_t nbytes;
	int shared;
};

/* elements, and for FP8 their exponents; returns their number */
static int list_spans(const struct te_adamw *opt, struct span ret[4])
{
	const struct te__adamw_part *p = &opt->own;
	const int fp8 = opt->opts.moments == TE_MOMENTS_FP8;
	const size_t n = (size_t)te_seq_grad_nelems(opt->seq);
	const size_t size = fp8 ? 1 : te_moments_nbytes(opt->opts.moments, 1);
	const size_t own = (size_t)p->nelems, tail = (size_t)p->tail, ntail = (size_t)p->ntail;
	const size_t run = TE_K_ALIGN_WEIGHT;

	ret[0] = (struct span){ 0, 0, own * size, 0 };
	ret[1] = (struct span){ tail * size, own * size, ntail * size, 1 };
	ret[2] = (struct span){ n, own + ntail, own / run, 0 };
	ret[3] = (struct span){ n + tail / run, own + ntail + own / run, ntail / run, 1 };
	return fp8 ? 4 : 2;
}

static int check_moment(const char *fn, const struct te_adamw *opt, int second)
{
	if (!opt || (second != 0 && second != 1))
		return te__fail(-EINVAL, "%s: %s", fn, opt ? "second is neither 0 nor 1" :
							     "opt is NULL");
	return te__ctx_wait(opt->ctx, fn);
}

/* gather a span through `all`, device memory for a piece of each part; dst as in the call */
static int gather_span(const struct te_adamw *opt, const char *fn, const struct span *s,
		       const char *src, char *all, char *dst)
{
	struct te_stream *stream = te_ctx_stream(opt->ctx);
	int r = 0;

	for (size_t at = 0; at < s->nbytes && !r; at += PIECE) {
		const size_t len = s->nbytes - at < PIECE ? s->nbytes - at : PIECE;

		r = te_copy(stream, all + (size_t)opt->opts.part * len, src + s->own + at, len);
		if (!r)
			r = te__adamw_gather(fn, stream, &opt->own, all, len);
		if (!r)
			r = te_stream_sync(stream);
		for (size_t p = 0; dst && p < (size_t)opt->opts.nparts && !r; p++)
			r = te__ctx_copy(opt->ctx, dst + s->whole + p * s->nbytes + at,
					 all + p * len, len);
	}
	return r;
}

/* memory for a moment of this part that is in a file */
static int new_own(const struct te_adamw *opt, const char *fn, char **ret)
{
	*ret = te__malloc(te_moments_nbytes(opt->opts.moments, own_nelems(&opt->own)));
	return *ret ? 0 : te__no_memory(fn);
}

static int read_own(const struct te_adamw *opt, const char *fn, int second, char **ret)
{
	int r = new_own(opt, fn, ret);

	if (!r)
		r = te__adamw_file_get(opt->file, fn, second, *ret);
	if (r)
		te__free(*ret);
	return r;
}

int te_adamw_moments_get(struct te_adamw *opt, int second, void *dst)
{
	static const char fn[] = "te_adamw_moments_get";
	const int nparts = opt ? te__adamw_nparts(opt) : 0;
	char *own = NULL;
	const char *src;
	struct span s[4];
	void *all = NULL;
	int r = check_moment(fn, opt, second), n;

	if (!r && opt->file && nparts == 1)
		return dst ? te__adamw_file_get(opt->file, fn, second, dst) : 0;
	if (!r && opt->file)
		r = read_own(opt, fn, second, &own);
	if (r)
		return r;
	src = own ? own : te_tensor_data(second ? opt->v : opt->m);
	n = list_spans(opt, s);
	if (nparts > 1)
		r = te__mem_get(opt->ctx, (size_t)nparts * (s[0].nbytes < PIECE ? s[0].nbytes + 1 :
										  PIECE), &all);
	for (int i = 0; i < n && !r; i++) {
		if (!s[i].shared && nparts > 1)
			r = gather_span(opt, fn, &s[i], src, all, dst);
		else if (dst)
			r = te__ctx_copy(opt->ctx, (char *)dst + s[i].whole, src + s[i].own,
					 s[i].nbytes);
	}
	te__mem_put(opt->ctx, all);
	te__free(own);
	return r;
}

int te_adamw_moments_set(struct te_adamw *opt, int second, const void *src)
{
	static const char fn[] = "te_adamw_moments_set";
	struct span s[4];
	char *dst, *own = NULL;
	int r = check_moment(fn, opt, second), n;

	if (!r && !src)
		r = te__fail(-EINVAL, "%s: src is NULL", fn);
	if (!r && opt->file && te__adamw_nparts(opt) == 1)
		return te__adamw_file_set(opt->file, fn, second, src);
	if (!r && opt->file)
		r = new_own(opt, fn, &own);
	if (r)
		return r;
	dst = own ? own : te_tensor_data(second ? opt->v : opt->m);
	n = list_spans(opt, s);
	for (int i = 0; i < n && !r; i++) {
		const size_t part = s[i].shared ? 0 : (size_t)opt->opts.part * s[i].nbytes;

		r = te__ctx_copy(opt->ctx, dst + s[i].own, (const char *)src + s[i].whole + part,
				 s[i].nbytes);
	}
	if (!r && own)
		r = te__adamw_file_set(opt->file, fn, second, own);
	te__free(own);
	return r;
}

/* ---- moments in host memory ---- */

size_t te_moments_nbytes(enum te_moments moments, int64_t nelems)
{
	return (unsigned)moments > TE_MOMENTS_FP8 || nelems < 0 ?
		       0 :
		       (size_t)te_k_moment_nbytes((int32_t)moments, nelems);
}

static int check_moments(const char *fn, enum te_moments moments, int second, int64_t nelems,
			 const void *src, const void *dst)
{
	if ((unsigned)moments > TE_MOMENTS_FP8 || (second != 0 && second != 1) || nelems < 0)
		return te__fail(-EINVAL, "%s: moments %d, second %d, %lld elements: expected one "
				"of enum te_moments, 0 or 1, and at least 0", fn, (int)moments,
				second, (long long)nelems);
	return src && dst ? 0 : te__fail(-EINVAL, "%s: %s is NULL", fn, src ? "dst" : "src");
}

int te_moments_to_fp32(enum te_moments moments, int second, int64_t nelems, const void *src,
		       float *dst)
{
	const uint8_t *code = src, *exps = code ? code + nelems : NULL;
	const uint16_t *bf16 = src;
	int r = check_moments("te_moments_to_fp32", moments, second, nelems, src, dst);

	if (!r && moments == TE_MOMENTS_FP32)
		memcpy(dst, src, (size_t)nelems * sizeof(*dst));
	for (int64_t i = 0; i < nelems && !r && moments != TE_MOMENTS_FP32; i++) {
		if (moments == TE_MOMENTS_BF16)
			dst[i] = te_round_float((uint32_t)bf16[i] << 16);
		else if (second)
			dst[i] = te_round_second_value(code[i], exps[i / TE_K_ALIGN_WEIGHT]);
		else
			dst[i] = te_round_first_value(code[i], exps[i / TE_K_ALIGN_WEIGHT]);
	}
	return r;
}

/* a block of at most TE_K_ALIGN_WEIGHT elements */
static void encode_block(int second, int64_t n, const float *x, uint8_t *code, uint8_t *ret_exp)
{
	uint32_t most = 0, s;

	for (int64_t i = 0; i < n; i++)
		most = te_round_magnitude(x[i]) > most ? te_round_magnitude(x[i]) : most;
	s = te_round_exponent(te_round_format(second), most);
	for (int64_t i = 0; i < n; i++)
		code[i] = (uint8_t)(second ? te_round_second(x[i], s, TE_ROUND_NEAREST) :
					     te_round_first(x[i], s, TE_ROUND_NEAREST));
	*ret_exp = (uint8_t)s;
}

int te_moments_from_fp32(enum te_moments moments, int second, int64_t nelems, const float *src,
			 void *dst)
{
	uint8_t *code = dst, *exps = code ? code + nelems : NULL;
	uint16_t *bf16 = dst;
	int r = check_moments("te_moments_from_fp32", moments, second, nelems, src, dst);

	if (r)
		return r;
	if (moments == TE_MOMENTS_FP32)
		memcpy(dst, src, (size_t)nelems * sizeof(*src));
	for (int64_t i = 0; i < nelems && moments == TE_MOMENTS_BF16; i++)
		bf16[i] = (uint16_t)te_round_bf16(src[i], TE_ROUND_NEAREST);
	for (int64_t i = 0; i < nelems && moments == TE_MOMENTS_FP8; i += TE_K_ALIGN_WEIGHT)
		encode_block(second,
			     nelems - i < TE_K_ALIGN_WEIGHT ? nelems - i : TE_K_ALIGN_WEIGHT,
			     src + i, code + i, exps + i / TE_K_ALIGN_WEIGHT);
	return 0;
}

size_t te_adamw_state_nbytes(void)
{
	return sizeof(struct te_k_adamw_state);
}

int te_adamw_state_get(struct te_adamw *opt, void *dst, size_t nbytes)
{
	if (!opt || !dst || nbytes != sizeof(struct te_k_adamw_state))
		return te__fail(-EINVAL, "te_adamw_state_get: %zu bytes, the state has %zu", nbytes,
				sizeof(struct te_k_adamw_state));
	return copy_state(opt, "te_adamw_state_get", dst, opt->state);
}

int te__adamw_state_check(const char *fn, const struct te_k_adamw_state *s)
{
	/* values that no run can produce; comparisons are false for NaN */
	if (!(s->beta1_t >= 0 && s->beta1_t <= 1) || !(s->beta2_t >= 0 && s->beta2_t <= 1) ||
	    !(s->lr >= 0) || isinf(s->lr) || !(s->clip >= 0 && s->clip <= 1) || s->skip > 1)
		return te__fail(-TE_ECORRUPT,
				"%s: powers of beta %g and %g, rate %g, clip %g, skip %u", fn,
				s->beta1_t, s->beta2_t, (double)s->lr, (double)s->clip, s->skip);
	return 0;
}

int te_adamw_state_set(struct te_adamw *opt, const void *src, size_t nbytes)
{
	struct te_k_adamw_state s;
	int r;

	if (!opt || !src || nbytes != sizeof(struct te_k_adamw_state))
		return te__fail(-EINVAL, "te_adamw_state_set: %zu bytes, the state has %zu", nbytes,
				sizeof(struct te_k_adamw_state));
	memcpy(&s, src, sizeof(s));
	r = te__adamw_state_check("te_adamw_state_set", &s);
	if (!r)
		r = copy_state(opt, "te_adamw_state_set", opt->state, &s);
	return r ? r : te__adamw_groups_follow(opt, &s);
}

static int visit_regions(const struct te_adamw *opt, te_region_fn fn, void *arg)
{
	const struct te_tensor *masters = te_seq_masters(opt->seq);
	const size_t n = (size_t)(te__seq_divides_masters(opt->seq) ?
					  own_nelems(&opt->own) : te_seq_grad_nelems(opt->seq));
	const size_t size = te_dtype_nbytes(te_tensor_dtype(masters));
	const enum te_region_kind moments = opt->pinned ? TE_REGION_HOST : TE_REGION_DEVICE;
	const enum te_region_kind weights =
		opt->seq->host_masters ? TE_REGION_HOST : TE_REGION_DEVICE;
	const struct te_region region[] = {
		/* only trained weights */
		{ "weights", weights, te_tensor_data(masters), n * size },
		{ "remainders of weights",
		  opt->seq->host_rest ? TE_REGION_HOST : TE_REGION_DEVICE, opt->seq->rest,
		  n * sizeof(uint16_t) },
		{ "version of the weights", TE_REGION_DEVICE, opt->seq->version,
		  sizeof(*opt->seq->version) },
		{ "first moments", moments, te_tensor_data(te_adamw_m(opt)),
		  te_tensor_nbytes(opt->m) },
		{ "second moments", moments, te_tensor_data(te_adamw_v(opt)),
		  te_tensor_nbytes(opt->v) },
		{ "optimizer state", TE_REGION_DEVICE, opt->state, sizeof(*opt->state) },
		{ "states of groups", TE_REGION_DEVICE, opt->groups.state,
		  (size_t)opt->groups.n * sizeof(*opt->groups.state) },
	};
	int r = 0;

	for (size_t i = 0; i < sizeof(region) / sizeof(region[0]) && !r; i++)
		r = region[i].ptr ? fn(arg, &region[i]) : 0;
	return r;
}

int te_adamw_regions(const struct te_adamw *opt, te_region_fn fn, void *arg)
{
	return opt ? visit_regions(opt, fn, arg) :
		     te__fail(-EINVAL, "te_adamw_regions: opt is NULL");
}
