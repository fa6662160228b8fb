/*
 * hfconfig.c - reading and writing config.json of GPT-2, Llama and Qwen2.
 *
 * Each field of a family has a row: read it, skip it because it does not change
 * the computation, or require the one value that is implemented. Names of fields
 * that change no model's computation are listed as patterns. Another field is
 * skipped if it is null, false, 0 or empty and refused otherwise, because it may
 * request something that is not implemented. All fields are kept, and written
 * again by config_to_json().
 */
#include "config.h"

#include <fnmatch.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "hfconfig.h"
#include "pyjson.h"
#include "record.h"
#include "say.h"

#define GPT2 (1u << FAMILY_GPT2)
#define LLAMA (1u << FAMILY_LLAMA)
#define QWEN2 (1u << FAMILY_QWEN2)
#define LLAMAS (LLAMA | QWEN2)
#define ALL (GPT2 | LLAMAS)

enum rule {
	COUNT,	/* a whole number from 1 to most */
	NUMBER, /* at least 0 */
	PROB,	/* at least 0, below 1 */
	BOOLEAN,
	ACT, /* the name of an activation */
	SKIP,
	MUST_BE,    /* the JSON value in text, or null */
	ROPE,	    /* an object that describes the rotations */
	LAYERS_FULL /* a list with "full_attention" for each layer */
};

#define REQUIRED 1u /* flag of COUNT */
#define ALIAS 2u /* a second name of another row's field */
#define MAX_LAYERS 4096

struct field {
	uint32_t families;
	const char *name;
	enum rule rule;
	size_t offset;
	uint32_t flags;
	const char *text;
	int64_t most;
};

#define AT(member) offsetof(struct config, member)

static const struct field fields[] = {
	{ GPT2, "n_embd", COUNT, AT(width), REQUIRED, NULL, 0 },
	{ GPT2, "n_layer", COUNT, AT(layers), REQUIRED, NULL, MAX_LAYERS },
	{ GPT2, "n_head", COUNT, AT(heads), REQUIRED, NULL, 0 },
	{ GPT2, "n_positions", COUNT, AT(max_pos), REQUIRED, NULL, 0 },
	{ GPT2, "hidden_size", COUNT, AT(width), ALIAS, NULL, 0 },
	{ GPT2, "num_hidden_layers", COUNT, AT(layers), ALIAS, NULL, MAX_LAYERS },
	{ GPT2, "num_attention_heads", COUNT, AT(heads), ALIAS, NULL, 0 },
	{ GPT2, "max_position_embeddings", COUNT, AT(max_pos), ALIAS, NULL, 0 },
	{ GPT2, "n_inner", COUNT, AT(inner), 0, NULL, 0 },
	{ GPT2, "activation_function", ACT, AT(act), 0, NULL, 0 },
	{ GPT2, "layer_norm_epsilon", NUMBER, AT(eps), 0, NULL, 0 },
	{ GPT2, "embd_pdrop", PROB, AT(drop_embd), 0, NULL, 0 },
	{ GPT2, "resid_pdrop", PROB, AT(drop_resid), 0, NULL, 0 },
	{ GPT2, "attn_pdrop", PROB, AT(drop_attn), 0, NULL, 0 },
	{ GPT2, "scale_attn_weights", MUST_BE, 0, 0, "true", 0 },
	{ GPT2, "scale_attn_by_inverse_layer_idx", MUST_BE, 0, 0, "false", 0 },
	{ GPT2, "add_cross_attention", MUST_BE, 0, 0, "false", 0 },
	/* the order of scaling and rounding: the same up to rounding */
	{ GPT2, "reorder_and_upcast_attn", SKIP, 0, 0, NULL, 0 },
	{ LLAMAS, "hidden_size", COUNT, AT(width), REQUIRED, NULL, 0 },
	{ LLAMAS, "num_hidden_layers", COUNT, AT(layers), REQUIRED, NULL, MAX_LAYERS },
	{ LLAMAS, "num_attention_heads", COUNT, AT(heads), REQUIRED, NULL, 0 },
	{ LLAMAS, "num_key_value_heads", COUNT, AT(kv_heads), 0, NULL, 0 },
	{ LLAMAS, "head_dim", COUNT, AT(head_dim), 0, NULL, 0 },
	{ LLAMAS, "intermediate_size", COUNT, AT(inner), REQUIRED, NULL, 0 },
	{ LLAMAS, "max_position_embeddings", COUNT, AT(max_pos), REQUIRED, NULL, 0 },
	{ LLAMAS, "hidden_act", ACT, AT(act), 0, NULL, 0 },
	{ LLAMAS, "rms_norm_eps", NUMBER, AT(eps), 0, NULL, 0 },
	{ LLAMAS, "rope_theta", NUMBER, AT(rope_theta), 0, NULL, 0 },
	{ LLAMAS, "rope_parameters", ROPE, AT(rope_theta), 0, NULL, 0 },
	{ LLAMAS, "attention_dropout", PROB, AT(drop_attn), 0, NULL, 0 },
	{ LLAMAS, "rope_scaling", ROPE, AT(rope_theta), 0, NULL, 0 },
	{ LLAMAS, "original_max_position_embeddings", SKIP, 0, 0, NULL, 0 }, /* used by scaling */
	{ LLAMAS, "partial_rotary_factor", MUST_BE, 0, 0, "1", 0 },
	{ LLAMAS, "rope_interleaved", MUST_BE, 0, 0, "false", 0 },
	{ QWEN2, "use_mrope", MUST_BE, 0, 0, "false", 0 },
	{ LLAMAS, "mlp_bias", MUST_BE, 0, 0, "false", 0 },
	{ LLAMA, "attention_bias", MUST_BE, 0, 0, "false", 0 },
	{ QWEN2, "attention_bias", SKIP, 0, 0, NULL, 0 }, /* queries always have it */
	{ LLAMA, "sliding_window", MUST_BE, 0, 0, "null", 0 },
	{ LLAMAS, "pretraining_tp", MUST_BE, 0, 0, "1", 0 },
	{ LLAMAS, "use_sliding_window", MUST_BE, 0, 0, "false", 0 },
	{ QWEN2, "sliding_window", SKIP, 0, 0, NULL, 0 }, /* off, see the row above */
	{ LLAMAS, "max_window_layers", SKIP, 0, 0, NULL, 0 },
	{ LLAMAS, "layer_types", LAYERS_FULL, 0, 0, NULL, 0 },
	{ ALL, "is_causal", MUST_BE, 0, 0, "true", 0 },
	{ ALL, "vocab_size", COUNT, AT(vocab), REQUIRED, NULL, 0 },
	{ ALL, "initializer_range", NUMBER, AT(init_std), 0, NULL, 0 },
	{ ALL, "tie_word_embeddings", BOOLEAN, AT(tied), 0, NULL, 0 },
};
#define NFIELDS (sizeof(fields) / sizeof(fields[0]))

/*
 * fnmatch(3) patterns: what transformers' PretrainedConfig and GenerationConfig have for all
 * models, and what programs that train, convert and publish models add
 */
static const char *const harmless[] = {
	/* names, and where things are from */
	"_*", "architectures", "attribute_map", "auto_map", "custom_pipelines", "datasets",
	"description", "is_composition", "is_llama_config", "keys_to_ignore_at_inference",
	"language", "library_name", "license", "model_name", "model_type", "name_or_path",
	"pipeline_tag", "sub_configs", "tags", "tokenizer*", "transformers*", "unsloth_*",
	/* types, kernels, memory and distribution of Python's computation */
	"*attn_implementation*", "*flash_attn*", "*flash_attention*", "base_model_*_plan", "bf16",
	"cache_config", "cache_implementation", "chunk_size_feed_forward", "dtype", "fp16",
	"fp32", "gradient_checkpointing*", "params_dtype", "tf_legacy_loss", "torch_dtype",
	"torchscript", "use_bfloat16", "use_cache", "use_sdpa", "xla_device",
	/* outputs, labels and tasks */
	"*num_labels", "classifier_*", "finetuning_task", "id2label", "is_decoder", "label2id",
	"loss_type", "output_attentions", "output_hidden_states", "output_logits", "output_past",
	"output_scores", "predict_special_tokens", "problem_type", "return_*", "summary_*",
	"task_specific_params", "use_return_dict",
	/* tokens, and lengths that the model has not */
	"bos_token", "eos_token", "pad_token", "unk_token", "*_token_id", "*_token_ids",
	"max_seq_len", "max_seq_length", "max_sequence_length", "model_max_length", "n_ctx",
	"n_special", "prefix", "seq_len", "seq_length",
	/* generation */
	"assistant_*", "bad_words_ids", "begin_suppress_tokens", "constraints",
	"diversity_penalty", "do_sample", "dola_layers", "early_stopping", "encoder_*penalty",
	"*no_repeat_ngram_size", "epsilon_cutoff", "eta_cutoff",
	"exponential_decay_length_penalty", "force_words_ids", "forced_decoder_ids",
	"generation_*", "guidance_scale", "length_penalty", "low_memory", "max_length",
	"max_matching_ngram_size", "max_new_tokens", "max_time", "min_length", "min_new_tokens",
	"min_p", "num_assistant_tokens*", "num_beam_groups", "num_beams",
	"num_return_sequences", "penalty_alpha", "prompt_lookup_num_tokens",
	"remove_invalid_values", "renormalize_logits", "repetition_penalty", "sequence_bias",
	"stop_strings", "suppress_tokens", "temperature", "token_healing", "top_h", "top_k",
	"top_p", "typical_p", "watermarking_config",
};

static const char *const families[] = { "gpt2", "llama", "qwen2" };
static const char *const architectures[] = { "GPT2LMHeadModel", "LlamaForCausalLM",
					     "Qwen2ForCausalLM" };
#define NFAMILIES (sizeof(families) / sizeof(families[0]))

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
	       (json_is_number(v) && json_number_value(v) == 0) ||
	       (json_is_array(v) && !json_array_size(v)) ||
	       (json_is_object(v) && !json_object_size(v)) ||
	       (json_is_string(v) && !json_string_length(v));
}

static int is_harmless(const char *name)
{
	for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++)
		if (!fnmatch(harmless[i], name, 0))
			return 1;
	return 0;
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

/* numbers by value: 1 is 1.0 */
static int is_value(const json_t *v, const char *text)
{
	json_t *want = json_loads(text, JSON_DECODE_ANY, NULL);
	int same = json_is_number(want) && json_is_number(v) ?
			   json_number_value(want) == json_number_value(v) :
			   want && json_equal(want, v);

	json_decref(want);
	return same;
}

/* keys of rope_parameters and rope_scaling except rope_theta, and their required values */
static const struct {
	const char *name, *text;
} rope_keys[] = {
	{ "rope_type", "\"default\"" },
	{ "type", "\"default\"" },
	{ "partial_rotary_factor", "1" },
	{ "factor", "1" },
	{ "attention_factor", "1" },
	{ "original_max_position_embeddings", NULL }, /* any, without a scaling */
};
#define NROPE (sizeof(rope_keys) / sizeof(rope_keys[0]))
#define NTYPES 2 /* the first rows: two names of the type */

static int has_type(const json_t *v, const char *type)
{
	int n = 0;

	for (size_t i = 0; i < NTYPES; i++) {
		const json_t *x = json_object_get(v, rope_keys[i].name);

		if (x && !is_value(x, type))
			return 0;
		n += x != NULL;
	}
	return n > 0;
}

static int check_rope_key(const char *key, const json_t *v, const char *where, const char *name)
{
	for (size_t i = 0; i < NROPE; i++) {
		if (strcmp(rope_keys[i].name, key))
			continue;
		if (json_is_null(v) || !rope_keys[i].text || is_value(v, rope_keys[i].text))
			return STATUS_OK;
		if (json_is_string(v))
			return say_bad("%s: %s: %s \"%s\": only %s is implemented", where, name,
				       key, json_string_value(v), rope_keys[i].text);
		return say_bad("%s: %s: %s: only %s is implemented", where, name, key,
			       rope_keys[i].text);
	}
	if (json_is_null(v) || json_is_false(v))
		return STATUS_OK;
	return say_bad("%s: %s: unknown field \"%s\", which may change the model", where, name,
		       key);
}

/* {"rope_type": "default", "rope_theta": 10000.0}; "linear" divides positions by the factor */
static int read_rope(const json_t *v, const char *where, const char *name, double *ret_theta)
{
	const char *key;
	json_t *x;
	int linear, r;

	if (is_off(v))
		return STATUS_OK;
	if (!json_is_object(v))
		return say_bad("%s: %s is not an object", where, name);
	linear = is_value(json_object_get(v, "factor"), "1") && has_type(v, "\"linear\"");
	/* other fields depend on the type: complain about it first */
	for (size_t i = 0; i < NTYPES && !linear; i++) {
		x = json_object_get(v, rope_keys[i].name);
		r = x ? check_rope_key(rope_keys[i].name, x, where, name) : STATUS_OK;
		if (r)
			return r;
	}
	json_object_foreach((json_t *)(uintptr_t)v, key, x)
	{
		if (linear && (!strcmp(key, "rope_type") || !strcmp(key, "type")))
			continue;
		if (!strcmp(key, "rope_theta")) {
			if (!json_is_number(x) || !(json_number_value(x) > 0))
				return say_bad("%s: %s: rope_theta is not a number above 0", where,
					       name);
			*ret_theta = json_number_value(x);
			continue;
		}
		r = check_rope_key(key, x, where, name);
		if (r)
			return r;
	}
	return STATUS_OK;
}

static int read_layer_types(const json_t *v, const char *where, const char *name)
{
	if (!json_is_array(v))
		return say_bad("%s: %s is not a list", where, name);
	for (size_t i = 0; i < json_array_size(v); i++) {
		if (!is_value(json_array_get(v, i), "\"full_attention\""))
			return say_bad("%s: %s: only \"full_attention\" is implemented", where,
				       name);
	}
	return STATUS_OK;
}

static int read_field(const struct field *f, const json_t *v, const char *where, struct config *cfg)
{
	void *at = (char *)cfg + f->offset;
	double x = json_number_value(v);
	int64_t most = f->most ? f->most : INT32_MAX;

	if (json_is_null(v) && !(f->flags & REQUIRED))
		return STATUS_OK; /* null means "not given" in these files */
	switch (f->rule) {
	case COUNT:
		if (!json_is_integer(v) || json_integer_value(v) < 1 ||
		    json_integer_value(v) > most)
			return say_bad("%s: %s is not a whole number from 1 to %lld", where,
				       f->name, (long long)most);
		if (*(int64_t *)at && *(int64_t *)at != json_integer_value(v))
			return say_bad("%s: %s is %lld, and another field says %lld", where,
				       f->name, (long long)json_integer_value(v),
				       (long long)*(int64_t *)at);
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
		if (!is_value(v, f->text) && (!is_value(json_false(), f->text) || !is_off(v)))
			return say_bad("%s: %s: only %s is implemented", where, f->name, f->text);
		break;
	case ROPE:
		return read_rope(v, where, f->name, at);
	case LAYERS_FULL:
		return read_layer_types(v, where, f->name);
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

static const struct field *field_find(enum family family, const char *name)
{
	for (size_t i = 0; i < NFIELDS; i++) {
		if ((fields[i].families & 1u << family) && !strcmp(fields[i].name, name))
			return &fields[i];
	}
	return NULL;
}

/* files of 2019 have no model_type; GPT-2 was the only one of these families */
static const char *guess_type(const json_t *obj)
{
	const json_t *list = json_object_get(obj, "architectures");
	const char *name = json_string_value(json_array_get(list, 0));

	for (size_t i = 0; name && i < NFAMILIES; i++)
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
	for (size_t i = 0; i < NFAMILIES; i++) {
		if (!strcmp(families[i], type)) {
			*ret_family = (enum family)i;
			return STATUS_OK;
		}
	}
	return say_bad("%s: model_type \"%s\": expected gpt2, llama or qwen2", where, type);
}

/* transformers' defaults */
static struct config defaults(enum family family)
{
	int gpt2 = family == FAMILY_GPT2;
	double drop = gpt2 ? 0.1 : 0;

	return (struct config){
		.family = family,
		.act = gpt2 ? TE_ACT_GELU : TE_ACT_SILU,
		.eps = gpt2 ? 1e-5 : 1e-6,
		.tied = gpt2,
		.rope_theta = 10000,
		.init_std = 0.02,
		.drop_embd = drop,
		.drop_resid = drop,
		.drop_attn = drop,
	};
}

static int read_fields(const json_t *obj, const char *where, struct config *c)
{
	const char *name;
	json_t *v;
	int r;

	json_object_foreach((json_t *)(uintptr_t)obj, name, v)
	{
		const struct field *f = field_find(c->family, name);

		if (!f && !is_off(v) && !is_harmless(name))
			return say_bad("%s: unknown field \"%s\", which may change the model",
				       where, name);
		r = f ? read_field(f, v, where, c) : STATUS_OK;
		if (r)
			return r;
	}
	for (size_t i = 0; i < NFIELDS; i++) {
		if ((fields[i].families & 1u << c->family) && (fields[i].flags & REQUIRED) &&
		    !*(const int64_t *)((const char *)c + fields[i].offset))
			return say_bad("%s: no %s", where, fields[i].name);
	}
	return STATUS_OK;
}

/* three fields may have the base of the rotations */
static int check_theta(const json_t *obj, const char *where, double theta)
{
	static const char *const holder[] = { NULL, "rope_scaling", "rope_parameters" };

	for (size_t i = 0; i < sizeof(holder) / sizeof(holder[0]); i++) {
		const json_t *in = holder[i] ? json_object_get(obj, holder[i]) : obj;
		const json_t *v = json_object_get(in, "rope_theta");

		if (json_is_number(v) && json_number_value(v) != theta)
			return say_bad("%s: rope_theta is %g, elsewhere it is %g", where,
				       json_number_value(v), theta);
	}
	return STATUS_OK;
}

static int fill_missing(struct config *c, const char *where)
{
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
	return check(c, where);
}

int config_parse(const json_t *obj, const char *where, struct config *ret_cfg)
{
	enum family family = FAMILY_GPT2;
	struct config c;
	int r = read_family(obj, where, &family);

	if (r)
		return r;
	c = defaults(family);
	r = read_fields(obj, where, &c);
	if (!r)
		r = check_theta(obj, where, c.rope_theta);
	if (!r)
		r = fill_missing(&c, where);
	if (r)
		return r;
	c.source = json_incref((json_t *)(uintptr_t)obj);
	*ret_cfg = c;
	return STATUS_OK;
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
	r = pyjson_load(file, &obj);
	if (!r)
		r = config_parse(obj, file, ret_cfg);
	json_decref(obj);
	return r;
}

/* the first name of the activation */
static const char *act_name(enum te_act act)
{
	size_t k = 0;

	while (acts[k].act != act)
		k++;
	return acts[k].name;
}

static void write_field(struct record *rec, const struct field *f, const struct config *c)
{
	const void *at = (const char *)c + f->offset;
	enum te_act act;

	switch (f->rule) {
	case COUNT:
		record_int(rec, f->name, *(const int64_t *)at);
		break;
	case NUMBER:
	case PROB:
		record_real(rec, f->name, *(const double *)at);
		break;
	case BOOLEAN:
		record_flag(rec, f->name, *(const int *)at);
		break;
	case ACT:
		/* several names are one activation: keep the one that was read */
		if (c->source && json_object_get(c->source, f->name) &&
		    !read_act(json_object_get(c->source, f->name), "", f->name, &act) &&
		    act == *(const enum te_act *)at)
			break;
		record_text(rec, f->name, act_name(*(const enum te_act *)at));
		break;
	default:
		break;
	}
}

json_t *config_to_json(const struct config *c)
{
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
	record_text(&rec, "torch_dtype", "float32");
	if (json_object_get(c->source, "dtype"))
		record_text(&rec, "dtype", "float32");
	for (size_t i = 0; i < NFIELDS; i++) {
		if ((fields[i].families & 1u << c->family) &&
		    (!(fields[i].flags & ALIAS) || json_object_get(c->source, fields[i].name)))
			write_field(&rec, &fields[i], c);
	}
	return record_end(&rec, "config.json");
}

int config_same(const struct config *a, const char *where_a, const struct config *b,
		const char *where_b)
{
	json_t *x, *y;
	int r = STATUS_OK;

	if (a->family != b->family)
		return say_bad("%s: model_type is %s, and in %s it is %s", where_a,
			       families[a->family], where_b, families[b->family]);
	x = config_to_json(a);
	y = config_to_json(b);
	if (!x || !y)
		r = STATUS_FAILED;
	for (size_t i = 0; i < NFIELDS && !r; i++) {
		const struct field *f = &fields[i];

		if (!(f->families & 1u << a->family) || f->rule >= ACT ||
		    f->flags & ALIAS)
			continue;
		if (!json_equal(json_object_get(x, f->name), json_object_get(y, f->name)))
			r = say_bad("%s: %s differs from %s", where_a, f->name, where_b);
	}
	if (!r && a->act != b->act)
		r = say_bad("%s: its activation differs from %s", where_a, where_b);
	json_decref(x);
	json_decref(y);
	return r;
}
