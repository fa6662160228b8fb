/* hfconfig.h - the model described by a Hugging Face style config.json. */
#ifndef HFCONFIG_H
#define HFCONFIG_H

#include <jansson.h>
#include <stdint.h>

#include <te/op.h>

#include "rotary.h"

enum family {
	FAMILY_GPT2,
	FAMILY_LLAMA,
	FAMILY_QWEN2,
	FAMILY_MISTRAL,
	FAMILY_SMOLLM3,
	FAMILY_PHI3,
	FAMILY_NEOX,
	FAMILY_FALCON,
	FAMILY_STABLELM,
	FAMILY_QWEN3,
	FAMILY_OLMO2,
	FAMILY_GEMMA2,
	FAMILY_GEMMA3,
	FAMILY_COUNT
};

/* Where the MLP of a layer reads. */
enum residual {
	RESIDUAL_SERIAL,   /* the norm of the value after attention */
	RESIDUAL_PARALLEL, /* a norm of the layer's input */
	RESIDUAL_SHARED	   /* the norm that attention reads */
};

/* Where a layer has norms. */
enum placement {
	NORMS_BEFORE, /* attention and the MLP read normed values */
	NORMS_AFTER,  /* results of attention and of the MLP are normed before they are added */
	NORMS_AROUND  /* both */
};

/* Norms of queries and of keys, before they are rotated. */
enum qk_norm {
	QK_NORM_NONE,
	QK_NORM_HEADS, /* one norm a head */
	QK_NORM_WHOLE  /* one norm for all heads */
};

/*
 * Low-rank adapters (Hu et al., LoRA, arXiv:2106.09685): a projection of x and its bias add
 * alpha / rank B A x, with A [rank, in] and B [out, rank]; only A and B are trained.
 */
struct lora {
	int64_t rank; /* 0: none */
	double alpha, dropout; /* dropout of x before A */
	/* patterns of fnmatch(3) for names of projections in layers, separated by commas, borrowed;
	 * NULL: all */
	const char *targets;
	const char *base; /* folder or file of the model, borrowed */
	char *digest; /* digest of its weights, [17], which is set when they are read; or NULL */
};

/* a recipe of linear operations in layers, such as h.0.qkv */
struct layer_recipe {
	const char *patterns; /* patterns of fnmatch(3), separated by commas */
	struct te_recipe recipe;
};

struct config {
	enum family family;
	enum residual residual;
	enum placement placement;
	enum qk_norm qk_norm;
	int64_t vocab, layers, width, heads, kv_heads, head_dim, inner, max_pos;
	int64_t window; /* number of tokens that one attends to, see config_window(); 0: all */
	int64_t no_rope_every; /* layer i has no rotations if it divides i + 1; 0: all have them */
	int64_t full_every; /* layers without a window, if no list tells; 0: every second */
	double query_scalar; /* scores are divided by its square root; 0: head_dim */
	double score_cap, logit_cap; /* c: x becomes c tanh(x / c); 0: it does not */
	double eps, init_std;
	double drop_embd, drop_resid, drop_attn;
	struct rotary rotary; /* unless learned */
	struct rotary local; /* Gemma 3: of layers with a window */
	enum te_act act;
	int tied; /* the head uses the embedding's table */
	int learned; /* positions are a table that is added to the embedding */
	int layernorm; /* norms subtract the mean and have a bias; else RMSNorm */
	int zero_centered; /* RMSNorm: gains are 1 + weight */
	int scaled_embedding; /* rows of the table are multiplied by the square root of width */
	int gated; /* MLP: act(x gate^T) * (x up^T) */
	int qkv_bias, proj_bias, mlp_bias;
	enum te_dtype saved; /* type of weights in files that are written: FP32 or BF16 */
	int windowed, sliding; /* fields that turn windows on: for all layers, for some */
	/* the head's recipe, borrowed and in no file; NULL: never FP8 */
	const struct te_recipe *head_recipe;
	const struct layer_recipe *layer_recipe; /* borrowed, in no file; the first match counts */
	int32_t nlayer_recipes;
	int64_t loss_chunk; /* te_cross_entropy_attrs.chunk; in no file */
	int documents; /* attention and positions end with documents; in no file */
	struct lora lora; /* in no file of the model */
	/* The object read, including unused fields. config_free() releases it; copies of the struct
	 * borrow it, unless they take a reference. */
	json_t *source;
};

const char *family_name(enum family family);
/* 1: one of the patterns of fnmatch(3), separated by commas, matches the name */
int config_matches(const char *patterns, const char *name);
/* the recipe of an operation in a layer, or NULL: the model's */
const struct te_recipe *config_recipe(const struct config *c, const char *op);
/* 1: the head or an operation in a layer has a recipe of this kind; of NONE: an FP8 recipe */
int config_has_recipe(const struct config *c, enum te_recipe_kind kind);
/* the fields that transformers sets when a file does not have them; sizes are 0 */
struct config config_defaults(enum family family);
/*
 * The largest context that is implemented, which the rotations, the table of positions, or windows
 * of unknown layers limit, or 0: no limit. ret_field: the field of config.json with that number.
 */
int64_t config_longest(const struct config *cfg, const char **ret_field);
#define DEFAULT_CONTEXT 2048 /* tokens of a context at most, unless more are asked for */
/* the largest context of the model; DEFAULT_CONTEXT if its config.json does not tell it */
int64_t config_positions(const struct config *cfg);
/* number of tokens, its own included, that a token of the layer attends to; 0: all */
int64_t config_window(const struct config *cfg, int64_t layer);
/* 1 if the layer turns queries and keys by their positions */
int config_turns(const struct config *cfg, int64_t layer);
/* @path: the file, the folder of config.json, or a GGUF file */
int config_read(const char *path, struct config *ret_cfg);
/* @where: error messages begin with it */
int config_parse(const json_t *obj, const char *where, struct config *ret_cfg);
/* the rotations of a layer */
const struct rotary *config_rotary(const struct config *cfg, int64_t layer);
void config_free(struct config *cfg);
/*
 * Returns a new reference, or NULL after a failure: all fields that were read, with the present
 * values of the used ones. Readable by config_parse and by transformers.
 */
json_t *config_to_json(const struct config *cfg);
/* fails if the two describe different models, and names the first field that differs */
int config_same(const struct config *a, const char *where_a, const struct config *b,
		const char *where_b);

#endif
