/* copy.c - te_perftest copy: device to device, compared with the memory's peak bandwidth. */
#include "config.h"

#include <math.h>

#include "copy.h"
#include "tools/lib/say.h"

static struct {
	struct option_list bytes;
	char *cache;
} opt;

static const struct option_field options[] = {
	{ "bytes", OPTION_LIST, AT(bytes), "64K,1M,16M,256M", 1, 0x1p40, 0, "N,...",
	  "bytes of a copy" },
	CACHE_OPTION,
	{ 0 },
};

static int queue(const struct call *c, struct te_tensor *const *t)
{
	return te_copy(c->b->stream, te_tensor_data(t[1]), te_tensor_data(t[0]),
		       te_tensor_nbytes(t[0]));
}

static int check(const struct call *c, const uint8_t *got)
{
	return bench_equal("copy", got + c->part[1][0], c->host + c->part[0][0],
			   (size_t)c->extent[COLS]);
}

static const struct call_row row = {
	"copy",
	queue,
	{ { TE_DTYPE_UINT8, ONE, COLS, NORMAL, 1, TE_SCALING_TENSOR, 0 },
	  { TE_DTYPE_UINT8, ONE, COLS, ZEROS, 1, TE_SCALING_TENSOR, 0 } },
	NULL,
	NULL,
	check,
};

int copy_open(struct call *copy, struct bench *b, double nbytes)
{
	*copy = (struct call){ .b = b, .row = row, .batch = 1 };
	copy->extent[COLS] = (int64_t)ceil(nbytes);
	return call_open(copy);
}

static int measure(struct bench *b, int64_t nbytes, int rows_left)
{
	const double peak = b->dev.peak_bandwidth;
	struct stats us;
	struct call c;
	double rate;
	int r;

	if (!bench_row(b, rows_left, 1))
		return STATUS_OK;
	r = copy_open(&c, b, (double)nbytes);
	if (!r)
		r = call_measure(&c, &us);
	if (!r) {
		rate = us.n ? c.traffic / us.median * 1e6 : NAN;
		bench_int(b, "bytes", nbytes);
		bench_int(b, "buffers", 2 * (int64_t)c.nsets);
		bench_int(b, "buffers_bytes", 2 * nbytes * c.nsets);
		bench_stats(b, "device_us", &us);
		bench_num(b, "read_and_written_bytes_per_s", rate);
		bench_num(b, "peak_ratio", rate / (peak > 0 ? peak : NAN));
	}
	call_close(&c);
	return r;
}

static int run(struct bench *b)
{
	const struct option_list *bytes = &opt.bytes;
	int r = STATUS_OK;

	b->cache = opt.cache;
	for (int i = 0; i < bytes->n && !r; i++)
		r = measure(b, bytes->v[i], bytes->n - i);
	return r;
}

void copy_compare(struct bench *b, double nbytes, const struct stats *us)
{
	double rate = us[0].n ? nbytes / us[0].median * 1e6 : NAN, peak = b->dev.peak_bandwidth;

	bench_int(b, "moved_bytes", (int64_t)nbytes);
	bench_stats(b, "device_us", &us[0]);
	bench_stats(b, "copy_us", &us[1]);
	bench_num(b, "read_and_written_bytes_per_s", rate);
	bench_num(b, "copy_ratio", us[0].n ? us[1].median / us[0].median : NAN);
	bench_num(b, "peak_ratio", rate / (peak > 0 ? peak : NAN));
}

const struct column copy_columns[] = {
	{ "call", "\ncall", 0, 0 },
	{ "op", "\nop", 0, 0 },
	{ "pass", "\npass", 0, 0 },
	{ "recipe", "\nrecipe", 0, 0 },
	{ "copies", "\ncopies", 0, 0 },
	{ "rows", "\nrows", 0, 0 },
	{ "cols", "\ncols", 0, 0 },
	{ "buffers", "\nbuffers", 0, 0 },
	{ "plans", "\nplans", 0, 0 },
	{ "blocks", "\nblocks", 0, 0 },
	{ "launches", "\nlaunches", 0, 0 },
	{ "cpu_us", "CPU\nus", 0, 1 },
	{ "cpu_p99_us", "CPU, p99\nus", 0, 0 },
	{ "moved_bytes", "a call\nMiB", 0x1p-20, 0 },
	{ "device_us", "a call\nus", 0, 1 },
	{ "copy_us", "copy\nus", 0, 1 },
	{ "read_and_written_bytes_per_s", "read + written\nGB/s", 1e-9, 0 },
	{ "copy_ratio", "of copy\n%", 100, 0 },
	{ "peak_ratio", "of peak\n%", 100, 0 },
	{ NULL, NULL, 0, 0 },
};

static const struct column columns[] = {
	{ "bytes", "\nbytes", 0, 0 },
	{ "buffers", "\nbuffers", 0, 0 },
	{ "buffers_bytes", "in all\nMiB", 0x1p-20, 0 },
	{ "device_us", "copy\nus", 0, 1 },
	{ "read_and_written_bytes_per_s", "read + written\nGB/s", 1e-9, 0 },
	{ "peak_ratio", "of peak\n%", 100, 0 },
	{ NULL, NULL, 0, 0 },
};

const struct test test_copy = {
	.name = "copy",
	.text = "device to device, compared with the peak bandwidth of the memory",
	.options = options,
	.values = &opt,
	.columns = columns,
	.run = run,
};
