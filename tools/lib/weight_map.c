/* weight_map.c - names and layouts of weights in the files of each family. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weight_map.h"

int weight_match(const char *pattern, const char *name)
{
	const char *hash = strchr(pattern, '#');
	size_t head = hash ? (size_t)(hash - pattern) : 0;
	char *end;
	unsigned long i;

	if (!hash)
		return strcmp(pattern, name) ? -2 : -1;
	if (strncmp(pattern, name, head) || name[head] < '0' || name[head] > '9')
		return -2;
	i = strtoul(name + head, &end, 10);
	return strcmp(hash + 1, end) || i > INT32_MAX ? -2 : (int)i;
}

int weight_name(const char *pattern, int layer, char *ret_name, size_t room)
{
	const char *hash = strchr(pattern, '#');
	const int n = hash ? snprintf(ret_name, room, "%.*s%d%s", (int)(hash - pattern), pattern,
				      layer, hash + 1) :
			     snprintf(ret_name, room, "%s", pattern);

	return n >= 0 && (size_t)n < room;
}

static const struct weight_map gpt2_map[] = {
	{ "embed.weight", "transformer.wte.weight", PART_VOCAB, 0 },
	{ "embed.position", "transformer.wpe.weight", PART_ALL, 0 },
	{ "h.#.norm1.weight", "transformer.h.#.ln_1.weight", PART_ALL, 0 },
	{ "h.#.norm1.bias", "transformer.h.#.ln_1.bias", PART_ALL, 0 },
	{ "h.#.qkv.weight", "transformer.h.#.attn.c_attn.weight", PART_ALL, 1 },
	{ "h.#.qkv_b.bias", "transformer.h.#.attn.c_attn.bias", PART_ALL, 0 },
	{ "h.#.proj.weight", "transformer.h.#.attn.c_proj.weight", PART_ALL, 1 },
	{ "h.#.proj_b.bias", "transformer.h.#.attn.c_proj.bias", PART_ALL, 0 },
	{ "h.#.norm2.weight", "transformer.h.#.ln_2.weight", PART_ALL, 0 },
	{ "h.#.norm2.bias", "transformer.h.#.ln_2.bias", PART_ALL, 0 },
	{ "h.#.up.weight", "transformer.h.#.mlp.c_fc.weight", PART_ALL, 1 },
	{ "h.#.up_b.bias", "transformer.h.#.mlp.c_fc.bias", PART_ALL, 0 },
	{ "h.#.down.weight", "transformer.h.#.mlp.c_proj.weight", PART_ALL, 1 },
	{ "h.#.down_b.bias", "transformer.h.#.mlp.c_proj.bias", PART_ALL, 0 },
	{ "norm.weight", "transformer.ln_f.weight", PART_ALL, 0 },
	{ "norm.bias", "transformer.ln_f.bias", PART_ALL, 0 },
	{ "head.weight", "lm_head.weight", PART_VOCAB, 0 },
	{ 0 },
};

#define LAYER "model.layers.#."
/* rows that families with the names of Llama's weights share */
#define LLAMA_ENDS                                                              \
	{ "embed.weight", "model.embed_tokens.weight", PART_VOCAB, 0 },         \
	{ "norm.weight", "model.norm.weight", PART_ALL, 0 },                    \
	{ "head.weight", "lm_head.weight", PART_VOCAB, 0 }
#define LLAMA_ATTENTION                                                         \
	{ "h.#.qkv.weight", LAYER "self_attn.q_proj.weight", PART_Q, 0 },       \
	{ "h.#.qkv.weight", LAYER "self_attn.k_proj.weight", PART_K, 0 },       \
	{ "h.#.qkv.weight", LAYER "self_attn.v_proj.weight", PART_V, 0 },       \
	{ "h.#.qkv_b.bias", LAYER "self_attn.q_proj.bias", PART_Q, 0 },         \
	{ "h.#.qkv_b.bias", LAYER "self_attn.k_proj.bias", PART_K, 0 },         \
	{ "h.#.qkv_b.bias", LAYER "self_attn.v_proj.bias", PART_V, 0 },         \
	{ "h.#.qk_norm.q", LAYER "self_attn.q_norm.weight", PART_ALL, 0 },      \
	{ "h.#.qk_norm.k", LAYER "self_attn.k_norm.weight", PART_ALL, 0 },      \
	{ "h.#.proj.weight", LAYER "self_attn.o_proj.weight", PART_ALL, 0 },    \
	{ "h.#.proj_b.bias", LAYER "self_attn.o_proj.bias", PART_ALL, 0 }
#define LLAMA_MLP                                                               \
	{ "h.#.up.weight", LAYER "mlp.gate_proj.weight", PART_GATE, 0 },        \
	{ "h.#.up.weight", LAYER "mlp.up_proj.weight", PART_UP, 0 },            \
	{ "h.#.down.weight", LAYER "mlp.down_proj.weight", PART_ALL, 0 }

static const struct weight_map llama_map[] = {
	LLAMA_ENDS,
	LLAMA_ATTENTION,
	LLAMA_MLP,
	{ "h.#.norm1.weight", LAYER "input_layernorm.weight", PART_ALL, 0 },
	{ "h.#.norm1.bias", LAYER "input_layernorm.bias", PART_ALL, 0 },
	{ "h.#.norm2.weight", LAYER "post_attention_layernorm.weight", PART_ALL, 0 },
	{ "h.#.norm2.bias", LAYER "post_attention_layernorm.bias", PART_ALL, 0 },
	{ "h.#.up_b.bias", LAYER "mlp.gate_proj.bias", PART_GATE, 0 },
	{ "h.#.up_b.bias", LAYER "mlp.up_proj.bias", PART_UP, 0 },
	{ "h.#.down_b.bias", LAYER "mlp.down_proj.bias", PART_ALL, 0 },
	{ "norm.bias", "model.norm.bias", PART_ALL, 0 },
	{ 0 },
};

static const struct weight_map olmo2_map[] = {
	LLAMA_ENDS,
	LLAMA_ATTENTION,
	LLAMA_MLP,
	{ "h.#.norm1.weight", LAYER "post_attention_layernorm.weight", PART_ALL, 0 },
	{ "h.#.norm2.weight", LAYER "post_feedforward_layernorm.weight", PART_ALL, 0 },
	{ 0 },
};

static const struct weight_map gemma_map[] = {
	LLAMA_ENDS,
	LLAMA_ATTENTION,
	LLAMA_MLP,
	{ "h.#.norm1.weight", LAYER "input_layernorm.weight", PART_ALL, 0 },
	{ "h.#.post1.weight", LAYER "post_attention_layernorm.weight", PART_ALL, 0 },
	{ "h.#.norm2.weight", LAYER "pre_feedforward_layernorm.weight", PART_ALL, 0 },
	{ "h.#.post2.weight", LAYER "post_feedforward_layernorm.weight", PART_ALL, 0 },
	{ 0 },
};

static const struct weight_map phi3_map[] = {
	{ "embed.weight", "model.embed_tokens.weight", PART_VOCAB, 0 },
	{ "h.#.norm1.weight", "model.layers.#.input_layernorm.weight", PART_ALL, 0 },
	{ "h.#.qkv.weight", "model.layers.#.self_attn.qkv_proj.weight", PART_QKV, 0 },
	{ "h.#.proj.weight", "model.layers.#.self_attn.o_proj.weight", PART_ALL, 0 },
	{ "h.#.norm2.weight", "model.layers.#.post_attention_layernorm.weight", PART_ALL, 0 },
	{ "h.#.up.weight", "model.layers.#.mlp.gate_up_proj.weight", PART_ALL, 0 },
	{ "h.#.down.weight", "model.layers.#.mlp.down_proj.weight", PART_ALL, 0 },
	{ "norm.weight", "model.norm.weight", PART_ALL, 0 },
	{ "head.weight", "lm_head.weight", PART_VOCAB, 0 },
	{ 0 },
};

static const struct weight_map neox_map[] = {
	{ "embed.weight", "gpt_neox.embed_in.weight", PART_VOCAB, 0 },
	{ "h.#.norm1.weight", "gpt_neox.layers.#.input_layernorm.weight", PART_ALL, 0 },
	{ "h.#.norm1.bias", "gpt_neox.layers.#.input_layernorm.bias", PART_ALL, 0 },
	{ "h.#.qkv.weight", "gpt_neox.layers.#.attention.query_key_value.weight", PART_HEADS, 0 },
	{ "h.#.qkv_b.bias", "gpt_neox.layers.#.attention.query_key_value.bias", PART_HEADS, 0 },
	{ "h.#.proj.weight", "gpt_neox.layers.#.attention.dense.weight", PART_ALL, 0 },
	{ "h.#.proj_b.bias", "gpt_neox.layers.#.attention.dense.bias", PART_ALL, 0 },
	{ "h.#.norm2.weight", "gpt_neox.layers.#.post_attention_layernorm.weight", PART_ALL, 0 },
	{ "h.#.norm2.bias", "gpt_neox.layers.#.post_attention_layernorm.bias", PART_ALL, 0 },
	{ "h.#.up.weight", "gpt_neox.layers.#.mlp.dense_h_to_4h.weight", PART_ALL, 0 },
	{ "h.#.up_b.bias", "gpt_neox.layers.#.mlp.dense_h_to_4h.bias", PART_ALL, 0 },
	{ "h.#.down.weight", "gpt_neox.layers.#.mlp.dense_4h_to_h.weight", PART_ALL, 0 },
	{ "h.#.down_b.bias", "gpt_neox.layers.#.mlp.dense_4h_to_h.bias", PART_ALL, 0 },
	{ "norm.weight", "gpt_neox.final_layer_norm.weight", PART_ALL, 0 },
	{ "norm.bias", "gpt_neox.final_layer_norm.bias", PART_ALL, 0 },
	{ "head.weight", "embed_out.weight", PART_VOCAB, 0 },
	{ 0 },
};

#define FALCON_LAYER "transformer.h.#."
static const struct weight_map falcon_map[] = {
	{ "embed.weight", "transformer.word_embeddings.weight", PART_VOCAB, 0 },
	{ "h.#.norm1.weight", FALCON_LAYER "input_layernorm.weight", PART_ALL, 0 },
	{ "h.#.norm1.bias", FALCON_LAYER "input_layernorm.bias", PART_ALL, 0 },
	{ "h.#.qkv.weight", FALCON_LAYER "self_attention.query_key_value.weight", PART_QKV, 0 },
	{ "h.#.qkv_b.bias", FALCON_LAYER "self_attention.query_key_value.bias", PART_QKV, 0 },
	{ "h.#.proj.weight", FALCON_LAYER "self_attention.dense.weight", PART_ALL, 0 },
	{ "h.#.proj_b.bias", FALCON_LAYER "self_attention.dense.bias", PART_ALL, 0 },
	{ "h.#.up.weight", FALCON_LAYER "mlp.dense_h_to_4h.weight", PART_ALL, 0 },
	{ "h.#.up_b.bias", FALCON_LAYER "mlp.dense_h_to_4h.bias", PART_ALL, 0 },
	{ "h.#.down.weight", FALCON_LAYER "mlp.dense_4h_to_h.weight", PART_ALL, 0 },
	{ "h.#.down_b.bias", FALCON_LAYER "mlp.dense_4h_to_h.bias", PART_ALL, 0 },
	{ "norm.weight", "transformer.ln_f.weight", PART_ALL, 0 },
	{ "norm.bias", "transformer.ln_f.bias", PART_ALL, 0 },
	{ "head.weight", "lm_head.weight", PART_VOCAB, 0 },
	{ 0 },
};

const struct weight_map *model_map(enum family family)
{
	static const struct weight_map *const maps[FAMILY_COUNT] = {
		[FAMILY_GPT2] = gpt2_map,     [FAMILY_LLAMA] = llama_map,
		[FAMILY_QWEN2] = llama_map,   [FAMILY_MISTRAL] = llama_map,
		[FAMILY_SMOLLM3] = llama_map, [FAMILY_PHI3] = phi3_map,
		[FAMILY_NEOX] = neox_map,     [FAMILY_FALCON] = falcon_map,
		[FAMILY_STABLELM] = llama_map, [FAMILY_QWEN3] = llama_map,
		[FAMILY_OLMO2] = olmo2_map,   [FAMILY_GEMMA2] = gemma_map,
		[FAMILY_GEMMA3] = gemma_map,
	};

	return maps[family];
}

void model_part_rows(const struct config *c, enum part part, int64_t rows, int64_t *ret_first,
		     int64_t *ret_count)
{
	int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
	struct {
		int64_t first, count;
	} at[] = {
		[PART_ALL] = { 0, rows },
		[PART_VOCAB] = { 0, c->vocab },
		[PART_Q] = { 0, q },
		[PART_K] = { q, kv },
		[PART_V] = { q + kv, kv },
		[PART_QKV] = { 0, rows },
		[PART_HEADS] = { 0, rows },
		[PART_GATE] = { 0, c->inner },
		[PART_UP] = { c->inner, c->inner },
	};

	*ret_first = at[part].first;
	*ret_count = at[part].count;
}

int64_t model_file_row(const struct config *c, enum part part, int64_t row)
{
	const int64_t d = c->head_dim, head = row / d, at = row % d, n = c->heads;
	const int values = part == PART_V || (part >= PART_QKV && head >= n + c->kv_heads);

	if (part < PART_Q || part > PART_HEADS)
		return row;
	row = head * d + (values || c->learned ? at : rotary_file_channel(&c->rotary, d, at));
	/* heads of queries, keys and values alternate */
	return part == PART_HEADS ? row + (head % n * 3 + head / n - head) * d : row;
}
