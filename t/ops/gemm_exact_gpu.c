/* t/ops/gemm_exact_gpu.c - te_gemm(3) on a GPU by the same cases, and the file of choices. */
#include "config.h"

#include <dirent.h>
#include <unistd.h>

#include <te/errno.h>

#include "gemm_exact_cases.h"
#include "tt_ctx.h"

/* a folder of choices of this run: other tests and users keep theirs */
static char dir[64];

#define NELEMS (96 * 160)

static uint32_t state;

/* the same numbers at each run; Numerical Recipes' generator */
static float pattern(void)
{
	state = state * 1664525u + 1013904223u;
	return (float)(state >> 8) * 0x1p-23f - 1.0f;
}

/* sums of these are exact, so that every algorithm gives the same bits */
static float small_int(void)
{
	return (float)(int)(pattern() * 2.9f);
}

/* D of a GEMM of a shape that no other test uses, in a context of its own */
static void multiply(float (*fill)(void), float *ret)
{
	const struct gemm_case c = {
		TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_FP32, 0, 0, 0, 96, 160, 4096,
	};
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;
	struct te_ctx *ctx;
	struct gemm_run r;

	o.backend = "cuda";
	state = 1;
	ck_assert_msg(!te_ctx_create(&o, &ctx), "%s", te_error_detail());
	gemm_run_make(&r, ctx, &c, fill);
	r.alpha = 1;
	ck_assert_msg(!gemm_run_queue(&r, te_ctx_stream(ctx)), "%s", te_error_detail());
	gemm_run_read(&r);
	memcpy(ret, r.got, NELEMS * sizeof(*ret));
	gemm_run_free(&r);
	te_ctx_unref(ctx);
}

static void choices_path(char *path, size_t nbytes)
{
	DIR *d = opendir(dir);
	struct dirent *e;

	ck_assert_ptr_nonnull(d);
	path[0] = '\0';
	while ((e = readdir(d)))
		if (!strncmp(e->d_name, "gemm-", 5))
			ck_assert_int_lt(snprintf(path, nbytes, "%s/%s", dir, e->d_name),
					 (int)nbytes);
	closedir(d);
	ck_assert_msg(path[0], "no file of choices in %s", dir);
}

/* lines of the GEMM's shape */
static int nchoices(const char *path)
{
	FILE *f = fopen(path, "r");
	char line[512];
	int n = 0;

	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f))
		n += !strncmp(line, "96 160 4096 ", 12);
	fclose(f);
	return n;
}

CASE(choices, "gpu gemm");

TEST(choices, a_choice_is_kept_and_gives_the_same_bits)
{
	static float first[NELEMS], again[NELEMS];
	char path[512];

	multiply(pattern, first);
	choices_path(path, sizeof(path));
	ck_assert_int_eq(nchoices(path), 1);
	for (int n = 0; n < 3; n++) {
		multiply(pattern, again);
		ck_assert_mem_eq(first, again, sizeof(first));
	}
	ck_assert_int_eq(nchoices(path), 1);
}

/* what a crash, a full disk or another program left */
static const char *const damage[] = {
	"96 160 4096 0 0 1 1 0 0 0 0 256 0 : 1\n",
	"96 160 4096 0 0 1 1 0 0 0 0 256 0 : 1 2 3 4 5 6 7 8 9\n",
	"96 160 4096 0 0 1 1 0 0 0 0 256 0 : 1 2 3 4 96 160 4096 0 0 1 1 0 0 0 0 256 0 : 1\n",
	/* the sum is right, the algorithm is none */
	"96 160 4096 0 0 1 1 0 0 0 0 256 0 : ffff ffff ffff ffff ffff ffff ffff ffff ca32278d\n",
	"\n\xff\xfe not a choice",
};

TEST_EACH(choices, damaged_choices_are_passed_over, TT_LEN(damage))
{
	static float first[NELEMS], again[NELEMS];
	char path[512];
	FILE *f;

	multiply(small_int, first);
	choices_path(path, sizeof(path));
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fputs(damage[_i], f);
	fclose(f);
	multiply(small_int, again);
	ck_assert_mem_eq(first, again, sizeof(first));
	/* and chosen anew, for later */
	ck_assert_int_ge(nchoices(path), 1);
	unlink(path);
}

TT_SUITE("ops/gemm_exact_gpu", TT_NEED_GPU)
{
	backend = "cuda";
	snprintf(dir, sizeof(dir), "%s/te-gemm.XXXXXX", tt_tmpdir());
	if (mkdtemp(dir))
		setenv("TE_CACHE_DIR", dir, 1);
}
