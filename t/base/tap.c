/* t/base/tap.c - lines of TAP of tests that kernels of a level refuse; a program without tests. */
#include "config.h"

#include <sys/wait.h>
#include <unistd.h>

#include "tt.h"

#define REFUSED "not ok 12 - plan.c:plan:trains: do_r: -95: FP8 GEMM: GPU 0, NVIDIA A100, with " \
		"kernels for compute capability 8.0, has no FP8 tensor cores; the recipe bf16 " \
		"runs there\n"
#define TOO_WIDE(dtype) "not ok 7 - attn.c:attn:agrees: te__launch_k(): te_k_attn_fwd_" dtype \
		"_d128 takes 114688 bytes of shared memory for these shapes, and GPU 0 has " \
		"101376\n"
#define TOO_LONG                                                                           \
	"not ok 8 - norm.c:long_rows: te_k_comm_norm_twoshot_fp32_8 takes 131072 bytes of " \
	"shared memory for these shapes, and GPU 0 has 101376\n"
#define NO_STEP                                                                         \
	"not ok 9 - cached.c:steps: attention to a cache with rope needs clusters, BF16 and " \
	"a head_dim that is a multiple of 16\n"
#define FAILED "not ok 3 - plan.c:plan:trains: Assertion 'a == b' failed\n"
#define PASSED "ok 4 - plan.c:plan:refuses: has no FP8 tensor cores\n"

static const struct {
	const char *level, *line, *want;
} lines[] = {
	{ NULL, REFUSED, REFUSED },
	{ "8.9", REFUSED, REFUSED },
	{ "8.0", REFUSED, "ok 12 # SKIP no FP8 GEMM at TE_CUDA_ARCH=8.0\n" },
	{ "8.6", REFUSED, "ok 12 # SKIP no FP8 GEMM at TE_CUDA_ARCH=8.6\n" },
	{ "8.0", TOO_WIDE("fp32"), TOO_WIDE("fp32") },
	{ "8.6", TOO_WIDE("fp32"),
	  "ok 7 # SKIP no FP32 attention of wide heads at TE_CUDA_ARCH=8.6\n" },
	{ "8.9", TOO_WIDE("fp32"),
	  "ok 7 # SKIP no FP32 attention of wide heads at TE_CUDA_ARCH=8.9\n" },
	{ "8.9", TOO_WIDE("bf16"), TOO_WIDE("bf16") },
	{ "8.0", TOO_LONG,
	  "ok 8 # SKIP no norm of long rows in an all-reduce at TE_CUDA_ARCH=8.0\n" },
	{ "9.0", TOO_LONG, TOO_LONG },
	{ "8.9", NO_STEP,
	  "ok 9 # SKIP no attention of one token with rope at TE_CUDA_ARCH=8.9\n" },
	{ "", NO_STEP, NO_STEP },
	{ "8.0", FAILED, FAILED },
	{ "8.0", PASSED, PASSED },
};

CASE(tap, "host fast");

TEST_EACH(tap, a_refused_test_is_skipped_at_its_level_only, TT_LEN(lines))
{
	char got[256] = "";
	FILE *f = fmemopen(got, sizeof(got), "w");

	ck_assert_ptr_nonnull(f);
	unsetenv("TE_CUDA_ARCH");
	if (lines[_i].level)
		setenv("TE_CUDA_ARCH", lines[_i].level, 1);
	tt_tap_put(lines[_i].line, f);
	fclose(f);
	ck_assert_str_eq(got, lines[_i].want);
}

TEST(tap, a_program_without_tests_fails)
{
	pid_t pid = fork();
	int status;

	ck_assert_int_ge(pid, 0);
	if (!pid) {
		tt_ntests = 0;
		_exit(freopen("/dev/null", "w", stdout) ? tt_main("none", TT_NEED_NOTHING, NULL) :
							  1);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status));
	ck_assert_int_eq(WEXITSTATUS(status), 99);
}

TT_MAIN("base/tap", TT_NEED_NOTHING)
