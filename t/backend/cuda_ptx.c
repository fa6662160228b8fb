/*
 * t/backend/cuda_ptx.c - kernels of which the library has PTX only: each is compiled alone, at its
 * first use. This program fakes the driver: neither libcuda nor a GPU is needed.
 */
#include "config.h"

#include <te/errno.h>

#include "cuda_fake.h"
#include "libtecore/backend/cuda/cuda.h"
#include "libtecore/backend/cuda/images.h"
#include "tt.h"
#include "tt_ctx.h"

#define HEAD "// nvcc\n.version 8.8\n.target sm_89\n.address_size 64\n"
#define SHARED ".extern .shared .align 16 .b8 smem[];\n\t// .globl\tte_k_b\n"
#define KERNEL_B ".visible .entry te_k_b(\n\t.param .u64 te_k_b_param_0\n)\n.maxntid 256, 1, 1\n" \
		 "{\n\t{ // callseq 0, 0\n\tmov.b64 {%r1, %r2}, %rd1;\n\t} // callseq 0\n\tret;\n}"
#define BETWEEN "\n\t// .globl\tte_k_bb\n"
#define KERNEL_BB ".visible .entry te_k_bb()\n{\n\tret;\n}"
#define TAIL "\n.func f()\n{\n\tret;\n}\n"
#define KERNEL_A ".visible .entry te_k_a()\n{\n\tret;\n}"

static const char one[] = HEAD SHARED KERNEL_B BETWEEN KERNEL_BB TAIL, two[] = HEAD KERNEL_A "\n";
static const char cut[] = HEAD ".visible .entry te_k_a()\n{\n\tret;\n";

#define IMAGE(name, text) \
	{ name, (const uint8_t *)(text), (const uint8_t *)(text) + sizeof(text), 89, 89 }

static const struct te__kernel_image images[] = {
	IMAGE("x_one_ptx89", one), IMAGE("x_two_ptx89", two), { NULL, NULL, NULL, 0, 0 },
};
static const struct te__kernel_image damaged[] = {
	IMAGE("x_two_ptx89", two), IMAGE("x_cut_ptx89", cut), { NULL, NULL, NULL, 0, 0 },
};

static struct {
	char text[sizeof(one)]; /* what was compiled last */
	int nloads;
	int live;     /* modules */
	int current;  /* contexts pushed */
	int relaxed;  /* capture mode of the thread that compiles */
	int mode;     /* result of cuModuleLoadData */
	int func;     /* result of cuFuncLoad */
} fake;

static int handle; /* all handles point to it */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
int fake_cuCtxPushCurrent(void *ctx)
{
	ck_assert_ptr_eq(ctx, &handle);
	fake.current++;
	return 0;
}

int fake_cuCtxPopCurrent(void **ret_ctx)
{
	fake.current--;
	*ret_ctx = NULL;
	return 0;
}

int fake_cuThreadExchangeStreamCaptureMode(int *mode)
{
	const int was = fake.relaxed ? TE__CU_CAPTURE_MODE_RELAXED : 0;

	fake.relaxed = *mode == TE__CU_CAPTURE_MODE_RELAXED;
	*mode = was;
	return 0;
}

int fake_cuModuleLoadData(void **ret_module, const void *image)
{
	ck_assert_int_eq(fake.current, 1);
	ck_assert(fake.relaxed); /* the stream may be capturing */
	if (fake.mode)
		return fake.mode;
	snprintf(fake.text, sizeof(fake.text), "%s", (const char *)image);
	fake.nloads++;
	fake.live++;
	*ret_module = &handle;
	return 0;
}

int fake_cuModuleUnload(void *module)
{
	fake.live--;
	return 0;
}

int fake_cuModuleEnumerateFunctions(void **ret_funcs, unsigned count, void *module)
{
	ck_assert_uint_eq(count, 1);
	*ret_funcs = &handle;
	return 0;
}

int fake_cuFuncLoad(void *func)
{
	return fake.func;
}

int fake_cuFuncGetAttribute(int *ret_value, int attribute, void *func)
{
	*ret_value = 1024;
	return 0;
}

int fake_cuFuncSetAttribute(void *func, int attribute, int value)
{
	ck_assert_int_eq(value, (99 << 10) - 1024);
	return 0;
}
#pragma GCC diagnostic pop

static struct te__cuda_dev dev;
static int64_t live;

static void describe(struct te__cuda_dev *d)
{
	memset(d, 0, sizeof(*d));
	d->ctx = &handle;
	d->target = te__target_of(89);
	d->ptx = 1;
}

static void setup(void)
{
	const struct te__cuda_driver d = fake_driver();

	memset(&fake, 0, sizeof(fake));
	te__cuda_driver_fake(&d);
	te__cuda_images_fake(images);
	describe(&dev);
	te_error_clear();
	live = te__alloc_live();
}

static void teardown(void)
{
	ck_assert_int_eq(fake.live, 0);
	ck_assert_int_eq(fake.current, 0);
	ck_assert_int_eq(te__alloc_live(), live);
}

CASE(ptx, "host fast", .setup = setup, .teardown = teardown);

TEST(ptx, the_first_use_of_a_kernel_compiles_it_alone)
{
	static const struct {
		const char *name, *text;
	} use[] = {
		{ "te_k_b", HEAD SHARED BETWEEN TAIL "\n" KERNEL_B },
		{ "te_k_a", HEAD "\n\n" KERNEL_A },
		{ "te_k_bb", HEAD SHARED BETWEEN TAIL "\n" KERNEL_BB },
	};
	void *func;

	DO(te__cuda_kernels_get(&dev));
	ck_assert_uint_eq(dev.nfuncs, TT_LEN(use));
	ck_assert_int_eq(fake.nloads, 0);
	for (size_t i = 0; i < TT_LEN(use); i++)
		for (int again = 0; again < 2; again++) {
			func = NULL;
			DO(te__cuda_func_named(&dev, use[i].name, &func));
			ck_assert_ptr_eq(func, &handle);
			ck_assert_int_eq(fake.nloads, (int)i + 1);
			ck_assert_str_eq(fake.text, use[i].text);
			ck_assert_int_eq(fake.relaxed, 0);
		}
	ck_assert_int_eq(te__cuda_func_named(&dev, "te_k_", &func), -TE_EKERNEL);
	tt_said("this build has no device function te_k_");
	te__cuda_kernels_put(&dev);
}

TEST(ptx, contexts_share_what_one_compiled)
{
	struct te__cuda_dev other;
	void *func;

	describe(&other);
	DO(te__cuda_kernels_get(&dev));
	DO(te__cuda_func_named(&dev, "te_k_a", &func));
	DO(te__cuda_kernels_get(&other));
	DO(te__cuda_func_named(&other, "te_k_a", &func));
	ck_assert_int_eq(fake.nloads, 1);
	te__cuda_kernels_put(&dev);
	ck_assert_int_eq(fake.live, 1);
	DO(te__cuda_func_named(&other, "te_k_b", &func));
	te__cuda_kernels_put(&other);
}

TEST(ptx, all_kernels_are_loaded_for_contexts_that_share)
{
	struct te__cuda_dev other;

	describe(&other);
	DO(te__cuda_kernels_get(&dev));
	DO(te__cuda_load_shared(&dev));
	ck_assert_int_eq(fake.nloads, 0); /* none waits for another context */
	DO(te__cuda_kernels_get(&other));
	fake.mode = 218;
	ck_assert_int_eq(te__cuda_load_shared(&dev), -TE_ECUDA);
	fake.mode = 0;
	DO(te__cuda_load_shared(&dev));
	DO(te__cuda_load_shared(&other));
	ck_assert_int_eq(fake.nloads, 3);
	te__cuda_kernels_put(&other);
	te__cuda_kernels_put(&dev);
}

TEST(ptx, a_kernel_that_does_not_compile_is_named)
{
	void *func;

	DO(te__cuda_kernels_get(&dev));
	fake.mode = 218;
	ck_assert_int_eq(te__cuda_func_named(&dev, "te_k_bb", &func), -TE_ECUDA);
	tt_said("cannot compile the kernel te_k_bb of te_x_one_ptx89 for GPU 0: CUDA_ERROR_FAKE");
	fake.mode = 0;
	fake.func = 2;
	te_error_clear();
	ck_assert_int_eq(te__cuda_func_named(&dev, "te_k_bb", &func), -TE_ECUDA);
	tt_said("cuFuncLoad");
	ck_assert_int_eq(fake.live, 0);
	fake.func = 0;
	DO(te__cuda_func_named(&dev, "te_k_bb", &func)); /* what failed once may work later */
	ck_assert_ptr_eq(func, &handle);
	te__cuda_kernels_put(&dev);
}

TEST(ptx, a_kernel_without_an_end_is_refused_at_once)
{
	te__cuda_images_fake(damaged);
	ck_assert_int_eq(te__cuda_kernels_get(&dev), -TE_EKERNEL);
	tt_said("cannot unpack the kernels te_x_cut_ptx89 for GPU 0: they are damaged");
	ck_assert_ptr_null(dev.kernels);
}

static void *use_all(void *arg)
{
	static const char *const name[] = { "te_k_a", "te_k_b", "te_k_bb" };
	void *func;

	for (size_t i = 0; i < TT_LEN(name); i++) {
		func = NULL;
		if (te__cuda_func_named(arg, name[i], &func) || func != &handle)
			return arg;
	}
	return NULL;
}

TEST(ptx, threads_compile_a_kernel_once)
{
	pthread_t thread[4];
	void *failed;

	DO(te__cuda_kernels_get(&dev));
	for (size_t i = 0; i < TT_LEN(thread); i++)
		ck_assert_int_eq(pthread_create(&thread[i], NULL, use_all, &dev), 0);
	for (size_t i = 0; i < TT_LEN(thread); i++) {
		ck_assert_int_eq(pthread_join(thread[i], &failed), 0);
		ck_assert_ptr_null(failed);
	}
	ck_assert_int_eq(fake.nloads, 3);
	te__cuda_kernels_put(&dev);
}

static int get_and_use(void)
{
	void *func;
	int r = te__cuda_kernels_get(&dev);

	if (r)
		return r;
	r = te__cuda_func_named(&dev, "te_k_b", &func);
	te__cuda_kernels_put(&dev);
	dev.kernels = NULL;
	return r;
}

TEST(ptx, each_failure_leaves_nothing)
{
	ck_assert_int_gt(tt_fault_each(get_and_use), 8);
}

TT_MAIN("backend/cuda_ptx", TT_NEED_NOTHING)
