/* print.c - a plan as text, and as a graph for dot(1). */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>
#include <stdio.h>

#include "libtecore/base/private.h"

#include "libtecore/plan/plan.h"

static const char *column_name(const struct te_plan *p, const struct te__step *s)
{
	return p->seq->weight[p->seq->op_weight[s->node][0]].name;
}

void te__plan_step_label(const struct te_plan *p, const struct te__step *s, char *dst, size_t n)
{
	/* the first step of a group that reads it makes the copy */
	if (s->column && p->column[s->column - 1].step == s - p->step) {
		const int len = snprintf(dst, n, "columns(%.80s) + ", column_name(p, s));

		dst += len;
		n -= (size_t)len;
	}
	if (s->kind == TE__STEP_QUANT || s->kind == TE__STEP_SUM)
		snprintf(dst, n, "%s(%s)", s->name, p->value[s->role.y].label);
	else
		snprintf(dst, n, "%s%s", p->seq->op[s->node]->name,
			 s->again		 ? ".recompute" :
			 s->kind == TE__STEP_BWD ? ".bwd" :
			 s->kind == TE__STEP_DW  ? ".dw" :
						   "");
}

const char *te__plan_group_name(const struct te_plan *p, const struct te__group *g)
{
	return g->fusion ? g->fusion->name : p->step[g->first].name;
}

static void print_lifetime(FILE *f, const struct te_plan *p, const char *what, int b)
{
	const struct te__buf *buf = &p->buf[b];

	fprintf(f, " %s@%zu+%zu[%d,%d]", what, te__plan_arena_offset(p, buf->span) + buf->offset,
		buf->nbytes, buf->first, buf->last);
}

static void print_buf(FILE *f, const struct te_plan *p, const char *form, int b)
{
	if (b < 0)
		return;
	print_lifetime(f, p, form, b);
	if (p->buf[b].back >= 0)
		print_lifetime(f, p, p->buf[b].again ? "recomputed" : "offloaded", p->buf[b].back);
}

static int print_text(FILE *f, const void *arg)
{
	const struct te_plan *p = arg;
	static const char *const title[] = { "forward", "backward", "weight gradients" };
	int start[4] = { 0, p->fwd_groups, p->fwd_groups + p->bwd_groups, p->ngroups };
	char label[192], spec[96];

	te__spec_str(&p->xspec, spec, sizeof(spec));
	fprintf(f, "plan: x %s, recipe %s, %d ops, %d steps in %d groups\n", spec,
		te_recipe_name(&p->recipe), p->nops - p->first_op, p->nsteps, p->ngroups);
	for (int l = 0; l < 3; l++) {
		if (start[l] == start[l + 1])
			continue;
		fprintf(f, "%s:\n", title[l]);
		for (int t = start[l]; t < start[l + 1]; t++) {
			const struct te__group *g = &p->group[t];

			fprintf(f, "%5d  %-24s ", t, te__plan_group_name(p, g));
			for (int k = 0; k < g->n; k++) {
				te__plan_step_label(p, &p->step[g->first + k], label,
						    sizeof(label));
				fprintf(f, "%s%s", k ? " + " : "", label);
			}
			fputc('\n', f);
		}
	}
	fprintf(f, "values (form@offset+bytes[first,last]):\n");
	for (int i = 0; i < p->nvalues; i++) {
		const struct te__value *v = &p->value[i];

		te__spec_str(&v->spec, spec, sizeof(spec));
		fprintf(f, "  %-28s %-24s", v->label, spec);
		if (v->fixed)
			fputs(" fixed", f);
		if (v->no_hp)
			fputs(" fused away", f);
		print_buf(f, p, "hp", v->hp);
		print_buf(f, p, "row", v->row);
		print_buf(f, p, "col", v->col);
		if (v->why)
			fprintf(f, " not recomputed: %s", v->why);
		fputc('\n', f);
	}
	if (p->ncolumns)
		fprintf(f, "column-wise copies of weights, made for a group:\n");
	for (int i = 0; i < p->ncolumns; i++) {
		const struct te__column *c = &p->column[i];

		const struct te_spec s = te__spec_of(c->t);

		te__spec_str(&s, spec, sizeof(spec));
		fprintf(f, "  %-28s %-24s", column_name(p, &p->step[c->step]), spec);
		print_buf(f, p, "col", c->buf);
		fputc('\n', f);
	}
	if (p->nhosted)
		fprintf(f, "%s", te__seq_divides_masters(p->seq) ?
				   "weights and gradients that ranks divide, fetched before a "
				   "group and summed after it:\n" :
				   !te__seq_is_divided(p->seq) ?
				   "weights and gradients in host memory, copied for a group:\n" :
				   p->seq->binding.flags & TE_SEQ_HOST_MASTERS ?
				   "weights in host memory, copied for a group, and gradients that "
				   "ranks divide, summed after it:\n" :
				   "gradients that ranks divide, summed after a group:\n");
	for (int i = 0; i < p->nhosted; i++) {
		const struct te__hosted *h = &p->hosted[i];
		const struct te_spec s = te__spec_of(h->t);

		te__spec_str(&s, spec, sizeof(spec));
		fprintf(f, "  %-28s %-24s %d", p->seq->weight[h->weight].name, spec, h->group);
		print_buf(f, p, h->grad ? "gradient" : "master", h->buf);
		fputc('\n', f);
	}
	fprintf(f, "arena: %zu bytes, %zu without reuse\n", p->arena_nbytes, p->sum_nbytes);
	for (int s = 0; p->flags & TE_PLAN_EXTERNAL && s < TE_SPAN_COUNT; s++)
		fprintf(f, "span %s: %zu bytes\n", te__span_name[s], p->span_nbytes[s]);
	return 0;
}

/* edges from the group that writes a value to its readers */
static void print_edges(FILE *f, const struct te_plan *p, int *writer)
{
	for (int i = 0; i < p->nvalues; i++)
		writer[i] = -1;
	for (int t = 0; t < p->ngroups; t++) {
		const struct te__group *g = &p->group[t];

		for (int k = 0; k < g->n; k++) {
			const struct te__step *s = &p->step[g->first + k];

			for (int j = 0; j < s->nrefs; j++) {
				int v = s->ref[j].value;

				if (!s->ref[j].write && te__ref_forms(s, &s->ref[j]) &&
				    writer[v] >= 0 && writer[v] != t)
					fprintf(f, "  g%d -> g%d [label=\"%s\"];\n", writer[v], t,
						p->value[v].label);
			}
			for (int j = 0; j < s->nrefs; j++)
				if (s->ref[j].write)
					writer[s->ref[j].value] = t;
		}
	}
}

static int print_dot(FILE *f, const void *arg)
{
	const struct te_plan *p = arg;
	int *writer = te__malloc((size_t)p->nvalues * sizeof(*writer) + 1);
	char label[192];

	if (!writer)
		return te__no_memory("te_plan_print");
	fputs("digraph plan {\n  rankdir=LR;\n  node [shape=box];\n", f);
	for (int t = 0; t < p->ngroups; t++) {
		const struct te__group *g = &p->group[t];

		fprintf(f, "  g%d [label=\"%s", t, te__plan_group_name(p, g));
		for (int k = 0; k < g->n; k++) {
			te__plan_step_label(p, &p->step[g->first + k], label, sizeof(label));
			fprintf(f, "\\n%s", label);
		}
		fprintf(f, "\"%s];\n", g->fusion ? ", style=filled" : "");
	}
	print_edges(f, p, writer);
	fputs("}\n", f);
	te__free(writer);
	return 0;
}

int te_plan_print(const struct te_plan *plan, enum te_plan_format format, char **ret_text)
{
	if (!plan || !ret_text || (format != TE_PLAN_TEXT && format != TE_PLAN_DOT))
		return te__fail(-EINVAL, "te_plan_print: no plan, no place, or unknown format %d",
				(int)format);
	return te__text("te_plan_print", format == TE_PLAN_DOT ? print_dot : print_text, plan,
			ret_text);
}
