/* t/graph/offload_lib.c - a model that trains with te_offload_*(3). */
#include "config.h"

#include <unistd.h>

#include "libtecore/plan/moves.h"
#include "offload_lib.h"

const struct model_shape small = { 48, 32, 2, 16, 4, 2, 2, 0.2f, 1 };
const char *const cuts[NCUTS] = { "h.1.ln1", "norm" };
static const int32_t one_chunk[] = { 3 };

const struct way ways[WAYS] = {
	{ 0, 0, NULL },
	{ TE_STEP_GRAPH, 0, NULL },
	{ TE_STEP_PASS_GRAPHS, 0, NULL },
	{ 0, NCUTS, NULL },
	{ TE_STEP_PASS_GRAPHS, NCUTS, NULL },
	{ TE_STEP_GRAPH, NCUTS, "gpipe" },
	{ 0, NCUTS, "gpipe" },
	{ TE_STEP_PASS_GRAPHS, NCUTS, "zero-bubble" },
};

struct te_offload_opts rates(enum speed speed)
{
	struct te_offload_opts o = TE_OFFLOAD_OPTS_INIT;

	o.mem_rate = 1e9;
	o.flop_rate = 1e10;
	o.out_rate = o.in_rate = speed == FAST ? 1e9 : 5e7;
	o.min_nbytes = 256;
	o.group_nbytes = 8192;
	return o;
}

struct te_offload_opts through_file(enum speed speed)
{
	struct te_offload_opts o = rates(speed);

	o.dir = "/tmp";
	o.quota_nbytes = (uint64_t)16 << 20;
	o.pinned_nbytes = (uint64_t)16 << 20;
	o.write_rate = speed == FAST ? 1e9 : 1e8;
	o.read_rate = 5e8;
	return o;
}

struct te_offload *offload_of(const struct te_offload_opts *o)
{
	struct te_offload *off;

	DO(te_offload_create(ctx, o, &off));
	return off;
}

static void nap(void *arg)
{
	usleep(200);
}

/* delays the streams of the copies now and then, so that a wait that is missing shows */
static int delay_copies(void *arg, struct te_plan *plan, const struct te_plan_event *event)
{
	struct te_offload *off = arg;
	int r = 0;

	if (off && !tt_rand_int(0, 31))
		r = te_host_call(tt_rand_int(0, 1) ? off->out : off->in, nap, NULL, 0);
	return r;
}

const char *states_dir;
int no_words;
int costly;
const char *recompute;

struct run run_create(const struct model_shape *m, const struct way *w, const char *recipe,
			     const struct te_offload_opts *oo)
{
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_adamw_opts ao = TE_ADAMW_OPTS_INIT;
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	const struct te_recipe rec = model_recipe(recipe);
	struct run r = { .off = NULL };

	r.seq = model_create(ctx, m, 3);
	ao.dir = states_dir;
	ao.where = states_dir ? TE_ADAMW_FILE : TE_ADAMW_DEVICE;
	ao.chunk_nelems = states_dir ? 1 << 10 : 0;
	DO(te_adamw_create(r.seq, &ao, &r.opt));
	DO(te_adamw_set_lr(r.opt, st, 1e-2f));
	r.off = oo ? offload_of(oo) : NULL;
	if (r.off && no_words)
		r.off->words = 0;
	so.nchunks = 1;
	so.nmicro = MICRO;
	so.nlayers = one_chunk;
	if (w->order)
		DO(te_schedule_parse(w->order, &so, &o.schedule));
	o.recipe = &rec;
	o.flags = w->flags | (costly ? TE_STEP_RECOMPUTE_COSTLY : 0);
	o.micro_batches = MICRO;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { m->batch, m->seqlen } };
	o.ncuts = w->ncuts;
	o.cut = cuts;
	o.offload = r.off;
	o.nrecompute = recompute != NULL;
	o.recompute = &recompute;
	if (r.off && !w->flags) {
		o.hook = delay_copies;
		o.hook_arg = r.off;
		o.hooks = 1u << TE_PLAN_EVENT_BEGIN;
	}
	DO(te_step_create(r.seq, r.opt, &o, &r.step));
	te_schedule_unref(o.schedule);
	return r;
}

void run_destroy(struct run *r)
{
	te_step_unref(r->step);
	te_offload_unref(r->off);
	te_adamw_unref(r->opt);
	te_seq_unref(r->seq);
}

struct te_offload_report report_of(struct te_offload *off)
{
	struct te_offload_report rep = TE_OFFLOAD_REPORT_INIT;

	DO(te_offload_report(off, &rep));
	return rep;
}

uint64_t pool_of(const struct run *r)
{
	struct te_step_memory sm = TE_STEP_MEMORY_INIT;

	DO(te_step_memory(r->step, &sm));
	return sm.pool_nbytes;
}

int start_step(struct run *r, int32_t t[MICRO][2][NTOKENS])
{
	for (int m = 0; m < MICRO; m++)
		for (int k = 0; k < 2; k++)
			DO(te_tensor_write(te_step_input(r->step, 0, m, k ? "targets" : "x"),
					   t[m][k], sizeof(t[m][k])));
	return te_step_run(r->step, 0, st);
}

void run_step(struct run *r, int32_t t[MICRO][2][NTOKENS], double *loss)
{
	DO(start_step(r, t));
	DO(te_step_loss(r->step, loss));
}

static void same_moments(struct run *a, struct run *b)
{
	const size_t n = (size_t)te_seq_grad_nelems(a->seq);
	float *v[2] = { malloc(n * sizeof(**v)), malloc(n * sizeof(**v)) };

	DO(te_adamw_moments_get(a->opt, 1, v[0]));
	DO(te_adamw_moments_get(b->opt, 1, v[1]));
	ck_assert_mem_eq(v[0], v[1], n * sizeof(**v));
	free(v[0]);
	free(v[1]);
}

void same_steps(struct run *a, struct run *b)
{
	int32_t t[MICRO][2][NTOKENS];
	double want, have;

	for (int k = 0; k < STEPS; k++) {
		for (int m = 0; m < MICRO; m++)
			for (int i = 0; i < 2 * NTOKENS; i++)
				t[m][i / NTOKENS][i % NTOKENS] =
					(int32_t)tt_rand_int(0, small.vocab - 1);
		run_step(a, t, &want);
		run_step(b, t, &have);
		ck_assert_double_eq(want, have);
		model_same(te_seq_grads(a->seq), te_seq_grads(b->seq), "gradients");
		model_same(te_seq_masters(a->seq), te_seq_masters(b->seq), "weights");
		same_moments(a, b);
		model_same_scales(te_seq_quant(a->seq), te_seq_quant(b->seq));
	}
}

struct te_mem_info mem_now(void)
{
	struct te_mem_info mi = TE_MEM_INFO_INIT;

	DO(te_ctx_sync(ctx));
	DO(te_ctx_mem_info(ctx, &mi));
	return mi;
}

struct te_plan *plan_of(struct te_seq *seq, struct te_offload *off, uint32_t flags)
{
	const struct te_recipe rec = model_recipe("bf16");
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *p;

	o.recipe = &rec;
	o.flags = TE_PLAN_TRAIN | flags;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { small.batch, small.seqlen } };
	o.offload = off;
	DO(te_plan_create(seq, &o, &p));
	return p;
}

