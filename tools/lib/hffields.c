/*
 * hffields.c - the fields of config.json.
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
#include <string.h>

#include "hffields.h"
#include "record.h"
#include "say.h"

enum rule {
	COUNT,	/* a whole number from 1 to most */
	NUMBER, /* at least 0 */
	WHOLE,	/* the same, but without a fraction as a rule: transformers refuses 256.0 */
	PROB,	/* at least 0, below 1 */
	BOOLEAN,
	CAP, /* above 0, or null for none */
	ACT, /* the name of an activation */
	SKIP,
	MUST_BE, /* the JSON value in text, or null */
	ROPE,	 /* an object that describes the rotations */
	ROPES,	 /* such objects for two types of layers, see read_ropes() */
	WINDOW,	 /* a whole number, or null for no window */
	LAYER_TYPES, /* a list with "full_attention" or "sliding_attention" for each layer */
	ROPE_LAYERS /* a list with 1 for each layer that has rotations, 0 for others */
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
	{ ROTARY, "hidden_size", COUNT, AT(width), REQUIRED, NULL, 0 },
	{ ROTARY, "num_hidden_layers", COUNT, AT(layers), REQUIRED, NULL, MAX_LAYERS },
	{ ROTARY, "num_attention_heads", COUNT, AT(heads), REQUIRED, NULL, 0 },
	{ LLAMAS, "num_key_value_heads", COUNT, AT(kv_heads), 0, NULL, 0 },
	{ RMS, "head_dim", COUNT, AT(head_dim), 0, NULL, 0 },
	{ LLAMAS | NEOX, "intermediate_size", COUNT, AT(inner), REQUIRED, NULL, 0 },
	{ FALCON, "ffn_hidden_size", COUNT, AT(inner), 0, NULL, 0 },
	{ LLAMAS | NEOX, "max_position_embeddings", COUNT, AT(max_pos), REQUIRED, NULL, 0 },
	{ FALCON, "max_position_embeddings", COUNT, AT(max_pos), 0, NULL, 0 },
	{ (LLAMAS & ~GEMMAS) | NEOX, "hidden_act", ACT, AT(act), 0, NULL, 0 },
	{ GEMMAS, "hidden_activation", ACT, AT(act), 0, NULL, 0 },
	{ GEMMAS, "hidden_act", SKIP, 0, 0, NULL, 0 }, /* transformers does not read it */
	{ FALCON, "activation", ACT, AT(act), 0, NULL, 0 },
	{ RMS, "rms_norm_eps", NUMBER, AT(eps), 0, NULL, 0 },
	{ STABLELM | NEOX, "layer_norm_eps", NUMBER, AT(eps), 0, NULL, 0 },
	{ FALCON, "layer_norm_epsilon", NUMBER, AT(eps), 0, NULL, 0 },
	{ ROTARY & ~NEOX, "rope_theta", NUMBER, AT(rotary.theta), 0, NULL, 0 },
	{ GEMMA3, "rope_local_base_freq", NUMBER, AT(local.theta), 0, NULL, 0 },
	{ NEOX, "rotary_emb_base", NUMBER, AT(rotary.theta), 0, NULL, 0 },
	{ NEOX, "rope_theta", NUMBER, AT(rotary.theta), ALIAS, NULL, 0 },
	{ PHI3 | STABLELM, "partial_rotary_factor", NUMBER, AT(rotary.part), 0, NULL, 0 },
	{ NEOX, "rotary_pct", NUMBER, AT(rotary.part), 0, NULL, 0 },
	{ NEOX, "partial_rotary_factor", NUMBER, AT(rotary.part), ALIAS, NULL, 0 },
	{ ROTARY & ~(PHI3 | NEOX | STABLELM), "partial_rotary_factor", MUST_BE, 0, 0, "1", 0 },
	{ ROTARY & ~GEMMA3, "rope_parameters", ROPE, AT(rotary), 0, NULL, 0 },
	{ GEMMA3, "rope_parameters", ROPES, 0, 0, NULL, 0 },
	{ ROTARY, "rope_scaling", ROPE, AT(rotary), 0, NULL, 0 },
	/* see read_original() */
	{ ROTARY, "original_max_position_embeddings", SKIP, 0, 0, NULL, 0 },
	{ ROTARY, "rope_interleaved", MUST_BE, 0, 0, "false", 0 },
	{ ROTARY, "attention_dropout", PROB, AT(drop_attn), 0, NULL, 0 },
	{ PHI3, "embd_pdrop", PROB, AT(drop_embd), 0, NULL, 0 },
	{ PHI3, "resid_pdrop", PROB, AT(drop_resid), 0, NULL, 0 },
	{ NEOX, "hidden_dropout", PROB, AT(drop_resid), 0, NULL, 0 },
	{ FALCON | STABLELM, "hidden_dropout", MUST_BE, 0, 0, "0", 0 },
	{ QWEN2, "use_mrope", MUST_BE, 0, 0, "false", 0 },
	{ LLAMA | SMOLLM3 | QWEN3 | OLMO2 | GEMMAS, "attention_bias", BOOLEAN, AT(qkv_bias), 0,
	  NULL, 0 },
	{ NEOX, "attention_bias", BOOLEAN, AT(qkv_bias), 0, NULL, 0 },
	{ STABLELM, "use_qkv_bias", BOOLEAN, AT(qkv_bias), 0, NULL, 0 },
	{ FALCON, "bias", BOOLEAN, AT(mlp_bias), 0, NULL, 0 },
	{ QWEN2, "attention_bias", SKIP, 0, 0, NULL, 0 }, /* queries always have it */
	{ MISTRAL | PHI3 | STABLELM, "attention_bias", MUST_BE, 0, 0, "false", 0 },
	{ LLAMA | SMOLLM3, "mlp_bias", BOOLEAN, AT(mlp_bias), 0, NULL, 0 },
	{ LLAMAS & ~(LLAMA | SMOLLM3), "mlp_bias", MUST_BE, 0, 0, "false", 0 },
	{ PHI3, "lm_head_bias", MUST_BE, 0, 0, "false", 0 },
	{ STABLELM, "qk_layernorm", MUST_BE, 0, 0, "false", 0 },
	{ NEOX | STABLELM, "use_parallel_residual", BOOLEAN, AT(residual), 0, NULL, 0 },
	{ FALCON, "alibi", MUST_BE, 0, 0, "false", 0 },
	{ FALCON, "multi_query", MUST_BE, 0, 0, "true", 0 },
	{ FALCON, "new_decoder_architecture", MUST_BE, 0, 0, "false", 0 },
	{ FALCON, "parallel_attn", MUST_BE, 0, 0, "true", 0 },
	{ FALCON, "num_kv_heads", SKIP, 0, 0, NULL, 0 }, /* for new_decoder_architecture */
	{ FALCON, "num_ln_in_parallel_attn", SKIP, 0, 0, NULL, 0 }, /* the same */
	{ FALCON, "apply_residual_connection_post_layernorm", SKIP, 0, 0, NULL, 0 }, /* unused */
	{ LLAMAS & ~SMOLLM3, "pretraining_tp", MUST_BE, 0, 0, "1", 0 },
	{ SMOLLM3, "pretraining_tp", SKIP, 0, 0, NULL, 0 }, /* transformers does not read it */
	{ LLAMA | STABLELM | OLMO2, "sliding_window", MUST_BE, 0, 0, "null", 0 },
	{ QWEN2 | MISTRAL | SMOLLM3 | PHI3 | QWEN3 | GEMMAS, "sliding_window", WINDOW, AT(window),
	  0, NULL, 0 },
	{ GEMMA2, "sliding_window_size", SKIP, 0, 0, NULL, 0 }, /* transformers does not read it */
	{ GEMMA3, "sliding_window_pattern", COUNT, AT(full_every), 0, NULL, 0 },
	{ GEMMAS, "query_pre_attn_scalar", WHOLE, AT(query_scalar), 0, NULL, 0 },
	{ GEMMA2, "attn_logit_softcapping", CAP, AT(score_cap), 0, NULL, 0 },
	/* transformers has it in one of its ways to compute attention only */
	{ GEMMA3, "attn_logit_softcapping", MUST_BE, 0, 0, "null", 0 },
	{ GEMMAS, "final_logit_softcapping", CAP, AT(logit_cap), 0, NULL, 0 },
	{ GEMMAS, "use_bidirectional_attention", MUST_BE, 0, 0, "false", 0 },
	{ QWEN2 | SMOLLM3 | QWEN3, "use_sliding_window", BOOLEAN, AT(windowed), 0, NULL, 0 },
	{ LLAMAS & ~(QWEN2 | SMOLLM3 | QWEN3), "use_sliding_window", MUST_BE, 0, 0, "false", 0 },
	{ LLAMAS, "max_window_layers", SKIP, 0, 0, NULL, 0 }, /* see config_window() */
	{ LLAMAS, "layer_types", LAYER_TYPES, AT(sliding), 0, NULL, 0 },
	{ SMOLLM3, "no_rope_layers", ROPE_LAYERS, 0, 0, NULL, 0 },
	{ SMOLLM3, "no_rope_layer_interval", COUNT, AT(no_rope_every), 0, NULL, 0 },
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

/* the first name of each is written */
static const struct {
	enum te_act act;
	const char *name;
} acts[] = {
	{ TE_ACT_GELU, "gelu_new" }, /* the tanh form */
	{ TE_ACT_GELU, "gelu_pytorch_tanh" },
	{ TE_ACT_GELU, "gelu_fast" },
	{ TE_ACT_GELU_ERF, "gelu" },
	{ TE_ACT_GELU_ERF, "gelu_python" },
	{ TE_ACT_QGELU, "quick_gelu" },
	{ TE_ACT_RELU, "relu" },
	{ TE_ACT_SRELU, "relu2" },
	{ TE_ACT_SILU, "silu" },
	{ TE_ACT_SILU, "swish" },
};
#define NACTS (sizeof(acts) / sizeof(acts[0]))

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

static int read_layer_types(const json_t *v, const char *where, const char *name, int *ret_sliding)
{
	if (!json_is_array(v))
		return say_bad("%s: %s is not a list", where, name);
	for (size_t i = 0; i < json_array_size(v); i++) {
		const char *type = json_string_value(json_array_get(v, i));

		if (!type || (strcmp(type, "full_attention") && strcmp(type, "sliding_attention")))
			return say_bad("%s: %s: only \"full_attention\" and "
				       "\"sliding_attention\" are implemented", where, name);
		*ret_sliding |= *type == 's';
	}
	return STATUS_OK;
}

static int read_rope_layers(const json_t *v, const char *where, const char *name)
{
	if (!json_is_array(v))
		return say_bad("%s: %s is not a list", where, name);
	for (size_t i = 0; i < json_array_size(v); i++)
		if (!is_value(json_array_get(v, i), "0") && !is_value(json_array_get(v, i), "1"))
			return say_bad("%s: %s: item %zu is neither 0 nor 1", where, name, i);
	return STATUS_OK;
}

static int read_ropes(const json_t *v, const char *where, const char *name, struct config *c)
{
	const char *key;
	json_t *x;
	int r = STATUS_OK;

	if (!json_is_object(v))
		return say_bad("%s: %s is not an object", where, name);
	json_object_foreach((json_t *)(uintptr_t)v, key, x)
	{
		struct rotary *rot = !strcmp(key, "full_attention")    ? &c->rotary :
				     !strcmp(key, "sliding_attention") ? &c->local :
									 NULL;

		if (!rot)
			return say_bad("%s: %s: only \"full_attention\" and "
				       "\"sliding_attention\" are implemented", where, name);
		r = is_off(x) ? STATUS_OK : rotary_read(x, where, key, rot);
		if (r)
			return r;
	}
	return STATUS_OK;
}

static int read_field(const struct field *f, const json_t *v, const char *where, struct config *cfg)
{
	void *at = (char *)cfg + f->offset;
	double x = json_number_value(v);
	int64_t most = f->most ? f->most : INT32_MAX;

	if (json_is_null(v) && f->rule == WINDOW)
		*(int64_t *)at = 0;
	if (json_is_null(v) && f->rule == CAP)
		*(double *)at = 0;
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
	case WHOLE:
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
		if (!json_is_boolean(v) && !is_off(v))
			return say_bad("%s: %s is neither true nor false", where, f->name);
		*(int *)at = json_is_true(v);
		break;
	case CAP:
		if (!json_is_number(v) || !(x > 0) || isinf(x))
			return say_bad("%s: %s is neither a number above 0 nor null", where,
				       f->name);
		*(double *)at = x;
		break;
	case ACT:
		return read_act(v, where, f->name, at);
	case SKIP:
		break;
	case MUST_BE:
		if (!is_value(v, f->text) && (!is_value(json_false(), f->text) || !is_off(v)))
			return say_bad("%s: %s: only %s is implemented", where, f->name, f->text);
		break;
	case ROPES:
		return read_ropes(v, where, f->name, cfg);
	case ROPE:
		return is_off(v) ? STATUS_OK : rotary_read(v, where, f->name, at);
	case WINDOW:
		if (!json_is_integer(v) || json_integer_value(v) < 1)
			return say_bad("%s: %s is neither a whole number above 0 nor null", where,
				       f->name);
		*(int64_t *)at = json_integer_value(v);
		break;
	case LAYER_TYPES:
		return read_layer_types(v, where, f->name, at);
	case ROPE_LAYERS:
		return read_rope_layers(v, where, f->name);
	}
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

int fields_read(const json_t *obj, const char *where, struct config *c)
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
	const json_t *read = json_object_get(c->source, f->name);
	enum te_act act;
	double x;

	switch (f->rule) {
	case COUNT:
		record_int(rec, f->name, *(const int64_t *)at);
		break;
	case WHOLE:
		x = *(const double *)at;
		if (x == floor(x) && x < INT32_MAX) {
			record_int(rec, f->name, (int64_t)x);
			break;
		}
		/* fallthrough */
	case NUMBER:
	case PROB:
		/* an integer remains one: transformers refuses others for some fields */
		if (json_is_number(read) && json_number_value(read) == *(const double *)at)
			break;
		record_real(rec, f->name, *(const double *)at);
		break;
	case BOOLEAN:
		record_flag(rec, f->name, *(const int *)at);
		break;
	case CAP:
		if (*(const double *)at > 0)
			record_real(rec, f->name, *(const double *)at);
		else
			record_put(rec, f->name, json_null());
		break;
	case ACT:
		/* several names are one activation: keep the one that was read */
		if (read && !read_act(read, "", f->name, &act) &&
		    act == *(const enum te_act *)at)
			break;
		record_text(rec, f->name, act_name(*(const enum te_act *)at));
		break;
	default:
		break;
	}
}

void fields_write(struct record *rec, const struct config *c)
{
	for (size_t i = 0; i < NFIELDS; i++) {
		if ((fields[i].families & 1u << c->family) &&
		    (!(fields[i].flags & ALIAS) || json_object_get(c->source, fields[i].name)))
			write_field(rec, &fields[i], c);
	}
}

/* 1 and 1.0 are equal */
static int is_equal(const json_t *x, const json_t *y)
{
	return json_is_number(x) && json_is_number(y) ?
		       json_number_value(x) == json_number_value(y) :
		       json_equal(x, y);
}

int fields_same(enum family family, const json_t *x, const char *where_x, const json_t *y,
		const char *where_y)
{
	for (size_t i = 0; i < NFIELDS; i++) {
		const struct field *f = &fields[i];

		if (!(f->families & 1u << family) || f->rule >= ACT || f->flags & ALIAS)
			continue;
		if (!is_equal(json_object_get(x, f->name), json_object_get(y, f->name)))
			return say_bad("%s: %s differs from %s", where_x, f->name, where_y);
	}
	return STATUS_OK;
}
