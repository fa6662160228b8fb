/* groups.c - see groups.h. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "groups.h"
#include "tools/lib/say.h"

/* one option of a group, "name=number" */
static int set(struct te_adamw_group *g, const char *text)
{
	const struct {
		const char *name;
		float *x;
		double most;
	} option[] = {
		{ "rate", &g->lr_scale, 1000 },
		{ "decay", &g->weight_decay, 10 },
		{ "beta1", &g->beta1, 0.999999 },
		{ "beta2", &g->beta2, 0.999999 },
	};

	for (size_t i = 0; i < sizeof(option) / sizeof(option[0]); i++) {
		const size_t n = strlen(option[i].name);
		char *end;
		double x;

		if (strncmp(text, option[i].name, n) || text[n] != '=')
			continue;
		x = strtod(text + n + 1, &end);
		if (end == text + n + 1 || *end || !(x >= 0) || !(x <= option[i].most))
			return say_bad("--groups: \"%s\": expected a number from 0 to %g after =",
				       text, option[i].most);
		*option[i].x = (float)x;
		return STATUS_OK;
	}
	return say_bad("--groups: \"%s\": expected rate=X, decay=X, beta1=X or beta2=X", text);
}

/* text becomes the patterns */
static int parse(const struct opts *o, char *text, struct te_adamw_group *ret)
{
	const struct te_adamw_group init = TE_ADAMW_GROUP_INIT;
	char *rest = strchr(text, ':');
	int r = STATUS_OK;

	*ret = init;
	ret->weights = text;
	ret->weight_decay = (float)o->weight_decay;
	ret->beta1 = (float)o->beta1;
	ret->beta2 = (float)o->beta2;
	if (!rest || rest == text || !rest[1])
		return say_bad("--groups: \"%s\": expected PATTERN,...:rate=X,decay=X and so on",
			       text);
	*rest++ = '\0';
	while (rest && !r)
		r = set(ret, strsep(&rest, ","));
	return r;
}

int groups_parse(struct opts *o)
{
	char *rest = o->groups;
	int r = STATUS_OK;

	if (!o->groups)
		return STATUS_OK;
	o->group_text = rest = strdup(o->groups);
	o->group = calloc(strlen(o->groups) + 1, sizeof(*o->group)); /* more than there are */
	if (!rest || !o->group)
		return say_failed("out of memory");
	while (rest && !r)
		r = parse(o, strsep(&rest, ";"), &o->group[o->ngroups++]);
	return r;
}

void groups_free(struct opts *o)
{
	free(o->group);
	free(o->group_text);
}
