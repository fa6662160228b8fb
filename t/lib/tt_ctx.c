/* tt_ctx.c - a context for each test, and calls that must fail. */
#include "config.h"

#include <ctype.h>

#include "tt_ctx.h"
#include "tt_gate.h"

const char *backend = "host";
struct te_ctx *ctx;
struct te_stream *st;

int tt_ctx_new(struct te_ctx **ret_ctx)
{
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;

	o.backend = backend;
	return te_ctx_create(&o, ret_ctx);
}

void tt_hold_kernels(void)
{
	static struct te_ctx *held;

	if (!held && !strcmp(backend, "cuda"))
		DO(tt_ctx_new(&held));
}

/* the context of the previous test of this process, if it was left as it was created */
static struct te_ctx *kept;

void tt_setup(void)
{
	tt_gate_setup();
	ctx = kept;
	kept = NULL;
	if (!ctx)
		DO(tt_ctx_new(&ctx));
	st = te_ctx_stream(ctx);
}

void tt_renew(void)
{
	ctx = te_ctx_unref(ctx);
	DO(tt_ctx_new(&ctx));
	st = te_ctx_stream(ctx);
}

void tt_teardown(void)
{
	struct te_mem_info m = TE_MEM_INFO_INIT;
	int r;

	tt_gate_open();
	r = te_ctx_sync(ctx);
	if (!r)
		r = te_ctx_mem_info(ctx, &m);
	if (tt_one_process && !r && !m.used_nbytes && !m.pinned_nbytes) {
		kept = ctx;
		ctx = NULL;
	}
	/* first, so that a failing test does not leave less memory to the next one */
	ctx = te_ctx_unref(ctx);
	st = NULL;
	ck_assert_msg(!r, "the context: %s", te_error_detail());
	ck_assert_uint_eq(m.used_nbytes, 0);
	ck_assert_uint_eq(m.pinned_nbytes, 0);
	tt_gate_teardown();
}

void tt_hold_and_setup(void)
{
	tt_hold_kernels();
	tt_setup();
}

void tt_append(struct te_seq *seq, struct te_op *op)
{
	DO(te_seq_append(seq, op));
	te_op_unref(op);
}

struct te_recipe tt_recipe(const char *name)
{
	struct te_recipe r = TE_RECIPE_INIT;

	DO(te_recipe_from_name(name, &r));
	return r;
}

struct te_plan *tt_plan(struct te_seq *seq, const struct te_recipe *recipe, uint32_t flags,
			struct te_spec x)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *plan;

	o.recipe = recipe;
	o.flags = flags;
	o.x = x;
	DO(te_plan_create(seq, &o, &plan));
	return plan;
}

void tt_drop(struct te_plan *plan, struct te_seq *seq)
{
	te_plan_unref(plan);
	te_seq_unref(seq);
}

void tt_drop_both(struct te_plan *const plan[2], struct te_seq *const seq[2])
{
	tt_drop(plan[0], seq[0]);
	tt_drop(plan[1], seq[1]);
}

void *tt_bytes(const void *device, size_t nbytes)
{
	void *p = malloc(nbytes);

	DO(te_copy(st, p, device, nbytes));
	DO(te_stream_sync(st));
	return p;
}

uint64_t tt_used(void)
{
	struct te_mem_info m = TE_MEM_INFO_INIT;

	DO(te_ctx_sync(ctx));
	DO(te_ctx_mem_info(ctx, &m));
	return m.used_nbytes;
}

/* the length of the name of a function of libtegraph at p, or 0 */
static size_t graph_function(const char *p)
{
	static const char *const prefix[] = { "te_graph_", "te_schedule_", "te_callable_" };
	size_t n = 0;

	for (size_t i = 0; i < TT_LEN(prefix); i++)
		if (!strncmp(p, prefix[i], strlen(prefix[i])))
			n = strlen(prefix[i]);
	while (n && (isalnum((unsigned char)p[n]) || p[n] == '_'))
		n++;
	return n;
}

void tt_fails(const char *call, int r, int code, const char *text)
{
	const char *said = te_error_detail();
	const size_t called = graph_function(call);

	ck_assert_msg(r == code, "%s: %d, not %d: %s", call, r, code, said);
	ck_assert_msg(!code || said[0], "%s: %d and no error message", call, r);
	ck_assert_msg(strstr(said, text) != NULL, "%s: \"%s\" lacks \"%s\"", call, said, text);
	ck_assert_msg(strncmp(call, "te_schedule_", 12) || !strncmp(said, call, called),
		      "%s: \"%s\" does not begin with the function", call, said);
	if (called && graph_function(said))
		ck_assert_msg(graph_function(said) == called && !strncmp(said, call, called),
			      "%s: \"%s\" names another function", call, said);
}

void tt_said(const char *text)
{
	ck_assert_msg(strstr(te_error_detail(), text) != NULL, "\"%s\" lacks \"%s\"",
		      te_error_detail(), text);
}
