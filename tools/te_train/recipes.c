/* recipes.c - see recipes.h. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recipes.h"
#include "tools/lib/say.h"

/* a sequence has quantizers for one such recipe: te_op_linear(3) */
static int has_tensor_scales(const struct te_recipe *r)
{
	return r->kind == TE_RECIPE_DELAYED || r->kind == TE_RECIPE_CURRENT;
}

static int excludes(const struct te_recipe *a, const struct te_recipe *b)
{
	return a->kind != b->kind && has_tensor_scales(a) && has_tensor_scales(b);
}

/* text becomes the patterns */
static int parse(char *text, struct layer_recipe *ret)
{
	char *name = strchr(text, ':');
	int r;

	if (!name || name == text || !name[1])
		return say_bad("--layer-recipe: \"%s\": expected PATTERN,...:RECIPE", text);
	*name++ = '\0';
	ret->patterns = text;
	ret->recipe = (struct te_recipe)TE_RECIPE_INIT;
	r = te_recipe_from_name(name, &ret->recipe);
	return r < 0 ? say_te(r, "--layer-recipe") : STATUS_OK;
}

/* two recipes with scales of tensors */
static int check_pair(const char *option, const char *name, const struct te_recipe *a,
		      const char *with, const struct te_recipe *b)
{
	if (!excludes(a, b))
		return STATUS_OK;
	return say_bad("%s %s with %s %s: expected one recipe, or scales of blocks in one of them",
		       option, name, with, te_recipe_name(b));
}

static int check_layer(const struct trainer *t, int32_t k)
{
	const struct te_recipe *own = &t->layer_recipe[k].recipe;
	const char *name = te_recipe_name(own);
	int r = check_pair("--layer-recipe", name, own, "--recipe", &t->recipe);

	if (!r)
		r = check_pair("--layer-recipe", name, own, "--head-recipe", &t->head_recipe);
	for (int32_t i = 0; i < k && !r; i++)
		r = check_pair("--layer-recipe", name, own, "--layer-recipe",
			       &t->layer_recipe[i].recipe);
	return r;
}

int recipes_open(struct trainer *t)
{
	const char *given = t->o->layer_recipe;
	char *rest;
	int r = check_pair("--head-recipe", t->o->head_recipe, &t->head_recipe, "--recipe",
			   &t->recipe);

	if (r || !given)
		return r;
	t->recipe_text = rest = strdup(given);
	t->layer_recipe = calloc(strlen(given) + 1, sizeof(*t->layer_recipe)); /* enough */
	if (!rest || !t->layer_recipe)
		return say_failed("out of memory");
	while (rest && !r) {
		r = parse(strsep(&rest, ";"), &t->layer_recipe[t->nlayer_recipes]);
		if (!r)
			r = check_layer(t, t->nlayer_recipes++);
	}
	return r;
}

/* does one of the patterns match an operation? */
static int is_used(const struct config *c, const char *patterns)
{
	static const char *const part[] = { "qkv", "proj", "up", "down" };
	char name[64];

	for (int64_t i = 0; i < c->layers; i++)
		for (size_t k = 0; k < sizeof(part) / sizeof(part[0]); k++) {
			snprintf(name, sizeof(name), "h.%d.%s", (int)i, part[k]);
			if (config_matches(patterns, name))
				return 1;
		}
	return 0;
}

int recipes_apply(struct trainer *t)
{
	if (t->head_recipe.kind != TE_RECIPE_NONE)
		t->cfg.head_recipe = &t->head_recipe;
	t->cfg.layer_recipe = t->layer_recipe;
	t->cfg.nlayer_recipes = t->nlayer_recipes;
	for (int32_t k = 0; k < t->nlayer_recipes; k++)
		if (!is_used(&t->cfg, t->layer_recipe[k].patterns))
			return say_bad("--layer-recipe: \"%s\": no layer has a GEMM of this name; "
				       "there are h.0.qkv, h.0.proj, h.0.up and h.0.down",
				       t->layer_recipe[k].patterns);
	return STATUS_OK;
}

void recipes_close(struct trainer *t)
{
	free(t->layer_recipe);
	free(t->recipe_text);
}
