/* callable.c - a plan as a callable; the order of callables. */
#define TE_LOG_CATEGORY "graph"
#include "config.h"

#include <errno.h>
#include <string.h>

#include "graph_internal.h"

struct adapter {
	struct te_plan *plan;
	char *name;
	int32_t nin;
	struct te_arg *in, out;
	const char **in_name;
	/* the plan's binding: call; inputs, then out, out_grad, in_grad; memory */
	const struct te_graph_call *call;
	struct te_tensor **bound;
	void *arena, *span[TE_SPAN_COUNT];
	int claimed;
};

static void adapter_free(void *self)
{
	struct adapter *a = self;

	if (!a)
		return;
	if (a->claimed)
		te__plan_claim(a->plan, a->name, 0);
	te_plan_unref(a->plan);
	te__free(a->name);
	te__free(a->in);
	te__free(a->in_name);
	te__free(a->bound);
	te__free(a);
}

/* is the memory the same as in the previous binding? Keeps the memory of this call */
static int same_memory(struct adapter *a, const struct te_graph_call *call)
{
	struct te_tensor *const end[] = { call->out[0], call->out_grad[0], call->in_grad[0] };
	int same = a->arena == call->saved && !memcmp(a->span, call->span, sizeof(a->span));

	a->arena = call->saved;
	memcpy(a->span, call->span, sizeof(a->span));
	for (int32_t k = 0; k < a->nin + 3; k++) {
		struct te_tensor *t = k < a->nin ? call->in[k] : end[k - a->nin];

		same &= a->bound[k] == t;
		a->bound[k] = t;
	}
	return same;
}

/* Bind the plan to the memory of the call. This queues nothing, so it is also done in captures:
 * a plan that serves several micro-batches is bound to the memory of each in turn. Otherwise
 * addresses change only in eager graphs, by te_graph_bind. */
static int bound(struct adapter *a, const struct te_graph_call *call)
{
	struct te_plan_binding b = TE_PLAN_BINDING_INIT;
	int same = same_memory(a, call), r;

	if (same && a->call == call)
		return 0;
	b.arena = a->arena;
	memcpy(b.span, a->span, sizeof(b.span));
	b.nin = a->nin;
	b.in_name = a->in_name;
	b.in = call->in;
	b.out = call->out[0];
	b.out_grad = call->out_grad[0];
	b.in_grad = call->in_grad[0];
	a->call = NULL;
	r = te_plan_bind(a->plan, &b);
	if (r)
		return r;
	a->call = call;
	return 0;
}

static int forward(void *self, const struct te_graph_call *call)
{
	struct adapter *a = self;
	int r = bound(a, call);

	return r ? r : te_plan_forward(a->plan, call->stream, 0);
}

/* a plan that serves several micro-batches is bound to the memory of the latest one */
static int still_bound(const struct adapter *a, const struct te_graph_call *call)
{
	if (a->call == call)
		return 0;
	return te__fail(-TE_ESTATE,
			"the plan of %s: another micro-batch began before the end of this one",
			a->name);
}

static int backward(void *self, const struct te_graph_call *call)
{
	struct adapter *a = self;
	int r = still_bound(a, call);

	return r ? r : te_plan_backward(a->plan, call->stream);
}

static int backward_dw(void *self, const struct te_graph_call *call)
{
	struct adapter *a = self;
	int r = still_bound(a, call);

	return r ? r : te_plan_backward_dw(a->plan, call->stream);
}

static int regions(void *self, te_region_fn fn, void *arg)
{
	struct adapter *a = self;

	return te_plan_regions(a->plan, fn, arg);
}

static int fill_args(struct adapter *a)
{
	struct te_spec grad;

	while (te_plan_input_name(a->plan, a->nin))
		a->nin++;
	a->in = te__calloc((size_t)a->nin, sizeof(*a->in));
	a->in_name = te__calloc((size_t)a->nin, sizeof(*a->in_name));
	a->bound = te__calloc((size_t)a->nin + 3, sizeof(struct te_tensor *));
	if (!a->in || !a->in_name || !a->bound)
		return te__no_memory("te_callable_from_plan");
	for (int i = 0; i < a->nin; i++) {
		a->in_name[i] = a->in[i].name = te_plan_input_name(a->plan, i);
		te_plan_spec(a->plan, a->in[i].name, &a->in[i].spec);
	}
	if (!te_plan_spec(a->plan, "in_grad", &grad))
		a->in[0].flags = TE_ARG_GRAD;
	a->out.name = "out";
	te_plan_spec(a->plan, "out", &a->out.spec);
	if (!te_plan_spec(a->plan, "out_grad", &grad))
		a->out.flags = TE_ARG_GRAD;
	return 0;
}

struct te_plan *te__callable_plan(const struct te_callable *c)
{
	const struct adapter *a = c->self;

	return c->forward == forward ? a->plan : NULL;
}

int te_callable_from_plan(struct te_plan *plan, const char *name, struct te_callable *ret_callable)
{
	struct te_plan_memory mem = TE_PLAN_MEMORY_INIT;
	struct te_callable c;
	uint32_t flags;
	struct adapter *a;
	int r;

	if (!plan || !name)
		return te__fail(-EINVAL, "te_callable_from_plan: %s is NULL",
				plan ? "name" : "plan");
	r = te__sized_check("te_callable_from_plan", te_callable, ret_callable);
	if (r)
		return r;
	flags = te_plan_flags(plan);
	if (!(flags & TE_PLAN_EXTERNAL))
		return te__fail(-TE_ESTATE,
				"te_callable_from_plan: the plan of %s was made without "
				"TE_PLAN_EXTERNAL",
				name);
	r = te_plan_memory(plan, &mem);
	if (r)
		return r;
	a = te__calloc(1, sizeof(*a));
	if (!a)
		return te__no_memory("te_callable_from_plan");
	a->plan = te_plan_ref(plan);
	a->name = te__strdup(name);
	r = a->name ? fill_args(a) : te__no_memory("te_callable_from_plan");
	if (!r)
		r = te__plan_claim(plan, name, 1);
	a->claimed = !r;
	if (r) {
		adapter_free(a);
		return r;
	}
	c = (struct te_callable){
		.size = sizeof(c),
		.name = a->name,
		.self = a,
		.nin = a->nin,
		.nout = 1,
		.in = a->in,
		.out = &a->out,
		.forward = forward,
		.backward = flags & TE_PLAN_TRAIN ? backward : NULL,
		.backward_dw = flags & TE_PLAN_DELAY_DW ? backward_dw : NULL,
		.regions = regions,
		.release = adapter_free,
	};
	/* a program that does not know spans has the graph reserve the whole arena */
	if (ret_callable->size < sizeof(c))
		c.saved_nbytes = (size_t)mem.arena_nbytes;
	for (int s = 0; s < TE_SPAN_COUNT && !c.saved_nbytes; s++)
		c.span_nbytes[s] = (size_t)mem.span_nbytes[s];
	te__sized_out(te_callable, &c, ret_callable);
	return 0;
}

int32_t te__graph_before(const struct te_graph *g, int32_t i)
{
	int32_t j = i - 1;

	while (j >= 0 && g->callable[j].micro != g->callable[i].micro)
		j--;
	return j;
}
