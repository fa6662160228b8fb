/* t/comm/table.c - the file of TE_COMM_TABLE: its text, what it changes, and ranks that differ. */
#include "config.h"

#include <te/collective.h>
#include <te/ctx.h>
#include <te/param.h>

#include "libtecomm/collective/table.h"
#include "ranks.h"
#include "threads.h"

#define HEAD "te-comm-table 1\n"

static char path[300];

static void write_table(const char *name, const char *text)
{
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", ranks_dir(), name);
	f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	ck_assert_int_eq(fclose(f), 0);
}

/* ---- names ---- */

static void setup(void)
{
	ranks_mkdir();
}

CASE(text, "serial", .setup = setup, .teardown = ranks_rmdir);

TEST(text, algorithms_have_one_list_of_names)
{
	struct te_param_info p = TE_PARAM_INFO_INIT;
	char text[256] = "";
	const char *name;
	size_t n = 0;

	for (int i = 0; (name = te_comm_algorithm_name((enum te_comm_algorithm)i)); i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", i ? "|" : "", name);
	ck_assert_str_eq(text, TE_COMM_ALGORITHM_NAMES);
	for (size_t i = 0; !te_param_info(i, &p) && strcmp(p.name, "TE_COMM_ALGO"); i++)
		;
	ck_assert_str_eq(p.unit, TE_COMM_ALGORITHM_NAMES);
}

/* ---- text ---- */

static const struct {
	const char *text, *error; /* after the name of the file */
} bad[] = {
	{ "", ":1: the file is empty" },
	{ "te-comm-table 2\n", ":1: not \"te-comm-table 1\"" },
	{ "\n" HEAD, ":1: not \"te-comm-table 1\"" },
	{ HEAD "2 float any rest staged\n", ":2: too few words, expected 6: ranks, types, memory" },
	{ HEAD "\n2 float any rest staged 0 0\n", ":3: too many words" },
	{ HEAD "33 float any rest staged 0\n",
	  ":2: the number of ranks is \"33\", expected 2 to 32" },
	{ HEAD "1 float any rest staged 0\n", ":2: the number of ranks is \"1\"" },
	{ HEAD "2 fp32 any rest staged 0\n", ":2: the types is \"fp32\", expected float or any" },
	{ HEAD "2 any all rest staged 0\n", ":2: the memory is \"all\", expected symmetric or" },
	{ HEAD "2 any any 0 staged 0\n", ":2: the bytes is \"0\", expected 1 to 1024G, or rest" },
	{ HEAD "2 any any 1T staged 0\n", ":2: the bytes is \"1T\"" },
	{ HEAD "2 any any 1KK staged 0\n", ":2: the bytes is \"1KK\"" },
	{ HEAD "2 any any 1025G staged 0\n", ":2: the bytes is \"1025G\"" },
	{ HEAD "2 any any 99999999999999999999 staged 0\n", ":2: the bytes is" },
	{ HEAD "2 any any rest staged 129\n", ":2: the number of blocks is \"129\", expected 0" },
	{ HEAD "2 any any rest staged 1x\n", ":2: the number of blocks is \"1x\"" },
	{ HEAD "2 any any rest fast 0\n", ":2: the algorithm is \"fast\", expected ll or staged" },
	{ HEAD "2 any any rest oneshot 0\n", "is \"oneshot\", expected ll or staged" },
	{ HEAD "2 any symmetric rest twoshot 0\n", "expected ll, staged or zerocopy" },
	{ HEAD "2 float any rest zerocopy 0\n", "expected ll, oneshot, twoshot or staged" },
	{ HEAD "2 float symmetric rest nccl 0\n", "expected ll, oneshot, twoshot, staged or zero" },
	{ HEAD "2 float symmetric rest nvls 0\n", ":2: the algorithm is \"nvls\"" },
	{ HEAD "2 any any rest ll 0\n", ":2: the algorithm of the largest arrays is \"ll\"" },
	{ HEAD "2 any any 4K ll 0\n", ":2: the last rows do not end with one of \"rest\"" },
	{ HEAD "2 any any 4K ll 0\n2 any symmetric rest staged 0\n", ":3: the rows before do not" },
	{ HEAD "2 any any 4K ll 0\n2 any any 4096 ll 0\n", ":3: bytes do not ascend" },
	{ HEAD "2 any any rest staged 0\n3 any any rest staged 0\n2 any any 1 ll 0\n",
	  ":4: there are rows of 2 ranks, these types and this memory already" },
};

TEST_EACH(text, a_bad_file_is_refused_with_its_line, TT_LEN(bad))
{
	static struct te__table t;
	char want[400];

	write_table("bad", bad[_i].text);
	te_error_clear();
	ck_assert_int_eq(te__table_read(path, &t), -EINVAL);
	ck_assert_ptr_eq(strstr(te_error_detail(), "TE_COMM_TABLE: "), te_error_detail());
	snprintf(want, sizeof(want), "%s:", path);
	tt_said(want);
	tt_said(bad[_i].error);
}

TEST(text, a_long_line_many_rows_and_no_file_are_refused)
{
	static struct te__table t;
	static char text[40000];
	size_t n = (size_t)snprintf(text, sizeof(text), "%s#", HEAD);

	memset(text + n, 'x', 300);
	write_table("bad", text);
	ck_assert_int_eq(te__table_read(path, &t), -EINVAL);
	tt_said(":2: longer than 198 characters");
	n = (size_t)snprintf(text, sizeof(text), "%s", HEAD);
	for (int i = 1; i < 600; i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "2 any any %d ll 0\n", i);
	write_table("bad", text);
	te_error_clear();
	ck_assert_int_eq(te__table_read(path, &t), -EINVAL);
	tt_said(":514: more than 512 rows");
	te_error_clear();
	ck_assert_int_eq(te__table_read("/nonexistent/table", &t), -ENOENT);
	tt_said("TE_COMM_TABLE: /nonexistent/table: No such file");
}

static enum te_comm_algorithm chosen(const struct te__table *t, int32_t nranks, int floats,
				     int symmetric, int64_t nbytes)
{
	return te__table_find(t, 0, nranks, floats, symmetric, nbytes)->algorithm;
}

TEST(text, rows_replace_those_of_the_library)
{
	static struct te__table t;

	ck_assert_int_eq(chosen(&t, 2, 1, 0, INT64_MAX), TE_COMM_ONE_SHOT);
	ck_assert_int_eq(chosen(&t, 2, 1, 1, 32 << 20), TE_COMM_ONE_SHOT);
	ck_assert_int_eq(chosen(&t, 2, 1, 1, (32 << 20) + 1), TE_COMM_ZERO_COPY);
	ck_assert_int_eq(chosen(&t, 3, 1, 0, 384 << 10), TE_COMM_ONE_SHOT);
	ck_assert_int_eq(chosen(&t, 3, 1, 0, 385 << 10), TE_COMM_TWO_SHOT);
	ck_assert_int_eq(chosen(&t, 5, 1, 1, 129 << 10), TE_COMM_TWO_SHOT);
	ck_assert_int_eq(chosen(&t, 5, 1, 1, 33 << 20), TE_COMM_ZERO_COPY);
	ck_assert_int_eq(chosen(&t, 2, 0, 0, 64 << 10), TE_COMM_LL);
	ck_assert_int_eq(chosen(&t, 8, 0, 1, 65 << 10), TE_COMM_ZERO_COPY);
	/* rows of the host: each section, up to 4 KiB and above */
	for (int k = 0; k < 8; k++)
		ck_assert_int_eq(
			te__table_find(&t, 1, 2, k & 1, k >> 1 & 1, 4096 + (k >> 2))->algorithm,
			k >= 4 ? (k & 2 ? TE_COMM_ZERO_COPY : TE_COMM_STAGED) :
			k & 1  ? TE_COMM_ONE_SHOT :
				 TE_COMM_LL);
	write_table("good", HEAD "# c\n3 float any 1K ll 4\n3 float any 2K twoshot 0 # c\n"
				 "3\tfloat any rest staged 7\n8 any any rest staged 0");
	DO(te__table_read(path, &t));
	ck_assert_int_eq(t.nrows, 4);
	ck_assert_int_eq(chosen(&t, 3, 1, 0, 1024), TE_COMM_LL);
	ck_assert_int_eq(te__table_find(&t, 0, 3, 1, 0, 1)->max_blocks, 4);
	ck_assert_int_eq(chosen(&t, 3, 1, 0, 1025), TE_COMM_TWO_SHOT);
	ck_assert_int_eq(chosen(&t, 3, 1, 0, INT64_MAX), TE_COMM_STAGED);
	ck_assert_int_eq(te__table_find(&t, 0, 3, 1, 0, 2049)->max_blocks, 7);
	/* other ranks, memory and types have the library's */
	ck_assert_int_eq(chosen(&t, 4, 1, 0, 1024), TE_COMM_ONE_SHOT);
	ck_assert_int_eq(chosen(&t, 3, 1, 1, 1024), TE_COMM_ONE_SHOT);
	ck_assert_int_eq(chosen(&t, 3, 0, 0, 1024), TE_COMM_LL);
	ck_assert_int_eq(chosen(&t, 8, 0, 0, 1024), TE_COMM_STAGED);
}

/* ---- ranks ---- */

struct plan {
	char table[3][300]; /* of each rank; "": none */
};

static struct plan *plan;

static int use(struct te_ctx *ctx, struct te_comm *comm)
{
	struct te_comm_choice c = TE_COMM_CHOICE_INIT;
	struct te_stream *s = te_ctx_stream(ctx);
	float x[2000];
	void *p;

	STEP(te_mem_alloc(s, sizeof(x), &p));
	STEP(EXPLAIN(comm, &c, .in = p, .out = p, .count = 500, .dtype = TE_DTYPE_FP32));
	HOLDS(c.algorithm == TE_COMM_LL && strstr(c.reason, plan->table[te_comm_rank(comm)]));
	HOLDS(strstr(c.reason, "at most 2048 bytes among 3 ranks, floating types, any memory"));
	STEP(EXPLAIN(comm, &c, .in = p, .out = p, .count = 2000, .dtype = TE_DTYPE_FP32));
	HOLDS(c.algorithm == TE_COMM_STAGED && strstr(c.reason, "larger arrays among 3 ranks"));
	STEP(EXPLAIN(comm, &c, .in = p, .out = p, .count = 1000000, .dtype = TE_DTYPE_FP32));
	HOLDS(c.nblocks == 3);
	for (int i = 0; i < 2000; i++)
		x[i] = (float)(i + te_comm_rank(comm));
	STEP(te_copy(s, p, x, sizeof(x)));
	STEP(te_comm_allreduce(comm, s, p, p, 2000, TE_DTYPE_FP32, TE_COMM_SUM, NULL));
	STEP(te_copy(s, x, p, sizeof(x)));
	STEP(te_mem_free(s, p));
	STEP(te_stream_sync(s));
	STEP(te_comm_error(comm));
	for (int i = 0; i < 2000; i++)
		HOLDS(x[i] == (float)(3 * i + 3));
	return 0;
}

static int rank(int me, void *arg)
{
	struct te_ctx_opts c = TE_CTX_OPTS_INIT;
	struct te_comm_opts o = ranks_opts(me);
	struct te_comm *comm = NULL;
	struct te_ctx *ctx = NULL;
	char text[512];
	int r;

	if (plan->table[me][0])
		setenv("TE_COMM_TABLE", plan->table[me], 1);
	c.backend = "host";
	o.timeout_ms = 20000;
	STEP(te_ctx_create(&c, &ctx));
	r = te_comm_create(ctx, &o, &comm);
	if (!r)
		r = use(ctx, comm);
	snprintf(text, sizeof(text), "%s", te_error_detail());
	te_comm_unref(comm);
	te_ctx_unref(ctx);
	return r ? te_fail(r, "%s", text) : 0;
}

static void run(struct ranks_result *res)
{
	ranks_meet_run(MEET_ID, 3, rank, NULL, res);
}

CASE(ranks, "host", .setup = setup, .teardown = ranks_rmdir);

TEST(ranks, ranks_agree_on_the_rows)
{
	static const char text[] = HEAD "3 float any 2K ll 0\n3 float any rest staged 3\n";
	struct ranks_result res[RANKS_MAX];

	plan = ranks_shared(sizeof(*plan));
	write_table("a", text);
	for (int i = 0; i < 3; i++)
		strcpy(plan->table[i], path);
	/* files may differ in what is no row */
	write_table("b", HEAD "# b\n3 float any 2048 ll 0\n3 float any rest staged 3");
	strcpy(plan->table[2], path);
	run(res);
	ranks_ok(3, res);
	write_table("c", HEAD "3 float any 2049 ll 0\n3 float any rest staged 3");
	strcpy(plan->table[1], path);
	run(res);
	for (int i = 0; i < 3; i++) {
		ranks_failed(&res[i], -TE_EMISMATCH, "TE_COMM_TABLE of rank 1 (", 60000);
		ck_assert_ptr_nonnull(strstr(res[i].text, path));
		ck_assert_ptr_nonnull(strstr(res[i].text, "has other rows than rank 0"));
		ck_assert_ptr_nonnull(strstr(res[i].text, plan->table[0]));
	}
	plan->table[1][0] = '\0';
	run(res);
	for (int i = 0; i < 3; i++)
		ranks_failed(&res[i], -TE_EMISMATCH, "none, has other rows", 60000);
	write_table("d", HEAD "3 float any rest stage 3\n");
	strcpy(plan->table[1], path);
	run(res);
	for (int i = 0; i < 3; i++) {
		ranks_failed(&res[i], -EINVAL, "rank 1 (", 60000);
		ck_assert_ptr_nonnull(strstr(res[i].text, "d:2: the algorithm is \"stage\""));
	}
}

TT_MAIN("comm/table", TT_NEED_NOTHING)
