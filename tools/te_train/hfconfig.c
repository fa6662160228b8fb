/*
 * hfconfig.c - reading and writing config.json of GPT-2, Llama and Qwen2.
 *
 * Each field of a family has a row: read it, skip it because it does not change
 * the computation, or require the one value that is implemented. A field
 * without a row is skipped if it is null, false or 0 and refused otherwise,
 * because it may request something that is not implemented.
 */
#include "config.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "hfconfig.h"
#include "say.h"

#define GPT2 (1u << FAMILY_GPT2)
#define LLAMA (1u << FAMILY_LLAMA)
#define QWEN2 (1u << FAMILY_QWEN2)
#define LLAMAS (LLAMA | QWEN2)
#define ALL (GPT2 | LLAMAS)

enum rule {
	COUNT,	/* a whole number above 0 */
	NUMBER, /* at least 0 */
	PROB,	/* at least 0, below 1 */
	BOOLEAN,
	ACT, /* the name of an activation */
	SKIP,
	MUST_BE,    /* the JSON value in text, or null */
	ROPE,	    /* the object of newer transformers */
	LAYERS_FULL /* list of "full_attention" */
};

#define REQUIRED 1u

struct field {
	uint32_t families;
	const char *name;
	enum rule rule;
	size_t offset;
	uint32_t flags;
	const char *text;
};

#define AT(member) offsetof(struct config, member)

static const struct field fields[] = {
	{ GPT2, "n_embd", COUNT, AT(width), REQUIRED, NULL },
	{ GPT2, "n_layer", COUNT, AT(layers), REQUIRED, NULL },
	{ GPT2, "n_head", COUNT, AT(heads), REQUIRED, NULL },
	{ GPT2, "n_positions", COUNT, AT(max_pos), REQUIRED, NULL },
	{ GPT2, "n_inner", COUNT, AT(inner), 0, NULL },
	{ GPT2, "activation_function", ACT, AT(act), 0, NULL },
	{ GPT2, "layer_norm_epsilon", NUMBER, AT(eps), 0, NULL },
	{ GPT2, "embd_pdrop", PROB, AT(drop_embd), 0, NULL },
	{ GPT2, "resid_pdrop", PROB, AT(drop_resid), 0, NULL },
	{ GPT2, "attn_pdrop", PROB, AT(drop_attn), 0, NULL },
	{ GPT2, "scale_attn_weights", MUST_BE, 0, 0, "true" },
	{ LLAMAS, "hidden_size", COUNT, AT(width), REQUIRED, NULL },
	{ LLAMAS, "num_hidden_layers", COUNT, AT(layers), REQUIRED, NULL },
	{ LLAMAS, "num_attention_heads", COUNT, AT(heads), REQUIRED, NULL },
	{ LLAMAS, "num_key_value_heads", COUNT, AT(kv_heads), 0, NULL },
	{ LLAMAS, "head_dim", COUNT, AT(head_dim), 0, NULL },
	{ LLAMAS, "intermediate_size", COUNT, AT(inner), REQUIRED, NULL },
	{ LLAMAS, "max_position_embeddings", COUNT, AT(max_pos), REQUIRED, NULL },
	{ LLAMAS, "hidden_act", ACT, AT(act), 0, NULL },
	{ LLAMAS, "rms_norm_eps", NUMBER, AT(eps), 0, NULL },
	{ LLAMAS, "rope_theta", NUMBER, AT(rope_theta), 0, NULL },
	{ LLAMAS, "rope_parameters", ROPE, AT(rope_theta), 0, NULL },
	{ LLAMAS, "attention_dropout", PROB, AT(drop_attn), 0, NULL },
	{ LLAMAS, "rope_scaling", MUST_BE, 0, 0, "null" },
	{ LLAMAS, "mlp_bias", MUST_BE, 0, 0, "false" },
	{ LLAMA, "attention_bias", MUST_BE, 0, 0, "false" },
	{ LLAMA, "sliding_window", MUST_BE, 0, 0, "null" },
	{ LLAMAS, "pretraining_tp", MUST_BE, 0, 0, "1" },
	{ QWEN2, "use_sliding_window", MUST_BE, 0, 0, "false" },
	{ QWEN2, "sliding_window", SKIP, 0, 0, NULL }, /* off, see the row above */
	{ QWEN2, "max_window_layers", SKIP, 0, 0, NULL },
	{ LLAMAS, "layer_types", LAYERS_FULL, 0, 0, NULL },
	{ ALL, "vocab_size", COUNT, AT(vocab), REQUIRED, NULL },
	{ ALL, "initializer_range", NUMBER, AT(init_std), 0, NULL },
	{ ALL, "tie_word_embeddings", BOOLEAN, AT(tied), 0, NULL },
	{ ALL, "model_type", SKIP, 0, 0, NULL },
	/* names, tokens and defaults of Python programs */
	{ ALL, "_name_or_path", SKIP, 0, 0, NULL },
	{ ALL, "architectures", SKIP, 0, 0, NULL },
	{ ALL, "attn_implementation", SKIP, 0, 0, NULL },
	{ ALL, "bos_token_id", SKIP, 0, 0, NULL },
	{ ALL, "dtype", SKIP, 0, 0, NULL },
	{ ALL, "eos_token_id", SKIP, 0, 0, NULL },
	{ ALL, "id2label", SKIP, 0, 0, NULL },
	{ ALL, "label2id", SKIP, 0, 0, NULL },
	{ GPT2, "n_ctx", SKIP, 0, 0, NULL },
	{ ALL, "pad_token_id", SKIP, 0, 0, NULL },
	{ GPT2, "reorder_and_upcast_attn", SKIP, 0, 0, NULL },
	{ GPT2, "summary_activation", SKIP, 0, 0, NULL },
	{ GPT2, "summary_first_dropout", SKIP, 0, 0, NULL },
	{ GPT2, "summary_proj_to_labels", SKIP, 0, 0, NULL },
	{ GPT2, "summary_type", SKIP, 0, 0, NULL },
	{ GPT2, "summary_use_proj", SKIP, 0, 0, NULL },
	{ ALL, "task_specific_params", SKIP, 0, 0, NULL },
	{ ALL, "torch_dtype", SKIP, 0, 0, NULL },
	{ ALL, "transformers_version", SKIP, 0, 0, NULL },
	{ ALL, "use_cache", SKIP, 0, 0, NULL },
};
#define NFIELDS (sizeof(fields) / sizeof(fields[0]))

static const char *const families[] = { "gpt2", "llama", "qwen2" };

/* the first name of each is written */
static const struct {
	enum te_act act;
	const char *name;
} acts[] = {
	{ TE_ACT_GELU, "gelu_new" }, /* the tanh form */
	{ TE_ACT_GELU, "gelu_pytorch_tanh" },
	{ TE_ACT_GELU, "gelu_fast" },
	{ TE_ACT_QGELU, "quick_gelu" },
	{ TE_ACT_RELU, "relu" },
	{ TE_ACT_SRELU, "relu2" },
	{ TE_ACT_SILU, "silu" },
	{ TE_ACT_SILU, "swish" },
};
#define NACTS (sizeof(acts) / sizeof(acts[0]))

const char *family_name(enum family family)
{
	return families[family];
}

static int is_off(const json_t *v)
{
	return json_is_null(v) || json_is_false(v) ||
	       (json_is_number(v) && json_number_value(v) == 0);
}

static int read_act(const json_t *v, const char *where, const char *name, enum te_act *ret_act)
{
	const char *word = json_string_value(v);

	for (size_t i = 0; word && i < NACTS; i++) {
		if (!strcmp(acts[i].name, word)) {
			*ret_act = acts[i].act;
			return STATUS_OK;
		}
	}
	return say_bad("%s: %s: the activation \"%s\" is not implemented", where, name,
		       word ? word : "?");
}

/* {"rope_type": "default", "rope_theta": 10000.0} */
static int read_rope(const json_t *v, const char *where, double *ret_theta)
{
	const json_t *type = json_object_get(v, "rope_type");
	const json_t *theta = json_object_get(v, "rope_theta");

	if (json_is_null(v))
		return STATUS_OK;
	if (!json_is_object(v))
		return say_bad("%s: rope_parameters is not an object", where);
	if (type && strcmp(json_string_value(type) ? json_string_value(type) : "?", "default"))
		return say_bad("%s: rope_parameters: only rope_type \"default\" is implemented",
			       where);
	if (theta)
		*ret_theta = json_number_value(theta);
	return STATUS_OK;
}

static int read_field(const struct field *f, const json_t *v, const char *where, struct config *cfg)
{
	void *at = (char *)cfg + f->offset;
	double x = json_number_value(v);
	json_t *must;
	int same;

	if (json_is_null(v) && !(f->flags & REQUIRED))
		return STATUS_OK; /* null means "not given" in these files */
	switch (f->rule) {
	case COUNT:
		if (!json_is_integer(v) || json_integer_value(v) < 1 ||
		    json_integer_value(v) > INT32_MAX)
			return say_bad("%s: %s is not a whole number above 0", where, f->name);
		*(int64_t *)at = json_integer_value(v);
		break;
	case NUMBER:
		if (!json_is_number(v) || !(x >= 0) || isinf(x))
			return say_bad("%s: %s is not a number of 0 or more", where, f->name);
		*(double *)at = x;
		break;
	case PROB:
		if (!json_is_number(v) || !(x >= 0 && x < 1))
			return say_bad("%s: %s is not in [0, 1)", where, f->name);
		*(double *)at = x;
		break;
	case BOOLEAN:
		if (!json_is_boolean(v))
			return say_bad("%s: %s is neither true nor false", where, f->name);
		*(int *)at = json_is_true(v);
		break;
	case ACT:
		return read_act(v, where, f->name, at);
	case SKIP:
		break;
	case MUST_BE:
		must = json_loads(f->text, JSON_DECODE_ANY, NULL);
		same = json_equal(must, v);
		json_decref(must);
		if (!same)
			return say_bad("%s: %s: only %s is implemented", where, f->name, f->text);
		break;
	case ROPE:
		return read_rope(v, where, at);
	case LAYERS_FULL:
		for (size_t i = 0; i < json_array_size(v); i++) {
			const char *word = json_string_value(json_array_get(v, i));

			if (!word || strcmp(word, "full_attention"))
				return say_bad("%s: %s: only \"full_attention\" is implemented",
					       where, f->name);
		}
		break;
	}
	return STATUS_OK;
}

static int check(const struct config *c, const char *where)
{
	const char *heads = c->family == FAMILY_GPT2 ? "n_head" : "num_attention_heads";

	if (c->heads % c->kv_heads) {
		return say_bad("%s: num_key_value_heads %lld does not divide %s %lld", where,
			       (long long)c->kv_heads, heads, (long long)c->heads);
	}
	if (c->head_dim > 128)
		return say_bad("%s: heads are %lld wide; at most 128 is implemented", where,
			       (long long)c->head_dim);
	if (c->family != FAMILY_GPT2 && c->head_dim % 2)
		return say_bad("%s: heads are %lld wide; rotary positions need an even width",
			       where, (long long)c->head_dim);
	return STATUS_OK;
}

int config_parse(const json_t *obj, const char *where, struct config *ret_cfg)
{
	const char *type = json_string_value(json_object_get(obj, "model_type"));
	struct config c = { 0 };
	const char *name;
	json_t *v;
	int r;

	if (!json_is_object(obj))
		return say_bad("%s: not a JSON object", where);
	if (!type)
		return say_bad("%s: no model_type", where);
	while (strcmp(families[c.family], type)) {
		if (++c.family == sizeof(families) / sizeof(families[0]))
			return say_bad("%s: model_type \"%s\": expected gpt2, llama or qwen2",
				       where, type);
	}
	c.act = c.family == FAMILY_GPT2 ? TE_ACT_GELU : TE_ACT_SILU;
	c.eps = c.family == FAMILY_GPT2 ? 1e-5 : 1e-6;
	c.tied = c.family == FAMILY_GPT2; /* transformers' defaults, as are the dropouts */
	c.rope_theta = 10000;
	c.init_std = 0.02;
	if (c.family == FAMILY_GPT2)
		c.drop_embd = c.drop_resid = c.drop_attn = 0.1;

	json_object_foreach((json_t *)obj, name, v)
	{
		const struct field *f = NULL;

		for (size_t i = 0; i < NFIELDS && !f; i++) {
			if ((fields[i].families & 1u << c.family) && !strcmp(fields[i].name, name))
				f = &fields[i];
		}
		if (!f && !is_off(v))
			return say_bad("%s: unknown field \"%s\", which may change the model",
				       where, name);
		r = f ? read_field(f, v, where, &c) : STATUS_OK;
		if (r)
			return r;
	}
	for (size_t i = 0; i < NFIELDS; i++) {
		if ((fields[i].families & 1u << c.family) && (fields[i].flags & REQUIRED) &&
		    !json_object_get(obj, fields[i].name))
			return say_bad("%s: no %s", where, fields[i].name);
	}
	if (!c.kv_heads)
		c.kv_heads = c.heads;
	if (!c.head_dim && c.width % c.heads) {
		return say_bad("%s: %s %lld does not divide %s %lld", where,
			       c.family == FAMILY_GPT2 ? "n_head" : "num_attention_heads",
			       (long long)c.heads,
			       c.family == FAMILY_GPT2 ? "n_embd" : "hidden_size",
			       (long long)c.width);
	}
	if (!c.head_dim)
		c.head_dim = c.width / c.heads;
	if (!c.inner)
		c.inner = 4 * c.width;
	r = check(&c, where);
	if (!r)
		*ret_cfg = c;
	return r;
}

int config_read(const char *path, struct config *ret_cfg)
{
	char file[4096];
	struct stat st;
	json_error_t err;
	json_t *obj;
	int r;

	snprintf(file, sizeof(file), "%s", path);
	if (!stat(path, &st) && S_ISDIR(st.st_mode))
		snprintf(file, sizeof(file), "%s/config.json", path);
	obj = json_load_file(file, JSON_REJECT_DUPLICATES, &err);
	if (!obj) {
		if (err.line < 1)
			return say_bad("%s: %s", file, err.text);
		return say_bad("%s: line %d: %s", file, err.line, err.text);
	}
	r = config_parse(obj, file, ret_cfg);
	json_decref(obj);
	return r;
}

json_t *config_to_json(const struct config *c)
{
	static const char *const architectures[] = { "GPT2LMHeadModel", "LlamaForCausalLM",
						     "Qwen2ForCausalLM" };
	json_t *obj = json_object(), *v = NULL;

	json_object_set_new(obj, "model_type", json_string(families[c->family]));
	json_object_set_new(obj, "architectures", json_pack("[s]", architectures[c->family]));
	json_object_set_new(obj, "torch_dtype", json_string("float32"));
	for (size_t i = 0; i < NFIELDS; i++) {
		const struct field *f = &fields[i];
		const void *at = (const char *)c + f->offset;

		if (!(f->families & 1u << c->family))
			continue;
		switch (f->rule) {
		case COUNT:
			v = json_integer(*(const int64_t *)at);
			break;
		case NUMBER:
		case PROB:
			v = json_real(*(const double *)at);
			break;
		case BOOLEAN:
			v = json_boolean(*(const int *)at);
			break;
		case ACT:
			for (size_t k = NACTS; k-- > 0;) {
				if (acts[k].act == *(const enum te_act *)at) {
					json_decref(v);
					v = json_string(acts[k].name);
				}
			}
			break;
		default:
			continue;
		}
		json_object_set_new(obj, f->name, v);
		v = NULL;
	}
	return obj;
}
