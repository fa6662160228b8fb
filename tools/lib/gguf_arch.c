/*
 * gguf_arch.c - the families of models as GGUF files have them.
 *
 * Names of architectures, keys and tensors, and the order of rows: llama.cpp,
 * gguf-py/gguf/constants.py and convert_hf_to_gguf.py.
 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "gguf_arch.h"

#define F(family) (1u << FAMILY_##family)
#define GEMMAS (F(GEMMA2) | F(GEMMA3))
#define LAYERNORM (F(GPT2) | F(NEOX) | F(FALCON) | F(STABLELM))
#define NO_COUNT_OF_KEYS (F(GPT2) | F(NEOX) | F(FALCON))

#define BIASES (GGUF_QKV_BIAS | GGUF_OTHER_BIASES)
static const struct gguf_arch archs[] = {
	{ "llama", "llama", FAMILY_LLAMA, GGUF_PAIRED | BIASES | GGUF_DIVIDED },
	{ "llama", "mistral", FAMILY_MISTRAL, GGUF_PAIRED | GGUF_DIVIDED },
	{ "qwen2", "qwen2", FAMILY_QWEN2, GGUF_QKV_BIAS },
	{ "qwen3", "qwen3", FAMILY_QWEN3, 0 },
	{ "smollm3", "smollm3", FAMILY_SMOLLM3, GGUF_PAIRED },
	{ "olmo2", "olmo2", FAMILY_OLMO2, GGUF_AFTER | GGUF_HEAD },
	{ "gemma2", "gemma2", FAMILY_GEMMA2, GGUF_WINDOWS },
	{ "gemma3", "gemma3_text", FAMILY_GEMMA3, GGUF_WINDOWS },
	{ "phi3", "phi3", FAMILY_PHI3, GGUF_PARTIAL | GGUF_LONGROPE },
	{ "stablelm", "stablelm", FAMILY_STABLELM, GGUF_PARTIAL | GGUF_QKV_BIAS | GGUF_HEAD },
	{ "gpt2", "gpt2", FAMILY_GPT2, BIASES | GGUF_BIASED },
	{ "gptneox", "gpt_neox", FAMILY_NEOX, GGUF_PARTIAL | BIASES | GGUF_BIASED | GGUF_HEAD },
	{ "falcon", "falcon", FAMILY_FALCON, 0 },
};
#define NARCHS (sizeof(archs) / sizeof(archs[0]))

const struct gguf_arch *gguf_arch_of(enum family family)
{
	for (size_t i = 0; i < NARCHS; i++)
		if (archs[i].family == family)
			return &archs[i];
	return NULL;
}

const struct gguf_arch *gguf_arch_named(const char *name)
{
	for (size_t i = 0; i < NARCHS; i++)
		if (!strcmp(archs[i].name, name))
			return &archs[i];
	return NULL;
}

/* ---- names ---- */

/* operations and parts of their weights; after: the name in models with NORMS_AFTER, if another */
static const struct {
	const char *te;
	int part; /* enum part, or ANY */
	const char *gguf, *after;
} names[] = {
#define ANY (-1)
	{ "embed.position", ANY, "position_embd", NULL },
	{ "embed", ANY, "token_embd", NULL },
	{ "norm", ANY, "output_norm", NULL },
	{ "head", ANY, "output", NULL },
	{ "h.#.norm1", ANY, "blk.#.attn_norm", "blk.#.post_attention_norm" },
	{ "h.#.qkv", PART_Q, "blk.#.attn_q", NULL },
	{ "h.#.qkv", PART_K, "blk.#.attn_k", NULL },
	{ "h.#.qkv", PART_V, "blk.#.attn_v", NULL },
	{ "h.#.qkv", ANY, "blk.#.attn_qkv", NULL },
	{ "h.#.qk_norm.q", ANY, "blk.#.attn_q_norm", NULL },
	{ "h.#.qk_norm.k", ANY, "blk.#.attn_k_norm", NULL },
	{ "h.#.proj", ANY, "blk.#.attn_output", NULL },
	{ "h.#.post1", ANY, "blk.#.post_attention_norm", NULL },
	{ "h.#.norm2", ANY, "blk.#.ffn_norm", "blk.#.post_ffw_norm" },
	{ "h.#.up", PART_GATE, "blk.#.ffn_gate", NULL },
	{ "h.#.up", ANY, "blk.#.ffn_up", NULL },
	{ "h.#.down", ANY, "blk.#.ffn_down", NULL },
	{ "h.#.post2", ANY, "blk.#.post_ffw_norm", NULL },
};
#define NNAMES (sizeof(names) / sizeof(names[0]))

/* the name in GGUF files of a row of a family's map, with '#' for the layer */
static void name_row(enum family family, const struct weight_map *map, char *ret_name, size_t room)
{
	const struct gguf_arch *arch = gguf_arch_of(family);
	const int after = arch && arch->flags & GGUF_AFTER;

	for (size_t i = 0; i < NNAMES; i++) {
		const char *rest = map->te + strlen(names[i].te);

		if (strncmp(map->te, names[i].te, strlen(names[i].te)) ||
		    (names[i].part != ANY && names[i].part != (int)map->part))
			continue;
		/* biases are operations of their own here */
		rest += strncmp(rest, "_b.", 3) ? 0 : 2;
		if (*rest && *rest != '.')
			continue;
		snprintf(ret_name, room, "%s%s",
			 after && names[i].after ? names[i].after : names[i].gguf,
			 *rest ? rest : ".weight");
		return;
	}
	*ret_name = '\0';
}

static int rename_tensor(enum family family, const char *from, int to_gguf, char *ret_name,
			 size_t room)
{
	for (const struct weight_map *map = model_map(family); map->te; map++) {
		char gguf[64];
		int layer;

		name_row(family, map, gguf, sizeof(gguf));
		layer = weight_match(to_gguf ? map->hf : gguf, from);
		if (layer != -2)
			return weight_name(to_gguf ? gguf : map->hf, layer, ret_name, room);
	}
	return 0;
}

int gguf_name(enum family family, const char *hf, char *ret_name, size_t room)
{
	return rename_tensor(family, hf, 1, ret_name, room);
}

int gguf_hf_name(enum family family, const char *gguf, char *ret_name, size_t room)
{
	return rename_tensor(family, gguf, 0, ret_name, room);
}

/* ---- rows ---- */

static int is_paired(const struct gguf_arch *arch, enum part part)
{
	return arch->flags & GGUF_PAIRED && (part == PART_Q || part == PART_K);
}

int64_t gguf_row(const struct gguf_arch *arch, const struct config *c, enum part part, int64_t row)
{
	const int64_t d = c->head_dim, head = row / d, at = row % d;

	if (is_paired(arch, part))
		return head * d + at % (d / 2) * 2 + at / (d / 2);
	/* all queries, then all keys, then all values */
	return part == PART_HEADS ? (head % 3 * c->heads + head / 3) * d + at : row;
}

int64_t gguf_hf_row(const struct gguf_arch *arch, const struct config *c, enum part part,
		    int64_t row)
{
	const int64_t d = c->head_dim, head = row / d, at = row % d;

	if (is_paired(arch, part))
		return head * d + at % 2 * (d / 2) + at / 2;
	return part == PART_HEADS ? (head % c->heads * 3 + head / c->heads) * d + at : row;
}

/* ---- metadata ---- */

const struct gguf_field gguf_fields[] = {
	{ ~0u, "embedding_length", "hidden_size" },
	{ ~0u, "block_count", "num_hidden_layers" },
	{ ~0u, "context_length", "max_position_embeddings" },
	{ ~0u, "attention.head_count", "num_attention_heads" },
	{ ~(F(GPT2) | F(FALCON)), "feed_forward_length", "intermediate_size" },
	{ F(GPT2), "feed_forward_length", "n_inner" },
	{ F(FALCON), "feed_forward_length", "ffn_hidden_size" },
	{ ~NO_COUNT_OF_KEYS, "attention.head_count_kv", "num_key_value_heads" },
	{ ~LAYERNORM, "attention.key_length", "head_dim" },
	{ ~LAYERNORM, "attention.layer_norm_rms_epsilon", "rms_norm_eps" },
	{ F(STABLELM) | F(NEOX), "attention.layer_norm_epsilon", "layer_norm_eps" },
	{ F(GPT2) | F(FALCON), "attention.layer_norm_epsilon", "layer_norm_epsilon" },
	{ ~F(GPT2), "rope.freq_base", "rope_theta" },
	{ F(GEMMA3), "rope.freq_base_swa", "rope_local_base_freq" },
	{ F(PHI3) | GEMMAS, "attention.sliding_window", "sliding_window" },
	{ F(GEMMA2), "attn_logit_softcapping", "attn_logit_softcapping" },
	{ GEMMAS, "final_logit_softcapping", "final_logit_softcapping" },
	{ F(NEOX), "use_parallel_residual", "use_parallel_residual" },
	{ 0, NULL, NULL },
};

const struct gguf_sign gguf_signs[] = {
	{ F(LLAMA) | F(SMOLLM3) | F(QWEN3) | F(OLMO2) | GEMMAS, "blk.0.attn_q.bias",
	  "attention_bias", 0 },
	{ F(LLAMA) | F(SMOLLM3), "blk.0.ffn_gate.bias", "mlp_bias", 0 },
	{ F(STABLELM), "blk.0.attn_q.bias", "use_qkv_bias", 0 },
	{ F(STABLELM), "blk.0.ffn_norm.weight", "use_parallel_residual", 1 },
	{ F(NEOX), "blk.0.attn_qkv.bias", "attention_bias", 0 },
	{ F(FALCON), "blk.0.attn_qkv.bias", "bias", 0 },
	{ ~0u, "output.weight", "tie_word_embeddings", 1 },
	{ 0, NULL, NULL, 0 },
};

int64_t gguf_scaled_by_width(enum family family)
{
	return family == FAMILY_GEMMA2 ? 46 : family == FAMILY_GEMMA3 ? 62 : 0;
}
