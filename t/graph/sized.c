/*
 * t/graph/sized.c - every function that takes or fills a struct with a size, with the structs of an
 * older header (shorter) and of a newer one (longer).
 */
#include "config.h"

#include <te/te.h>

#include "tt_ctx.h"

#define WIDTH 4

/* what the calls work on: two ops in FP32, an external plan of it, a recorded fill */
static struct te_seq *seq, *losing; /* the other ends in a loss */
static struct te_seq *embedding; /* an embedding and a linear op, for decoders */
static struct te_plan *plan, *external;
static struct te_adamw *adamw;
static struct te_recording *rec;
static struct te_schedule *sched;
static struct te_graph *graph;
static struct te_step *step;
static struct te_offload *offload;
static struct te_tensor *word;
static struct te_comm *comm; /* of one rank */
static struct te_recipe fp32 = TE_RECIPE_INIT;
static const struct te_spec x3 = { TE_DTYPE_FP32, 3, { 1, 2, WIDTH } };

static struct te_op *linear(const char *name)
{
	struct te_linear_attrs a = TE_ATTRS(linear, .in = WIDTH, .out = WIDTH);
	struct te_op *op;

	DO(te_op_linear(&a, name, &op));
	return op;
}

static struct te_seq *seq_of(struct te_op *op)
{
	struct te_seq *s;

	DO(te_seq_create(ctx, &s));
	tt_append(s, op);
	return s;
}

static struct te_plan_opts plan_opts(uint32_t flags)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;

	fp32.compute = TE_DTYPE_FP32;
	o.recipe = &fp32;
	o.flags = flags;
	o.x = (struct te_spec){ TE_DTYPE_FP32, 2, { 2, WIDTH } };
	return o;
}

static void setup(void)
{
	const struct te_plan_opts o = plan_opts(TE_PLAN_TRAIN);
	const struct te_plan_opts e = plan_opts(TE_PLAN_TRAIN | TE_PLAN_EXTERNAL);
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	const struct te_act_attrs act = TE_ACT_ATTRS_INIT;
	struct te_cross_entropy_attrs ce = TE_CROSS_ENTROPY_ATTRS_INIT;
	struct te_embedding_attrs ea = TE_ATTRS(embedding, .vocab = 8, .width = WIDTH);
	struct te_step_opts to = TE_STEP_OPTS_INIT;
	struct te_callable c = TE_CALLABLE_INIT;
	const int64_t n = 4;
	struct te_op *op;

	tt_setup();
	so.nmicro = 1;
	ce.nclasses = WIDTH;
	seq = seq_of(linear("l"));
	DO(te_op_activation(&act, "act", &op));
	tt_append(seq, op);
	DO(te_seq_init(seq, 1));
	DO(te_plan_create(seq, &o, &plan));
	DO(te_plan_create(seq, &e, &external));
	DO(te_adamw_create(seq, NULL, &adamw));
	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 1, &n, NULL, &word));
	DO(te_capture_begin(st));
	DO(te_fill(st, te_tensor_data(word), 1, 16));
	DO(te_capture_end(st, &rec));
	DO(te_schedule_create(&so, &sched));
	DO(te_callable_from_plan(external, "c", &c));
	DO(te_graph_create(ctx, 1, &c, NULL, &graph));
	losing = seq_of(linear("l"));
	DO(te_seq_input(losing, "targets", TE_DTYPE_INT32, 0, NULL));
	DO(te_op_cross_entropy(&ce, "loss", &op));
	DO(te_op_take(op, 0, "targets"));
	tt_append(losing, op);
	DO(te_seq_init(losing, 1));
	DO(te_op_embedding(&ea, "e", &op));
	embedding = seq_of(op);
	tt_append(embedding, linear("l"));
	DO(te_seq_init(embedding, 1));
	DO(te_offload_create(ctx, NULL, &offload));
	DO(te_comm_create(ctx, NULL, &comm));
	to.recipe = &fp32;
	to.x = x3;
	DO(te_step_create(losing, NULL, &to, &step));
}

static void teardown(void)
{
	te_comm_unref(comm);
	te_offload_unref(offload);
	te_seq_unref(embedding);
	te_step_unref(step);
	te_seq_unref(losing);
	te_graph_unref(graph);
	te_schedule_unref(sched);
	te_recording_unref(rec);
	te_tensor_unref(word);
	te_adamw_unref(adamw);
	te_plan_unref(external);
	te_plan_unref(plan);
	te_seq_unref(seq);
	tt_teardown();
}

/* ---- one call each: s is the struct, of its own size, an older or a newer one ---- */

/* one rank has nothing to gather */
static int never_called(void *user, const void *send, void *recv, size_t nbytes)
{
	return (int)nbytes;
}

#define CALL(name, ...)                          \
	static int call_##name(void *s)          \
	{                                        \
		int r = 0;                       \
		__VA_ARGS__                      \
		return r;                        \
	}

CALL(ctx_opts, struct te_ctx *c; r = te_ctx_create(s, &c); if (!r) te_ctx_unref(c);)
CALL(backend_info, r = te_backend_info(0, s);)
CALL(device_info, r = te_device_info("host", 0, s);)
CALL(variant_info, struct te_device_info d = TE_DEVICE_INFO_INIT;
     r = te_variant_info(&d, 0, s);)
CALL(variant_device, struct te_variant_info v = TE_VARIANT_INFO_INIT;
     r = te_variant_info(s, 0, &v);)
CALL(ctx_device_info, r = te_ctx_device_info(ctx, s);)
CALL(spill_info, r = te_spill_info("/nowhere", s);)
CALL(spill_opts, struct te_spill_rates ret = TE_SPILL_RATES_INIT;
     struct te_spill_opts *o = s; o->dir = "/tmp"; o->nbytes = 1 << 16; o->block_nbytes = 4096;
     r = te_spill_measure(o, &ret);)
CALL(spill_rates, struct te_spill_opts o = TE_SPILL_OPTS_INIT;
     o.dir = "/tmp"; o.nbytes = 1 << 16; o.block_nbytes = 4096; r = te_spill_measure(&o, s);)
CALL(mem_info, r = te_ctx_mem_info(ctx, s);)
CALL(param_info, r = te_param_info(0, s);)
CALL(tensor_opts, struct te_tensor *t; const int64_t n = 8;
     r = te_tensor_create(ctx, TE_DTYPE_FP32, 1, &n, s, &t); if (!r) te_tensor_unref(t);)
CALL(recipe_device, struct te_recipe o = TE_RECIPE_INIT;
     r = te_recipe_for_device(s, &o) ? 0 : -EINVAL;)
CALL(recipe_chosen, struct te_device_info d = TE_DEVICE_INFO_INIT;
     r = te_recipe_for_device(&d, s) ? 0 : -EINVAL;)
CALL(recipe_name, r = te_recipe_from_name("bf16", s);)
CALL(quant, struct te_quant *q; const enum te_dtype t = TE_DTYPE_E4M3;
     ((struct te_recipe *)s)->kind = TE_RECIPE_DELAYED;
     r = te_quant_create(ctx, s, 1, &t, &q); if (!r) te_quant_unref(q);)
CALL(plan_recipe, struct te_plan_opts o = plan_opts(0); struct te_plan *p;
     ((struct te_recipe *)s)->compute = TE_DTYPE_FP32; o.recipe = s;
     r = te_plan_create(seq, &o, &p); if (!r) te_plan_unref(p);)
CALL(plan_opts, struct te_plan_opts *o = s; struct te_plan *p; const size_t n = o->size;
     const struct te_plan_opts mine = plan_opts(0);
     memcpy(o, &mine, offsetof(struct te_plan_opts, stop_before)); o->size = n;
     r = te_plan_create(seq, o, &p); if (!r) te_plan_unref(p);)
CALL(plan_memory, r = te_plan_memory(plan, s);)
static int call_plan_saved(void *s)
{
	int r = te_plan_saved(plan, 0, s);

	return r == -ENOENT ? te_fail(r, "the plan keeps nothing") : r;
}

static void profile_rates(struct te_plan_profile_opts *o)
{
	o->copy_rate = o->fp8_rate = o->gemm_rate = 1e9;
}

CALL(plan_profile_opts, struct te_plan_profile_opts *o = s; r = te_plan_profile(plan, st, o, NULL);)
CALL(plan_profile, struct te_plan_profile_opts o = TE_PLAN_PROFILE_OPTS_INIT; profile_rates(&o);
     r = te_plan_profile(plan, st, &o, s);)
CALL(plan_profile_step, struct te_plan_profile_opts o = TE_PLAN_PROFILE_OPTS_INIT;
     profile_rates(&o); r = te_plan_profile(plan, st, &o, NULL);
     if (!r) r = te_plan_profile_step(plan, 0, s);)
CALL(seq_binding, struct te_seq *other = seq_of(linear("other"));
     DO(te_seq_complete(other)); r = te_seq_bind(other, s); te_seq_unref(other);)
CALL(weight_info, r = te_seq_weight(seq, 0, s);)
CALL(adamw_opts, struct te_adamw *a; r = te_adamw_create(seq, s, &a); if (!r) te_adamw_unref(a);)
static int no_gather(void *arg, struct te_stream *stream, void *parts, size_t nbytes)
{
	(void)arg, (void)stream, (void)parts, (void)nbytes;
	return 0;
}
CALL(adamw_shards, struct te_adamw *a; DO(te_adamw_create(seq, NULL, &a));
     ((struct te_adamw_shards *)s)->gather = no_gather; r = te_adamw_set_shards(a, s);
     te_adamw_unref(a);)
CALL(adamw_stats, r = te_adamw_stats(adamw, s);)
CALL(gemm_opts, struct te_tensor *t[3]; const int64_t n[2] = { 2, 2 };
     for (int i = 0; i < 3; i++) {
	     DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, n, NULL, &t[i]));
	     DO(te_fill(st, te_tensor_data(t[i]), 0, te_tensor_nbytes(t[i])));
     }
     r = te_gemm(st, t[0], t[1], t[2], s);
     DO(te_stream_sync(st));
     for (int i = 0; i < 3; i++)
	     te_tensor_unref(t[i]);)
CALL(gemm_grouped_opts, struct te_tensor *t[5]; const int64_t n[3] = { 1, 2, 2 };
     for (int i = 0; i < 5; i++) {
	     DO(te_tensor_create(ctx, i < 3 ? TE_DTYPE_FP32 : TE_DTYPE_INT32, i < 3 ? 3 : 1,
				 i < 4 ? n + (i == 3) : n, NULL, &t[i]));
	     DO(te_fill(st, te_tensor_data(t[i]), 0, te_tensor_nbytes(t[i])));
     }
     r = te_gemm_grouped(st, t[0], t[1], t[3], t[2], t[4], s);
     DO(te_stream_sync(st));
     for (int i = 0; i < 5; i++)
	     te_tensor_unref(t[i]);)
/* a kernel on zeros of these extents, FP32 and at index 8 INT32 */
static const int64_t kernel_shapes[][2] = { { 2, 4 },  { 2, 4 },  { 2, 4 },  { 2, 4 },
					    { 1, 4 },  { 1, 2 },  { 2, 12 }, { 2, 12 },
					    { 1, 2 },  { 1, 1 },  { 1, 1 },  { 2, 1 },
					    { 2, 3 },  { 2, 4 },  { 2, 4 },  { 2, 4 },
					    { 2, 4 } };
#define NSHAPES TT_LEN(kernel_shapes)
#define WS_NBYTES (256 + te_kernel_adamw_ws_nbytes())
#define KERNEL(name, call)                                                                      \
	static int call_##name(void *s)                                                         \
	{                                                                                       \
		struct te_tensor *t[NSHAPES];                                                   \
		void *ws;                                                                       \
		int r;                                                                          \
		for (size_t i = 0; i < NSHAPES; i++) {                                          \
			DO(te_tensor_create(ctx, i == 8 ? TE_DTYPE_INT32 : TE_DTYPE_FP32, 2,    \
					    kernel_shapes[i], NULL, &t[i]));                    \
			DO(te_fill(st, te_tensor_data(t[i]), 0, te_tensor_nbytes(t[i])));       \
		}                                                                               \
		DO(te_mem_alloc(st, WS_NBYTES, &ws));                                           \
		DO(te_fill(st, ws, 0, WS_NBYTES));                                              \
		r = call;                                                                       \
		DO(te_mem_free(st, ws));                                                        \
		DO(te_stream_sync(st));                                                         \
		for (size_t i = 0; i < NSHAPES; i++)                                            \
			te_tensor_unref(t[i]);                                                  \
		return r;                                                                       \
	}
KERNEL(transpose, te_kernel_transpose(st, t[5], t[11], s))
KERNEL(embedding_forward, te_kernel_embedding_forward(st, t[8], t[1], t[0], s))
KERNEL(embedding_backward, te_kernel_embedding_backward(st, t[0], t[8], t[1], s))
KERNEL(dropout_forward, te_kernel_dropout_forward(st, t[0], t[1], s))
KERNEL(dropout_backward, te_kernel_dropout_backward(st, t[0], t[1], s))
KERNEL(norm_forward, te_kernel_norm_forward(st, t[0], t[4], NULL, t[1], NULL, t[5], s))
KERNEL(norm_backward, te_kernel_norm_backward(st, t[0], t[1], t[4], NULL, t[5], t[2], NULL, NULL,
					      NULL, 0, s))
KERNEL(act_forward, te_kernel_act_forward(st, t[0], t[1], s))
KERNEL(act_backward, te_kernel_act_backward(st, t[0], t[1], t[2], NULL, NULL, 0, s))
/* opts of one head, 4 wide */
#define HEAD_OF(op)                                        \
	({                                                 \
		struct te_kernel_##op##_opts *head_o = s;  \
		head_o->nheads = head_o->nkv = 1;          \
		head_o->head_dim = 4;                      \
		head_o;                                    \
	})
KERNEL(rope_forward, te_kernel_rope_forward(st, t[6], t[7], HEAD_OF(rope)))
KERNEL(rope_backward, te_kernel_rope_backward(st, t[6], t[7], HEAD_OF(rope)))
CALL(attention_cached, struct te_tensor *x, *y, *k[2], *i; const int64_t c[3] = { 1, 2, 4 }, n = 2;
     const int64_t xs[2] = { 2, 12 };
     const int32_t zero[2] = { 0 }; for (int j = 0; j < 2; j++)
	     DO(te_tensor_create(ctx, TE_DTYPE_FP32, 3, c, NULL, &k[j]));
     DO(te_tensor_create(ctx, TE_DTYPE_INT32, 1, &n, NULL, &i));
     DO(te_tensor_write(i, zero, sizeof(zero)));
     DO(te_tensor_create(ctx, TE_DTYPE_FP32, 3, c, NULL, &y));
     DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, xs, NULL, &x));
     DO(te_fill(st, te_tensor_data(x), 0, te_tensor_nbytes(x)));
     r = te_kernel_attention_cached(st, x, i, i, k[0], k[1], y, HEAD_OF(attention_cached));
     DO(te_stream_sync(st)); te_tensor_unref(x); te_tensor_unref(i); te_tensor_unref(y);
      te_tensor_unref(k[0]); te_tensor_unref(k[1]);)
KERNEL(attention_forward, te_kernel_attention_forward(st, t[6], t[0], t[5], HEAD_OF(attention)))
KERNEL(attention_backward, te_kernel_attention_backward(st, t[0], t[6], t[1], t[5], t[7], ws, 256,
							HEAD_OF(attention)))
KERNEL(attend_forward,
       te_kernel_attend_forward(st, t[0], t[1], t[2], t[3], t[5], HEAD_OF(attend)))
KERNEL(attend_backward, te_kernel_attend_backward(st, t[0], t[1], t[2], t[3], t[13], t[5], t[14],
						  t[15], t[16], ws, 256, HEAD_OF(attend)))
KERNEL(ce_forward, te_kernel_cross_entropy_forward(st, t[0], t[8], t[9], t[4], t[10], ws, 256, s))
KERNEL(ce_both,
       te_kernel_cross_entropy_both(st, t[0], t[8], t[9], t[4], t[10], t[1], ws, 256, s))
KERNEL(ce_part, te_kernel_cross_entropy_part(st, t[0], t[8], t[12], s))
KERNEL(ce_join,
       (((struct te_kernel_cross_entropy_opts *)s)->nclasses = 8,
	te_kernel_cross_entropy_join(st, t[12], t[8], t[9], t[4], t[10], ws, 256, s)))
KERNEL(ce_backward, te_kernel_cross_entropy_backward(st, t[0], t[8], t[4], t[9], t[1], s))
KERNEL(kernel_adamw, te_kernel_adamw_step(st, t[0], t[1], t[2], t[3], ws, (char *)ws + 256,
					  WS_NBYTES - 256, s))
CALL(recording_info, r = te_recording_info(rec, s);)
CALL(node_info, r = te_recording_node(rec, 0, s);)
CALL(binding_info, r = te_recording_binding(rec, te_tensor_data(word), 16, s); r = r > 0 ? 0 : r;)
CALL(schedule_opts, struct te_schedule *x; ((struct te_schedule_opts *)s)->nmicro = 2;
     r = te_schedule_create(s, &x); if (!r) te_schedule_unref(x);)
CALL(schedule_parse, struct te_schedule *x; ((struct te_schedule_opts *)s)->nmicro = 2;
     r = te_schedule_parse("gpipe", s, &x); if (!r) te_schedule_unref(x);)
CALL(schedule_info, r = te_schedule_info(sched, s);)
CALL(graph_report, r = te_graph_report(graph, s);)
CALL(graph_change, struct te_callable c = TE_CALLABLE_INIT;
     DO(te_callable_from_plan(external, "c", &c));
     r = te_graph_update(graph, 1, &c, s); if (r) c.release(c.self);)
CALL(callable_out, r = te_callable_from_plan(external, "c", s);
     if (!r) ((struct te_callable *)s)->release(((struct te_callable *)s)->self);)
CALL(callable_in, struct te_callable c = TE_CALLABLE_INIT; struct te_graph *g;
     const size_t n = ((struct te_callable *)s)->size;
     /* an older program does not know its last member either when it asks for a callable */
     c.size = n < sizeof(c) ? offsetof(struct te_callable, span_nbytes) : sizeof(c);
     DO(te_callable_from_plan(external, "c", &c));
     memcpy(s, &c, n < sizeof(c) ? n : sizeof(c));
     if (n >= sizeof(c)) ((struct te_callable *)s)->release = NULL;
     ((struct te_callable *)s)->size = n; r = te_graph_create(ctx, 1, s, NULL, &g);
     if (!r) te_graph_unref(g); c.release(c.self);)
CALL(graph_opts, struct te_callable c = TE_CALLABLE_INIT; struct te_graph *g;
     DO(te_callable_from_plan(external, "c", &c));
     r = te_graph_create(ctx, 1, &c, s, &g);
     if (!r) te_graph_unref(g); else c.release(c.self);)
CALL(decoder_opts, struct te_decoder *d; ((struct te_decoder_opts *)s)->recipe = &fp32;
     r = te_decoder_create(embedding, s, &d); if (!r) te_decoder_unref(d);)
CALL(sampling, struct te_decoder *d; struct te_decoder_opts o = TE_DECODER_OPTS_INIT; int32_t n;
     o.recipe = &fp32; DO(te_decoder_create(embedding, &o, &d));
     r = te_decoder_open(d, s, &n); te_decoder_unref(d);)
CALL(step_opts, struct te_step_opts *o = s; struct te_step *t;
     o->recipe = &fp32; o->x = x3;
     r = te_step_create(losing, NULL, s, &t); if (!r) te_step_unref(t);)
CALL(offload_opts, struct te_offload *o; r = te_offload_create(ctx, s, &o);
     if (!r) te_offload_unref(o);)
CALL(offload_report, r = te_offload_report(offload, s);)
CALL(step_memory, r = te_step_memory(step, s);)
CALL(replay, struct te_tensor *x = te_graph_tensor(graph, 0, "x");
     struct te_replay *p = s; DO(te_graph_rewind(graph)); p->npos = 1; p->pos = &x;
     r = te_graph_forward(graph, 0, st, s);)
CALL(plan_binding, struct te_plan_memory m = TE_PLAN_MEMORY_INIT; struct te_spec spec;
     static const char *const names[] = { "x" }; struct te_plan_binding *b = s;
     struct te_tensor *t[3]; static const char *const of[] = { "x", "out", "out_grad" };
     void *arena; DO(te_plan_memory(external, &m));
     DO(te_mem_alloc(st, (size_t)m.arena_nbytes + 256, &arena));
     for (int i = 0; i < 3; i++) {
	     DO(te_plan_spec(external, of[i], &spec));
	     DO(te_tensor_create(ctx, spec.dtype, spec.ndim, spec.shape, NULL, &t[i]));
     }
     b->arena = arena; b->nin = 1; b->in_name = names; b->in = t; b->out = t[1];
     b->out_grad = t[2]; r = te_plan_bind(external, s);
     for (int i = 0; i < 3; i++)
	     te_tensor_unref(t[i]);
     DO(te_mem_free(st, arena));)

static int infer_same(struct te_op_infer *inf)
{
	inf->out[0] = inf->in[0];
	return 0;
}

CALL(comm_opts, struct te_comm *c; r = te_comm_create(ctx, s, &c); if (!r) te_comm_unref(c);)
CALL(comm_bootstrap, struct te_comm_opts o = TE_COMM_OPTS_INIT; struct te_comm *c;
     ((struct te_comm_bootstrap *)s)->allgather = never_called; o.nranks = 1; o.bootstrap = s;
     r = te_comm_create(ctx, &o, &c); if (!r) te_comm_unref(c);)
CALL(comm_op_cross_entropy, struct te_op *op; ((struct te_cross_entropy_attrs *)s)->nclasses = 2;
     r = te_comm_op_cross_entropy(comm, s, "op", &op); if (!r) te_op_unref(op);)
CALL(comm_op_cross_entropy_tokens, struct te_op *op;
     ((struct te_cross_entropy_attrs *)s)->nclasses = 2;
     r = te_comm_op_cross_entropy_tokens(comm, s, "op", &op); if (!r) te_op_unref(op);)
CALL(comm_op_to_heads, struct te_op *op; struct te_comm_heads_attrs *h = s;
     h->nheads = h->nkv = h->head_dim = 2;
     r = te_comm_op_to_heads(comm, s, "op", &op); if (!r) te_op_unref(op);)
CALL(comm_op_to_tokens, struct te_op *op; struct te_comm_heads_attrs *h = s;
     h->nheads = h->nkv = h->head_dim = 2;
     r = te_comm_op_to_tokens(comm, s, "op", &op); if (!r) te_op_unref(op);)
CALL(comm_split_opts, struct te_comm *d; r = te_comm_split(comm, 0, 0, s, &d);
     if (!r) te_comm_unref(d);)
CALL(comm_recover_opts, struct te_comm *once, *d; DO(te_comm_create(ctx, NULL, &once));
     r = te_comm_recover(once, s, NULL, &d); if (!r) te_comm_unref(d); te_comm_unref(once);)
CALL(comm_info, r = te_comm_info(comm, s);)
CALL(comm_call_opts, float x = 0;
     r = te_comm_allreduce(comm, st, &x, &x, 1, TE_DTYPE_FP32, TE_COMM_SUM, s);
     DO(te_stream_sync(st));)
CALL(comm_choice, float x = 0; struct te_comm_call call = TE_COMM_CALL_INIT;
     call.in = call.out = &x; call.count = 1; r = te_comm_explain(comm, &call, s);)
CALL(comm_call, struct te_comm_choice choice = TE_COMM_CHOICE_INIT;
     r = te_comm_explain(comm, s, &choice);)
CALL(comm_norm_opts, _Alignas(16) float x[4] = { 1 }, y[4], gamma[4] = { 1 };
     struct te_comm_norm_opts *o = s;
     if (o->size >= offsetof(struct te_comm_norm_opts, rstd)) o->gamma = gamma, o->y = y;
     r = te_comm_allreduce_norm(comm, st, x, 1, 4, TE_DTYPE_FP32, s); DO(te_stream_sync(st));)
CALL(comm_norm_backward_opts, _Alignas(16) float x[4] = { 1 }, y[4], gamma[4] = { 1 };
     struct te_comm_norm_backward_opts *o = s;
     if (o->size >= offsetof(struct te_comm_norm_backward_opts, residual_out))
	     o->x = x, o->rstd = o->gamma = gamma, o->dx = y;
     r = te_comm_allreduce_norm_backward(comm, st, x, 1, 4, TE_DTYPE_FP32, s);
     DO(te_stream_sync(st));)
CALL(comm_memory, r = te_comm_memory(comm, s);)
CALL(comm_reducer_opts, struct te_comm_reducer *d; r = te_comm_reducer_create(comm, losing, s, &d);
     if (!r) te_comm_reducer_unref(d);)
CALL(comm_op_opts, struct te_op *op; r = te_comm_op_copy(comm, s, "op", &op);
     if (!r) te_op_unref(op);)
CALL(transport_info, r = te_transport_info(ctx, 0, s);)
CALL(op_ops, struct te_op *op; struct te_op_ops *o = s; o->name = "mine"; o->infer = infer_same;
     r = te_op_create(o, NULL, "mine", &op); if (!r) te_op_unref(op);)

static int never(const struct te_fused *f)
{
	return 0;
}

CALL(fusion, struct te_fusion *f = s; struct te_seq *other = seq_of(linear("other"));
     f->name = "f"; f->pattern = "linear bias"; f->run = never;
     r = te_seq_add_fusion(other, f); te_seq_unref(other);)

#define ATTRS(op, fn, ...)                                           \
	static int call_##fn(void *s)                                \
	{                                                            \
		struct te_##op##_attrs *a = s;                       \
		struct te_op *o;                                     \
		int r;                                               \
		__VA_ARGS__                                          \
		r = te_op_##fn(a, "op", &o);                         \
		if (!r)                                              \
			te_op_unref(o);                              \
		return r;                                            \
	}
ATTRS(embedding, embedding, a->vocab = a->width = 4;)
ATTRS(linear, linear, a->in = a->out = 4;)
ATTRS(bias, bias, a->width = 4;)
ATTRS(norm, layernorm, a->width = 4;)
ATTRS(norm, rmsnorm, a->width = 4;)
ATTRS(act, activation, (void)a;)
ATTRS(qk_norm, qk_norm, a->nheads = a->nkv = a->head_dim = 1;)
ATTRS(rope, rope, a->nheads = a->nkv = 1; a->head_dim = 4;)
ATTRS(attention, attention, a->nheads = a->nkv = 1; a->head_dim = 4;)
ATTRS(dropout, dropout, (void)a;)
ATTRS(scale, scale, (void)a;)
ATTRS(reshape, reshape, (void)a;)
ATTRS(quantize, quantize, (void)a;)
ATTRS(cross_entropy, cross_entropy, a->nclasses = 4;)

/* ---- the table ---- */

#define KNOWN_MOST 2048
#define MORE 24

/*
 * after: the end of a member that all versions have; an older struct ends there, and what follows
 * in memory is not its own. For results, any member will do.
 */
#define IN(...) ROW(0, __VA_ARGS__)
#define OUT(...) ROW(1, __VA_ARGS__)
#define ROW(out, fn, type, member, ...)                                                      \
	{ #fn, #type, call_##fn, &(const struct type)__VA_ARGS__, sizeof(struct type),       \
	  offsetof(struct type, member) + sizeof(((struct type *)0)->member), out },

static const struct row {
	const char *fn, *type;
	int (*call)(void *s);
	const void *init;
	size_t known, older;
	int out;
} rows[] = {
	IN(ctx_opts, te_ctx_opts, backend, TE_CTX_OPTS_INIT)
	OUT(backend_info, te_backend_info, reason, TE_BACKEND_INFO_INIT)
	OUT(device_info, te_device_info, name, TE_DEVICE_INFO_INIT)
	OUT(ctx_device_info, te_device_info, usable, TE_DEVICE_INFO_INIT)
	OUT(variant_info, te_variant_info, variant, TE_VARIANT_INFO_INIT)
	IN(variant_device, te_device_info, usable, TE_DEVICE_INFO_INIT)
	OUT(spill_info, te_spill_info, reason, TE_SPILL_INFO_INIT)
	IN(spill_opts, te_spill_opts, block_nbytes, TE_SPILL_OPTS_INIT)
	OUT(spill_rates, te_spill_rates, write, TE_SPILL_RATES_INIT)
	OUT(mem_info, te_mem_info, peak_nbytes, TE_MEM_INFO_INIT)
	OUT(param_info, te_param_info, name, TE_PARAM_INFO_INIT)
	IN(tensor_opts, te_tensor_opts, align, TE_TENSOR_OPTS_INIT)
	OUT(recipe_name, te_recipe, kind, TE_RECIPE_INIT)
	OUT(recipe_chosen, te_recipe, kind, TE_RECIPE_INIT)
	IN(recipe_device, te_device_info, usable, TE_DEVICE_INFO_INIT)
	IN(quant, te_recipe, compute, TE_RECIPE_INIT)
	IN(plan_recipe, te_recipe, compute, TE_RECIPE_INIT)
	IN(plan_opts, te_plan_opts, x, TE_PLAN_OPTS_INIT)
	OUT(plan_memory, te_plan_memory, arena_nbytes, TE_PLAN_MEMORY_INIT)
	IN(plan_binding, te_plan_binding, out_grad, TE_PLAN_BINDING_INIT)
	OUT(plan_saved, te_plan_saved_info, name, TE_PLAN_SAVED_INFO_INIT)
	IN(plan_profile_opts, te_plan_profile_opts, nwarm, TE_PLAN_PROFILE_OPTS_INIT)
	OUT(plan_profile, te_plan_profile, us, TE_PLAN_PROFILE_INIT)
	OUT(plan_profile_step, te_plan_profile_step, name, TE_PLAN_PROFILE_STEP_INIT)
	IN(seq_binding, te_seq_binding, masters, TE_SEQ_BINDING_INIT)
	OUT(weight_info, te_weight_info, name, TE_WEIGHT_INFO_INIT)
	IN(adamw_opts, te_adamw_opts, beta1, TE_ADAMW_OPTS_INIT)
	IN(adamw_shards, te_adamw_shards, gather, TE_ADAMW_SHARDS_INIT)
	OUT(adamw_stats, te_adamw_stats, nsteps, TE_ADAMW_STATS_INIT)
	IN(gemm_grouped_opts, te_gemm_grouped_opts, flags, TE_GEMM_GROUPED_OPTS_INIT)
	IN(gemm_opts, te_gemm_opts, flags, TE_GEMM_OPTS_INIT)
	IN(transpose, te_kernel_transpose_opts, size, TE_KERNEL_TRANSPOSE_OPTS_INIT)
	IN(embedding_forward, te_kernel_embedding_opts, size, TE_KERNEL_EMBEDDING_OPTS_INIT)
	IN(embedding_backward, te_kernel_embedding_opts, size, TE_KERNEL_EMBEDDING_OPTS_INIT)
	IN(dropout_forward, te_kernel_dropout_opts, size, TE_KERNEL_DROPOUT_OPTS_INIT)
	IN(dropout_backward, te_kernel_dropout_opts, size, TE_KERNEL_DROPOUT_OPTS_INIT)
	IN(norm_forward, te_kernel_norm_opts, eps, TE_KERNEL_NORM_OPTS_INIT)
	IN(norm_backward, te_kernel_norm_opts, eps, TE_KERNEL_NORM_OPTS_INIT)
	IN(act_forward, te_kernel_act_opts, gated, TE_KERNEL_ACT_OPTS_INIT)
	IN(act_backward, te_kernel_act_opts, gated, TE_KERNEL_ACT_OPTS_INIT)
	IN(rope_forward, te_kernel_rope_opts, head_dim, TE_KERNEL_ROPE_OPTS_INIT)
	IN(rope_backward, te_kernel_rope_opts, head_dim, TE_KERNEL_ROPE_OPTS_INIT)
	IN(attend_forward, te_kernel_attend_opts, head_dim, TE_KERNEL_ATTEND_OPTS_INIT)
	IN(attend_backward, te_kernel_attend_opts, head_dim, TE_KERNEL_ATTEND_OPTS_INIT)
	IN(attention_cached, te_kernel_attention_cached_opts, head_dim,
	   TE_KERNEL_ATTENTION_CACHED_OPTS_INIT)
	IN(attention_forward, te_kernel_attention_opts, head_dim, TE_KERNEL_ATTENTION_OPTS_INIT)
	IN(attention_backward, te_kernel_attention_opts, head_dim, TE_KERNEL_ATTENTION_OPTS_INIT)
	IN(ce_forward, te_kernel_cross_entropy_opts, nclasses, TE_KERNEL_CROSS_ENTROPY_OPTS_INIT)
	IN(ce_both, te_kernel_cross_entropy_opts, nclasses, TE_KERNEL_CROSS_ENTROPY_OPTS_INIT)
	IN(ce_part, te_kernel_cross_entropy_opts, nclasses, TE_KERNEL_CROSS_ENTROPY_OPTS_INIT)
	IN(ce_join, te_kernel_cross_entropy_opts, ignore_index, TE_KERNEL_CROSS_ENTROPY_OPTS_INIT)
	IN(ce_backward, te_kernel_cross_entropy_opts, nclasses, TE_KERNEL_CROSS_ENTROPY_OPTS_INIT)
	IN(kernel_adamw, te_kernel_adamw_opts, max_grad_norm, TE_KERNEL_ADAMW_OPTS_INIT)
	OUT(recording_info, te_recording_info, nnodes, TE_RECORDING_INFO_INIT)
	OUT(node_info, te_node_info, kind, TE_NODE_INFO_INIT)
	OUT(binding_info, te_binding_info, nuses, TE_BINDING_INFO_INIT)
	IN(schedule_opts, te_schedule_opts, nmicro, TE_SCHEDULE_OPTS_INIT)
	IN(schedule_parse, te_schedule_opts, nmicro, TE_SCHEDULE_OPTS_INIT)
	OUT(schedule_info, te_schedule_info, nchunks, TE_SCHEDULE_INFO_INIT)
	OUT(graph_report, te_graph_report, ncallables, TE_GRAPH_REPORT_INIT)
	OUT(graph_change, te_graph_change, nin_place, TE_GRAPH_CHANGE_INIT)
	OUT(callable_out, te_callable, release, TE_CALLABLE_INIT)
	IN(callable_in, te_callable, regions, TE_CALLABLE_INIT)
	IN(graph_opts, te_graph_opts, flags, TE_GRAPH_OPTS_INIT)
	IN(offload_opts, te_offload_opts, target_nbytes, TE_OFFLOAD_OPTS_INIT)
	OUT(offload_report, te_offload_report, nplans, TE_OFFLOAD_REPORT_INIT)
	IN(decoder_opts, te_decoder_opts, recipe, TE_DECODER_OPTS_INIT)
	IN(sampling, te_sampling, temperature, TE_SAMPLING_INIT)
	IN(step_opts, te_step_opts, x, TE_STEP_OPTS_INIT)
	OUT(step_memory, te_step_memory, pool_nbytes, TE_STEP_MEMORY_INIT)
	IN(replay, te_replay, pos, TE_REPLAY_INIT)
	IN(comm_opts, te_comm_opts, flags, TE_COMM_OPTS_INIT)
	IN(comm_op_cross_entropy, te_cross_entropy_attrs, nclasses, TE_CROSS_ENTROPY_ATTRS_INIT)
	IN(comm_op_cross_entropy_tokens, te_cross_entropy_attrs, nclasses,
	   TE_CROSS_ENTROPY_ATTRS_INIT)
	IN(comm_op_to_heads, te_comm_heads_attrs, head_dim, TE_COMM_HEADS_ATTRS_INIT)
	IN(comm_op_to_tokens, te_comm_heads_attrs, head_dim, TE_COMM_HEADS_ATTRS_INIT)
	IN(comm_split_opts, te_comm_opts, flags, TE_COMM_OPTS_INIT)
	IN(comm_bootstrap, te_comm_bootstrap, allgather, TE_COMM_BOOTSTRAP_INIT)
	IN(comm_recover_opts, te_comm_recover_opts, flags, TE_COMM_RECOVER_OPTS_INIT)
	OUT(comm_info, te_comm_info, nranks, TE_COMM_INFO_INIT)
	IN(comm_call_opts, te_comm_call_opts, max_blocks, TE_COMM_CALL_OPTS_INIT)
	IN(comm_call, te_comm_call, count, TE_COMM_CALL_INIT)
	OUT(comm_choice, te_comm_choice, nblocks, TE_COMM_CHOICE_INIT)
	IN(comm_norm_opts, te_comm_norm_opts, y, TE_COMM_NORM_OPTS_INIT)
	IN(comm_norm_backward_opts, te_comm_norm_backward_opts, dx, TE_COMM_NORM_BACKWARD_OPTS_INIT)
	OUT(comm_memory, te_comm_memory, used_nbytes, TE_COMM_MEMORY_INIT)
	IN(comm_reducer_opts, te_comm_reducer_opts, bucket_nbytes, TE_COMM_REDUCER_OPTS_INIT)
	IN(comm_op_opts, te_comm_op_opts, max_blocks, TE_COMM_OP_OPTS_INIT)
	OUT(transport_info, te_transport_info, available, TE_TRANSPORT_INFO_INIT)
	IN(op_ops, te_op_ops, infer, TE_OP_OPS_INIT)
	IN(fusion, te_fusion, run, TE_FUSION_INIT)
	IN(embedding, te_embedding_attrs, width, TE_EMBEDDING_ATTRS_INIT)
	IN(linear, te_linear_attrs, out, TE_LINEAR_ATTRS_INIT)
	IN(bias, te_bias_attrs, width, TE_BIAS_ATTRS_INIT)
	IN(layernorm, te_norm_attrs, width, TE_NORM_ATTRS_INIT)
	IN(rmsnorm, te_norm_attrs, width, TE_NORM_ATTRS_INIT)
	IN(activation, te_act_attrs, act, TE_ACT_ATTRS_INIT)
	IN(qk_norm, te_qk_norm_attrs, flags, TE_QK_NORM_ATTRS_INIT)
	IN(rope, te_rope_attrs, head_dim, TE_ROPE_ATTRS_INIT)
	IN(attention, te_attention_attrs, head_dim, TE_ATTENTION_ATTRS_INIT)
	IN(dropout, te_dropout_attrs, size, TE_DROPOUT_ATTRS_INIT)
	IN(scale, te_scale_attrs, size, TE_SCALE_ATTRS_INIT)
	IN(reshape, te_reshape_attrs, size, TE_RESHAPE_ATTRS_INIT)
	IN(quantize, te_quantize_attrs, size, TE_QUANTIZE_ATTRS_INIT)
	IN(cross_entropy, te_cross_entropy_attrs, nclasses, TE_CROSS_ENTROPY_ATTRS_INIT)
};

/* the struct in memory that is poisoned after its nbytes */
static unsigned char *make(const struct row *k, size_t nbytes)
{
	unsigned char *s = malloc(KNOWN_MOST);

	ck_assert_uint_le(k->known + MORE, KNOWN_MOST);
	memset(s, 0xa5, KNOWN_MOST);
	memset(s, 0, nbytes);
	memcpy(s, k->init, nbytes < k->known ? nbytes : k->known);
	memcpy(s, &nbytes, sizeof(nbytes));
	return s;
}

static void intact(const struct row *k, const unsigned char *s, size_t nbytes)
{
	for (size_t i = nbytes; i < KNOWN_MOST; i++)
		ck_assert_msg(s[i] == 0xa5, "%s: byte %zu of a struct of %zu was written", k->fn, i,
			      nbytes);
}

static void takes_an_older_struct(const struct row *k)
{
	unsigned char *s = make(k, k->older);

	DO(k->call(s));
	intact(k, s, k->older);
	free(s);
}

static void takes_a_newer_struct(const struct row *k)
{
	unsigned char *s = make(k, k->known + MORE);
	char said[64];

	if (k->out)
		memset(s + k->known, 0x77, MORE);
	DO(k->call(s));
	intact(k, s, k->known + MORE);
	for (size_t i = k->known; i < k->known + MORE; i++)
		ck_assert_msg(!s[i], "%s: byte %zu is not known here and not 0", k->fn, i);
	free(s);
	if (k->out)
		return;
	s = make(k, k->known + MORE);
	s[k->known + MORE - 1] = 1;
	ck_assert_int_eq(k->call(s), -EINVAL);
	snprintf(said, sizeof(said), "byte %zu of struct %s is set", k->known + MORE - 1, k->type);
	tt_said(said);
	free(s);
}

static void names_the_macro_that_was_forgotten(const struct row *k)
{
	static const size_t bad[] = { 0, sizeof(size_t) - 1, (size_t)-1 };

	for (size_t i = 0; i < TT_LEN(bad); i++) {
		unsigned char *s = make(k, k->known);

		memcpy(s, &bad[i], sizeof(bad[i]));
		ck_assert_int_eq(k->call(s), -EINVAL);
		tt_said(k->type);
		tt_said("_INIT");
		free(s);
	}
}

CASE(structs, "host serial", .setup = setup, .teardown = teardown);

TEST_EACH(structs, takes_each_size_and_names_the_macro_that_was_forgotten, TT_LEN(rows))
{
	const struct row *k = &rows[_i];

	takes_an_older_struct(k);
	takes_a_newer_struct(k);
	names_the_macro_that_was_forgotten(k);
}

/* ---- what callbacks fill in ---- */

struct newer_decl {
	struct te_weight_decl d;
	int64_t more;
};

static int weight_of_newer(const struct te_op *op, int32_t index, struct te_weight_decl *ret_decl)
{
	struct newer_decl d = { { ret_decl->size, "w", 1, { 4 }, TE_INIT_ONE, 0, 0, NULL, 0 }, 1 };

	memcpy(ret_decl, &d, sizeof(d));
	return !index;
}

static int infer_of_newer(struct te_op_infer *inf)
{
	inf->out[0] = inf->in[0];
	((int64_t *)(void *)(inf + 1))[0] = 1;
	return 0;
}

TEST(structs, callbacks_of_a_newer_header_are_refused)
{
	struct te_op_ops ops = TE_OP_OPS_INIT;
	const struct te_plan_opts o = plan_opts(TE_PLAN_NO_ALLOC);
	struct te_plan *p;
	struct te_seq *s;
	struct te_op *op;

	ops.name = "newer";
	ops.infer = infer_same;
	ops.weight = weight_of_newer;
	fails(te_op_create(&ops, NULL, "op", &op), -EINVAL,
	      "op op: weight() of a newer sets what this library does not know");
	ops.weight = NULL;
	ops.infer = infer_of_newer;
	DO(te_op_create(&ops, NULL, "op", &op));
	s = seq_of(op);
	DO(te_seq_init(s, 1));
	fails(te_plan_create(s, &o, &p), -EINVAL,
	      "op op: infer() of a newer sets what this library does not know");
	te_seq_unref(s);
}

TT_SUITE("graph/sized", TT_ONE_PROCESS)
{
	setenv("TE_COMM_PACKETS", "64K", 1);
}
