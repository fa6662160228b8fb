/*
 * hfconfig.c - config.json of the families of models that are implemented: their defaults, what
 * fields imply, and what the layers have. hffields.c reads and writes the fields.
 */
#include "config.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "gguf.h"
#include "hfconfig.h"
#include "hffields.h"
#include "pyjson.h"
#include "record.h"
#include "say.h"

static const char *const families[FAMILY_COUNT] = {
	[FAMILY_GPT2] = "gpt2",	      [FAMILY_LLAMA] = "llama",	    [FAMILY_QWEN2] = "qwen2",
	[FAMILY_MISTRAL] = "mistral", [FAMILY_SMOLLM3] = "smollm3", [FAMILY_PHI3] = "phi3",
	[FAMILY_NEOX] = "gpt_neox",   [FAMILY_FALCON] = "falcon",   [FAMILY_STABLELM] = "stablelm",
	[FAMILY_QWEN3] = "qwen3",     [FAMILY_OLMO2] = "olmo2",
	[FAMILY_GEMMA2] = "gemma2",   [FAMILY_GEMMA3] = "gemma3_text",
};
static const char *const architectures[FAMILY_COUNT] = {
	[FAMILY_GPT2] = "GPT2LMHeadModel",	  [FAMILY_LLAMA] = "LlamaForCausalLM",
	[FAMILY_QWEN2] = "Qwen2ForCausalLM",	  [FAMILY_MISTRAL] = "MistralForCausalLM",
	[FAMILY_SMOLLM3] = "SmolLM3ForCausalLM",  [FAMILY_PHI3] = "Phi3ForCausalLM",
	[FAMILY_NEOX] = "GPTNeoXForCausalLM",	  [FAMILY_FALCON] = "FalconForCausalLM",
	[FAMILY_STABLELM] = "StableLmForCausalLM", [FAMILY_QWEN3] = "Qwen3ForCausalLM",
	[FAMILY_OLMO2] = "Olmo2ForCausalLM",	   [FAMILY_GEMMA2] = "Gemma2ForCausalLM",
	[FAMILY_GEMMA3] = "Gemma3ForCausalLM",
};

const char *family_name(enum family family)
{
	return families[family];
}

static int check(const struct config *c, const char *where)
{
	const char *heads = c->family == FAMILY_GPT2 ? "n_head" : "num_attention_heads";

	if (c->heads % c->kv_heads) {
		return say_bad("%s: num_key_value_heads %lld does not divide %s %lld", where,
			       (long long)c->kv_heads, heads, (long long)c->heads);
	}
	if (c->head_dim > 256)
		return say_bad("%s: heads are %lld wide; at most 256 is implemented", where,
			       (long long)c->head_dim);
	if (!c->learned && c->head_dim % 2)
		return say_bad("%s: heads are %lld wide; rotary positions need an even width",
			       where, (long long)c->head_dim);
	return STATUS_OK;
}

/* files of 2019 have no model_type; GPT-2 was the only one of these families */
static const char *guess_type(const json_t *obj)
{
	const json_t *list = json_object_get(obj, "architectures");
	const char *name = json_string_value(json_array_get(list, 0));

	for (size_t i = 0; name && i < FAMILY_COUNT; i++)
		if (!strcmp(architectures[i], name))
			return families[i];
	return !name && json_object_get(obj, "n_embd") ? families[FAMILY_GPT2] : NULL;
}

static int read_family(const json_t *obj, const char *where, enum family *ret_family)
{
	const json_t *given = json_object_get(obj, "model_type");
	const char *type = given ? json_string_value(given) : guess_type(obj);

	if (!json_is_object(obj))
		return say_bad("%s: not a JSON object", where);
	if (!type)
		return say_bad("%s: no model_type", where);
	for (size_t i = 0; i < FAMILY_COUNT; i++) {
		if (!strcmp(families[i], type)) {
			*ret_family = (enum family)i;
			return STATUS_OK;
		}
	}
	return say_bad("%s: model_type \"%s\" is not implemented", where, type);
}

struct config config_defaults(enum family family)
{
	const uint32_t f = 1u << family;
	const double drop = f & GPT2 ? 0.1 : 0;

	return (struct config){
		.family = family,
		.residual = f & FALCON ? RESIDUAL_SHARED :
			    f & NEOX   ? RESIDUAL_PARALLEL :
					 RESIDUAL_SERIAL,
		.act = f & GPT2		   ? TE_ACT_GELU :
		       f & GEMMAS	   ? TE_ACT_GELU :
		       f & (NEOX | FALCON) ? TE_ACT_GELU_ERF :
					     TE_ACT_SILU,
		.placement = f & OLMO2 ? NORMS_AFTER : f & GEMMAS ? NORMS_AROUND : NORMS_BEFORE,
		.qk_norm = f & (QWEN3 | GEMMA3) ? QK_NORM_HEADS :
			    f & OLMO2 ? QK_NORM_WHOLE : QK_NORM_NONE,
		.eps = f & (RMS & ~(PHI3 | OLMO2)) ? 1e-6 : 1e-5,
		.tied = !!(f & (GPT2 | FALCON | SMOLLM3 | GEMMAS)),
		.learned = !!(f & GPT2),
		.layernorm = !(f & RMS),
		.gated = !!(f & LLAMAS),
		.zero_centered = !!(f & GEMMAS),
		.scaled_embedding = !!(f & GEMMAS),
		.qkv_bias = !!(f & (GPT2 | QWEN2 | NEOX)),
		.proj_bias = !!(f & GPT2),
		.mlp_bias = !!(f & (GPT2 | NEOX)),
		.window = f & (MISTRAL | GEMMAS) ? 4096 : 0,
		.query_scalar = f & GEMMAS ? 256 : 0,
		.score_cap = f & GEMMA2 ? 50 : 0,
		.logit_cap = f & GEMMA2 ? 30 : 0,
		.rotary = { .theta = f & SMOLLM3 ? 2e6 :
				     f & GEMMA3	 ? 1e6 :
						   1e4,
			    .part = f & (NEOX | STABLELM) ? 0.25 : 1,
			    .truncate = 1 },
		.local = { .theta = 1e4, .part = 1, .truncate = 1 },
		.init_std = 0.02,
		.drop_embd = drop,
		.drop_resid = drop,
		.drop_attn = drop,
	};
}

/* several fields may have the same number of the rotations */
static int check_twice(const json_t *obj, const char *where, const char *name, const char *older,
		       double value)
{
	static const char *const holder[] = { NULL, "rope_scaling", "rope_parameters" };

	for (size_t i = 0; i < 2 * sizeof(holder) / sizeof(holder[0]); i++) {
		const json_t *in = holder[i / 2] ? json_object_get(obj, holder[i / 2]) : obj;
		const char *field = i % 2 ? older : name;
		const json_t *v = json_object_get(in, field);

		if (json_is_number(v) && json_number_value(v) != value)
			return say_bad("%s: %s is %g, elsewhere it is %g", where, field,
				       json_number_value(v), value);
	}
	return STATUS_OK;
}

/* original_max_position_embeddings of the config itself, which overrides the rotation objects */
static void read_original(const json_t *obj, struct config *c)
{
	const json_t *v = json_object_get(obj, "original_max_position_embeddings");

	if (json_is_number(v) && json_number_value(v) > 0)
		c->rotary.original = json_number_value(v);
	else if (c->family == FAMILY_PHI3)
		c->rotary.original = 4096; /* transformers' default */
}

static int fill_windows(struct config *c, const char *where)
{
	const uint32_t f = 1u << c->family;

	if ((c->windowed || c->sliding || f & GEMMAS) && !c->window)
		return say_bad("%s: no sliding_window", where);
	if (f & (QWEN2 | SMOLLM3 | QWEN3) && !c->windowed && !c->sliding)
		c->window = 0;
	return STATUS_OK;
}

static void fill_biases(struct config *c)
{
	const uint32_t f = 1u << c->family;

	if (f & FALCON)
		c->qkv_bias = c->mlp_bias;
	if (f & (LLAMA | SMOLLM3 | NEOX | FALCON | QWEN3 | OLMO2 | GEMMAS))
		c->proj_bias = c->qkv_bias;
}

static int fill_missing(struct config *c, const char *where)
{
	const uint32_t f = 1u << c->family;
	int r;

	if (f & FALCON)
		c->kv_heads = 1;
	if (f & FALCON && !c->max_pos)
		c->max_pos = 2048;
	if (f & SMOLLM3 && !c->no_rope_every)
		c->no_rope_every = 4;
	if (f & QWEN3 && !c->head_dim)
		c->head_dim = 128;
	if (f & GEMMAS && !c->head_dim)
		c->head_dim = 256;
	if (f & GEMMAS && !c->kv_heads)
		c->kv_heads = 4;
	if (f & GEMMA3 && !c->full_every)
		c->full_every = 6;
	if (f & GEMMAS && !(c->query_scalar > 0))
		return say_bad("%s: query_pre_attn_scalar is 0", where);
	if (f & NEOX)
		c->drop_embd = c->drop_resid;
	if (f & STABLELM && c->residual)
		c->residual = RESIDUAL_SHARED;
	fill_biases(c);
	r = fill_windows(c, where);
	if (r)
		return r;
	if (!c->kv_heads)
		c->kv_heads = c->heads;
	if (!c->head_dim && c->width % c->heads) {
		return say_bad("%s: %s %lld does not divide %s %lld", where,
			       c->family == FAMILY_GPT2 ? "n_head" : "num_attention_heads",
			       (long long)c->heads,
			       c->family == FAMILY_GPT2 ? "n_embd" : "hidden_size",
			       (long long)c->width);
	}
	if (!c->head_dim)
		c->head_dim = c->width / c->heads;
	if (!c->inner)
		c->inner = 4 * c->width;
	if (!(f & (PHI3 | NEOX | STABLELM)) && (c->rotary.part != 1 || c->local.part != 1))
		return say_bad("%s: partial_rotary_factor: only 1 is implemented", where);
	r = check(c, where);
	if (!r && f & GEMMA3)
		r = rotary_check(&c->local, where, c->head_dim, c->max_pos);
	return r || c->learned ? r : rotary_check(&c->rotary, where, c->head_dim, c->max_pos);
}

int config_parse(const json_t *obj, const char *where, struct config *ret_cfg)
{
	enum family family = FAMILY_GPT2;
	struct config c;
	int r = read_family(obj, where, &family);

	if (r)
		return r;
	c = config_defaults(family);
	r = fields_read(obj, where, &c);
	if (!r)
		r = check_twice(obj, where, "rope_theta", "rotary_emb_base", c.rotary.theta);
	if (!r)
		r = check_twice(obj, where, "partial_rotary_factor", "rotary_pct", c.rotary.part);
	read_original(obj, &c);
	if (!r)
		r = fill_missing(&c, where);
	if (r)
		return r;
	c.source = json_incref((json_t *)(uintptr_t)obj);
	*ret_cfg = c;
	return STATUS_OK;
}

/*
 * Is it known which layers have the window? Mistral and Phi-3: all, unless there is a list of
 * types. Qwen2: as in the list, or the layers from max_window_layers on. Gemma: as in the list, or
 * all but every second, or sixth, layer.
 */
static int has_windows(const struct config *c)
{
	const uint32_t f = 1u << c->family;

	return c->window && (f & GEMMAS		 ? 1 :
			     f & (QWEN2 | QWEN3) ? c->windowed :
			     f & (MISTRAL | PHI3) && !json_object_get(c->source, "layer_types"));
}

int64_t config_window(const struct config *c, int64_t layer)
{
	const json_t *types = json_object_get(c->source, "layer_types");
	const json_t *from = json_object_get(c->source, "max_window_layers");
	const char *type = json_string_value(json_array_get(types, (size_t)layer));

	if (!has_windows(c))
		return 0;
	if (!(1u << c->family & (QWEN2 | QWEN3 | GEMMAS)))
		return c->window;
	if (json_is_array(types))
		return type && *type == 's' ? c->window : 0;
	if (1u << c->family & GEMMAS)
		return (layer + 1) % (c->full_every ? c->full_every : 2) ? c->window : 0;
	/* 28 is transformers' default */
	return layer >= (json_is_integer(from) ? json_integer_value(from) : 28) ? c->window : 0;
}

const struct rotary *config_rotary(const struct config *c, int64_t layer)
{
	return c->family == FAMILY_GEMMA3 && config_window(c, layer) ? &c->local : &c->rotary;
}

int64_t config_longest(const struct config *c, const char **ret_field)
{
	int64_t longest = 0;

	if (c->learned) {
		*ret_field = "n_positions";
		return c->max_pos;
	}
	if (c->rotary.kind == ROTARY_LONGROPE) {
		*ret_field = "original_max_position_embeddings";
		longest = (int64_t)c->rotary.original;
	}
	if (c->window && !has_windows(c) && (!longest || c->window < longest)) {
		*ret_field = "sliding_window";
		longest = c->window;
	}
	return longest;
}

int64_t config_positions(const struct config *c)
{
	const char *field;
	const int64_t most = c->max_pos > 0 ? c->max_pos : DEFAULT_CONTEXT;
	const int64_t longest = config_longest(c, &field);

	return longest > 0 && longest < most ? longest : most;
}

int config_turns(const struct config *c, int64_t layer)
{
	const json_t *list = c->no_rope_every ? json_object_get(c->source, "no_rope_layers") : NULL;

	if (json_is_array(list))
		return json_number_value(json_array_get(list, (size_t)layer)) == 1;
	return !c->no_rope_every || (layer + 1) % c->no_rope_every;
}

void config_free(struct config *c)
{
	json_decref(c->source);
	c->source = NULL;
}

int config_read(const char *path, struct config *ret_cfg)
{
	char file[4096];
	struct stat st;
	json_t *obj = NULL;
	int r;

	snprintf(file, sizeof(file), "%s", path);
	if (!stat(path, &st) && S_ISDIR(st.st_mode))
		snprintf(file, sizeof(file), "%s/config.json", path);
	r = gguf_is(file) ? gguf_config(file, &obj) : pyjson_load(file, &obj);
	if (!r)
		r = config_parse(obj, file, ret_cfg);
	json_decref(obj);
	return r;
}

json_t *config_to_json(const struct config *c)
{
	const char *dtype = c->saved == TE_DTYPE_BF16 ? "bfloat16" : "float32";
	struct record rec;
	const char *name;
	json_t *v;

	record_begin(&rec);
	json_object_foreach(c->source, name, v)
		record_put(&rec, name, json_incref(v));
	record_text(&rec, "model_type", families[c->family]);
	record_open_list(&rec, "architectures");
	record_text(&rec, NULL, architectures[c->family]);
	record_close(&rec);
	/* type of the weights that are written; the newer name too if it was there */
	record_text(&rec, "torch_dtype", dtype);
	if (json_object_get(c->source, "dtype"))
		record_text(&rec, "dtype", dtype);
	fields_write(&rec, c);
	return record_end(&rec, "config.json");
}

int config_matches(const char *patterns, const char *name)
{
	char pattern[96];

	for (size_t n; *patterns; patterns += n + (patterns[n] == ',')) {
		n = strcspn(patterns, ",");
		snprintf(pattern, sizeof(pattern), "%.*s", (int)n, patterns);
		if (!fnmatch(pattern, name, 0))
			return 1;
	}
	return 0;
}

const struct te_recipe *config_recipe(const struct config *c, const char *op)
{
	for (int32_t k = 0; k < c->nlayer_recipes; k++)
		if (config_matches(c->layer_recipe[k].patterns, op))
			return &c->layer_recipe[k].recipe;
	return NULL;
}

int config_has_recipe(const struct config *c, enum te_recipe_kind kind)
{
	for (int32_t k = -1; k < c->nlayer_recipes; k++) {
		const struct te_recipe *r = k < 0 ? c->head_recipe : &c->layer_recipe[k].recipe;

		if (r && (kind ? r->kind == kind : r->kind != TE_RECIPE_NONE))
			return 1;
	}
	return 0;
}

int config_same(const struct config *a, const char *where_a, const struct config *b,
		const char *where_b)
{
	json_t *x, *y;
	int r;

	if (a->family != b->family)
		return say_bad("%s: model_type is %s, and in %s it is %s", where_a,
			       families[a->family], where_b, families[b->family]);
	x = config_to_json(a);
	y = config_to_json(b);
	r = x && y ? fields_same(a->family, x, where_a, y, where_b) : STATUS_FAILED;
	if (!r && (memcmp(&a->rotary, &b->rotary, sizeof(a->rotary)) ||
		   memcmp(&a->local, &b->local, sizeof(a->local))))
		r = say_bad("%s: its rotations of positions differ from %s", where_a, where_b);
	for (int64_t i = 0; i < a->layers && !r; i++)
		if (config_turns(a, i) != config_turns(b, i))
			r = say_bad("%s: no_rope_layers differs from %s", where_a, where_b);
	for (int64_t i = 0; i < a->layers && !r; i++)
		if (config_window(a, i) != config_window(b, i))
			r = say_bad("%s: the windows of layers differ from %s", where_a, where_b);
	if (!r && a->window != b->window)
		r = say_bad("%s: sliding_window differs from %s", where_a, where_b);
	if (!r && a->act != b->act)
		r = say_bad("%s: its activation differs from %s", where_a, where_b);
	json_decref(x);
	json_decref(y);
	return r;
}
