/* t/graph/locale.c - what graphs print is the same in a locale with a decimal comma. */
#include "config.h"

#include <ctype.h>
#include <locale.h>

#include <te/graph.h>

#include "tt_ctx.h"

static const struct te_arg x = { "x", { TE_DTYPE_FP32, 1, { 4 } }, 0 };
static const struct te_arg y = { "y", { TE_DTYPE_FP32, 1, { 4 } }, 0 };

static int forward(void *self, const struct te_graph_call *c)
{
	return te_copy(c->stream, te_tensor_data(c->out[0]), te_tensor_data(c->in[0]),
		       te_tensor_nbytes(c->in[0]));
}

/* checks each time of the JSON, "..._us": 12.345 or null, and writes T in its place */
static int mask_times(char *text)
{
	const char *in = text;
	char *out = text;
	int n = 0;

	while (*in) {
		size_t whole, part;

		*out++ = *in++;
		if (out - text < 6 || memcmp(out - 6, "_us\": ", 6) != 0 || !isdigit(*in))
			continue;
		whole = strspn(in, "0123456789");
		ck_assert_msg(in[whole] == '.', "%.20s", in);
		part = strspn(in + whole + 1, "0123456789");
		ck_assert_msg(part == 3 && strchr(",}\n", in[whole + 4]), "%.20s", in);
		in += whole + 4;
		*out++ = 'T';
		n++;
	}
	*out = '\0';
	return n;
}

CTX_CASE(locale, "graph");

TEST(locale, json_has_points)
{
	const int64_t shape[] = { 4 };
	struct te_callable c = TE_CALLABLE_INIT;
	struct te_tensor *t;
	struct te_graph *g;
	char *text[2], half[8];

	snprintf(half, sizeof(half), "%.1f", 0.5);
	ck_assert_str_eq(half, "0,5");
	c.name = "copy";
	c.nin = c.nout = 1;
	c.in = &x;
	c.out = &y;
	c.forward = forward;
	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 1, shape, NULL, &t));
	DO(te_graph_bind(g, 0, "x", 0, t, NULL));
	DO(te_graph_run(g, st));
	DO(te_graph_json(g, &text[0]));
	setlocale(LC_ALL, "C");
	DO(te_graph_json(g, &text[1]));
	/* the mean and the longest time of a launch */
	for (int k = 0; k < 2; k++)
		ck_assert_int_eq(mask_times(text[k]), 2);
	ck_assert_str_eq(text[0], text[1]);
	free(text[0]);
	free(text[1]);
	te_graph_unref(g);
	te_tensor_unref(t);
}

TT_MAIN("graph/locale", TT_NEED_COMMA)
