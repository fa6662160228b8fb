/* patterns.c - patterns of fnmatch(3) that select values of plans by their names. */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/base/private.h"
#include "libtecore/plan/moves.h"

struct search {
	const char *fn;
	struct te_plan *const *plan;
	int nplans;
};

static int finds(const struct search *s, const char *pattern)
{
	for (int k = 0; k < s->nplans; k++)
		for (int v = 0; v < s->plan[k]->nvalues; v++)
			if (!fnmatch(pattern, s->plan[k]->value[v].label, 0))
				return 1;
	return 0;
}

/* the first names that fit into text; returns how many there are */
static int list_names(const struct search *s, char *text, size_t nbytes)
{
	size_t at = 0;
	int n = 0;

	text[0] = '\0';
	for (int k = 0; k < s->nplans; k++) {
		for (int v = 0; v < s->plan[k]->nvalues; v++, n++) {
			const char *name = s->plan[k]->value[v].label;

			if (at + strlen(name) + 3 < nbytes)
				at += (size_t)snprintf(text + at, nbytes - at, "%s%s",
						       n ? ", " : "", name);
		}
	}
	return n;
}

static int find_each(const struct search *s, const char *option, int32_t n,
		     const char *const *pattern)
{
	char names[256];

	for (int32_t i = 0; i < n; i++) {
		if (finds(s, pattern[i]))
			continue;
		return te__fail(-EINVAL, "%s: %s[%d] \"%.80s\" matches no value, expected names or "
				"patterns of them; there are %d, such as %s", s->fn, option, (int)i,
				pattern[i], list_names(s, names, sizeof(names)), names);
	}
	return 0;
}

int te__plans_find_patterns(const char *fn, struct te_plan *const *plan, int nplans,
			    int32_t nrecompute, const char *const *recompute)
{
	const struct search s = { fn, plan, nplans };
	const struct te_offload_opts *o = plan[0]->offload ? &plan[0]->offload->opts : NULL;
	int r = find_each(&s, "recompute", nrecompute, recompute);

	if (!r && o)
		r = find_each(&s, "keep", o->nkeep, o->keep);
	return r || !o ? r : find_each(&s, "move", o->nmove, o->move);
}
