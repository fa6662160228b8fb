/*
 * t/tools/lora.c - low-rank adapters: a model with an adapter, its files in PEFT's format, and the
 * model into which it is merged compute the same; what is not implemented is refused by name.
 */
#include "config.h"

#include <ftw.h>
#include <math.h>
#include <unistd.h>

#include <te/errno.h>
#include <te/plan.h>

#include "tools/lib/lora.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"
#include "tools/lib/weights.h"
#include "tt.h"

enum { T = 8 };

static char dir[64], said[512];
static struct folder folder;
static struct te_ctx *ctx;

static void keep_line(const char *line)
{
	snprintf(said, sizeof(said), "%s", line);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path);
}

static void setup(void)
{
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;

	snprintf(dir, sizeof(dir), "%s/te-lora.XXXXXX", tt_tmpdir());
	ck_assert_ptr_nonnull(mkdtemp(dir));
	ck_assert_int_eq(folder_open(dir, &folder), 0);
	co.backend = "host";
	ck_assert_int_eq(te_ctx_create(&co, &ctx), 0);
	say_by(keep_line);
}

static void teardown(void)
{
	say_by(NULL);
	te_ctx_unref(ctx);
	folder_close(&folder);
	nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* families whose files have other rows, columns and joined projections than the sequence */
static const char *const families[] = {
	"hf_llama", "hf_gpt2", "hf_qwen2", "fam_phi3", "fam_neox", "fam_falcon", "fam_stablelm",
	"fam_gemma2", "fam_olmo2", "fam_linear",
};

/* the family's model, read from its golden file; its config is the model's own */
static void build(const char *family, const char *lora, const char *adapter, struct model *m)
{
	struct config cfg = { 0 };
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	char path[4096];

	snprintf(path, sizeof(path), "%s/t/data/%s.json", getenv("abs_top_srcdir"), family);
	ck_assert_msg(!config_read(path, &cfg), "%s", said);
	cfg.drop_embd = cfg.drop_resid = cfg.drop_attn = 0;
	if (lora)
		ck_assert_msg(!lora_parse(lora, &cfg.lora), "%s", said);
	cfg.lora.base = "the base";
	ck_assert_msg(!model_build(ctx, &cfg, m), "%s", said);
	config_free(&cfg);
	b.flags = TE_SEQ_NO_DRAW;
	ck_assert_int_eq(te_seq_bind(m->seq, &b), 0);
	ck_assert_int_eq(model_init(m, 3), 0);
	snprintf(path, sizeof(path), "%s/model.safetensors", dir);
	if (access(path, F_OK)) {
		char golden[4096];

		snprintf(golden, sizeof(golden), "%s/t/data/%s.safetensors",
			 getenv("abs_top_srcdir"), family);
		ck_assert_int_eq(symlink(golden, path), 0);
	}
	ck_assert_msg(!weights_read_folder(dir, adapter, m), "%s", said);
}

static struct te_weight_info find(const struct model *m, const char *name)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;

	for (int i = 0; i < te_seq_nweights(m->seq); i++)
		if (!te_seq_weight(m->seq, i, &w) && !strcmp(w.name, name))
			return w;
	w.name = NULL;
	return w;
}

static float *values(const struct model *m, const char *name)
{
	const struct te_weight_info w = find(m, name);
	float *x;

	if (!w.name)
		return NULL;
	x = malloc((size_t)te_tensor_nelems(w.master) * sizeof(*x));
	ck_assert_ptr_nonnull(x);
	ck_assert_int_eq(te_tensor_read(w.master, x, te_tensor_nbytes(w.master)), 0);
	return x;
}

/* B of all adapters, random */
static void set_b(struct model *m)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;

	for (int i = 0; i < te_seq_nweights(m->seq); i++) {
		ck_assert_int_eq(te_seq_weight(m->seq, i, &w), 0);
		if (!strstr(w.name, ".lora_B."))
			continue;
		for (int64_t k = 0; k < te_tensor_nelems(w.master); k++) {
			const float x = tt_rand_float(-0.5f, 0.5f);

			ck_assert_int_eq(te_seq_masters_set(m->seq, w.offset_nelems + k, 1, &x), 0);
		}
	}
}

/* loss of random tokens, equal for all models of a family; and with backward, gradients */
static float loss_of(struct model *m, int backward)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe r = TE_RECIPE_INIT;
	struct te_stream *st = te_ctx_stream(ctx);
	struct te_plan *p;
	int32_t token[2][T];
	float loss;

	for (int i = 0; i < T; i++) {
		token[0][i] = (int32_t)(5 * i + 1) % (int32_t)m->cfg.vocab;
		token[1][i] = (int32_t)(3 * i + 2) % (int32_t)m->cfg.vocab;
	}
	ck_assert_int_eq(te_recipe_from_name("fp32", &r), 0);
	o.recipe = &r;
	o.flags = backward ? TE_PLAN_TRAIN : 0;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 1, T } };
	ck_assert_msg(!te_plan_create(m->seq, &o, &p), "%s", te_error_detail());
	ck_assert_int_eq(te_tensor_write(te_plan_input(p, "x"), token[0], sizeof(token[0])), 0);
	ck_assert_int_eq(te_tensor_write(te_plan_input(p, MODEL_TARGETS), token[1],
					 sizeof(token[1])), 0);
	ck_assert_int_eq(te_plan_forward(p, st, 0), 0);
	if (backward)
		ck_assert_int_eq(te_plan_backward(p, st), 0);
	ck_assert_int_eq(te_stream_sync(st), 0);
	ck_assert_int_eq(te_tensor_read(te_plan_output(p), &loss, sizeof(loss)), 0);
	te_plan_unref(p);
	return loss;
}

static void save_adapter(const struct model *m)
{
	json_t *obj = weights_adapter(m);
	char digest[17], from[128], to[128];

	ck_assert_ptr_nonnull(obj);
	snprintf(to, sizeof(to), "%s/" ADAPTER_JSON, dir);
	ck_assert_int_eq(json_dump_file(obj, to, 0), 0);
	json_decref(obj);
	ck_assert_int_eq(weights_write(&folder, weights_file(m), m, NULL, digest), 0);
	snprintf(from, sizeof(from), "%s/" ADAPTER_ST ".new", dir);
	snprintf(to, sizeof(to), "%s/" ADAPTER_ST, dir);
	ck_assert_int_eq(rename(from, to), 0);
}

/* W + alpha / rank B A of a projection, in double; has: it has an adapter */
static void check_merged(const struct model *base, const struct model *m,
			 const struct model *merged, const char *op, int has)
{
	const struct lora *l = &m->cfg.lora;
	char name[64];
	float *w, *got, *a, *b;
	int64_t rows, cols;

	snprintf(name, sizeof(name), "%s.weight", op);
	rows = te_tensor_extent(find(base, name).master, 0);
	cols = te_tensor_extent(find(base, name).master, 1);
	w = values(base, name);
	got = values(merged, name);
	snprintf(name, sizeof(name), "%s.lora_A.weight", op);
	a = values(m, name);
	snprintf(name, sizeof(name), "%s.lora_B.weight", op);
	b = values(m, name);
	ck_assert_int_eq(a != NULL, has);
	ck_assert_int_eq(b != NULL, has);
	for (int64_t i = 0; i < rows; i++) {
		for (int64_t j = 0; j < cols; j++) {
			const double base_x = w[i * cols + j];
			double sum = 0, most = fabs(base_x);

			for (int64_t k = 0; has && k < l->rank; k++) {
				const double x = l->alpha / (double)l->rank *
						 b[i * l->rank + k] * a[k * cols + j];

				sum += x;
				most += fabs(x);
			}
			/* FP32: a rounding for the factor, each product and each sum */
			ck_assert_double_le(fabs(got[i * cols + j] - (base_x + sum)),
					    most * (double)(l->rank + 3) * 0x1p-24);
			if (has)
				ck_assert(base_x + sum != base_x);
		}
	}
	free(w);
	free(got);
	free(a);
	free(b);
}

CASE(lora, "host serial", .setup = setup, .teardown = teardown);

TEST_EACH(lora, merged_adapters_compute_the_same, 2 * (int)TT_LEN(families))
{
	static const char *const specs[] = { "rank=3,alpha=5", "rank=2,targets=h.0.*,h.1.down" };
	static const char *const ops[] = { "qkv", "proj", "up", "down" };
	const char *family = families[_i / 2], *spec = specs[_i % 2];
	struct model base, m, merged, loaded;
	struct st_file *f;
	char path[128], op[32];
	float want;

	build(family, NULL, NULL, &base);
	build(family, spec, NULL, &m);
	/* B is 0, and A is not */
	ck_assert_float_eq(loss_of(&base, 0), loss_of(&m, 0));
	set_b(&m);
	want = loss_of(&m, 0);
	ck_assert_float_ne(want, loss_of(&base, 0));
	save_adapter(&m);
	build(family, NULL, dir, &merged);
	for (int64_t i = 0; i < base.cfg.layers; i++) {
		for (size_t k = 0; k < TT_LEN(ops); k++) {
			snprintf(op, sizeof(op), "h.%d.%s", (int)i, ops[k]);
			check_merged(&base, &m, &merged, op, lora_adapts(&m.cfg.lora, op));
		}
	}
	ck_assert_float_le(fabsf(loss_of(&merged, 0) - want), 2e-5f * want);
	/* an adapter that is trained on */
	build(family, spec, NULL, &loaded);
	snprintf(path, sizeof(path), "%s/" ADAPTER_ST, dir);
	ck_assert_int_eq(st_open(path, &f), 0);
	ck_assert_msg(!weights_read(&f, 1, &loaded), "%s", said);
	st_close(f);
	ck_assert_float_eq(loss_of(&loaded, 0), want);
	model_free(&base);
	model_free(&m);
	model_free(&merged);
	model_free(&loaded);
}

/* gradients and moments are those of A and B; differences of the loss agree with gradients */
TEST_EACH(lora, only_adapters_are_trained, TT_LEN(families))
{
	struct model m;
	int64_t n = 0, params = 0;
	const float h = 1.0f / 256;

	build(families[_i], "rank=3,alpha=5", NULL, &m);
	set_b(&m);
	ck_assert_int_eq(te_seq_zero_grads(m.seq, te_ctx_stream(ctx)), 0);
	loss_of(&m, 1);
	for (int i = 0; i < te_seq_nweights(m.seq); i++) {
		struct te_weight_info w = TE_WEIGHT_INFO_INIT;
		const int64_t k = 1;
		float x, y, g, loss[2];

		ck_assert_int_eq(te_seq_weight(m.seq, i, &w), 0);
		ck_assert_int_eq(w.grad != NULL, strstr(w.name, ".lora_") != NULL);
		if (!w.grad)
			continue;
		params += te_tensor_nelems(w.master);
		n += (te_tensor_nelems(w.master) + 63) / 64 * 64;
		ck_assert_int_eq(te_ctx_sync(ctx), 0);
		g = ((const float *)te_tensor_data(w.grad))[k];
		ck_assert_int_eq(te_seq_masters_get(m.seq, w.offset_nelems + k, 1, &x), 0);
		for (int side = 0; side < 2; side++) {
			y = side ? x + h : x - h;
			ck_assert_int_eq(te_seq_masters_set(m.seq, w.offset_nelems + k, 1, &y), 0);
			loss[side] = loss_of(&m, 0);
		}
		ck_assert_int_eq(te_seq_masters_set(m.seq, w.offset_nelems + k, 1, &x), 0);
		ck_assert_msg(fabsf((loss[1] - loss[0]) / (2 * h) - g) <=
			      2e-3f + 0.02f * fabsf(g), "%s: %g, not %g", w.name,
			      (double)((loss[1] - loss[0]) / (2 * h)), (double)g);
	}
	ck_assert_int_eq(te_seq_grad_nelems(m.seq), n);
	ck_assert_int_eq(m.ntrained, params);
	model_free(&m);
}

static const struct {
	const char *spec, *message;
} bad_specs[] = {
	{ "", "expected rank=R" },
	{ "alpha=3", "expected rank=R" },
	{ "rank=0", "from 1 to 4096" },
	{ "rank=1.5", "a whole number" },
	{ "rank=4x", "from 1 to 4096" },
	{ "rank=4,dropout=1", "from 0 to 0.999" },
	{ "rank=4,alpha=nan", "from 1e-06 to 1e+06" },
	{ "rank=4,rate=1", "\"rate=1\": expected rank=R, alpha=A" },
	{ "rank=4,targets=", "\"targets=\": expected rank=R" },
};

TEST_EACH(lora, bad_options_are_refused, TT_LEN(bad_specs))
{
	struct lora l;

	ck_assert_int_eq(lora_parse(bad_specs[_i].spec, &l), STATUS_BAD);
	ck_assert_msg(strstr(said, bad_specs[_i].message) != NULL, "%s", said);
}

/* what an adapter_config.json of PEFT may have beyond what is implemented */
static const struct {
	const char *field, *value, *message;
} bad_fields[] = {
	{ "peft_type", "\"LOHA\"", "\"peft_type\" \"LOHA\" is not implemented" },
	{ "use_dora", "true", "\"use_dora\" is not implemented" },
	{ "bias", "\"all\"", "adapters with biases" },
	{ "bias", "1", "adapters with biases" },
	{ "modules_to_save", "[\"lm_head\"]", "\"modules_to_save\" is not implemented" },
	{ "rank_pattern", "{\"q_proj\": 8}", "\"rank_pattern\" is not implemented" },
	{ "r", "0", "\"r\" is not a whole number" },
	{ "r", "4", "adapter_config.json makes it [4," },
	{ "lora_alpha", "\"x\"", "\"lora_alpha\" is not a number" },
	{ "lora_alpha", "null", "\"lora_alpha\" is not a number" },
};

TEST_EACH(lora, other_adapters_are_refused, TT_LEN(bad_fields))
{
	struct model m, base;
	char path[128];
	json_t *obj;

	build("hf_llama", "rank=3", NULL, &m);
	build("hf_llama", NULL, NULL, &base);
	save_adapter(&m);
	snprintf(path, sizeof(path), "%s/" ADAPTER_JSON, dir);
	ck_assert_int_eq(record_load(path, &obj), 0);
	json_object_set_new(obj, bad_fields[_i].field,
			    json_loads(bad_fields[_i].value, JSON_DECODE_ANY, NULL));
	ck_assert_int_eq(json_dump_file(obj, path, 0), 0);
	json_decref(obj);
	ck_assert_int_eq(weights_read_folder(dir, dir, &base), STATUS_BAD);
	ck_assert_msg(strstr(said, bad_fields[_i].message) != NULL, "%s", said);
	model_free(&m);
	model_free(&base);
}

/* a base of another family has other modules */
TEST(lora, tensors_without_a_weight_are_refused)
{
	struct model m, base;
	char path[128];

	build("hf_gpt2", "rank=3", NULL, &m);
	save_adapter(&m);
	snprintf(path, sizeof(path), "%s/model.safetensors", dir);
	ck_assert_int_eq(unlink(path), 0);
	build("hf_llama", NULL, NULL, &base);
	ck_assert_int_eq(weights_read_folder(dir, dir, &base), STATUS_BAD);
	ck_assert_msg(strstr(said, "that are not in the model") != NULL, "%s", said);
	ck_assert_int_eq(weights_read_folder(dir, "/nowhere", &base), STATUS_BAD);
	ck_assert_msg(strstr(said, "/nowhere/adapter_config.json") != NULL, "%s", said);
	model_free(&m);
	model_free(&base);
}

TT_MAIN("tools/lora", TT_NEED_NOTHING)
