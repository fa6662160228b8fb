/*
 * t/tools/weights.c - te_train reads weights from one file, or from those that an index lists or
 * that are numbered, under the names that other programs give them; what it cannot read it names.
 */
#include "config.h"

#include <ftw.h>
#include <unistd.h>

#include "tools/lib/record.h"
#include "tools/lib/say.h"
#include "tools/lib/weights.h"
#include "tt.h"

static char dir[64];
static struct folder folder;
static struct te_ctx *ctx;
static struct config cfg;
static struct model model;

static const char *in(const char *name)
{
	static char path[256];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

static const char *golden(const char *name)
{
	static char path[4096];

	snprintf(path, sizeof(path), "%s/t/data/%s", getenv("abs_top_srcdir"), name);
	return path;
}

static char said[512];

static void keep_line(const char *line)
{
	snprintf(said, sizeof(said), "%s", line);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path);
}

static void build(const char *family)
{
	char name[32];

	snprintf(name, sizeof(name), "hf_%s.json", family);
	ck_assert_int_eq(config_read(golden(name), &cfg), 0);
	ck_assert_int_eq(model_create(ctx, &cfg, 1, &model), 0);
}

static void setup_ctx(void)
{
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;

	snprintf(dir, sizeof(dir), "%s/te-weights.XXXXXX", tt_tmpdir());
	ck_assert_ptr_nonnull(mkdtemp(dir));
	ck_assert_int_eq(folder_open(dir, &folder), 0);
	co.backend = "host";
	ck_assert_int_eq(te_ctx_create(&co, &ctx), 0);
	say_by(keep_line);
}

static void setup(void)
{
	setup_ctx();
	build("llama");
}

static void teardown(void)
{
	say_by(NULL);
	model_free(&model);
	config_free(&cfg);
	te_ctx_unref(ctx);
	folder_close(&folder);
	nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* tensors of the golden file: part 0 or 1 of them, into dir/name */
static void write_part(const struct st_file *f, const char *file, int part)
{
	char digest[17], fresh[300];
	struct st_writer *w;
	struct st_tensor t;

	ck_assert_int_eq(st_create(&folder, file, &w), 0);
	for (int pass = 0; pass < 2; pass++) {
		int i = 0;

		for (const char *name = NULL; (name = st_next(f, name)); i++) {
			if (i % 2 != part)
				continue;
			ck_assert(st_find(f, name, &t));
			if (!pass)
				st_declare(w, name, t.dtype, t.ndim, t.shape, t.nbytes);
			else
				ck_assert_int_eq(st_write(w, t.data, t.nbytes), 0);
		}
		if (!pass)
			ck_assert_int_eq(st_begin(w), 0);
	}
	ck_assert_int_eq(st_end(w, digest), 0);
	st_free(w);
	snprintf(fresh, sizeof(fresh), "%s.new", in(file));
	ck_assert_int_eq(rename(fresh, in(file)), 0);
}

/* skip: this tensor is not in the index; extra: one that is in no file; b: name of the second */
static void write_index(const struct st_file *f, const char *skip, const char *extra, const char *b)
{
	struct record rec;
	json_t *obj;
	int i = 0;

	record_begin(&rec);
	record_open(&rec, "metadata");
	record_int(&rec, "total_size", 1);
	record_close(&rec);
	record_open(&rec, "weight_map");
	for (const char *name = NULL; (name = st_next(f, name)); i++)
		if (!skip || strcmp(name, skip))
			record_text(&rec, name, i % 2 ? b : "a.safetensors");
	if (extra)
		record_text(&rec, extra, "a.safetensors");
	obj = record_end(&rec, "index");
	ck_assert_int_eq(json_dump_file(obj, in("model.safetensors.index.json"), 0), 0);
	json_decref(obj);
}

static struct st_file *write_shards(void)
{
	struct st_file *f;

	ck_assert_int_eq(st_open(golden("hf_llama.safetensors"), &f), 0);
	write_part(f, "a.safetensors", 0);
	write_part(f, "b.safetensors", 1);
	return f;
}

static float *masters(size_t *ret_nbytes)
{
	struct te_tensor *t = te_seq_masters(model.seq);
	float *x = malloc(*ret_nbytes = te_tensor_nbytes(t));

	ck_assert_int_eq(te_tensor_read(t, x, *ret_nbytes), 0);
	return x;
}

static void clear_masters(void)
{
	struct te_tensor *t = te_seq_masters(model.seq);
	void *zeros = calloc(1, te_tensor_nbytes(t));

	ck_assert_int_eq(te_tensor_write(t, zeros, te_tensor_nbytes(t)), 0);
	free(zeros);
}

CASE(files, "host", .setup = setup, .teardown = teardown);

/* frozen weights have other places in the flat buffers, and are in the file as the others are */
TEST(files, frozen_weights_are_saved)
{
	struct st_file *f;
	struct model m;
	char fresh[300], digest[17];

	ck_assert_int_eq(model_build(ctx, &cfg, &m), 0);
	ck_assert_int_gt(te_seq_freeze(m.seq, "*.qkv.weight", 1), 0);
	ck_assert_int_gt(te_seq_freeze(m.seq, "embed", 1), 0);
	ck_assert_int_eq(model_init(&m, 77), 0);
	ck_assert_int_eq(weights_write(&folder, "a.safetensors", &m, NULL, digest), 0);
	snprintf(fresh, sizeof(fresh), "%s.new", in("a.safetensors"));
	ck_assert_int_eq(rename(fresh, in("a.safetensors")), 0);
	ck_assert_int_eq(st_open(in("a.safetensors"), &f), 0);
	ck_assert_int_eq(weights_read(&f, 1, &model), 0);
	st_close(f);
	for (int i = 0; i < te_seq_nweights(m.seq); i++) {
		struct te_weight_info w[2] = { TE_WEIGHT_INFO_INIT, TE_WEIGHT_INFO_INIT };
		float *x[2];
		size_t nbytes = 0;

		for (int k = 0; k < 2; k++) {
			ck_assert_int_eq(te_seq_weight(k ? model.seq : m.seq, i, &w[k]), 0);
			nbytes = te_tensor_nbytes(w[k].master);
			x[k] = malloc(nbytes);
			ck_assert_int_eq(te_tensor_read(w[k].master, x[k], nbytes), 0);
		}
		ck_assert_msg(!memcmp(x[0], x[1], nbytes), "%s", w[0].name);
		free(x[0]);
		free(x[1]);
	}
	model_free(&m);
}

TEST(files, shards_are_one_file)
{
	struct st_file *f = write_shards();
	size_t nbytes;
	float *one, *two;

	ck_assert_int_eq(weights_read(&f, 1, &model), 0);
	one = masters(&nbytes);
	clear_masters();
	write_index(f, NULL, NULL, "b.safetensors");
	ck_assert_int_eq(weights_read_folder(dir, NULL, &model), 0);
	two = masters(&nbytes);
	ck_assert_mem_eq(one, two, nbytes);
	free(one);
	free(two);
	st_close(f);
}

TEST(files, refuses_wrong_indexes)
{
	struct st_file *f = write_shards();

	write_index(f, "model.norm.weight", NULL, "b.safetensors"); /* not in the index */
	ck_assert_int_eq(weights_read_folder(dir, NULL, &model), STATUS_BAD);
	write_index(f, NULL, "model.more.weight", "b.safetensors"); /* in no file */
	ck_assert_int_eq(weights_read_folder(dir, NULL, &model), STATUS_BAD);
	write_index(f, NULL, NULL, "c.safetensors"); /* not there */
	ck_assert_int_eq(weights_read_folder(dir, NULL, &model), STATUS_BAD);
	write_index(f, NULL, NULL, "../b.safetensors"); /* in another folder */
	ck_assert_int_eq(weights_read_folder(dir, NULL, &model), STATUS_BAD);
	write_index(f, NULL, NULL, "a.safetensors"); /* not in that file */
	ck_assert_int_eq(weights_read_folder(dir, NULL, &model), STATUS_BAD);
	st_close(f);
}

/* ---- files of other programs ---- */

/* how a golden file is changed; NULL: not */
struct edit {
	const char *from, *to; /* of each name that begins so */
	const char *wrap;      /* before each name */
	const char *drop;
	struct {
		const char *name, *dtype;
		int ndim;
		int64_t shape[3];
		size_t nbytes;
		const char *copy_of; /* its bytes; else zeros */
		size_t flip_at;	     /* 1 + the byte that differs */
		uint8_t fill;	     /* each byte, instead of zeros */
	} add[2];
};

static const char *renamed(const struct edit *e, const char *name, char buf[128])
{
	const size_t n = e->from ? strlen(e->from) : 0;
	const int match = e->from && !strncmp(name, e->from, n);

	snprintf(buf, 128, "%s%s%s", e->wrap ? e->wrap : "", match ? e->to : "",
		 match ? name + n : name);
	return buf;
}

static void write_edited(const struct st_file *f, const char *file, const struct edit *e)
{
	char digest[17], fresh[300], buf[128];
	static uint8_t bytes[1 << 14];
	struct st_writer *w;
	struct st_tensor t;

	ck_assert_int_eq(st_create(&folder, file, &w), 0);
	for (int pass = 0; pass < 2; pass++) {
		for (const char *name = NULL; (name = st_next(f, name));) {
			if (e->drop && !strcmp(name, e->drop))
				continue;
			ck_assert(st_find(f, name, &t));
			if (!pass)
				st_declare(w, renamed(e, name, buf), t.dtype, t.ndim, t.shape,
					   t.nbytes);
			else
				ck_assert_int_eq(st_write(w, t.data, t.nbytes), 0);
		}
		for (size_t i = 0; i < TT_LEN(e->add) && e->add[i].name; i++) {
			memset(bytes, e->add[i].fill, sizeof(bytes));
			if (e->add[i].copy_of) {
				ck_assert(st_find(f, e->add[i].copy_of, &t));
				memcpy(bytes, t.data, t.nbytes);
			}
			if (e->add[i].flip_at)
				bytes[e->add[i].flip_at - 1] ^= 1;
			if (!pass)
				st_declare(w, e->add[i].name, e->add[i].dtype, e->add[i].ndim,
					   e->add[i].shape, e->add[i].nbytes);
			else
				ck_assert_int_eq(st_write(w, bytes, e->add[i].nbytes), 0);
		}
		if (!pass)
			ck_assert_int_eq(st_begin(w), 0);
	}
	ck_assert_int_eq(st_end(w, digest), 0);
	st_free(w);
	snprintf(fresh, sizeof(fresh), "%s.new", in(file));
	ck_assert_int_eq(rename(fresh, in(file)), 0);
}

#define NEW_HEAD(flip) \
	.add = { { "lm_head.weight", "F32", 2, { 123, 16 }, 123 * 64, "wte.weight", flip, 0 } }

/* files of the models in t/data as other programs write them */
static const struct {
	const char *family;
	struct edit edit;
	const char *says; /* NULL: it is read, and has the golden weights */
} others[] = {
	/* the weight of a tied model, under both names, the other one, and twice */
	{ "gpt2", { NEW_HEAD(0) }, NULL },
	{ "gpt2", { .drop = "wte.weight", NEW_HEAD(0) }, NULL },
	{ "gpt2", { NEW_HEAD(1) }, "\"lm_head.weight\" and \"wte.weight\" differ" },
	{ "gpt2", { NEW_HEAD(123 * 64) }, "set \"tie_word_embeddings\": false" },
	{ "qwen2",
	  { .from = "model.embed_tokens.weight", .to = "lm_head.weight" },
	  NULL },
	{ "qwen2", { .from = "model.embed_tokens.weight", .to = "model.lm_head.weight" }, NULL },
	{ "qwen2",
	  { .add = { { "lm_head.weight", "F16", 2, { 61, 16 }, 61 * 32, NULL, 0, 0 } } },
	  "\"lm_head.weight\" is [61,16]; config.json makes it [123,16]" },
	/* one weight in an untied model */
	{ "llama", { .drop = "lm_head.weight" }, "set \"tie_word_embeddings\": true" },
	{ "llama", { .drop = "model.embed_tokens.weight" },
	  "no tensor \"model.embed_tokens.weight\"" },
	/* prefixes */
	{ "gpt2", { .wrap = "transformer." }, NULL },
	{ "gpt2", { .wrap = "_orig_mod." }, NULL },
	{ "gpt2", { .wrap = "module.transformer." }, NULL },
	{ "llama", { .wrap = "_orig_mod." }, NULL },
	{ "llama", { .wrap = "module._orig_mod." }, NULL },
	{ "llama", { .wrap = "model." }, NULL }, /* of a class that has the model as its member */
	{ "llama", { .from = "model.", .to = "" }, NULL },
	{ "llama", { .from = "model.layers.", .to = "model._orig_mod.layers." }, NULL },
	{ "llama", { .from = "model.layers.0.", .to = "model.layers.0._orig_mod." }, NULL },
	{ "llama",
	  { .add = { { "_orig_mod.model.norm.weight", "BF16", 1, { 16 }, 32, NULL, 0, 0 } } },
	  "are one weight, expected one of them" },
	{ "llama", { .from = "model.layers.0.", .to = "model.layers.model.0." },
	  "no tensor \"model.layers.0.input_layernorm.weight\"" },
	{ "llama", { .wrap = "ema." },
	  "no tensor \"model.embed_tokens.weight\", but \"ema.model.embed_tokens.weight\"" },
	{ "llama", { .wrap = "base_model.model." },
	  "but \"base_model.model.model.embed_tokens.weight\": expected the names" },
	/* buffers, of any type */
	{ "llama",
	  { .add = { { "model.rotary_emb.inv_freq", "F8_E8M0", 1, { 4 }, 4, NULL, 0, 0 },
		     { "model.layers.1.self_attn.rotary_emb.inv_freq", "F4", 1,
		       { 8 }, 4, NULL, 0, 0 } } },
	  NULL },
	{ "llama",
	  { .add = { { "rotary_emb.inv_freq", "F7_FUTURE", 1, { 9 }, 4, NULL, 0, 0 } } },
	  NULL },
	{ "gpt2",
	  { .add = { { "h.1.attn.masked_bias", "F32", 0, { 0 }, 4, NULL, 0, 0 },
		     { "h.1.attn.bias", "BOOL", 2, { 4, 4 }, 16, NULL, 0, 0 } } },
	  NULL },
	/* tensors that the model has not */
	{ "gpt2",
	  { .add = { { "h.1.attn.bias", "F32", 1, { 16 }, 64, NULL, 0, 0 } } },
	  "has 1 tensor that is not in the model of config.json: \"h.1.attn.bias\" (F32, [16])" },
	{ "llama",
	  { .add = { { "model.layers.0.self_attn.o_proj.bias", "F8_E8M0", 1, { 16 }, 16, NULL, 0,
		       0 },
		     { "score.weight", "F32", 0, { 0 }, 4, NULL, 0, 0 } } },
	  "2 tensors that are not in the model of config.json, such as "
	  "\"model.layers.0.self_attn.o_proj.bias\" (F8_E8M0, [16])" },
	/* types and shapes */
	{ "llama",
	  { .drop = "model.norm.weight",
	    .add = { { "model.norm.weight", "F8_E8M0", 1, { 16 }, 16, NULL, 0, 0 } } },
	  "\"model.norm.weight\" is F8_E8M0; F32, BF16 and F16" },
	{ "llama",
	  { .drop = "model.norm.weight",
	    .add = { { "model.norm.weight", "F32", 0, { 0 }, 4, NULL, 0, 0 } } },
	  "is []; config.json makes it [16]" },
	{ "llama",
	  { .drop = "model.layers.0.mlp.up_proj.weight",
	    .add = { { "model.layers.0.mlp.up_proj.weight", "F32", 3,
		       { 24, 16, 1 }, 1536, NULL, 0, 0 } } },
	  "is [24,16,1]; config.json makes it [24,16]" },
};

static void read_edited(const char *family, const struct edit *e, const char *says)
{
	char name[64];
	struct st_file *f;
	size_t nbytes;
	float *want, *got;

	build(family);
	snprintf(name, sizeof(name), "hf_%s.safetensors", family);
	ck_assert_int_eq(st_open(golden(name), &f), 0);
	ck_assert_int_eq(weights_read(&f, 1, &model), 0);
	want = masters(&nbytes);
	clear_masters();
	write_edited(f, "model.safetensors", e);
	st_close(f);
	if (says) {
		ck_assert_int_eq(weights_read_folder(dir, NULL, &model), STATUS_BAD);
		ck_assert_msg(strstr(said, says) != NULL, "%s", said);
	} else {
		ck_assert_msg(!weights_read_folder(dir, NULL, &model), "%s", said);
		got = masters(&nbytes);
		ck_assert_mem_eq(got, want, nbytes);
		free(got);
	}
	free(want);
}

CASE(others, "host", .setup = setup_ctx, .teardown = teardown);

TEST_EACH(others, reads_or_names_what_others_write, TT_LEN(others))
{
	read_edited(others[_i].family, &others[_i].edit, others[_i].says);
}

/* in a file that a run begins with; the loss need not depend on it */
TEST(others, warns_of_what_is_not_finite)
{
	static const struct edit edit = {
		.drop = "model.norm.weight",
		.add = { { "model.norm.weight", "F32", 1, { 16 }, 64, NULL, 0, 0xff } },
	};
	struct st_file *f;

	build("llama");
	ck_assert_int_eq(st_open(golden("hf_llama.safetensors"), &f), 0);
	write_edited(f, "model.safetensors", &edit);
	st_close(f);
	*said = '\0';
	ck_assert_int_eq(weights_read_folder(dir, NULL, &model), 0);
	ck_assert_msg(strstr(said, "element 0 of tensor \"model.norm.weight\" is") != NULL, "%s",
		      said);
	ck_assert(strstr(said, "nan") != NULL);
}

static void touch(const char *name)
{
	FILE *f = fopen(in(name), "w");

	ck_assert_ptr_nonnull(f);
	fclose(f);
}

TEST(files, an_index_need_not_name_buffers)
{
	static const struct edit buffer = {
		.add = { { "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 1,
			   { 4 }, 16, NULL, 0, 0 } }
	}, other = {
		.add = { { "model.layers.0.mlp.scale", "F32", 1, { 4 }, 16, NULL, 0, 0 } }
	};
	struct st_file *f = write_shards(), *b;

	ck_assert_int_eq(st_open(in("b.safetensors"), &b), 0);
	write_index(f, NULL, NULL, "c.safetensors");
	write_edited(b, "c.safetensors", &buffer);
	ck_assert_int_eq(weights_read_folder(dir, NULL, &model), 0);
	write_edited(b, "c.safetensors", &other);
	ck_assert_int_eq(weights_read_folder(dir, NULL, &model), STATUS_BAD);
	ck_assert_ptr_nonnull(strstr(said, "\"model.layers.0.mlp.scale\""));
	/* nor has a file to have a buffer that it names */
	write_index(f, NULL, "model.layers.0.self_attn.rotary_emb.inv_freq", "b.safetensors");
	ck_assert_msg(!weights_read_folder(dir, NULL, &model), "%s", said);
	st_close(b);
	st_close(f);
}

TEST(files, numbered_shards_need_no_index)
{
	static const struct edit same = { 0 };
	struct st_file *f;

	ck_assert_int_eq(st_open(golden("hf_llama.safetensors"), &f), 0);
	write_part(f, "model-00001-of-00002.safetensors", 0);
	ck_assert_int_eq(weights_read_folder(dir, NULL, &model), STATUS_BAD);
	ck_assert_ptr_nonnull(strstr(said, "model-00002-of-00002.safetensors"));
	write_part(f, "model-00002-of-00002.safetensors", 1);
	ck_assert_int_eq(weights_read_folder(dir, NULL, &model), 0);
	/* those of another model: which are meant? */
	write_edited(f, "model-00001-of-00001.safetensors", &same);
	ck_assert_int_eq(weights_read_folder(dir, NULL, &model), STATUS_BAD);
	ck_assert_ptr_nonnull(strstr(said, "shards of two models"));
	unlink(in("model-00001-of-00002.safetensors"));
	unlink(in("model-00002-of-00002.safetensors"));
	ck_assert_int_eq(weights_read_folder(dir, NULL, &model), 0);
	st_close(f);
}

/* a folder with none of the files that are read, and the word that the message has */
static const struct {
	const char *file, *says;
} not_read[] = {
	{ "config.json", "no other file of weights" },
	{ "pytorch_model.bin", "pytorch_model.bin: convert it to safetensors" },
	{ "pytorch_model-00001-of-00002.bin", "of-00002.bin: convert it to safetensors" },
	{ "adapter_model.safetensors", "adapter" },
	{ "consolidated.safetensors", "rename it" },
	{ "model-00001-of-00002.bin", "convert it" },
	{ "model.Q4_K_M.gguf", "give that file" },
	{ "tf_model.h5", "convert it" },
};

TEST_EACH(files, names_weights_in_another_form, TT_LEN(not_read))
{
	touch("tokenizer.json");
	touch(not_read[_i].file);
	ck_assert_int_eq(weights_read_folder(dir, NULL, &model), STATUS_BAD);
	ck_assert_msg(strstr(said, not_read[_i].says) != NULL, "%s", said);
}

TEST(files, a_folder_is_no_file_of_weights)
{
	ck_assert_int_eq(mkdir(in("model.safetensors"), 0700), 0);
	ck_assert_int_eq(weights_read_folder(dir, NULL, &model), STATUS_BAD);
	ck_assert_msg(strstr(said, "model.safetensors: not a file") != NULL, "%s", said);
}

TT_MAIN("tools/weights", TT_NEED_NOTHING)
