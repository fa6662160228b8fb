/* t/offload/measure.c - te_spill_info(3) and te_spill_measure(3). */
#include "config.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <te/spill.h>

#include "libtecore/base/private.h"
#include "tt_ctx.h"

static char dir[64];

static void setup(void)
{
	memcpy(dir + sizeof(dir) - 7, "XXXXXX", 6);
	snprintf(dir, sizeof(dir), "%s/te-spill.XXXXXX", tt_tmpdir());
	ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void teardown(void)
{
	/* fails unless it is empty */
	ck_assert_int_eq(rmdir(dir), 0);
	ck_assert_int_eq(te__alloc_live(), 0);
}

CASE(measure, "host", .setup = setup, .teardown = teardown);

TEST(measure, folder_is_tried)
{
	struct te_spill_info info = TE_SPILL_INFO_INIT;

	DO(te_spill_info(dir, &info));
	ck_assert_int_eq(info.usable, 1);
	ck_assert(!strcmp(info.engine, "io_uring") || !strcmp(info.engine, "threads"));
	/* it is io_uring, or there is a reason */
	ck_assert_int_eq(info.reason[0] != '\0', strcmp(info.engine, "io_uring") != 0);
	ck_assert_int_ge(info.align_bytes, 1);
	ck_assert_uint_gt(info.free_nbytes, 1 << 20);
	ck_assert_uint_gt(info.memlock_nbytes, 0);
}

TEST(measure, folder_of_the_environment_is_the_default)
{
	struct te_spill_info info = TE_SPILL_INFO_INIT;

	setenv("TE_OFFLOAD_DIR", "/nowhere/at/all", 1);
	setenv("TE_OFFLOAD_IO", "threads", 1);
	DO(te_spill_info(NULL, &info));
	ck_assert_int_eq(info.usable, 0);
	ck_assert_ptr_nonnull(strstr(info.reason, "/nowhere/at/all"));
	DO(te_spill_info(dir, &info));
	ck_assert_int_eq(info.usable, 1);
	ck_assert_str_eq(info.engine, "threads");
}

static void plausible(const struct te_spill_rate *r)
{
	ck_assert(r->bytes_per_s > 1e5 && r->bytes_per_s < 1e12);
	ck_assert(r->cpu_s_per_gb >= 0 && r->cpu_s_per_gb < 1e4);
	ck_assert(r->p50_us > 0 && r->p50_us <= r->p99_us);
	/* quantiles are middles of bins of a quarter of an octave */
	ck_assert(r->p99_us <= 1.2 * r->max_us + 2);
}

static const char *const engines[] = { "io_uring", "threads" };

TEST_EACH(measure, rates_are_measured, TT_LEN(engines))
{
	struct te_spill_opts o = TE_SPILL_OPTS_INIT;
	struct te_spill_rates rates = TE_SPILL_RATES_INIT;
	int r;

	o.dir = dir;
	o.engine = engines[_i];
	o.nbytes = (5 << 20) + 12345;
	o.block_nbytes = 64 << 10;
	o.depth = 5;
	o.verify = TE_SPILL_VERIFY_ALL;
	r = te_spill_measure(&o, &rates);
	if (r == -EOPNOTSUPP && !_i) {
		tt_said("io_uring is refused");
		return;
	}
	DO(r);
	ck_assert_str_eq(rates.engine, engines[_i]);
	plausible(&rates.write);
	plausible(&rates.read);
	plausible(&rates.both);
}

TEST(measure, wrong_arguments_are_refused)
{
	struct te_spill_opts o = TE_SPILL_OPTS_INIT;
	struct te_spill_rates rates = TE_SPILL_RATES_INIT, untouched = rates;

	o.dir = dir;
	o.engine = "carrier pigeon";
	fails(te_spill_measure(&o, &rates), -EINVAL, "no engine is named carrier pigeon");
	o.engine = "threads";
	o.nbytes = 7 * 4096;
	o.block_nbytes = 4096;
	fails(te_spill_measure(&o, &rates), -EINVAL, "28672 bytes: at least 32768 are needed");
	o.nbytes = 1 << 20;
	o.block_nbytes = 5000;
	fails(te_spill_measure(&o, &rates), -EINVAL, "blocks of 5000 bytes");
	o.block_nbytes = 4096;
	o.depth = 257;
	fails(te_spill_measure(&o, &rates), -EINVAL, "a depth of 257");
	o.depth = -1;
	fails(te_spill_measure(&o, &rates), -EINVAL, "depth -1");
	o.depth = 0;
	o.verify = 3;
	fails(te_spill_measure(&o, &rates), -EINVAL, "verify 3");
	o.verify = 0;
	o.dir = "/nowhere/at/all";
	fails(te_spill_measure(&o, &rates), -ENOENT, "/nowhere/at/all");
	ck_assert(!memcmp(&rates, &untouched, sizeof(rates)));
}

static int measure(void)
{
	struct te_spill_opts o = TE_SPILL_OPTS_INIT;
	struct te_spill_rates rates = TE_SPILL_RATES_INIT;

	o.dir = dir;
	o.engine = "threads";
	o.nbytes = 1 << 16;
	o.block_nbytes = 4096;
	return te_spill_measure(&o, &rates);
}

TEST(measure, each_failure_is_reported)
{
	ck_assert_int_ge(tt_fault_each(measure), 12);
}

TT_MAIN("offload/measure", TT_NEED_NOTHING)
