/*
 * t/tools/device.c - te_generate is on the CPU if its GPU has no kernels for the model.
 *
 * The program has its own te_ctx_create(), te_ctx_backend() and te_ctx_device_info(), of a machine
 * with a GPU.
 */
#include "config.h"

#include "tools/lib/device.h"
#include "tools/lib/say.h"
#include "tt.h"

static int ncontexts; /* that exist; an address is a context */
static char gpu, host, said[512];

/* the linker's --wrap calls these in the place of the library's */
int __wrap_te_ctx_create(const struct te_ctx_opts *opts, struct te_ctx **ret_ctx);
const char *__wrap_te_ctx_backend(const struct te_ctx *ctx);
struct te_ctx *__wrap_te_ctx_unref(struct te_ctx *ctx);
int __wrap_te_ctx_device_info(const struct te_ctx *ctx, struct te_device_info *ret_info);

int __wrap_te_ctx_device_info(const struct te_ctx *ctx, struct te_device_info *ret_info)
{
	snprintf(ret_info->backend, sizeof(ret_info->backend), "%s", __wrap_te_ctx_backend(ctx));
	return 0;
}

int __wrap_te_ctx_create(const struct te_ctx_opts *opts, struct te_ctx **ret_ctx)
{
	const char *backend = opts->backend ? opts->backend : getenv("TE_BACKEND");

	*ret_ctx = (struct te_ctx *)(backend && !strcmp(backend, "host") ? &host : &gpu);
	ncontexts++;
	return 0;
}

const char *__wrap_te_ctx_backend(const struct te_ctx *ctx)
{
	return ctx == (struct te_ctx *)&host ? "host" : "cuda";
}

struct te_ctx *__wrap_te_ctx_unref(struct te_ctx *ctx)
{
	ck_assert_ptr_eq(ctx, &gpu);
	ncontexts--;
	return NULL;
}

static void keep(const char *line)
{
	ck_assert_str_eq(said, ""); /* one */
	snprintf(said, sizeof(said), "%s", line);
}

static const struct {
	const char *option, *environment;
	int64_t head_dim;
	int is_host, warns;
} runs[] = {
	{ NULL, NULL, 128, 0, 0 },	    { NULL, NULL, 129, 1, 1 },
	{ "auto", NULL, 256, 1, 1 },	    { NULL, "auto", 256, 1, 1 },
	{ "auto", "cuda", 256, 1, 1 },	    { "cuda", NULL, 256, 0, 0 },
	{ NULL, "cuda", 256, 0, 0 },	    { "host", NULL, 256, 1, 0 },
	{ NULL, "host", 256, 1, 0 },
};

START_TEST(wide_heads_are_for_the_host)
{
	struct te_ctx *ctx = NULL;

	if (runs[_i].environment)
		setenv("TE_BACKEND", runs[_i].environment, 1);
	else
		unsetenv("TE_BACKEND");
	said[0] = '\0';
	say_by(keep);
	ck_assert_int_eq(device_for_heads(runs[_i].option, runs[_i].head_dim, &ctx), STATUS_OK);
	say_by(NULL);
	ck_assert_ptr_eq(ctx, runs[_i].is_host ? &host : &gpu);
	ck_assert_int_eq(ncontexts, 1);
	ck_assert_int_eq(said[0] != '\0', runs[_i].warns);
	if (runs[_i].warns)
		ck_assert_msg(strstr(said, "and GPUs have at most 128: this run is on the CPU") !=
			      NULL, "%s", said);
}
END_TEST

TT_SUITE("tools/device", TT_NEED_NOTHING)
{
	TCase *c = tt_case(s, "device", "host serial");

	tcase_add_loop_test(c, wide_heads_are_for_the_host, 0, TT_LEN(runs));
}
