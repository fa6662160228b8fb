/* t/tools/freeze.c - te_train --freeze: which weights a run changes, and what it counts. */
#include "config.h"

#include <fnmatch.h>
#include <getopt.h>
#include <unistd.h>

#include "tools/lib/say.h"
#include "tools/te_train/loop.h"
#include "tt.h"

static char path[64];

static void setup(void)
{
	int fd;

	snprintf(path, sizeof(path), "%s/te-freeze.XXXXXX", tt_tmpdir());
	fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	for (int i = 0; i < 500; i++)
		ck_assert_int_eq(write(fd, "some text to train on. ", 23), 23);
	close(fd);
}

static void teardown(void)
{
	unlink(path);
}

/* the elements of weight i, for free(3) */
static void *weight_read(const struct trainer *t, int i, struct te_weight_info *ret_w)
{
	void *p;

	ck_assert_int_eq(te_seq_weight(t->now.model.seq, i, ret_w), 0);
	p = malloc(te_tensor_nbytes(ret_w->master));
	ck_assert_ptr_nonnull(p);
	ck_assert_int_eq(te_tensor_read(ret_w->master, p, te_tensor_nbytes(ret_w->master)), 0);
	return p;
}

/* options, and the weights that do not change */
static const struct {
	const char *args, *frozen[3];
} runs[] = {
	{ "--recipe fp32", { NULL } },
	{ "--recipe fp32 --freeze h.?.qkv", { "h.?.qkv.weight" } },
	{ "--recipe bf16 --freeze embed,h.[02].*", { "embed.weight", "h.[02].*" } },
	{ "--recipe fp8-delayed --freeze *.norm1.weight,*down,h.3* --accum 2 --graph step",
	  { "*.norm1.weight", "*.down.weight", "h.3*" } },
};

CASE(freeze, "host serial", .setup = setup, .teardown = teardown);

TEST_EACH(freeze, frozen_weights_do_not_change, TT_LEN(runs))
{
	char text[512], *argv[32], *save = NULL;
	int argc = 0, done, n;
	struct trainer t;
	int64_t trained = 0;
	struct opts o;
	void **before;

	snprintf(text, sizeof(text),
		 "te_train --backend host --preset tiny --batch 2 --seq-len 16 --warmup 1 "
		 "--eval-batches 1 --steps 3 %s %s", runs[_i].args, path);
	for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save))
		argv[argc++] = w;
	argv[argc] = NULL;
	optind = 1;
	ck_assert_int_eq(opts_parse(&o, argc, argv, &done), 0);
	ck_assert_int_eq(trainer_create(&o, &t), 0);
	ck_assert_int_eq(trainer_open(&t), 0);
	n = te_seq_nweights(t.now.model.seq);
	before = calloc((size_t)n, sizeof(*before));
	ck_assert_ptr_nonnull(before);
	for (int i = 0; i < n; i++) {
		struct te_weight_info w = TE_WEIGHT_INFO_INIT;

		before[i] = weight_read(&t, i, &w);
	}
	ck_assert_int_eq(trainer_run(&t), 0);
	for (int i = 0; i < n; i++) {
		struct te_weight_info w = TE_WEIGHT_INFO_INIT;
		void *after = weight_read(&t, i, &w);
		int same = !memcmp(before[i], after, te_tensor_nbytes(w.master)), frozen = 0;

		for (int k = 0; k < 3 && runs[_i].frozen[k]; k++)
			frozen |= !fnmatch(runs[_i].frozen[k], w.name, 0);
		trained += frozen ? 0 : te_tensor_nelems(w.master);
		ck_assert_msg(same == frozen, "%s: %s %s", runs[_i].args, w.name,
			      same ? "did not change" : "changed");
		free(before[i]);
		free(after);
	}
	/* the preset's vocabulary has no padding */
	ck_assert_int_eq(t.now.model.ntrained, trained);
	free(before);
	trainer_free(&t);
	opts_free(&o);
}

TT_MAIN("tools/freeze", TT_NEED_NOTHING)
