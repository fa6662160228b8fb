/* t/tools/hfconfig.c - config.json as te_train reads it: families, defaults, refusals, names. */
#include "config.h"

#include <unistd.h>

#include "tools/lib/hfconfig.h"
#include "tools/lib/model.h"
#include "tools/lib/say.h"
#include "tools/lib/shard.h"
#include "tools/te_train/opts.h"
#include "tt.h"

#define GPT2                                                                                   \
	"\"model_type\":\"gpt2\",\"n_embd\":96,\"n_layer\":2,\"n_head\":3,\"n_positions\":64," \
	"\"vocab_size\":300"
#define GPT2_2019 "\"n_embd\":96,\"n_layer\":2,\"n_head\":3,\"n_positions\":64,\"vocab_size\":300"
#define LLAMA                                                                     \
	"\"model_type\":\"llama\",\"hidden_size\":96,\"num_hidden_layers\":2,"    \
	"\"num_attention_heads\":6,\"num_key_value_heads\":2,\"vocab_size\":300," \
	"\"intermediate_size\":160,\"max_position_embeddings\":64"
#define QWEN2                                                                     \
	"\"model_type\":\"qwen2\",\"hidden_size\":96,\"num_hidden_layers\":2,"    \
	"\"num_attention_heads\":6,\"num_key_value_heads\":2,\"vocab_size\":300," \
	"\"intermediate_size\":160,\"max_position_embeddings\":64"

/* the names of most families, after their model_type */
#define SIZES                                                                      \
	"\"hidden_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":6,"    \
	"\"vocab_size\":300,\"intermediate_size\":160,\"max_position_embeddings\":64"
#define MISTRAL "\"model_type\":\"mistral\"," SIZES
#define SMOLLM3 "\"model_type\":\"smollm3\"," SIZES
#define PHI3 "\"model_type\":\"phi3\"," SIZES
#define NEOX "\"model_type\":\"gpt_neox\"," SIZES
#define STABLELM "\"model_type\":\"stablelm\"," SIZES
#define QWEN3 "\"model_type\":\"qwen3\"," SIZES
#define GEMMA2 "\"model_type\":\"gemma2\",\"head_dim\":16,\"num_key_value_heads\":2," SIZES
#define GEMMA3 "\"model_type\":\"gemma3_text\",\"head_dim\":16,\"num_key_value_heads\":2," SIZES
#define FALCON                                                                      \
	"\"model_type\":\"falcon\",\"hidden_size\":96,\"num_hidden_layers\":2,"     \
	"\"num_attention_heads\":6,\"vocab_size\":300"

static char said[512];

static void keep_line(const char *line)
{
	snprintf(said, sizeof(said), "%s", line);
}

/* the config without its source, but where it is asked for */
static int parse_all(const char *text, struct config *ret_c)
{
	json_t *obj = json_loads(text, 0, NULL);
	int r;

	ck_assert_ptr_nonnull(obj);
	r = config_parse(obj, "config.json", ret_c);
	json_decref(obj);
	return r;
}

static int parse(const char *text, struct config *ret_c)
{
	int r = parse_all(text, ret_c);

	if (!r)
		config_free(ret_c);
	return r;
}

CASE(config, "host");

TEST(config, reads_gpt2)
{
	struct config c;

	ck_assert_int_eq(parse("{" GPT2 ",\"activation_function\":\"gelu_new\",\"resid_pdrop\":0,"
			       "\"n_inner\":null,\"layer_norm_epsilon\":0.125}",
			       &c),
			 0);
	ck_assert_int_eq(c.family, FAMILY_GPT2);
	ck_assert_int_eq(c.width, 96);
	ck_assert_int_eq(c.layers, 2);
	ck_assert_int_eq(c.heads, 3);
	ck_assert_int_eq(c.kv_heads, 3);
	ck_assert_int_eq(c.head_dim, 32);
	ck_assert_int_eq(c.inner, 384);
	ck_assert_int_eq(c.max_pos, 64);
	ck_assert_int_eq(c.vocab, 300);
	ck_assert_int_eq(c.act, TE_ACT_GELU);
	ck_assert_int_eq(c.tied, 1);
	ck_assert_double_eq(c.eps, 0.125);
	ck_assert_double_eq(c.drop_resid, 0);
	ck_assert_double_eq(c.drop_attn, 0.1); /* as in transformers when not given */
}

TEST(config, reads_llama_and_qwen2)
{
	struct config c;

	ck_assert_int_eq(parse("{" LLAMA ",\"rope_theta\":5e5,\"head_dim\":32}", &c), 0);
	ck_assert_int_eq(c.family, FAMILY_LLAMA);
	ck_assert_int_eq(c.kv_heads, 2);
	ck_assert_int_eq(c.head_dim, 32);
	ck_assert_int_eq(c.inner, 160);
	ck_assert_int_eq(c.tied, 0);
	ck_assert_int_eq(c.act, TE_ACT_SILU);
	ck_assert_double_eq(c.rotary.theta, 5e5);
	ck_assert_double_eq(c.eps, 1e-6);
	ck_assert_int_eq(parse("{" QWEN2 ",\"sliding_window\":4096,\"use_sliding_window\":false,"
			       "\"tie_word_embeddings\":true,\"rope_parameters\":{\"rope_type\":"
			       "\"default\",\"rope_theta\":1e6}}",
			       &c),
			 0);
	ck_assert_int_eq(c.family, FAMILY_QWEN2);
	ck_assert_int_eq(c.head_dim, 16);
	ck_assert_int_eq(c.tied, 1);
	ck_assert_double_eq(c.rotary.theta, 1e6);
	ck_assert_int_eq(parse("{" LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4,"
			       "\"original_max_position_embeddings\":7}}", &c), 0);
	ck_assert_int_eq(c.rotary.kind, ROTARY_DYNAMIC);
	ck_assert_double_eq(c.rotary.factor, 4);
	ck_assert_double_eq(c.rotary.original, (double)c.max_pos); /* 7 is not read */
}

/* windows of layers 0 to 2, and the longest context */
static const struct {
	const char *text;
	int64_t window[3], longest;
} windows[] = {
	{ "{" MISTRAL ",\"sliding_window\":7}", { 7, 7, 7 }, 0 },
	{ "{" MISTRAL ",\"sliding_window\":null}", { 0, 0, 0 }, 0 },
	{ "{" MISTRAL ",\"sliding_window\":7,\"layer_types\":[\"full_attention\"]}",
	  { 0, 0, 0 }, 7 },
	{ "{" QWEN2 ",\"sliding_window\":7}", { 0, 0, 0 }, 0 },
	{ "{" QWEN2 ",\"sliding_window\":7,\"use_sliding_window\":true}", { 0, 0, 0 }, 0 },
	{ "{" QWEN2 ",\"sliding_window\":7,\"use_sliding_window\":true,"
	  "\"max_window_layers\":1}",
	  { 0, 7, 7 }, 0 },
	{ "{" QWEN2 ",\"sliding_window\":7,\"use_sliding_window\":true,\"layer_types\":["
	  "\"sliding_attention\",\"full_attention\",\"sliding_attention\"]}",
	  { 7, 0, 7 }, 0 },
	{ "{" QWEN2 ",\"sliding_window\":7,\"layer_types\":[\"sliding_attention\"]}",
	  { 0, 0, 0 }, 7 },
	{ "{" QWEN3 ",\"sliding_window\":7}", { 0, 0, 0 }, 0 },
	{ "{" QWEN3 ",\"sliding_window\":7,\"use_sliding_window\":true,"
	  "\"max_window_layers\":2}",
	  { 0, 0, 7 }, 0 },
	{ "{" GEMMA2 "}", { 4096, 0, 4096 }, 0 },
	{ "{" GEMMA2 ",\"sliding_window\":7,\"layer_types\":[\"full_attention\","
	  "\"sliding_attention\",\"full_attention\"]}",
	  { 0, 7, 0 }, 0 },
	{ "{" GEMMA3 ",\"sliding_window\":7}", { 7, 7, 7 }, 0 },
	{ "{" GEMMA3 ",\"sliding_window\":7,\"sliding_window_pattern\":2}", { 7, 0, 7 }, 0 },
};

TEST_EACH(config, knows_windows_of_layers, TT_LEN(windows))
{
	const char *field;
	struct config c;

	ck_assert_int_eq(parse_all(windows[_i].text, &c), 0);
	for (int64_t i = 0; i < 3; i++)
		ck_assert_int_eq(config_window(&c, i), windows[_i].window[i]);
	ck_assert_int_eq(config_longest(&c, &field), windows[_i].longest);
	config_free(&c);
}

TEST(config, reads_gemma)
{
	struct config c;

	ck_assert_int_eq(parse("{" GEMMA2 "}", &c), 0);
	ck_assert_double_eq(c.score_cap, 50);
	ck_assert_double_eq(c.logit_cap, 30);
	ck_assert_double_eq(c.query_scalar, 256);
	ck_assert_int_eq(c.act, TE_ACT_GELU);
	ck_assert_int_eq(c.tied && c.zero_centered && c.scaled_embedding, 1);
	ck_assert_int_eq(parse("{" GEMMA2 ",\"final_logit_softcapping\":null,"
			       "\"attn_logit_softcapping\":2}",
			       &c),
			 0);
	ck_assert_double_eq(c.score_cap, 2);
	ck_assert_double_eq(c.logit_cap, 0);
	/* layers with a window have rotations of their own */
	ck_assert_int_eq(parse_all("{" GEMMA3 ",\"sliding_window_pattern\":2,\"rope_theta\":5e5,"
				   "\"rope_local_base_freq\":100,\"rope_scaling\":{"
				   "\"rope_type\":\"linear\",\"factor\":8}}",
				   &c),
			 0);
	ck_assert_double_eq(c.logit_cap, 0);
	ck_assert_double_eq(config_rotary(&c, 0)->theta, 100);
	ck_assert_int_eq(config_rotary(&c, 0)->kind, ROTARY_DEFAULT);
	ck_assert_double_eq(config_rotary(&c, 1)->theta, 5e5);
	ck_assert_double_eq(config_rotary(&c, 1)->factor, 8);
	config_free(&c);
	ck_assert_int_eq(parse_all("{" GEMMA3 ",\"sliding_window_pattern\":2,\"rope_parameters\":{"
				   "\"sliding_attention\":{\"rope_type\":\"default\"},"
				   "\"full_attention\":{\"rope_theta\":7e5}}}",
				   &c),
			 0);
	ck_assert_double_eq(config_rotary(&c, 0)->theta, 1e4);
	ck_assert_double_eq(config_rotary(&c, 1)->theta, 7e5);
	config_free(&c);
}

static const char *const refused[] = {
	"[]",
	"{}",
	"{\"model_type\":\"mamba\"}",
	"{\"model_type\":\"gpt2\"}",
	"{" GPT2 ",\"n_head\":5}",
	"{" GPT2 ",\"n_head\":0}",
	"{" GPT2 ",\"n_head\":1.5}",
	"{" GPT2 ",\"n_head\":null}",
	"{" GPT2 ",\"activation_function\":\"gelu_10\"}",
	"{" GPT2 ",\"activation_function\":3}",
	"{" GPT2 ",\"resid_pdrop\":1}",
	"{" GPT2 ",\"layer_norm_epsilon\":-1}",
	"{" GPT2 ",\"scale_attn_weights\":false}",
	"{" GPT2 ",\"scale_attn_by_inverse_layer_idx\":true}",
	"{" GPT2 ",\"add_cross_attention\":true}",
	"{" GPT2 ",\"rope_theta\":5}", /* another family's field */
	"{" GPT2 ",\"tie_word_embeddings\":\"yes\"}",
	"{" GPT2 ",\"n_embd\":900}", /* heads of 300 */
	"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}",
	"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
	"\"rope_parameters\":{\"type\":\"yarn\",\"factor\":2}}",
	"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,\"low_freq_factor\":2}}",
	"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":2,"
	"\"low_freq_factor\":4,\"high_freq_factor\":4}}",
	"{" LLAMA ",\"rope_parameters\":{\"rope_type\":\"yarn\"}}",
	"{" LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\"}}", /* lacks factor */
	"{" LLAMA ",\"rope_parameters\":{\"partial_rotary_factor\":0.5}}",
	"{" LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\",\"mrope_section\":[1]}}",
	"{" LLAMA ",\"rope_parameters\":{\"rope_theta\":\"1e6\"}}",
	"{" LLAMA ",\"rope_parameters\":{\"rope_theta\":0}}",
	"{" LLAMA ",\"rope_parameters\":{\"rope_theta\":1e6},\"rope_theta\":1e4}",
	"{" LLAMA ",\"rope_parameters\":[1]}",
	"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32.0}}",
	"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"default\",\"factor\":2}}",
	"{" LLAMA ",\"partial_rotary_factor\":0.5}",
	"{" LLAMA ",\"partial_rotary_factor\":0}",
	"{" LLAMA ",\"rope_interleaved\":true}",
	"{" LLAMA ",\"num_hidden_layers\":4097}",
	"{" LLAMA ",\"layer_types\":\"full_attention\"}",
	"{" QWEN2 ",\"use_mrope\":true}",
	"{" GPT2 ",\"n_layer\":1000000000}",
	"{" LLAMA ",\"attention_bias\":\"true\"}",
	"{" QWEN2 ",\"mlp_bias\":true}",
	"{" LLAMA ",\"sliding_window\":4096}",
	"{" LLAMA ",\"hidden_act\":\"mish\"}",
	"{" LLAMA ",\"num_key_value_heads\":4}",
	"{" LLAMA ",\"head_dim\":15}",
	"{" LLAMA ",\"pretraining_tp\":2}",
	"{" LLAMA ",\"quantization_config\":{\"bits\":4}}",
	"{" QWEN2 ",\"use_sliding_window\":true}",
	"{" QWEN2 ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
	/* the same field under two names, with two values */
	"{" GPT2 ",\"hidden_size\":768}",
	"{" GPT2 ",\"max_position_embeddings\":1024}",
	"{" LLAMA ",\"rope_scaling\":{\"rope_theta\":1e6},\"rope_theta\":1e4}",
	"{" LLAMA ",\"rope_scaling\":{\"rope_theta\":1e6},"
	"\"rope_parameters\":{\"rope_theta\":1e4}}",
	"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}",
	"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"ntk\",\"factor\":1}}",
	"{" LLAMA ",\"rope_scaling\":[2]}",
	/* what no list knows, with a value that may matter */
	"{" LLAMA ",\"position_embedding_type\":\"alibi\"}",
	"{" LLAMA ",\"use_qk_norm\":true}",
	"{" QWEN2 ",\"is_causal\":false}", /* of models that embed texts */
	"{" LLAMA ",\"final_logit_softcapping\":30.0}",
	"{" LLAMA ",\"no_rope_layers\":[1,0]}",
	"{" GEMMA2 ",\"final_logit_softcapping\":0}",
	"{" GEMMA2 ",\"attn_logit_softcapping\":\"50\"}",
	"{" GEMMA2 ",\"query_pre_attn_scalar\":0}",
	"{" GEMMA2 ",\"use_bidirectional_attention\":true}",
	"{" GEMMA2 ",\"sliding_window\":null}",
	"{" GEMMA3 ",\"attn_logit_softcapping\":50.0}",
	"{" GEMMA3 ",\"rope_parameters\":[1]}",
	"{" GEMMA3 ",\"rope_parameters\":{\"rope_theta\":1e6}}",
	"{" GEMMA3 ",\"rope_parameters\":{\"sliding_attention\":{\"partial_rotary_factor\":0.5}}}",
	"{" GEMMA3 ",\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"linear\"}}}",
	"{" SMOLLM3 ",\"no_rope_layers\":[1,2]}",
	"{" SMOLLM3 ",\"no_rope_layers\":1}",
	"{" MISTRAL ",\"sliding_window\":0}",
	"{" MISTRAL ",\"layer_types\":[\"linear_attention\"]}",
	"{" MISTRAL ",\"attention_bias\":true}",
	"{" PHI3 ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1]}}",
	"{" PHI3 ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,0]}}",
	"{" PHI3 ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":1}}",
	/* sines of some channels have a factor */
	"{" PHI3 ",\"partial_rotary_factor\":0.5,\"original_max_position_embeddings\":16,"
	"\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1]}}",
	"{" PHI3 ",\"partial_rotary_factor\":0}",
	"{" NEOX ",\"rotary_pct\":0.5,\"rope_parameters\":{\"partial_rotary_factor\":0.25}}",
	"{" NEOX ",\"rotary_pct\":0.2}", /* 3 of 16 channels */
	"{" NEOX ",\"rotary_pct\":2}",
	"{" NEOX ",\"rotary_emb_base\":100,\"rope_theta\":200}",
	"{" FALCON ",\"alibi\":true}",
	"{" FALCON ",\"new_decoder_architecture\":true}",
	"{" FALCON ",\"multi_query\":false}",
	"{" FALCON ",\"parallel_attn\":false}",
	"{" FALCON ",\"hidden_dropout\":0.1}",
	"{" STABLELM ",\"qk_layernorm\":true}",
	"{" LLAMA ",\"pruned_heads\":{\"0\":[1]}}",
	"{" GPT2 ",\"pruned_heads\":{\"0\":[1]}}",
	"{" GPT2 ",\"rotary_dim\":64}",
	"{" GPT2 ",\"is_encoder_decoder\":true}",
	"{" GPT2 ",\"n_embd\":{\"__float__\":\"NaN\"}}",
	"{" GPT2_2019 ",\"architectures\":[\"GPTJForCausalLM\"]}",
	"{" GPT2_2019 ",\"model_type\":null}",
};

TEST_EACH(config, refuses_what_it_would_not_compute, TT_LEN(refused))
{
	struct config c;

	say_hush(1);
	ck_assert_int_eq(parse(refused[_i], &c), STATUS_BAD);
	say_hush(0);
}

static const char *const harmless[] = {
	"{" GPT2 ",\"summary_type\":\"cls_index\",\"use_cache\":true,\"bos_token_id\":50256}",
	"{" GPT2 ",\"add_cross_attention\":false,\"reorder_and_upcast_attn\":false}",
	"{" LLAMA ",\"rope_scaling\":null,\"attention_bias\":false,\"pretraining_tp\":1}",
	"{" LLAMA ",\"a_field_of_the_future\":null,\"another\":0,\"one_more\":false}",
	"{" QWEN2 ",\"max_window_layers\":28,\"layer_types\":[\"full_attention\"]}",
	/* empty, whatever its name is */
	"{" LLAMA ",\"of_the_future\":[],\"another\":{},\"a_text\":\"\","
	"\"quantization_config\":{}}",
	"{" LLAMA ",\"is_causal\":true,\"use_sliding_window\":false,\"max_window_layers\":28}",
	"{" LLAMA ",\"mlp_bias\":null,\"attention_bias\":0,\"sliding_window\":null}",
	/* rotations that are the default ones */
	"{" LLAMA ",\"rope_scaling\":{}}",
	"{" LLAMA ",\"rope_scaling\":false}",
	"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":1.0}}",
	"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"default\",\"type\":\"default\","
	"\"factor\":1}}",
	"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"default\",\"rope_theta\":1e4},"
	"\"rope_theta\":10000,"
	"\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e4}}",
	"{" LLAMA ",\"rope_scaling\":{\"type\":\"default\","
	"\"original_max_position_embeddings\":8}}",
	/* kernels, types and distribution */
	"{" LLAMA ",\"_attn_implementation\":\"sdpa\",\"_attn_implementation_autoset\":true,"
	"\"_attn_implementation_internal\":\"eager\",\"_flash_attn_2_enabled\":true,"
	"\"_commit_hash\":\"0123\",\"use_flash_attn\":true,\"bf16\":true,\"torchscript\":true,"
	"\"base_model_tp_plan\":{\"layers.*.self_attn.q_proj\":\"colwise\"}}",
	"{" QWEN2 ",\"attention_bias\":true,\"auto_map\":{\"AutoConfig\":\"a--b.C\"}}",
	/* lengths and generation */
	"{" LLAMA ",\"max_sequence_length\":2048,\"model_max_length\":64,\"seq_length\":64,"
	"\"tokenizer_model_max_length\":4096,\"tokenizer_padding_side\":\"right\"}",
	"{" LLAMA ",\"bad_words_ids\":[[1]],\"suppress_tokens\":[1],\"forced_bos_token_id\":3,"
	"\"max_new_tokens\":5,\"min_p\":0.1,\"no_repeat_ngram_size\":3,\"early_stopping\":true,"
	"\"encoder_no_repeat_ngram_size\":2,\"exponential_decay_length_penalty\":[1,1.1],"
	"\"cache_implementation\":\"static\",\"pad_token\":\"<pad>\",\"image_token_id\":7}",
	/* models of other tasks that the heads in the file decide */
	"{" GPT2 ",\"num_labels\":3,\"id2label\":{\"0\":\"x\"},\"classifier_dropout\":0.1,"
	"\"problem_type\":\"regression\",\"output_hidden_states\":true,\"is_decoder\":true,"
	"\"loss_type\":\"ForCausalLM\",\"summary_first_dropout\":0.1}",
	/* the names that transformers has for the fields of all models */
	"{" GPT2 ",\"hidden_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":3,"
	"\"max_position_embeddings\":64}",
	"{\"model_type\":\"gpt2\",\"hidden_size\":96,\"n_layer\":2,\"n_head\":3,\"n_positions\":64,"
	"\"vocab_size\":300}",
	/* before there was a model_type */
	"{" GPT2_2019 ",\"n_ctx\":64,\"n_special\":0,\"finetuning_task\":null,\"num_labels\":1,"
	"\"output_attentions\":false,\"pruned_heads\":{},\"torchscript\":false,"
	"\"use_bfloat16\":false}",
	"{" GPT2_2019 ",\"architectures\":[\"GPT2LMHeadModel\"]}",
};

TEST_EACH(config, skips_what_changes_nothing, TT_LEN(harmless))
{
	struct config c;

	say_by(keep_line);
	ck_assert_msg(!parse(harmless[_i], &c), "%s", said);
	say_by(NULL);
}

/* config.json of models on the hub, and fields that people add: all pass and are written again */
static const char *const published[] = {
	/* gpt2-medium */
	"{\"activation_function\":\"gelu_new\",\"architectures\":[\"GPT2LMHeadModel\"],"
	"\"attn_pdrop\":0.1,\"bos_token_id\":50256,\"embd_pdrop\":0.1,\"eos_token_id\":50256,"
	"\"initializer_range\":0.02,\"layer_norm_epsilon\":1e-05,\"model_type\":\"gpt2\","
	"\"n_ctx\":1024,\"n_embd\":1024,\"n_head\":16,\"n_layer\":24,\"n_positions\":1024,"
	"\"n_special\":0,\"predict_special_tokens\":true,\"resid_pdrop\":0.1,"
	"\"summary_activation\":null,\"summary_first_dropout\":0.1,"
	"\"summary_proj_to_labels\":true,\"summary_type\":\"cls_index\",\"summary_use_proj\":true,"
	"\"task_specific_params\":{\"text-generation\":{\"do_sample\":true,\"max_length\":50}},"
	"\"vocab_size\":50257}",
	/* distilgpt2 */
	"{\"_num_labels\":1,\"activation_function\":\"gelu_new\","
	"\"architectures\":[\"GPT2LMHeadModel\"],\"attn_pdrop\":0.1,\"bos_token_id\":50256,"
	"\"embd_pdrop\":0.1,\"eos_token_id\":50256,\"id2label\":{\"0\":\"LABEL_0\"},"
	"\"initializer_range\":0.02,\"label2id\":{\"LABEL_0\":0},\"layer_norm_epsilon\":1e-05,"
	"\"model_type\":\"gpt2\",\"n_ctx\":1024,\"n_embd\":768,\"n_head\":12,\"n_layer\":6,"
	"\"n_positions\":1024,\"resid_pdrop\":0.1,\"summary_activation\":null,"
	"\"summary_first_dropout\":0.1,\"summary_proj_to_labels\":true,"
	"\"summary_type\":\"cls_index\",\"summary_use_proj\":true,"
	"\"task_specific_params\":{\"text-generation\":{\"do_sample\":true,\"max_length\":50}},"
	"\"vocab_size\":50257}",
	/* SmolLM2-135M-Instruct */
	"{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,"
	"\"attention_dropout\":0.0,\"bos_token_id\":1,\"eos_token_id\":2,\"hidden_act\":\"silu\","
	"\"hidden_size\":576,\"initializer_range\":0.041666666666666664,"
	"\"intermediate_size\":1536,\"is_llama_config\":true,\"max_position_embeddings\":8192,"
	"\"mlp_bias\":false,\"model_type\":\"llama\",\"num_attention_heads\":9,"
	"\"num_hidden_layers\":30,\"num_key_value_heads\":3,\"pad_token_id\":2,"
	"\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_interleaved\":false,"
	"\"rope_scaling\":null,\"rope_theta\":100000,\"tie_word_embeddings\":true,"
	"\"torch_dtype\":\"bfloat16\","
	"\"transformers.js_config\":{\"kv_cache_dtype\":{\"q4f16\":\"float16\"}},"
	"\"transformers_version\":\"4.42.3\",\"use_cache\":true,\"vocab_size\":49152}",
	/* Qwen2.5-0.5B */
	"{\"architectures\":[\"Qwen2ForCausalLM\"],\"attention_dropout\":0.0,"
	"\"bos_token_id\":151643,\"eos_token_id\":151643,\"hidden_act\":\"silu\","
	"\"hidden_size\":896,\"initializer_range\":0.02,\"intermediate_size\":4864,"
	"\"max_position_embeddings\":32768,\"max_window_layers\":24,\"model_type\":\"qwen2\","
	"\"num_attention_heads\":14,\"num_hidden_layers\":24,\"num_key_value_heads\":2,"
	"\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,\"sliding_window\":32768,"
	"\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","
	"\"transformers_version\":\"4.40.1\",\"use_cache\":true,\"use_mrope\":false,"
	"\"use_sliding_window\":false,\"vocab_size\":151936}",
	/* Llama-3.2-1B */
	"{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,"
	"\"attention_dropout\":0.0,\"bos_token_id\":128000,"
	"\"eos_token_id\":[128001,128008,128009],\"head_dim\":64,\"hidden_act\":\"silu\","
	"\"hidden_size\":2048,\"initializer_range\":0.02,\"intermediate_size\":8192,"
	"\"max_position_embeddings\":131072,\"mlp_bias\":false,\"model_type\":\"llama\","
	"\"num_attention_heads\":32,\"num_hidden_layers\":16,\"num_key_value_heads\":8,"
	"\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"factor\":32.0,"
	"\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,"
	"\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},"
	"\"rope_theta\":500000.0,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","
	"\"transformers_version\":\"4.45.0.dev0\",\"use_cache\":true,\"vocab_size\":128256}",
	/* Mistral-7B-v0.1 */
	"{\"architectures\":[\"MistralForCausalLM\"],\"bos_token_id\":1,\"eos_token_id\":2,"
	"\"hidden_act\":\"silu\",\"hidden_size\":4096,\"initializer_range\":0.02,"
	"\"intermediate_size\":14336,\"max_position_embeddings\":32768,"
	"\"model_type\":\"mistral\",\"num_attention_heads\":32,\"num_hidden_layers\":32,"
	"\"num_key_value_heads\":8,\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,"
	"\"sliding_window\":4096,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
	"\"transformers_version\":\"4.34.0.dev0\",\"use_cache\":true,\"vocab_size\":32000}",
	/* Phi-3-mini-4k-instruct */
	"{\"_name_or_path\":\"Phi-3-mini-4k-instruct\",\"architectures\":"
	"[\"Phi3ForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"
	"\"auto_map\":{\"AutoConfig\":\"configuration_phi3.Phi3Config\"},\"bos_token_id\":1,"
	"\"embd_pdrop\":0.0,\"eos_token_id\":32000,\"hidden_act\":\"silu\","
	"\"hidden_size\":3072,\"initializer_range\":0.02,\"intermediate_size\":8192,"
	"\"max_position_embeddings\":4096,\"model_type\":\"phi3\",\"num_attention_heads\":32,"
	"\"num_hidden_layers\":32,\"num_key_value_heads\":32,"
	"\"original_max_position_embeddings\":4096,\"pad_token_id\":32000,"
	"\"resid_pdrop\":0.0,\"rms_norm_eps\":1e-05,\"rope_scaling\":null,"
	"\"rope_theta\":10000.0,\"sliding_window\":2047,\"tie_word_embeddings\":false,"
	"\"torch_dtype\":\"bfloat16\",\"use_cache\":true,\"vocab_size\":32064}",
	/* pythia-70m */
	"{\"architectures\":[\"GPTNeoXForCausalLM\"],\"bos_token_id\":0,\"eos_token_id\":0,"
	"\"hidden_act\":\"gelu\",\"hidden_size\":512,\"initializer_range\":0.02,"
	"\"intermediate_size\":2048,\"layer_norm_eps\":1e-05,"
	"\"max_position_embeddings\":2048,\"model_type\":\"gpt_neox\","
	"\"num_attention_heads\":8,\"num_hidden_layers\":6,\"rotary_emb_base\":10000,"
	"\"rotary_pct\":0.25,\"tie_word_embeddings\":false,\"torch_dtype\":\"float16\","
	"\"use_cache\":true,\"use_parallel_residual\":true,\"vocab_size\":50304}",
	/* falcon-7b */
	"{\"alibi\":false,\"apply_residual_connection_post_layernorm\":false,"
	"\"architectures\":[\"FalconForCausalLM\"],\"attention_dropout\":0.0,\"auto_map\":{"
	"\"AutoConfig\":\"configuration_falcon.FalconConfig\"},\"bias\":false,"
	"\"bos_token_id\":11,\"eos_token_id\":11,\"hidden_dropout\":0.0,"
	"\"hidden_size\":4544,\"initializer_range\":0.02,\"layer_norm_epsilon\":1e-05,"
	"\"model_type\":\"falcon\",\"multi_query\":true,\"new_decoder_architecture\":false,"
	"\"num_attention_heads\":71,\"num_hidden_layers\":32,\"parallel_attn\":true,"
	"\"torch_dtype\":\"bfloat16\",\"use_cache\":true,\"vocab_size\":65024}",
	/* SmolLM3-3B, with fewer layers */
	"{\"architectures\":[\"SmolLM3ForCausalLM\"],\"attention_bias\":false,"
	"\"attention_dropout\":0.0,\"bos_token_id\":null,\"eos_token_id\":128012,"
	"\"hidden_act\":\"silu\",\"hidden_size\":2048,\"initializer_range\":0.02,"
	"\"intermediate_size\":11008,\"layer_types\":[\"full_attention\"],"
	"\"max_position_embeddings\":65536,\"max_window_layers\":28,\"mlp_bias\":false,"
	"\"model_type\":\"smollm3\",\"no_rope_layer_interval\":4,"
	"\"no_rope_layers\":[1,1,1,0],\"num_attention_heads\":16,\"num_hidden_layers\":4,"
	"\"num_key_value_heads\":4,\"pretraining_tp\":2,\"rms_norm_eps\":1e-06,"
	"\"rope_scaling\":null,\"rope_theta\":5000000.0,\"sliding_window\":null,"
	"\"use_sliding_window\":false,\"vocab_size\":128256}",
	/* gemma-2-2b, with fewer layers */
	"{\"architectures\":[\"Gemma2ForCausalLM\"],\"attention_bias\":false,"
	"\"attention_dropout\":0.0,\"attn_logit_softcapping\":50.0,\"bos_token_id\":2,"
	"\"cache_implementation\":\"hybrid\",\"eos_token_id\":1,"
	"\"final_logit_softcapping\":30.0,\"head_dim\":256,"
	"\"hidden_act\":\"gelu_pytorch_tanh\",\"hidden_activation\":\"gelu_pytorch_tanh\","
	"\"hidden_size\":2304,\"initializer_range\":0.02,\"intermediate_size\":9216,"
	"\"max_position_embeddings\":8192,\"model_type\":\"gemma2\","
	"\"num_attention_heads\":8,\"num_hidden_layers\":4,\"num_key_value_heads\":4,"
	"\"pad_token_id\":0,\"query_pre_attn_scalar\":256,\"rms_norm_eps\":1e-06,"
	"\"rope_theta\":10000.0,\"sliding_window\":4096,\"torch_dtype\":\"float32\","
	"\"use_cache\":true,\"vocab_size\":256000}",
	/* gemma-2-27b, with fewer layers */
	"{\"architectures\":[\"Gemma2ForCausalLM\"],\"attention_bias\":false,"
	"\"attention_dropout\":0.0,\"attn_logit_softcapping\":50.0,\"bos_token_id\":2,"
	"\"cache_implementation\":\"hybrid\",\"eos_token_id\":1,"
	"\"final_logit_softcapping\":30.0,\"head_dim\":128,"
	"\"hidden_act\":\"gelu_pytorch_tanh\",\"hidden_activation\":\"gelu_pytorch_tanh\","
	"\"hidden_size\":4608,\"initializer_range\":0.02,\"intermediate_size\":36864,"
	"\"max_position_embeddings\":8192,\"model_type\":\"gemma2\","
	"\"num_attention_heads\":32,\"num_hidden_layers\":4,\"num_key_value_heads\":16,"
	"\"pad_token_id\":0,\"query_pre_attn_scalar\":144,\"rms_norm_eps\":1e-06,"
	"\"rope_theta\":10000.0,\"sliding_window\":4096,\"sliding_window_size\":4096,"
	"\"torch_dtype\":\"float32\",\"use_cache\":true,\"vocab_size\":256000}",
	/* gemma-3-1b-it */
	"{\"architectures\":[\"Gemma3ForCausalLM\"],\"attention_bias\":false,"
	"\"attention_dropout\":0.0,\"attn_logit_softcapping\":null,\"bos_token_id\":2,"
	"\"cache_implementation\":\"hybrid\",\"eos_token_id\":[1,106],"
	"\"final_logit_softcapping\":null,\"head_dim\":256,"
	"\"hidden_activation\":\"gelu_pytorch_tanh\",\"hidden_size\":1152,"
	"\"initializer_range\":0.02,\"intermediate_size\":6912,"
	"\"max_position_embeddings\":32768,\"model_type\":\"gemma3_text\","
	"\"num_attention_heads\":4,\"num_hidden_layers\":26,\"num_key_value_heads\":1,"
	"\"pad_token_id\":0,\"query_pre_attn_scalar\":256,\"rms_norm_eps\":1e-06,"
	"\"rope_local_base_freq\":10000,\"rope_scaling\":null,\"rope_theta\":1000000,"
	"\"sliding_window\":512,\"sliding_window_pattern\":6,\"torch_dtype\":\"bfloat16\","
	"\"use_cache\":true,\"vocab_size\":262144}",
	/* as newer versions of transformers write it */
	"{" LLAMA ",\"dtype\":\"bfloat16\",\"rope_parameters\":{\"rope_type\":\"default\","
	"\"rope_theta\":1e6},\"layer_types\":[\"full_attention\",\"full_attention\"]}",
	"{" GPT2 ",\"hidden_size\":96,\"pruned_heads\":{}}",
	"{" LLAMA ",\"temperature\":{\"__float__\":\"Infinity\"},\"max_length\":1e30}",
};

TEST_EACH(config, keeps_all_fields, TT_LEN(published))
{
	static const char *const changed[] = { "torch_dtype", "dtype", "architectures" };
	json_t *source = json_loads(published[_i], 0, NULL), *obj, *v, *got;
	struct config c, d;
	const char *name;

	ck_assert_ptr_nonnull(source);
	ck_assert_int_eq(parse_all(published[_i], &c), 0);
	obj = config_to_json(&c);
	json_object_foreach(source, name, v)
	{
		int skip = 0;

		for (size_t k = 0; k < TT_LEN(changed); k++)
			skip |= !strcmp(name, changed[k]);
		got = json_object_get(obj, name); /* an integer remains one */
		ck_assert_msg(skip || json_equal(got, v), "%s", name);
	}
	ck_assert_str_eq(json_string_value(json_object_get(obj, "torch_dtype")), "float32");
	/* transformers refuses a real number */
	got = json_object_get(obj, "query_pre_attn_scalar");
	ck_assert(!got || json_is_integer(got));
	ck_assert_int_eq(config_parse(obj, "written", &d), 0);
	ck_assert_int_eq(config_same(&c, "read", &d, "written"), 0);
	config_free(&c);
	config_free(&d);
	json_decref(obj);
	json_decref(source);
}

static int read_text(const char *text, struct config *ret_c)
{
	char path[64];
	int fd, r;
	ssize_t n = (ssize_t)strlen(text);

	snprintf(path, sizeof(path), "%s/te-hfconfig.XXXXXX", tt_tmpdir());
	fd = mkstemp(path);
	ck_assert_int_eq(write(fd, text, (size_t)n), n);
	close(fd);
	*said = '\0';
	say_by(keep_line);
	r = config_read(path, ret_c);
	say_by(NULL);
	unlink(path);
	return r;
}

/* Python's json module writes them, and no other JSON parser has to read them */
static const struct {
	const char *text, *field, *json;
} python[] = {
	{ "Infinity", "temperature", "{\"__float__\":\"Infinity\"}" },
	{ "-Infinity", "temperature", "{\"__float__\":\"-Infinity\"}" },
	{ "NaN", "temperature", "{\"__float__\":\"NaN\"}" },
	{ "-1e999", "temperature", "{\"__float__\":\"-Infinity\"}" },
	{ "[1, NaN,2]", "temperature", "[1,{\"__float__\":\"NaN\"},2]" },
	{ "1000000000000000019884624838656", "max_length", "1.000000000000000019884624838656e30" },
	{ "-9223372036854775809", "max_length", "-9223372036854775808.0" },
	{ "9223372036854775807", "max_length", "9223372036854775807" },
	{ "\"NaN \\\" Infinity \\\\\"", "prefix", "\"NaN \\\" Infinity \\\\\"" },
	{ "\"1000000000000000019884624838656\"", "prefix", "\"1000000000000000019884624838656\"" },
};

TEST_EACH(config, reads_what_python_writes, TT_LEN(python))
{
	char text[1024];
	json_t *want = json_loads(python[_i].json, JSON_DECODE_ANY, NULL);
	struct config c;

	snprintf(text, sizeof(text), "{\n" LLAMA ",\n\"%s\": %s\n}\n", python[_i].field,
		 python[_i].text);
	ck_assert_msg(!read_text(text, &c), "%s", said);
	ck_assert(json_equal(json_object_get(c.source, python[_i].field), want));
	json_decref(want);
	config_free(&c);
}

/* a field that is used has to be a number; other words are no JSON of any program */
static const struct {
	const char *more, *says;
} not_python[] = {
	{ "\"rms_norm_eps\": NaN", "rms_norm_eps is not a number" },
	{ "\"rope_theta\": Infinity", "rope_theta is not a number" },
	{ "\"attention_dropout\": -Infinity", "attention_dropout is not" },
	{ "\"head_dim\": 1000000000000000019884624838656", "head_dim is not a whole number" },
	{ "\"rope_parameters\": {\"rope_theta\": NaN}", "rope_theta is not a number" },
	{ "\"of_the_future\": Infinity", "\"of_the_future\"" },
	{ "\"temperature\": nan", "line 3" },
	{ "\"temperature\": inf", "line 3" },
	{ "\"temperature\": -inf", "line 3" },
	{ "\"temperature\": +Infinity", "line 3" },
	{ "\"temperature\": InfinityNaN", "line 3" },
	{ "\"temperature\": 0x10", "line 3" },
	{ "\"temperature\": 1e999e", "line 3" },
};

TEST_EACH(config, names_what_it_cannot_use, TT_LEN(not_python))
{
	char text[1024];
	struct config c;

	snprintf(text, sizeof(text), "{\n" LLAMA ",\n%s\n}\n", not_python[_i].more);
	ck_assert_int_eq(read_text(text, &c), STATUS_BAD);
	ck_assert_msg(strstr(said, not_python[_i].says) != NULL, "%s", said);
}

TEST(config, finds_the_field_that_differs)
{
	struct config c, d;

	ck_assert_int_eq(parse_all("{" LLAMA "}", &c), 0);
	d = c;
	say_hush(1);
	ck_assert_int_eq(config_same(&c, "a", &d, "b"), STATUS_OK);
	d.inner = 192;
	ck_assert_int_eq(config_same(&c, "a", &d, "b"), STATUS_BAD);
	d = c;
	d.act = TE_ACT_RELU;
	ck_assert_int_eq(config_same(&c, "a", &d, "b"), STATUS_BAD);
	d = c;
	d.family = FAMILY_QWEN2;
	ck_assert_int_eq(config_same(&c, "a", &d, "b"), STATUS_BAD);
	say_hush(0);
	config_free(&c);
}

TEST(config, finds_no_difference_of_an_integer)
{
	struct config c, d;

	ck_assert_int_eq(parse_all("{" LLAMA ",\"rope_theta\":1000}", &c), 0);
	ck_assert_int_eq(parse_all("{" LLAMA ",\"rope_theta\":1000.0}", &d), 0);
	ck_assert_int_eq(config_same(&c, "a", &d, "b"), STATUS_OK);
	config_free(&c);
	config_free(&d);
}

static const char *const whole[] = { "{" GPT2 "}",    "{" LLAMA "}",  "{" QWEN2 "}",
				     "{" MISTRAL "}", "{" SMOLLM3 "}", "{" PHI3 "}",
				     "{" NEOX "}",    "{" FALCON "}", "{" STABLELM "}",
				     "{" GEMMA2 "}",  "{" GEMMA3 "}" };

TEST_EACH(config, writes_what_it_reads, TT_LEN(whole))
{
	struct config c, d;
	json_t *obj;

	ck_assert_int_eq(parse_all(whole[_i], &c), 0);
	obj = config_to_json(&c);
	ck_assert_int_eq(config_parse(obj, "written", &d), 0);
	json_decref(obj);
	config_free(&c);
	config_free(&d);
	/* after the family there is padding, after the others there is none */
	ck_assert_int_eq(c.family, d.family);
	ck_assert_mem_eq(&c.vocab, &d.vocab, sizeof(c) - offsetof(struct config, vocab));
}

static const char *const presets[] = { "tiny",	    "char-gpt",	  "gpt2-124m", "gpt2-350m",
				       "gpt2-774m", "gpt2-1558m", "llama-tiny" };

TEST_EACH(config, presets_are_valid, TT_LEN(presets))
{
	const struct preset *p = preset_find(presets[_i]);
	struct config c;

	ck_assert_ptr_nonnull(p);
	ck_assert_int_eq(parse(p->config, &c), 0);
	ck_assert_int_eq(c.width % 16, 0); /* FP8 GEMMs need it */
	ck_assert_int_eq(c.inner % 16, 0);
}

TEST(config, names_match_patterns)
{
	ck_assert_int_eq(weight_match("norm.weight", "norm.weight"), -1);
	ck_assert_int_eq(weight_match("norm.weight", "norm.bias"), -2);
	ck_assert_int_eq(weight_match("h.#.up.weight", "h.0.up.weight"), 0);
	ck_assert_int_eq(weight_match("h.#.up.weight", "h.117.up.weight"), 117);
	ck_assert_int_eq(weight_match("h.#.up.weight", "h.117.up_b.weight"), -2);
	ck_assert_int_eq(weight_match("h.#.up.weight", "h..up.weight"), -2);
	ck_assert_int_eq(weight_match("h.#.up.weight", "h.-1.up.weight"), -2);
}

TEST(config, parts_cover_packed_weights)
{
	struct config c;
	int64_t first, n, at = 0;

	ck_assert_int_eq(parse("{" LLAMA "}", &c), 0);
	for (enum part p = PART_Q; p <= PART_V; p++) {
		model_part_rows(&c, p, 160, &first, &n);
		ck_assert_int_eq(first, at);
		at += n;
	}
	ck_assert_int_eq(at, (6 + 2 + 2) * 16);
	model_part_rows(&c, PART_GATE, 320, &first, &n);
	ck_assert_int_eq(first, 0);
	ck_assert_int_eq(n, 160);
	model_part_rows(&c, PART_UP, 320, &first, &n);
	ck_assert_int_eq(first, 160);
	ck_assert_int_eq(n, 160);
	model_part_rows(&c, PART_VOCAB, 320, &first, &n);
	ck_assert_int_eq(n, 300);
}

TEST(config, flops_follow_from_the_shapes)
{
	struct config c;
	double matrices;

	/* 6 for each weight of the matrices and 6 T x width for each layer, counted by hand */
	ck_assert_int_eq(parse("{" GPT2 "}", &c), 0);
	matrices = 2 * (96 * 288 + 96 * 96 + 2 * 96 * 384) + 300 * 96;
	ck_assert_double_eq(model_flops_per_token(&c, 64), 6 * matrices + 6 * 2 * 96 * 64);
	ck_assert_int_eq(parse("{" LLAMA "}", &c), 0);
	matrices = 2 * (96 * 160 + 96 * 96 + 3 * 96 * 160) + 300 * 96;
	ck_assert_double_eq(model_flops_per_token(&c, 64), 6 * matrices + 6 * 2 * 96 * 64);
}

TT_MAIN("tools/hfconfig", TT_NEED_NOTHING)
