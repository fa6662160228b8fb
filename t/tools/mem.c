/* t/tools/mem.c - te_train's estimate of its memory against what a run allocates. */
#include "config.h"

#include <getopt.h>
#include <unistd.h>

#include "tools/lib/say.h"
#include "tools/te_train/loop.h"
#include "tools/te_train/mem.h"
#include "tools/te_train/mix.h"
#include "tt.h"

static char path[64], config[64], questions[64];

static void write_file(char *name, const char *text, int times)
{
	int fd;

	snprintf(name, sizeof(path), "%s/te-mem.XXXXXX", tt_tmpdir());
	fd = mkstemp(name);
	ck_assert_int_ge(fd, 0);
	for (int i = 0; i < times; i++)
		ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static void setup(void)
{
	write_file(path, "some text to train on, over and over. ", 500);
	write_file(config,
		   "{\"model_type\":\"gpt2\",\"vocab_size\":256,\"n_positions\":64,\"n_embd\":64,"
		   "\"n_layer\":3,\"n_head\":2,\"resid_pdrop\":0.1}",
		   1);
	write_file(questions,
		   "{\"ctx\": \"some\", \"endings\": [\"text\", \"other words\"], \"label\": 0}\n",
		   3);
}

static void teardown(void)
{
	unlink(path);
	unlink(config);
	unlink(questions);
}

/* options, and how much larger than the memory used the estimate may be: each part has a set of
 * copies with a table of its own, whose size is rounded up */
static const struct {
	const char *args;
	int64_t more;
} runs[] = {
	{ "--recipe fp32", 0 },
	{ "--recipe bf16", 0 },
	{ "--recipe bf16 --batch 3 --seq-len 32 --accum 2", 0 },
	{ "--recipe fp8-delayed", 0 },
	{ "--recipe fp8-current", 0 },
	{ "--recipe fp8-block", 0 },
	{ "--recipe bf16 --freeze embed,h.1.*", 0 },
	{ "--recipe fp8-delayed --freeze h.[02].*.weight --graph step --accum 2", 0 },
	{ "--recipe bf16 --graph step", 0 },
	{ "--recipe fp8-delayed --graph step --accum 2", 0 },
	{ "--recipe fp8-delayed --graph layer", 4096 },
	{ "--graph step --accum 4 --chunks 2 --pipeline-schedule 1f1b", 4096 },
	{ "--recipe bf16 --offload all", 0 },
	{ "--recipe fp8-delayed --offload 300k --accum 2", 0 },
	{ "--recipe fp8-block --graph step --offload all", 0 },
	{ "--graph layer --offload all", 4096 },
	{ "--graph step --accum 4 --chunks 2 --pipeline-schedule zero-bubble", 4096 },
	{ "--recipe bf16 --graph pass --accum 3", 0 },
	{ "--recipe bf16 --recompute block --loss-chunk 32 --graph step", 0 },
	{ "--recipe fp8-delayed --recompute norm,act,attention", 0 },
	{ "--recipe fp8-current --column-copies recompute --recompute block --accum 2", 0 },
	{ "--recipe bf16 --masters bf16 --moments fp8 --gradients bf16", 0 },
	{ "--recipe fp8-current --masters bf16-remainder --moments bf16 --graph step", 0 },
	{ "--recipe bf16 --states host --masters bf16-remainder", 0 },
	{ "--recipe fp8-current --states masters --masters bf16 --graph step --accum 2", 0 },
	{ "--recipe fp8-current --states all --masters bf16 --moments fp8 --gradients bf16 "
	  "--column-copies recompute --recompute block --loss-chunk 32 --graph pass --accum 3", 0 },
	{ "--recipe bf16 --states all --masters bf16 --offload all", 0 },
	{ "--recipe fp32 --eval-choices", 0 },
	{ "--recipe bf16 --eval-choices", 0 },
	/* the head's copy is counted twice */
	{ "--recipe fp8-delayed --eval-choices", 256 * 64 * 2 + 6144 },
};

/* a run with these arguments, which is created and not opened */
static void create(const char *args, const char *more, struct opts *o, struct trainer *t)
{
	char text[512], *argv[48], *save = NULL;
	int argc = 0, done;

	snprintf(text, sizeof(text), "te_train --backend host --model %s %s %s %s", config, args,
		 more, path);
	for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save))
		argv[argc++] = w;
	argv[argc] = NULL;
	optind = 1;
	ck_assert_int_eq(opts_parse(o, argc, argv, &done), 0);
	ck_assert_int_eq(trainer_create(o, t), 0);
}

CASE(estimate, "host serial", .setup = setup, .teardown = teardown);

TEST_EACH(estimate, is_what_a_run_takes, TT_LEN(runs))
{
	struct te_mem_info mi = TE_MEM_INFO_INIT;
	struct trainer t;
	struct mem_run run;
	struct opts o;
	struct mem m;

	create(runs[_i].args, strstr(runs[_i].args, "choices") ? questions : "", &o, &t);
	ck_assert_int_eq(trainer_open(&t), 0);
	run = (struct mem_run){ &o, &t.now.model, &t.now.graph, 1, NULL, &t.choices };
	ck_assert_int_eq(te_step_calibrate(t.now.graph.step, 0, t.stream), 0);
	ck_assert_int_eq(te_ctx_mem_info(t.ctx, &mi), 0);
	ck_assert_int_eq(mem_estimate(&run, t.B, &m), 0);
	ck_assert_msg((int64_t)m.total >= (int64_t)mi.peak_nbytes &&
			      (int64_t)m.total <= (int64_t)mi.peak_nbytes + runs[_i].more,
		      "%s: estimated %lld bytes, used %lld", runs[_i].args, (long long)m.total,
		      (long long)mi.peak_nbytes);
	/* and running takes no more */
	if (!opts_masters(&o, "host"))
		ck_assert_uint_eq(m.weights, te_tensor_nbytes(te_seq_masters(t.now.model.seq)));
	trainer_free(&t);
	opts_free(&o);
}

static const char *const masters[] = { "fp32", "bf16", "bf16-remainder" };

/* several ranks: the gradients are in a communicator's pool */
TEST_EACH(estimate, counts_gradients_that_ranks_bind, TT_LEN(masters))
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct mem own, bound;
	struct mem_run run;
	struct trainer t;
	struct opts o;
	char args[64];
	size_t nbytes;

	snprintf(args, sizeof(args), "--masters %s", masters[_i]);
	create(args, "", &o, &t);
	ck_assert_int_eq(trainer_plan(&t), 0);
	run = (struct mem_run){ &o, &t.now.model, &t.now.graph, 1, NULL, &t.choices };
	ck_assert_int_eq(mem_estimate(&run, t.B, &own), 0);
	nbytes = (size_t)te_seq_grad_nelems(t.now.model.seq) * sizeof(float);
	b.flags = opts_masters(&o, "host");
	b.grads = aligned_alloc(256, (nbytes + 255) / 256 * 256);
	ck_assert_ptr_nonnull(b.grads);
	ck_assert_int_eq(te_seq_bind(t.now.model.seq, &b), 0);
	t.ranks.grads = b.grads;
	t.ranks.taken_nbytes = nbytes;
	ck_assert_int_eq(mem_estimate(&run, t.B, &bound), 0);
	ck_assert_uint_eq(bound.weights, own.weights);
	ck_assert_uint_eq(bound.total, own.total);
	t.ranks.grads = NULL;
	t.ranks.taken_nbytes = 0;
	trainer_free(&t);
	opts_free(&o);
	free(b.grads);
}

/* what a run moves depends on the rates, so it has those by which its bytes were predicted */
TEST(estimate, a_chosen_run_has_the_rates_of_the_choice)
{
	struct te_mem_info mi = TE_MEM_INFO_INIT;
	struct trainer t;
	struct mem_run run;
	struct opts o;
	struct mem m;

	create("--recompute off --loss-chunk 0 --states device --memory 1G --json", "", &o, &t);
	ck_assert_int_eq(trainer_plan(&t), 0);
	run = (struct mem_run){ &o, &t.now.model, &t.now.graph, 1, NULL, &t.choices };
	ck_assert_int_eq(mem_estimate(&run, t.B, &m), 0);
	trainer_close(&t);
	o.memory = (double)(m.total - m.pool / 8);
	ck_assert_int_eq(mix_choose(&o, &t), 0);
	ck_assert_str_eq(o.offload, "auto");
	ck_assert_ptr_nonnull(t.offload);
	ck_assert_int_eq(trainer_open(&t), 0);
	ck_assert_ptr_eq(t.now.graph.offload, t.offload);
	ck_assert_int_eq(te_ctx_mem_info(t.ctx, &mi), 0);
	ck_assert_uint_eq(t.predicted_nbytes, mi.peak_nbytes);
	trainer_free(&t);
	opts_free(&o);
}

TEST(estimate, a_mix_replaces_another_one_for_more_than_predictions_are_off)
{
	ck_assert_int_eq(mix_replaces(97.6, 0, 100, 0), 0);
	ck_assert_int_eq(mix_replaces(97.4, 0, 100, 0), 1);
	ck_assert_int_eq(mix_replaces(97.4, 1, 100, 0), 1);
	ck_assert_int_eq(mix_replaces(101, 0, 100, 0), 0);
	/* without copies it may take longer */
	ck_assert_int_eq(mix_replaces(101.9, 0, 100, 1), 1);
	ck_assert_int_eq(mix_replaces(102.1, 0, 100, 1), 0);
	ck_assert_int_eq(mix_replaces(101.9, 1, 100, 1), 0);
}

TT_MAIN("tools/mem", TT_NEED_NOTHING)
