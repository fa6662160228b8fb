/*
 * gguf.c - a model as a GGUF file, with its tokenizer.
 *
 * Format: https://github.com/ggml-org/ggml, docs/gguf.md, version 3, little-endian. Names of keys
 * and tensors, and the order of rows: llama.cpp, gguf-py/gguf/constants.py and
 * convert_hf_to_gguf.py.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <te/dtype.h>

#include "export.h"
#include "tools/lib/chat.h"
#include "tools/lib/gguf_arch.h"
#include "tools/lib/say.h"
#include "tools/lib/tokens.h"

#define ALIGN 32 /* bytes, the default of general.alignment */
#define BLOCK 32 /* elements of a block of Q8_0 */

/* rows of enum export_type */
static const struct type {
	const char *dtype; /* in a file that was read */
	uint32_t type, file_type, nelems, nbytes; /* elements and bytes of a block */
} types[] = {
	{ "F32", 0, 0, 1, 4 },
	{ "BF16", 30, 32, 1, 2 },
	{ "Q8_0", 8, 7, BLOCK, 34 },
};

struct output {
	struct export *x;
	const char *path;
	const struct type *type;
	const struct gguf_arch *arch;
	FILE *f;
	uint64_t nitems, ntensors;
	int head_only; /* a pass over the tensors writes the embedding as the head */
	uint64_t offset; /* offset of the next tensor in the data */
	const char *odd; /* a tensor with a number that is not finite */
};

/* ---- bytes ---- */

static void put_number(FILE *f, uint64_t x, size_t nbytes)
{
	fwrite(&x, nbytes, 1, f);
}

static void put_text(FILE *f, const char *text)
{
	put_number(f, strlen(text), 8);
	fputs(text, f);
}

enum { UINT32 = 4, FLOAT32 = 6, BOOL = 7, TEXT = 8 };

static void put_key(struct output *e, const char *arch, const char *name, uint32_t type)
{
	char key[128];

	snprintf(key, sizeof(key), "%s%s%s", arch, *arch ? "." : "", name);
	put_text(e->f, key);
	put_number(e->f, type, 4);
	e->nitems++;
}

static void put_int(struct output *e, const char *arch, const char *name, int64_t x)
{
	put_key(e, arch, name, UINT32);
	put_number(e->f, (uint64_t)x, 4);
}

static void put_real(struct output *e, const char *arch, const char *name, double x)
{
	const float single = (float)x;

	put_key(e, arch, name, FLOAT32);
	fwrite(&single, 4, 1, e->f);
}

/* zeros up to a multiple of ALIGN of `at` bytes */
static void pad(FILE *f, uint64_t at)
{
	while (at++ % ALIGN)
		putc(0, f);
}

/* ---- the model ---- */

/* frequencies are divided by numbers in tensors */
static int has_divisors(const struct config *c, const struct gguf_arch *arch)
{
	return arch->flags & GGUF_LONGROPE ? c->rotary.kind == ROTARY_LONGROPE :
	       arch->flags & GGUF_DIVIDED  ? c->rotary.kind != ROTARY_DEFAULT &&
						     c->rotary.kind != ROTARY_LINEAR &&
						     c->rotary.kind != ROTARY_DYNAMIC :
					     0;
}

static int has_scaled_positions(const struct config *c, const struct gguf_arch *arch)
{
	if (c->rotary.kind == ROTARY_DEFAULT || c->rotary.kind == ROTARY_LINEAR)
		return 0;
	return !has_divisors(c, arch) ||
	       (c->rotary.attention != 1 && !(arch->flags & GGUF_LONGROPE));
}

/* layers without positions, or without a window, that programs choose by the number of a layer */
static int has_other_layers(const struct config *c, const struct gguf_arch *arch)
{
	const int64_t turns_every = c->family == FAMILY_SMOLLM3 ? 4 : 0;
	const int64_t full_every = c->family == FAMILY_GEMMA3 ? 6 : 2;

	for (int64_t i = 0; i < c->layers; i++) {
		if (config_turns(c, i) != (!turns_every || (i + 1) % turns_every))
			return 1;
		if (arch->flags & GGUF_WINDOWS && !config_window(c, i) != !((i + 1) % full_every))
			return 1;
	}
	return 0;
}

static int has_other_scores(const struct config *c)
{
	const int64_t large = gguf_scaled_by_width(c->family);
	const double scalar = c->layers == large ? (double)c->width / (double)c->heads :
						   (double)c->head_dim;

	/* without a cap, llama.cpp has the default of the family */
	return (large && c->query_scalar != scalar) ||
	       (c->family == FAMILY_GEMMA2 && (!(c->score_cap > 0) || !(c->logit_cap > 0)));
}

static int has_other_biases(const struct config *c, const struct gguf_arch *arch)
{
	const int other = c->proj_bias || c->mlp_bias;

	if (arch->flags & GGUF_BIASED)
		return !c->qkv_bias || !c->proj_bias || !c->mlp_bias;
	return (c->qkv_bias && !(arch->flags & GGUF_QKV_BIAS)) ||
	       (other && !(arch->flags & GGUF_OTHER_BIASES));
}

int export_gguf_check(const struct config *c, const char *from)
{
	const struct gguf_arch *arch = gguf_arch_of(c->family);
	const char *no = !arch					? "models of this family" :
			 has_scaled_positions(c, arch)		? "these scaled positions" :
			 c->rotary.part != 1 && !(arch->flags & GGUF_PARTIAL) ?
								  "heads that turn in part" :
			 has_other_layers(c, arch)		? "this order of layers" :
			 has_other_scores(c)			? "this scale or cap of scores" :
			 has_other_biases(c, arch)		? "this choice of biases" :
			 c->act != config_defaults(c->family).act ?
								  "this activation" :
			 c->head_dim % 2			? "heads of odd width" :
								  NULL;

	return no ? say_bad("%s: model_type %s: export of %s to GGUF is not implemented", from,
			    family_name(c->family), no) :
		    STATUS_OK;
}

static void put_rotations(struct output *e, const char *arch)
{
	const struct config *c = &e->x->model.cfg;

	put_int(e, arch, "rope.dimension_count", rotary_channels(&c->rotary, c->head_dim));
	put_real(e, arch, "rope.freq_base", c->rotary.theta);
	if (c->family == FAMILY_GEMMA3)
		put_real(e, arch, "rope.freq_base_swa", c->local.theta);
	if (c->rotary.kind == ROTARY_LINEAR) {
		put_key(e, arch, "rope.scaling.type", TEXT);
		put_text(e->f, "linear");
		put_real(e, arch, "rope.scaling.factor", c->rotary.factor);
	} else if (e->arch->flags & GGUF_LONGROPE && c->rotary.kind == ROTARY_LONGROPE) {
		put_key(e, arch, "rope.scaling.type", TEXT);
		put_text(e->f, "longrope");
		put_real(e, arch, "rope.scaling.attn_factor", c->rotary.attention);
		put_int(e, arch, "rope.scaling.original_context_length",
			(int64_t)c->rotary.original);
	}
}

static void put_attention(struct output *e, const char *arch)
{
	const struct config *c = &e->x->model.cfg;

	put_int(e, arch, "attention.head_count", c->heads);
	put_int(e, arch, "attention.head_count_kv", c->kv_heads);
	put_int(e, arch, "attention.key_length", c->head_dim);
	put_int(e, arch, "attention.value_length", c->head_dim);
	if (e->arch->flags & GGUF_WINDOWS)
		put_int(e, arch, "attention.sliding_window", c->window);
	if (c->score_cap > 0)
		put_real(e, arch, "attn_logit_softcapping", c->score_cap);
	if (c->logit_cap > 0)
		put_real(e, arch, "final_logit_softcapping", c->logit_cap);
	put_real(e, arch,
		 c->layernorm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
		 c->eps);
}

static void put_model(struct output *e)
{
	const struct config *c = &e->x->model.cfg;
	const char *field = NULL, *arch = e->arch->name;
	int64_t longest = e->arch->flags & GGUF_LONGROPE ? 0 : config_longest(c, &field);

	/* a window that is not in the file would let tokens see more */
	if (c->window && !(e->arch->flags & GGUF_WINDOWS) && (!longest || c->window < longest))
		longest = c->window;
	put_key(e, "general", "architecture", TEXT);
	put_text(e->f, arch);
	put_int(e, "general", "file_type", e->type->file_type);
	put_int(e, "general", "quantization_version", 2);
	put_int(e, arch, "vocab_size", c->vocab);
	put_int(e, arch, "context_length",
		longest && longest < c->max_pos ? longest : c->max_pos);
	put_int(e, arch, "embedding_length", c->width);
	put_int(e, arch, "block_count", c->layers);
	put_int(e, arch, "feed_forward_length", c->inner);
	put_attention(e, arch);
	if (!c->learned)
		put_rotations(e, arch);
	if (c->family == FAMILY_NEOX || c->family == FAMILY_STABLELM) {
		put_key(e, arch, "use_parallel_residual", BOOL);
		put_number(e->f, c->residual != RESIDUAL_SERIAL, 1);
	}
}

/* ---- the tokenizer ---- */

/* a token of config.json, unless the tokenizer has told it */
static void put_end(struct output *e, const void *items, size_t n, const char *name)
{
	const json_t *v = json_object_get(e->x->model.cfg.source, name);
	char key[64];

	if (json_is_array(v))
		v = json_array_get(v, 0);
	snprintf(key, sizeof(key), "tokenizer.ggml.%s", name);
	if (json_is_integer(v) && json_integer_value(v) >= 0 &&
	    json_integer_value(v) < e->x->model.cfg.vocab && !memmem(items, n, key, strlen(key)))
		put_int(e, "tokenizer.ggml", name, json_integer_value(v));
}

/* the template of chats in a folder, unless the items of its tokenizer.gguf have one */
static int put_chat(struct output *e, const void *items, size_t n, const char *dir)
{
	static const char key[] = "tokenizer.chat_template";
	char *text;
	int r;

	if (memmem(items, n, key, strlen(key)))
		return STATUS_OK;
	r = chat_source(dir, &text);
	if (!r && text) {
		put_key(e, "tokenizer", "chat_template", TEXT);
		put_text(e->f, text);
	}
	free(text);
	return r;
}

static int put_tokenizer(struct output *e)
{
	const char *from = e->x->tokenizer ? e->x->tokenizer : e->x->from;
	struct stat st;
	const int is_dir = !stat(from, &st) && S_ISDIR(st.st_mode);
	void *items;
	uint64_t nitems;
	size_t n;
	int r;

	if (!e->x->tokenizer && is_dir && !tokenizer_in(from)) {
		say_note("te_export: warning: %s: has no tokenizer: the file will have none",
			 e->x->from);
		return STATUS_OK;
	}
	r = tokenizer_gguf(from, e->x->model.cfg.vocab, &items, &n, &nitems);
	if (r)
		return r;
	fwrite(items, 1, n, e->f);
	e->nitems += nitems;
	put_end(e, items, n, "bos_token_id");
	put_end(e, items, n, "eos_token_id");
	if (is_dir)
		r = put_chat(e, items, n, from);
	free(items);
	return r;
}

/* ---- tensors ---- */

/* vectors, and matrices whose rows are no whole blocks, are F32 */
static const struct type *type_of(const struct output *e, const struct weights_tensor *t)
{
	return t->ndim < 2 || t->shape[1] % e->type->nelems ? &types[0] : e->type;
}

static int64_t cols_of(const struct weights_tensor *t)
{
	return t->ndim < 2 ? 1 : t->shape[1];
}

static uint64_t nbytes_of(const struct output *e, const struct weights_tensor *t)
{
	const struct type *type = type_of(e, t);

	return (uint64_t)(t->shape[0] * cols_of(t)) / type->nelems * type->nbytes;
}

/* 1 if this pass leaves the tensor out */
static int is_left_out(const struct output *e, const struct weights_tensor *t)
{
	return e->head_only && t->part != PART_VOCAB;
}

static int put_info(void *arg, const struct weights_tensor *t)
{
	struct output *e = arg;
	char name[256] = "output.weight";

	if (is_left_out(e, t))
		return STATUS_OK;
	if (!e->head_only && !gguf_name(e->arch->family, t->name, name, sizeof(name)))
		return say_bad("%s: the tensor \"%s\" has no name in GGUF files", e->x->from,
			       t->name);
	put_text(e->f, name);
	put_number(e->f, (uint64_t)t->ndim, 4);
	for (int i = t->ndim; i--;)
		put_number(e->f, (uint64_t)t->shape[i], 8);
	put_number(e->f, type_of(e, t)->type, 4);
	put_number(e->f, e->offset, 8);
	e->ntensors++;
	e->offset = (e->offset + nbytes_of(e, t) + ALIGN - 1) / ALIGN * ALIGN;
	return STATUS_OK;
}

/* as quantize_row_q8_0_ref() of ggml */
static void put_block(FILE *f, const float x[BLOCK])
{
	struct {
		uint16_t scale;
		int8_t q[BLOCK];
	} block;
	float most = 0, scale, inverse;

	for (int i = 0; i < BLOCK; i++)
		most = fmaxf(most, fabsf(x[i]));
	scale = most / 127;
	inverse = scale != 0 ? 1 / scale : 0;
	block.scale = te_fp16_encode(scale);
	for (int i = 0; i < BLOCK; i++)
		block.q[i] = (int8_t)roundf(x[i] * inverse);
	fwrite(&block, sizeof(block), 1, f);
}

/* row `row` of the data */
static void put_row(struct output *e, const struct weights_tensor *t, int64_t row)
{
	const struct type *type = type_of(e, t);
	const int64_t cols = cols_of(t);
	const int plus = !t->arch && export_adds_one(e->x, t);

	if (!strcmp(t->st->dtype, type->dtype) && !t->transposed && !plus) {
		const size_t n = (size_t)cols / type->nelems * type->nbytes;

		fwrite(t->st->data + (size_t)row * n, 1, n, e->f);
		return;
	}
	for (int64_t j = 0; j < cols; j += type->nelems) {
		float x[BLOCK];
		uint16_t half;

		for (uint32_t k = 0; k < type->nelems; k++) {
			x[k] = export_element(t, row, j + k) + (plus ? 1 : 0);
			if (!isfinite(x[k]))
				e->odd = t->name;
		}
		half = te_bf16_encode(x[0]);
		if (type->nelems > 1)
			put_block(e->f, x);
		else if (type->nbytes == 2)
			fwrite(&half, 2, 1, e->f);
		else
			fwrite(x, 4, 1, e->f);
	}
}

/* a vector that is computed here */
static void put_vector_info(struct output *e, const char *name, int64_t n)
{
	put_text(e->f, name);
	put_number(e->f, 1, 4);
	put_number(e->f, (uint64_t)n, 8);
	put_number(e->f, types[0].type, 4);
	put_number(e->f, e->offset, 8);
	e->ntensors++;
	e->offset = (e->offset + 4 * (uint64_t)n + ALIGN - 1) / ALIGN * ALIGN;
}

static void put_vector(struct output *e, const float *x, int64_t n)
{
	fwrite(x, 4, (size_t)n, e->f);
	pad(e->f, 4 * (uint64_t)n);
}

/* divisors after the original context, which only the file has: here no position is there */
static void long_divisors(const struct config *c, int64_t n, float *ret_x)
{
	static const char *const holder[] = { "rope_scaling", "rope_parameters" };

	for (size_t k = 0; k < 2; k++) {
		const json_t *in = json_object_get(c->source, holder[k]);
		const json_t *list = json_object_get(in, "long_factor");

		for (size_t i = 0; i < json_array_size(list) && i < (size_t)n; i++)
			ret_x[i] = (float)json_number_value(json_array_get(list, i));
	}
}

/* divisors of the frequencies, in tensors of llama.cpp */
static void put_divisors(struct output *e, int is_info)
{
	const struct config *c = &e->x->model.cfg;
	const int64_t turning = rotary_channels(&c->rotary, c->head_dim), n = turning / 2;
	const int two = e->arch->flags & GGUF_LONGROPE;
	float freq[ROTARY_MOST_PAIRS], x[ROTARY_MOST_PAIRS];

	if (!has_divisors(c, e->arch))
		return;
	if (is_info) {
		put_vector_info(e, two ? GGUF_SHORT : GGUF_DIVISORS, n);
		if (two)
			put_vector_info(e, GGUF_LONG, n);
		return;
	}
	rotary_frequencies(&c->rotary, c->head_dim, freq);
	for (int64_t i = 0; i < n; i++) {
		const double f = pow(c->rotary.theta, -2.0 * (double)i / (double)turning);

		x[i] = two ? (float)c->rotary.shorts[i] : (float)(f / (double)freq[i]);
	}
	put_vector(e, x, n);
	if (two) {
		long_divisors(c, n, x);
		put_vector(e, x, n);
	}
}

static int put_data(void *arg, const struct weights_tensor *t)
{
	struct output *e = arg;

	if (is_left_out(e, t))
		return STATUS_OK;
	for (int64_t i = 0; i < t->shape[0] && !e->odd && !export_stopped(); i++)
		put_row(e, t, t->arch ? i : gguf_hf_row(e->arch, &e->x->model.cfg, t->part, i));
	if (e->odd)
		return say_bad("%s: tensor \"%s\" has a number that is not finite", e->x->from,
			       e->odd);
	pad(e->f, nbytes_of(e, t));
	return export_stopped() ? STATUS_FAILED :
	       ferror(e->f)	? say_bad("%s: %s", e->path, strerror(errno)) :
				  STATUS_OK;
}

/* ---- the file ---- */

/* a tied head is the embedding again, if files of the architecture must have it */
static int each_tensor(struct output *e, int checks, weights_fn fn)
{
	const struct adapter *adapter = e->x->adapter;
	int r = weights_each(&e->x->tensors, &e->x->model, adapter, checks, fn, e);

	if (r || !e->x->model.cfg.tied || !(e->arch->flags & GGUF_HEAD))
		return r;
	e->head_only = 1;
	r = weights_each(&e->x->tensors, &e->x->model, adapter, 0, fn, e);
	e->head_only = 0;
	return r;
}

static int write_file(struct output *e)
{
	int r;

	fputs("GGUF", e->f);
	put_number(e->f, 3, 4);
	put_number(e->f, 0, 8); /* numbers of tensors and items, which follow */
	put_number(e->f, 0, 8);
	put_model(e);
	r = put_tokenizer(e);
	if (!r)
		r = each_tensor(e, 0, put_info);
	if (r)
		return r;
	put_divisors(e, 1);
	pad(e->f, (uint64_t)ftell(e->f));
	r = each_tensor(e, 1, put_data);
	if (r)
		return r;
	put_divisors(e, 0);
	if (!fseek(e->f, 8, SEEK_SET)) {
		put_number(e->f, e->ntensors, 8);
		put_number(e->f, e->nitems, 8);
	}
	return STATUS_OK;
}

int export_gguf(struct export *x, const char *path)
{
	struct output e = { .x = x, .path = path, .type = &types[x->type] };
	struct folder dir;
	char name[256], fresh[300];
	int fd, r, bad;

	e.arch = gguf_arch_of(x->model.cfg.family);
	r = export_parent(path, &dir, name);
	if (r)
		return r;
	snprintf(fresh, sizeof(fresh), "%s.new", name);
	r = folder_check_regular(&dir, name);
	if (!r)
		r = folder_create(&dir, fresh, &fd);
	if (!r) {
		e.f = fdopen(fd, "w");
		if (!e.f) {
			close(fd);
			r = say_failed("out of memory");
		} else {
			r = write_file(&e);
			bad = fflush(e.f) || ferror(e.f) || fsync(fd);
			bad |= fclose(e.f);
			if (!r && bad)
				r = say_bad("%s: %s", path, strerror(errno));
		}
		if (!r && renameat(dir.fd, fresh, dir.fd, name))
			r = say_bad("%s: %s", path, strerror(errno));
		if (r)
			unlinkat(dir.fd, fresh, 0);
	}
	if (!r)
		r = folder_sync(&dir);
	folder_close(&dir);
	return r;
}
