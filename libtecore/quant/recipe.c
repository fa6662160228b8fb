/* recipe.c - the table of recipes: names, checks of a caller's struct, and properties for plans. */
#define TE_LOG_CATEGORY "core/quant"
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/base/private.h"
#include "libtecore/quant/recipe.h"

static const struct te__recipe_ops *const rows[] = {
#define ROW(row) &te__recipe_##row,
	TE__RECIPE_ROWS(ROW)
#ifdef TE__RECIPES_OF_A_TEST
	TE__RECIPES_OF_A_TEST(ROW)
#endif
};
#define NROWS (sizeof(rows) / sizeof(rows[0]))

/* the row of this kind and compute dtype, else one of this kind that casts */
const struct te__recipe_ops *te__recipe_row(const struct te_recipe *recipe)
{
	const struct te__recipe_ops *ret = NULL;

	for (size_t i = 0; i < NROWS; i++) {
		if (rows[i]->kind != recipe->kind)
			continue;
		if (rows[i]->compute == recipe->compute)
			return rows[i];
		if (rows[i]->operand)
			ret = rows[i];
	}
	return ret;
}

int te_recipe_from_name(const char *name, struct te_recipe *ret_recipe)
{
	struct te_recipe r = TE_RECIPE_INIT;
	char known[256];
	size_t n = 0;
	int err = te__sized_check("te_recipe_from_name", te_recipe, ret_recipe);

	if (err)
		return err;
	for (size_t i = 0; name && i < NROWS; i++) {
		if (strcmp(name, rows[i]->name))
			continue;
		r.kind = rows[i]->kind;
		r.compute = rows[i]->compute;
		te__sized_out(te_recipe, &r, ret_recipe);
		return 0;
	}
	for (size_t i = 0; i < NROWS && n < sizeof(known); i++)
		n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s", i ? ", " : "",
				      rows[i]->name);
	return te__fail(-EINVAL, "te_recipe_from_name: there is no recipe \"%s\": %s",
			name ? name : "(null)", known);
}

const char *te_recipe_name(const struct te_recipe *recipe)
{
	const struct te__recipe_ops *row = recipe ? te__recipe_row(recipe) : NULL;

	return row ? row->name : "?";
}

const char *te_recipe_for_device(const struct te_device_info *device,
				 struct te_recipe *ret_recipe)
{
	struct te_device_info d = TE_DEVICE_INFO_INIT;
	int fp8, r = te__sized_in("te_recipe_for_device", te_device_info, device, &d);

	fp8 = (d.features & TE_FEATURE_FP8_MMA) != 0;
	if (!r)
		r = te_recipe_from_name(fp8 ? "fp8-delayed" : "bf16", ret_recipe);
	if (r)
		return NULL;
	if (!d.kernels_cc)
		return "bf16: the device has no tensor cores";
	if (!fp8)
		return "bf16: the GPU and its kernels have no FP8 tensor cores, which begin with "
		       "compute capability 8.9";
	if (d.cc_major == 9)
		return "fp8-delayed: FP8 tensor cores, measured to be faster than bf16 here";
	return "fp8-delayed: FP8 tensor cores; the speed was measured on compute capability 9.0 "
	       "only";
}

int te__recipe_check(const char *fn, const struct te_recipe *recipe)
{
	const struct te__recipe_ops *row;

	if (recipe->compute != TE_DTYPE_BF16 && recipe->compute != TE_DTYPE_FP32)
		return te__fail(-EINVAL, "%s: recipe: compute dtype %s is neither bf16 nor fp32",
				fn, te_dtype_name(recipe->compute));
	row = te__recipe_row(recipe);
	if (!row)
		return te__fail(-EINVAL, "%s: recipe: kind %d is unknown", fn, (int)recipe->kind);
	if (!(recipe->amax_epsilon >= 0.0f) || isinf(recipe->amax_epsilon))
		return te__fail(-EINVAL, "%s: recipe: amax_epsilon %g is not a finite number from "
				"0 up", fn, (double)recipe->amax_epsilon);
	if (recipe->flags & ~row->flags)
		return te__fail(-EINVAL, "%s: recipe %s: flags 0x%x do not apply", fn, row->name,
				(unsigned int)(recipe->flags & ~row->flags));
	return row->check ? row->check(fn, recipe) : 0;
}

int te__recipe_casts(const struct te_recipe *recipe)
{
	const struct te__recipe_ops *row = te__recipe_row(recipe);

	return row && row->operand;
}

struct te__operand te__recipe_operand(const struct te_recipe *recipe, enum te__role role)
{
	const struct te__recipe_ops *row = te__recipe_row(recipe);

	if (row && row->operand)
		return row->operand(recipe, role);
	return (struct te__operand){ recipe->compute, TE_SCALING_TENSOR, 0 };
}

struct te_recipe te__recipe_present(const struct te_recipe *recipe)
{
	struct te_recipe r = *recipe;

	if (r.kind == TE_RECIPE_DELAYED)
		r.kind = TE_RECIPE_CURRENT;
	return r;
}

int te__recipe_pow2(const struct te_recipe *recipe)
{
	const struct te__recipe_ops *row = te__recipe_row(recipe);

	return row && row->pow2 && row->pow2(recipe);
}

int te__recipe_has_state(const struct te_recipe *recipe)
{
	const struct te__recipe_ops *row = te__recipe_row(recipe);

	return row && row->words;
}

int te__recipe_waits(const struct te_recipe *recipe)
{
	const struct te__recipe_ops *row = te__recipe_row(recipe);

	return row && row->scale;
}

int te__recipe_same(const struct te_recipe *a, const struct te_recipe *b)
{
	return a->kind == b->kind && a->margin == b->margin && a->history_len == b->history_len &&
	       a->algo == b->algo && a->amax_epsilon == b->amax_epsilon && a->flags == b->flags;
}

int te__recipe_shares(const struct te_recipe *a, const struct te_recipe *b)
{
	struct te_recipe x = *a, y = *b;

	x.flags |= TE_RECIPE_E4M3_ONLY;
	y.flags |= TE_RECIPE_E4M3_ONLY;
	return te__recipe_same(&x, &y);
}
