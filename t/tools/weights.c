/* t/tools/weights.c - te_train reads weights from one file, or from those that an index lists. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/te_train/record.h"
#include "tools/te_train/say.h"
#include "tools/te_train/weights.h"
#include "tt.h"

static char dir[64];
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

static void setup(void)
{
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;

	strcpy(dir, "/tmp/te-weights.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	co.backend = "host";
	ck_assert_int_eq(te_ctx_create(&co, &ctx), 0);
	ck_assert_int_eq(config_read(golden("hf_llama.json"), &cfg), 0);
	ck_assert_int_eq(model_create(ctx, &cfg, 1, &model), 0);
	say_hush(1);
}

static void teardown(void)
{
	say_hush(0);
	model_free(&model);
	config_free(&cfg);
	te_ctx_unref(ctx);
	unlink(in("a.safetensors"));
	unlink(in("b.safetensors"));
	unlink(in("model.safetensors"));
	unlink(in("model.safetensors.index.json"));
	rmdir(dir);
}

/* tensors of the golden file: part 0 or 1 of them, into dir/name */
static void write_part(const struct st_file *f, const char *file, int part)
{
	char digest[17], fresh[300];
	struct st_writer *w;
	struct st_tensor t;

	ck_assert_int_eq(st_create(in(file), &w), 0);
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

/* frozen weights have other places in the flat buffers, and are in the file as the others are */
START_TEST(frozen_weights_are_saved)
{
	struct st_file *f;
	struct model m;
	char fresh[300], digest[17];

	ck_assert_int_eq(model_build(ctx, &cfg, &m), 0);
	ck_assert_int_gt(te_seq_freeze(m.seq, "*.qkv.weight", 1), 0);
	ck_assert_int_gt(te_seq_freeze(m.seq, "embed", 1), 0);
	ck_assert_int_eq(model_init(&m, 77), 0);
	ck_assert_int_eq(weights_write(in("a.safetensors"), &m, NULL, digest), 0);
	snprintf(fresh, sizeof(fresh), "%s.new", in("a.safetensors"));
	ck_assert_int_eq(rename(fresh, in("a.safetensors")), 0);
	ck_assert_int_eq(st_open(in("a.safetensors"), &f), 0);
	ck_assert_int_eq(weights_read(f, &model), 0);
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
END_TEST

START_TEST(shards_are_one_file)
{
	struct st_file *f = write_shards();
	struct te_tensor *all = te_seq_masters(model.seq);
	size_t nbytes;
	float *one, *two, *zeros;

	ck_assert_int_eq(weights_read(f, &model), 0);
	one = masters(&nbytes);
	zeros = calloc(1, nbytes);
	ck_assert_int_eq(te_tensor_write(all, zeros, nbytes), 0);
	free(zeros);
	write_index(f, NULL, NULL, "b.safetensors");
	ck_assert_int_eq(weights_read_folder(dir, &model), 0);
	two = masters(&nbytes);
	ck_assert_mem_eq(one, two, nbytes);
	free(one);
	free(two);
	st_close(f);
}
END_TEST

START_TEST(refuses_wrong_indexes)
{
	struct st_file *f = write_shards();

	write_index(f, "model.norm.weight", NULL, "b.safetensors"); /* not in the index */
	ck_assert_int_eq(weights_read_folder(dir, &model), STATUS_BAD);
	write_index(f, NULL, "model.more.weight", "b.safetensors"); /* in no file */
	ck_assert_int_eq(weights_read_folder(dir, &model), STATUS_BAD);
	write_index(f, NULL, NULL, "c.safetensors"); /* not there */
	ck_assert_int_eq(weights_read_folder(dir, &model), STATUS_BAD);
	write_index(f, NULL, NULL, "../b.safetensors"); /* in another folder */
	ck_assert_int_eq(weights_read_folder(dir, &model), STATUS_BAD);
	write_index(f, NULL, NULL, "a.safetensors"); /* not in that file */
	ck_assert_int_eq(weights_read_folder(dir, &model), STATUS_BAD);
	st_close(f);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("tools/weights");
	TCase *c = tt_case(s, "files", "host");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, frozen_weights_are_saved);
	tcase_add_test(c, shards_are_one_file);
	tcase_add_test(c, refuses_wrong_indexes);
	return s;
}

TT_MAIN("tools/weights", TT_NEED_NOTHING, suite)
