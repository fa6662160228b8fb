/*
 * mem.c - the memory that a run takes, known before anything is allocated.
 *
 * All plans and the graph are laid out without memory; they tell their sizes. The rest follows from
 * the number of weights.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <te/errno.h>
#include <te/spill.h>

#include "answers.h"
#include "loop.h"
#include "mem.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"
#include "tools/lib/weights.h"

#define MAX_BATCH (1 << 20)
#define MAX_CONTEXT (1 << 20)

/* ---- plans ---- */

#define PART_TABLE_NBYTES 1024 /* at most what another table rounds up */

/* a plan with the given options, and its memory */
static int plan_memory(const struct mem_run *run, const struct te_plan_opts *opts,
		       struct te_plan_memory *ret)
{
	struct te_plan_opts po = *opts;
	struct te_plan *plan = NULL;
	int r;

	po.recipe = &run->graph->recipe;
	po.flags |= TE_PLAN_NO_ALLOC;
	r = te_plan_create(run->model->seq, &po, &plan);
	if (r < 0)
		return r;
	r = te_plan_memory(plan, ret);
	te_plan_unref(plan);
	return r;
}

/* validation, or samples: arena, inputs and outputs */
static int forward_nbytes(const struct mem_run *run, int64_t B, int64_t T, const char *stop_before,
			  struct te_plan_memory *ret)
{
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;

	po.x = (struct te_spec){ TE_DTYPE_INT32, 2, { B, T } };
	po.stop_before = stop_before;
	return plan_memory(run, &po, ret);
}

static uint64_t grads_nbytes(const struct mem_run *run)
{
	return (uint64_t)ranks_own_grads(run->graph->ranks, run->model->seq, run->o->zero) *
	       (opts_grads(run->o) ? 2 : sizeof(float));
}

/* elements of the masters that this rank has */
static int64_t own_masters(const struct mem_run *run)
{
	const struct te_seq *seq = run->model->seq;
	const int64_t zero = run->o->zero > 2 ? run->o->zero : 0;

	return te_seq_nelems(seq) - te_seq_grad_nelems(seq) +
	       ranks_own_grads(run->graph->ranks, seq, zero);
}

#define TENSOR_NBYTES 256 /* granularity of the memory of te_tensor_create(3) */

/* bytes after nbytes of values in the memory of their tensor */
static uint64_t padding(uint64_t nbytes)
{
	return -nbytes % TENSOR_NBYTES;
}

/* weights, copies and quantizers, which all plans share */
static int shared(const struct mem_run *run, int64_t B, struct mem *m)
{
	struct te_plan_memory pm = TE_PLAN_MEMORY_INIT;
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	const struct te_ctx *ctx = te_seq_ctx(run->model->seq);
	int r;

	po.flags = run->train ? TE_PLAN_TRAIN : 0;
	po.x = (struct te_spec){ TE_DTYPE_INT32, 2, { B, run->graph->T } };
	r = plan_memory(run, &po, &pm);
	if (r < 0)
		return r;
	m->grads = opts_hosted(run->o) & TE_SEQ_HOST_GRADS ? 0 : grads_nbytes(run);
	/* gradients in a communicator's pool are none of the plan's */
	m->weights = pm.bound_nbytes + pm.weights_nbytes -
		     (run->graph->ranks->grads ? 0 : m->grads) +
		     (run->o->zero < 3 ? run->graph->ranks->weights_nbytes : 0);
	m->copies = pm.copies_nbytes;
	m->state = pm.state_nbytes - pm.own_nbytes;
	if (!run->graph->ranks->grads)
		m->state += padding(m->grads);
	/* FP32 masters fill their memory, because their number is a multiple of 64 */
	if (opts_masters(run->o, te_ctx_backend(ctx)) & TE_SEQ_BF16_MASTERS &&
	    !(opts_hosted(run->o) & TE_SEQ_HOST_MASTERS))
		m->state += padding(2 * (uint64_t)te_seq_nelems(run->model->seq));
	/* copies of each part's weights have a table of their own */
	m->state += (uint64_t)run->graph->ncuts * PART_TABLE_NBYTES;
	return 0;
}

/* ---- the run ---- */

/* tokens of a sequence, of which ranks may have a part each */
static int64_t seq_len(const struct mem_run *run)
{
	return run->graph->T * run->o->context;
}

/* tokens of the steps in flight, and tensors while a checkpoint is read or written */
static uint64_t host_nbytes(const struct mem_run *run, const struct mem *m, int64_t B)
{
	const struct opts *o = run->o;
	const uint64_t rows = (uint64_t)(seq_len(run) * B) * sizeof(int32_t);
	const uint64_t tokens = (run->model->cfg.documents ? 3 : 2) *
				(NSLOTS * (uint64_t)run->graph->accum + 1) * rows;
	const int64_t n = run->model->whole ? te_seq_nelems(run->model->seq) :
					      weights_nelems(run->model);
	const uint64_t values = (uint64_t)n * sizeof(float);
	uint64_t file = o->init || o->resume ? values : 0;

	if (run->train && (o->out || o->resume)) /* the copy, while it is written */
		file = values + m->all_moments;
	if (run->model->whole) /* and what it is gathered in */
		file *= 2 * (uint64_t)run->model->nshards;
	return (run->train ? tokens : 0) + file + m->pinned + m->host_states;
}

/* bytes of remainders in host memory */
static uint64_t host_rest(const struct mem_run *run)
{
	const struct te_seq *seq = run->model->seq;
	const uint32_t flags = opts_masters(run->o, te_ctx_backend(te_seq_ctx(seq)));

	if (!(flags & TE_SEQ_HOST_REMAINDERS))
		return 0;
	return 2 * (uint64_t)(flags & TE_SEQ_ROUND_FROZEN ? te_seq_grad_nelems(seq) :
							    te_seq_nelems(seq));
}

/* a copy of a step's inputs, while te_step_calibrate(3) runs its passes */
static uint64_t calibration_nbytes(const struct mem_run *run, int64_t B)
{
	const uint64_t rows = (uint64_t)(run->graph->T * B) * sizeof(int32_t);

	if (run->graph->recipe.kind != TE_RECIPE_DELAYED &&
	    !config_has_recipe(&run->model->cfg, TE_RECIPE_DELAYED))
		return 0;
	return (run->model->cfg.documents ? 3 : 2) * (uint64_t)run->graph->accum *
	       (rows + padding(rows));
}

static double fp32_rate(const struct te_ctx *ctx)
{
	struct te_device_info info = TE_DEVICE_INFO_INIT;

	return te_ctx_device_info(ctx, &info) < 0 ? 0 : info.peak_fp32_flops;
}

/*
 * Operations by which AdamW takes as long for an element as by its conversions and random numbers:
 * 16.8 million elements take 126 to 146 us on an H200 with FP8 moments and 112 us with BF16 ones
 * (doc/perf-training.md), at 67 Tflop/s.
 */
static double update_flops(const struct te_adamw_opts *ao)
{
	return ao->moments == TE_MOMENTS_FP8 ? 560 : ao->moments == TE_MOMENTS_BF16 ? 450 : 0;
}

/* bytes per second that are read and written concurrently, of the only file; 0: not measured yet */
static double file_rate;

static int find_file_rate(const char *dir)
{
	struct te_spill_rates rates = TE_SPILL_RATES_INIT;
	struct te_spill_opts so = TE_SPILL_OPTS_INIT;
	int r = 0;

	so.dir = dir;
	so.nbytes = (uint64_t)64 << 20;
	if (file_rate <= 0)
		r = te_spill_measure(&so, &rates);
	if (file_rate <= 0)
		file_rate = rates.both.bytes_per_s;
	return r;
}

static int add_step(const struct mem_run *run, int64_t B, struct mem *m, uint64_t *ret_eval)
{
	struct te_plan_memory eval = TE_PLAN_MEMORY_INIT;
	struct te_offload_report off = TE_OFFLOAD_REPORT_INIT;
	struct te_step_memory sm = TE_STEP_MEMORY_INIT;
	struct te_adamw_opts ao = opts_adamw(run->o), whole = ao;
	const int64_t nelems = te_seq_nelems(run->model->seq);
	const int64_t ngrads = te_seq_grad_nelems(run->model->seq);
	struct te_step *step = NULL;
	const uint32_t hosted = opts_hosted(run->o);
	const uint64_t rest = host_rest(run);
	const double peak = fp32_rate(te_seq_ctx(run->model->seq));
	uint64_t others, moments, masters, grads;
	int r = step_graph_make(run->graph, run->model->seq, NULL, B, TE_STEP_NO_ALLOC, &step);

	if (r >= 0)
		r = te_step_memory(step, &sm);
	if (r >= 0 && run->graph->offload)
		r = te_offload_report(run->graph->offload, &off);
	te_step_unref(step);
	if (r >= 0)
		r = forward_nbytes(run, B, run->graph->T, NULL, &eval);
	if (r < 0)
		return r;
	whole.where = TE_ADAMW_DEVICE;
	whole.dir = NULL;
	m->all_moments = 2 * te_moments_nbytes(ao.moments, ngrads);
	others = te_adamw_nbytes(run->model->seq, &whole) - m->all_moments;
	ranks_optimizer(run->graph->ranks, run->o->zero, &ao);
	ranks_optimizer(run->graph->ranks, run->o->zero, &whole);
	moments = te_adamw_nbytes(run->model->seq, &whole) - others;
	m->moments = te_adamw_nbytes(run->model->seq, &ao) - others;
	masters = hosted & TE_SEQ_HOST_MASTERS ? 2 * (uint64_t)own_masters(run) : 0;
	grads = hosted & TE_SEQ_HOST_GRADS ? grads_nbytes(run) : 0;
	/* casts read masters again unless the update makes them, the norm reads gradients */
	m->host_rereads = (ao.flags & TE_ADAMW_CAST ? 0 : masters) + grads;
	m->host_states = rest + te_adamw_host_nbytes(run->model->seq, &ao) + masters + grads;
	m->file_states = te_adamw_file_nbytes(run->model->seq, &ao);
	m->state += others + sm.plans_nbytes + calibration_nbytes(run, B);
	if (ao.where == TE_ADAMW_DEVICE)
		m->state += 2 * padding(m->moments / 2);
	m->activations = m->pool = sm.pool_nbytes;
	m->offloaded = off.moved_nbytes;
	m->pinned = off.pinned_nbytes;
	m->hidden = off.hidden;
	m->step_ms = sm.passes_ms;
	/* AdamW reads gradients twice, for their norm too, and reads and writes all the rest;
	 * casts read masters */
	if (sm.passes_ms > 0) {
		const double copies = (2.0 * (double)(m->grads + moments) +
				       2.0 * (double)(m->weights + rest) * (double)ngrads /
					       (double)nelems +
				       (double)(m->copies ? m->copies + m->weights : 0)) /
				      off.mem_rate;
		const double arithmetic =
			peak > 0 ? update_flops(&ao) * (double)ngrads / peak : 0;
		const double kernels = copies > arithmetic ? copies : arithmetic;
		const uint64_t moved = ao.where ? rest + moments + masters + grads : 0;
		const double link = (double)(moved + m->host_rereads) /
				    (off.in_rate < off.out_rate ? off.in_rate : off.out_rate);

		m->step_ms += 1e3 * (kernels > link ? kernels : link);
	}
	/* a step reads one of the two records of each chunk and writes the other one */
	if (sm.passes_ms > 0 && ao.dir) {
		r = find_file_rate(ao.dir);
		m->step_ms += r < 0 ? 0 : 1e3 * (double)m->file_states / file_rate;
	}
	*ret_eval = eval.arena_nbytes + eval.own_nbytes;
	return r < 0 ? r : 0;
}

int mem_estimate(const struct mem_run *run, int64_t B, struct mem *ret)
{
	const size_t work = te_ctx_workspace_nbytes(te_seq_ctx(run->model->seq));
	struct te_plan_memory sample = TE_PLAN_MEMORY_INIT;
	uint64_t eval = 0, answers = 0, copies = 0, later, held;
	struct mem m = { 0 };
	int r = shared(run, B, &m);

	if (r >= 0 && run->train)
		r = add_step(run, B, &m, &eval);
	if (r >= 0 && run->o->sample)
		r = forward_nbytes(run, model_fewest(run->model), run->graph->T, MODEL_LOSS,
				   &sample);
	if (r >= 0 && run->train && run->choices->nquestions)
		r = answers_nbytes(run->choices, run->model, &run->graph->recipe, &answers,
				   &copies);
	if (r < 0)
		return r;
	m.copies += copies;
	if (run->graph->ranks->taken_nbytes) /* what is in the communicator's pool is counted */
		m.state += run->graph->ranks->taken_nbytes -
			   (run->o->zero > 2 ? m.weights : run->graph->ranks->weights_nbytes) -
			   (run->graph->ranks->grads ? m.grads : 0);
	/* the graph has one workspace, the stream of the other plans another */
	m.state += (run->train ? 2 : 1) * work;
	held = m.weights + m.grads + m.moments + m.copies + m.state + m.activations;
	later = eval + answers + sample.arena_nbytes + sample.own_nbytes;
	m.activations += later;
	m.total = held + later;
	m.host = host_nbytes(run, &m, B);
	*ret = m;
	return 0;
}

/* ---- available memory ---- */

struct room {
	uint64_t device, host; /* free bytes */
	int same;	       /* the device's memory is the host's */
};

static int get_room(const struct mem_run *run, struct room *ret)
{
	struct te_ctx *ctx = te_seq_ctx(run->model->seq);
	struct te_device_info host = TE_DEVICE_INFO_INIT;
	struct te_mem_info mi = TE_MEM_INFO_INIT;
	int r = te_ctx_mem_info(ctx, &mi);

	if (r >= 0)
		r = te_device_info("host", 0, &host);
	if (r < 0)
		return say_te(r, "the free memory");
	*ret = (struct room){
		.device = mi.device_free_nbytes + run->graph->ranks->taken_nbytes,
		.host = host.mem_free_nbytes,
		.same = !strcmp(te_ctx_backend(ctx), "host"),
	};
	if (ret->same)
		ret->host += run->graph->ranks->taken_nbytes;
	if (run->o->estimate > 0) {
		/* another machine, whose host memory is not known */
		ret->device = (uint64_t)run->o->estimate;
		ret->host = UINT64_MAX;
		ret->same = 0;
	}
	if (run->o->memory > 0 && ret->device > (uint64_t)run->o->memory)
		ret->device = (uint64_t)run->o->memory;
	return STATUS_OK;
}

static int fits(const struct mem *m, const struct room *room)
{
	return m->total <= room->device &&
	       m->host + (room->same ? m->total : 0) <= room->host;
}

const char *mem_amount(uint64_t nbytes, char text[32])
{
	const int small = nbytes < 1 << 30;

	snprintf(text, 32, "%.2f %s", (double)nbytes / (small ? 1 << 20 : 1 << 30),
		 small ? "MiB" : "GiB");
	return text;
}

/* ---- offload ---- */

static int is_auto(const struct mem_run *run)
{
	return run->train && !strcmp(run->o->offload, "auto");
}

/* estimate without recomputation */
static int estimate_keeping(const struct mem_run *run, int64_t B, struct mem *ret)
{
	struct step_graph g = *run->graph;
	struct mem_run with = *run;

	g.nrecompute = 0;
	with.graph = &g;
	return mem_estimate(&with, B, ret);
}

/* estimate with this offload */
static int estimate_with(const struct mem_run *run, struct te_offload *offload, int64_t B,
			 struct mem *ret)
{
	struct step_graph g = *run->graph;
	struct mem_run with = *run;

	g.offload = offload;
	with.graph = &g;
	return mem_estimate(&with, B, ret);
}

/* --offload auto: an offload with which the run fits; NULL if it fits without, or not at all */
static int fit(const struct mem_run *run, int64_t B, const struct room *room, struct mem *ret,
	       struct te_offload **ret_offload)
{
	struct te_offload *offload = NULL;
	uint64_t excess;
	struct mem m;
	int r = estimate_with(run, NULL, B, ret);

	*ret_offload = NULL;
	excess = r >= 0 && ret->total > room->device ? ret->total - room->device : 0;
	if (r < 0 || !excess || excess >= ret->pool)
		return r;
	if (run->offload) {
		offload = te_offload_ref(run->offload);
		r = te_offload_set_target(offload, ret->pool - excess);
	} else {
		r = step_graph_offload(run->graph, te_seq_ctx(run->model->seq),
				       ret->pool - excess, 0, &offload);
	}
	if (r < 0)
		return r;
	r = estimate_with(run, offload, B, &m);
	if (r >= 0) {
		*ret = m;
		*ret_offload = offload;
		return r;
	}
	te_offload_unref(offload);
	return r == -ENOMEM ? 0 : r; /* does not fit */
}

static int no_estimate(const struct mem_run *run, int r)
{
	if (r != -ENOMEM)
		return say_te(r, "the model cannot be planned");
	return say_te(r, "--batch %lld with --seq-len %lld does not fit", (long long)run->graph->B,
		      (long long)seq_len(run));
}

int mem_try(const struct mem_run *run, int may_move, struct mem *ret, struct mem_fit *ret_fit)
{
	struct te_offload *offload = NULL;
	struct room room;
	struct mem moved;
	int r = get_room(run, &room), te;

	if (r)
		return r;
	/* nothing moves, but times are predicted */
	te = te_offload_set_target(run->offload, UINT64_MAX);
	if (te >= 0)
		te = estimate_with(run, run->offload, run->graph->B, ret);
	if (te < 0)
		return no_estimate(run, te);
	*ret_fit = (struct mem_fit){ .fits = fits(ret, &room) };
	if (ret_fit->fits || !may_move)
		return STATUS_OK;
	te = fit(run, run->graph->B, &room, &moved, &offload);
	if (te < 0)
		return no_estimate(run, te);
	if (!offload) /* the target is less than a pool can be */
		return STATUS_OK;
	te_offload_unref(offload);
	*ret = moved;
	*ret_fit = (struct mem_fit){ .fits = fits(ret, &room), .moves = 1 };
	return STATUS_OK;
}

/* with the offload that a run of B would have */
static int estimate(const struct mem_run *run, int64_t B, const struct room *room, struct mem *ret)
{
	struct te_offload *offload = NULL;
	int r;

	if (!is_auto(run))
		return mem_estimate(run, B, ret);
	r = fit(run, B, room, ret, &offload);
	te_offload_unref(offload);
	return r;
}

/* te: a failure; of a file: a folder that cannot be used, or a full disk, is bad input */
static int no_offload(const struct opts *o, int te)
{
	static const int bad[] = { -ENOENT, -ENOTDIR, -EACCES, -EROFS };
	static const int full[] = { -ENOSPC, -EDQUOT, -EFBIG };

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]) && o->offload_file; i++)
		if (te == bad[i])
			return say_bad("--offload-file: %s", te_error_detail());
	for (size_t i = 0; i < sizeof(full) / sizeof(full[0]) && o->offload_file; i++)
		if (te == full[i])
			return say_bad("--offload-file: %s, expected room for the SIZE of "
				       "DIR:SIZE, by default 8G", te_error_detail());
	return say_te(te, "--offload %s", o->offload);
}

int mem_offload(const struct mem_run *run, struct step_graph *g)
{
	const struct opts *o = run->o;
	struct room room;
	struct mem m;
	int r = STATUS_OK, te = 0;

	if (!run->train || !strcmp(o->offload, "off"))
		return STATUS_OK;
	if (is_auto(run)) {
		r = get_room(run, &room);
		te = r ? 0 : fit(run, g->B, &room, &m, &g->offload);
	} else {
		te = step_graph_offload(run->graph, te_seq_ctx(run->model->seq), 0,
					(uint64_t)o->offload_nbytes, &g->offload);
	}
	return te < 0 ? no_offload(o, te) : r;
}

int mem_check(const struct mem_run *run)
{
	const struct step_graph *g = run->graph;
	char needed[32], there[32];
	struct room room;
	struct mem m;
	int r = get_room(run, &room), te;

	if (r)
		return r;
	te = mem_estimate(run, g->B, &m);
	if (te < 0)
		return no_estimate(run, te);
	if (fits(&m, &room))
		return STATUS_OK;
	if (!room.same && m.total <= room.device)
		return say_bad("checkpoints need %s of host memory, %s are free",
			       mem_amount(m.host, needed), mem_amount(room.host, there));
	if (m.total <= room.device) {
		/* host backend: checkpoints and the device use the same memory */
		m.total += m.host;
		room.device = room.host;
	}
	return say_bad("--batch %lld with --seq-len %lld does not fit: it needs %s, %s are free; "
		       "see --estimate",
		       (long long)g->B, (long long)seq_len(run), mem_amount(m.total, needed),
		       mem_amount(room.device, there));
}

static int fits_with(const struct mem_run *run, const struct room *room, int64_t B, int64_t T)
{
	struct step_graph g = *run->graph;
	struct mem_run with = *run;
	struct mem m;

	g.T = T;
	with.graph = &g;
	return estimate(&with, B, room, &m) >= 0 && fits(&m, room);
}

#define UNIT_T 64 /* tokens of each rank by which a context grows */

/* the largest batch that fits in its units, or the longest context; 0 if one does not fit */
static int64_t largest(const struct mem_run *run, const struct room *room, int64_t most, int tokens)
{
	const int64_t B = run->graph->B, T = run->graph->T;
	const int64_t unit = tokens ? UNIT_T : model_fewest(run->model);
	int64_t lo = 0, hi = 1;

	for (; hi <= most && fits_with(run, room, tokens ? B : hi * unit, tokens ? hi * unit : T);
	     hi *= 2)
		lo = hi;
	hi = hi <= most ? hi : most + 1;
	while (hi - lo > 1) {
		const int64_t mid = lo + (hi - lo) / 2;

		if (fits_with(run, room, tokens ? B : mid * unit, tokens ? mid * unit : T))
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

static void print_row(const char *name, uint64_t nbytes, const char *note)
{
	printf("%-14s %10.2f MiB%s%s\n", name, (double)nbytes / (1 << 20), *note ? "  " : "", note);
}

/* the largest that fit; context: 0 if none does */
struct most {
	int64_t batch, context;
};

static struct most find_most(const struct mem_run *run, const struct room *room)
{
	const char *field;
	const int64_t limit = config_longest(&run->model->cfg, &field);
	const int64_t longest = limit && limit < MAX_CONTEXT ? limit : MAX_CONTEXT;
	const int64_t unit = UNIT_T * run->o->context;
	const int64_t sequences = model_fewest(run->model);
	struct most most = { .batch = sequences * largest(run, room, MAX_BATCH / sequences, 0) };

	if (run->train)
		most.context = unit * largest(run, room, longest / unit, 1);
	return most;
}

/* estimate with --offload auto: rates are measured once, and there is one file */
static int find_most_auto(const struct mem_run *run, const struct room *room, struct most *ret)
{
	struct mem_run with = *run;
	int r = 0;

	with.offload = te_offload_ref(run->graph->offload);
	if (!with.offload)
		r = step_graph_offload(run->graph, te_seq_ctx(run->model->seq), 0, 0,
				       &with.offload);
	if (r < 0)
		return no_offload(run->o, r);
	*ret = find_most(&with, room);
	te_offload_unref(with.offload);
	return STATUS_OK;
}

/* without offload, and without values that are computed again */
struct others {
	struct mem plain, keeping;
};

static void print_text(const struct mem_run *run, const struct mem *m, const struct others *others,
		       const struct room *room, const struct most *most)
{
	const uint32_t hosted = opts_hosted(run->o);
	char note[80];

	printf("%-14s %10.2f million", "parameters", 1e-6 * (double)run->model->nparams);
	if (run->model->ntrained < run->model->nparams)
		printf(", %.2f million trained", 1e-6 * (double)run->model->ntrained);
	putchar('\n');
	print_row("weights", m->weights,
		  hosted & TE_SEQ_HOST_MASTERS ? "masters are in host memory; activations have "
						 "those of a GEMM" :
		  run->o->zero > 2		? "a part; activations have those of a layer" : "");
	print_row("gradients", m->grads,
		  hosted & TE_SEQ_HOST_GRADS ? "in host memory; activations have some" :
		  run->o->zero > 1	     ? "a part; activations have those of a layer" : "");
	print_row("moments", m->moments,
		  m->file_states ? "a chunk; all are in a file" :
		  m->host_states ? "chunks; all are in host memory" : "");
	print_row("copies", m->copies,
		  opts_copies(run->o) ? "of weights, in other formats; column-wise ones are made "
					"in activations" :
					"of weights, in other formats");
	snprintf(note, sizeof(note), "--batch %lld, --seq-len %lld", (long long)run->graph->B,
		 (long long)seq_len(run));
	print_row("activations", m->activations, note);
	print_row("state", m->state, "quantizers, optimizer, workspaces");
	print_row("total", m->total, "most at one time");
	print_row("host memory", m->host,
		  "tokens, tensors of a checkpoint, offloaded values, --states");
	if (m->file_states)
		print_row("states file", m->file_states,
			  "two records of moments, and of weights that a step replaces");
	if (run->graph->offload) {
		snprintf(note, sizeof(note), "each way in a step, %.0f%% hidden", 100 * m->hidden);
		print_row("offloaded", m->offloaded, note);
		print_row("without", others->plain.total, "total, if nothing moves");
	}
	if (run->graph->nrecompute)
		print_row("keeping", others->keeping.total,
			  "total, if nothing is computed again in backward");
	print_row("free", room->device, run->o->estimate > 0 ? "as given" : "");
	printf("%-14s %10lld\n", "largest batch", (long long)most->batch);
	if (run->train)
		printf("%-14s %10lld tokens\n", "longest", (long long)most->context);
}

static int print_json(const struct mem_run *run, const struct mem *m, const struct others *others,
		      const struct room *room, const struct most *most)
{
	struct record rec;

	record_begin(&rec);
	record_int(&rec, "params", run->model->nparams);
	record_int(&rec, "trained_params", run->model->ntrained);
	record_int(&rec, "batch", run->graph->B);
	record_int(&rec, "seq_len", seq_len(run));
	record_int(&rec, "weights_bytes", (int64_t)m->weights);
	record_int(&rec, "gradients_bytes", (int64_t)m->grads);
	record_int(&rec, "moments_bytes", (int64_t)m->moments);
	record_int(&rec, "host_states_bytes", (int64_t)m->host_states);
	record_int(&rec, "states_file_bytes", (int64_t)m->file_states);
	record_int(&rec, "copies_bytes", (int64_t)m->copies);
	record_int(&rec, "activations_bytes", (int64_t)m->activations);
	record_int(&rec, "state_bytes", (int64_t)m->state);
	record_int(&rec, "total_bytes", (int64_t)m->total);
	record_int(&rec, "host_bytes", (int64_t)m->host);
	if (run->graph->offload) {
		record_int(&rec, "offloaded_bytes", (int64_t)m->offloaded);
		record_real(&rec, "hidden", m->hidden);
		record_int(&rec, "total_without_bytes", (int64_t)others->plain.total);
	}
	if (run->graph->nrecompute)
		record_int(&rec, "total_keeping_bytes", (int64_t)others->keeping.total);
	record_int(&rec, "free_bytes", (int64_t)room->device);
	record_int(&rec, "largest_batch", most->batch);
	if (run->train)
		record_int(&rec, "longest_context", most->context);
	return record_print(&rec, JSON_INDENT(2));
}

int mem_print(const struct mem_run *run)
{
	struct room room;
	struct others others = { .keeping = { .total = 0 } };
	struct mem m;
	struct most most = { 0, 0 };
	int r = get_room(run, &room), te;

	if (r)
		return r;
	te = mem_estimate(run, run->graph->B, &m);
	if (te >= 0)
		te = estimate_with(run, NULL, run->graph->B, &others.plain);
	if (te >= 0 && run->graph->nrecompute)
		te = estimate_keeping(run, run->graph->B, &others.keeping);
	if (te < 0)
		return no_estimate(run, te);
	r = is_auto(run) ? find_most_auto(run, &room, &most) : STATUS_OK;
	if (!is_auto(run))
		most = find_most(run, &room);
	if (r)
		return r;
	if (run->o->json)
		return print_json(run, &m, &others, &room, &most);
	print_text(run, &m, &others, &room, &most);
	return STATUS_OK;
}
