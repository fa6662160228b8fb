/*
 * t/tools/gpu.c - te_train and te_generate warn of a GPU that is passed over.
 *
 * The program has its own te_backend_info() and te_device_info().
 */
#include "config.h"

#include <getopt.h>

#include "tools/lib/device.h"
#include "tools/lib/say.h"
#include "tools/te_train/loop.h"
#include "tt.h"

static struct te_device_info gpu; /* the only one */
static int ngpus;
static char said[512];

/* the linker's --wrap calls these in the place of the library's */
int __wrap_te_backend_info(int index, struct te_backend_info *ret_info);
int __wrap_te_device_info(const char *backend, int index, struct te_device_info *ret_info);

int __wrap_te_backend_info(int index, struct te_backend_info *ret_info)
{
	snprintf(ret_info->name, sizeof(ret_info->name), index ? "host" : "cuda");
	ret_info->ndevices = index ? 1 : ngpus;
	return 0;
}

int __wrap_te_device_info(const char *backend, int index, struct te_device_info *ret_info)
{
	ck_assert_str_eq(backend, "cuda");
	ck_assert_int_lt(index, ngpus);
	*ret_info = gpu;
	return 0;
}

static void keep(const char *line)
{
	ck_assert_str_eq(said, ""); /* one */
	snprintf(said, sizeof(said), "%s", line);
}

static const char *note(const char *backend, int ndevices, int usable, int32_t index)
{
	struct te_device_info have = TE_DEVICE_INFO_INIT;

	snprintf(have.backend, sizeof(have.backend), "%s", backend);
	gpu = (struct te_device_info)TE_DEVICE_INFO_INIT;
	snprintf(gpu.name, sizeof(gpu.name), "Some GPU");
	snprintf(gpu.reason, sizeof(gpu.reason), "compute capability 8.0: for 9.0");
	gpu.usable = usable;
	ngpus = ndevices;
	said[0] = '\0';
	say_by(keep);
	device_note_gpu(&have, index);
	say_by(NULL);
	return said;
}

CASE(gpu, "host serial");

TEST(gpu, a_gpu_that_is_passed_over_is_a_warning)
{
	ck_assert_str_eq(note("host", 1, 0, 0),
			 "te_train: warning: Some GPU is not used, compute capability 8.0: for "
			 "9.0; this run is on the CPU, as it is without a warning by --backend "
			 "host");
}

TEST(gpu, nothing_else_is)
{
	ck_assert_str_eq(note("host", 0, 0, 0), "");
	ck_assert_str_eq(note("host", 1, 0, 1), "");
	ck_assert_str_eq(note("host", 1, 1, 0), "");
	ck_assert_str_eq(note("cuda", 1, 0, 0), "");
}

/* the CPU is chosen by the library; with --backend, no warning */
TEST_EACH(gpu, a_run_that_may_choose_warns, 2)
{
	char *argv[] = { "te_train", "--preset", "tiny", "--backend", "host", NULL };
	struct opts o;
	struct trainer t;
	int done = 0;

	unsetenv("TE_BACKEND");
	setenv("CUDA_VISIBLE_DEVICES", "", 1); /* the library finds none */
	optind = 1;
	ngpus = 1;
	gpu = (struct te_device_info)TE_DEVICE_INFO_INIT;
	snprintf(gpu.name, sizeof(gpu.name), "Some GPU");
	ck_assert_int_eq(opts_parse(&o, _i ? 5 : 3, argv, &done), 0);
	said[0] = '\0';
	say_by(keep);
	ck_assert_int_eq(trainer_create(&o, &t), 0);
	say_by(NULL);
	ck_assert_int_eq(strstr(said, "Some GPU is not used") != NULL, !_i);
	trainer_free(&t);
	opts_free(&o);
}

/* so does te_generate */
TEST_EACH(gpu, inference_warns_too, 2)
{
	struct te_ctx *ctx = NULL;

	unsetenv("TE_BACKEND");
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	note("cuda", 1, 0, 0); /* says nothing */
	say_by(keep);
	ck_assert_int_eq(device_open(_i ? "host" : NULL, &ctx), 0);
	say_by(NULL);
	ck_assert_int_eq(strstr(said, "Some GPU is not used") != NULL, !_i);
	te_ctx_unref(ctx);
}

TT_MAIN("tools/gpu", TT_NEED_NOTHING)
