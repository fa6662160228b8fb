/*
 * file.c - te_perftest file: files of offload written, read, and both concurrently, by each engine
 * in turn, because the rate of a drive changes with time and with its other users.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/spill.h>

#include "bench.h"
#include "tools/lib/say.h"

static struct {
	char *dir, *check;
	uint32_t io; /* bit 0: io_uring, bit 1: threads */
	int64_t nbytes, block, depth;
} opt;

static const struct option_field options[] = {
	{ "dir", OPTION_TEXT, AT(dir), "", 0, 0, 0, "DIR",
	  "folder of the file; empty: TE_OFFLOAD_DIR, or else the current one" },
	{ "io", OPTION_WORDS, AT(io), "io_uring,threads", 0, 0, 0, "io_uring|threads",
	  "engine that reads and writes" },
	{ "bytes", OPTION_COUNT, AT(nbytes), "256M", 1 << 16, 1e15, 0, "N", "bytes of the file" },
	{ "block", OPTION_COUNT, AT(block), "4M", 4096, 1 << 28, 0, "N", "bytes of an operation" },
	{ "depth", OPTION_COUNT, AT(depth), "8", 1, 256, 0, "N",
	  "operations in flight in each direction" },
	{ "check", OPTION_WORD, AT(check), "off", 0, 0, 0, "off|sample|all",
	  "blocks whose checksum is compared" },
	{ 0 },
};

enum { WRITE, READ, BOTH, NPASSES };
enum { RATE, CPU, P50, P99, NFIGURES };

static const char *const pass_name[NPASSES] = { "write", "read", "both" };

struct engine {
	const char *name;
	int64_t n; /* samples */
	double *sample[NPASSES][NFIGURES];
};

struct file {
	struct bench *b;
	struct engine engine[2];
	int nengines;
};

static int add_engine(struct file *f, const char *name)
{
	struct engine *s = &f->engine[f->nengines++];
	const size_t iters = (size_t)f->b->o->iters;
	double *all = calloc(NPASSES * NFIGURES * iters, sizeof(*all));

	if (!all)
		return say_failed("no memory for %zu samples", iters);
	s->name = name;
	for (int p = 0; p < NPASSES; p++)
		for (int k = 0; k < NFIGURES; k++)
			s->sample[p][k] = all + ((size_t)p * NFIGURES + (size_t)k) * iters;
	return STATUS_OK;
}

static struct te_spill_opts opts_of(const char *engine)
{
	struct te_spill_opts so = TE_SPILL_OPTS_INIT;

	so.dir = *opt.dir ? opt.dir : NULL;
	so.engine = engine;
	so.nbytes = (uint64_t)opt.nbytes;
	so.block_nbytes = (uint64_t)opt.block;
	so.depth = (int32_t)opt.depth;
	so.verify = !strcmp(opt.check, "all")	 ? TE_SPILL_VERIFY_ALL :
		    !strcmp(opt.check, "sample") ? TE_SPILL_VERIFY_SAMPLE :
						   TE_SPILL_VERIFY_OFF;
	return so;
}

static void keep(struct engine *s, int pass, const struct te_spill_rate *rate)
{
	s->sample[pass][RATE][s->n] = rate->bytes_per_s;
	s->sample[pass][CPU][s->n] = rate->cpu_s_per_gb;
	s->sample[pass][P50][s->n] = rate->p50_us;
	s->sample[pass][P99][s->n] = rate->p99_us;
}

static int measure_engine(struct engine *s)
{
	const struct te_spill_opts so = opts_of(s->name);
	struct te_spill_rates rates = TE_SPILL_RATES_INIT;
	int r = te_spill_measure(&so, &rates);

	if (r < 0)
		return say_te(r, "file");
	keep(s, WRITE, &rates.write);
	keep(s, READ, &rates.read);
	keep(s, BOTH, &rates.both);
	s->n++;
	return STATUS_OK;
}

static int prepare(struct file *f)
{
	static const char *const engine[] = { "io_uring", "threads" };
	int r = STATUS_OK;

	for (int i = 0; i < 2 && !r; i++)
		if (opt.io >> i & 1)
			r = add_engine(f, engine[i]);
	return r;
}

/* checksums of all bytes read are compared */
static int verify(struct file *f)
{
	int r = 0;

	for (int i = 0; i < f->nengines && !r; i++) {
		struct te_spill_opts so = opts_of(f->engine[i].name);
		struct te_spill_rates rates = TE_SPILL_RATES_INIT;

		so.verify = TE_SPILL_VERIFY_ALL;
		r = te_spill_measure(&so, &rates);
	}
	return r < 0 ? say_te(r, "verify") : STATUS_OK;
}

static int measure(struct file *f)
{
	const struct bench *b = f->b;
	int r = STATUS_OK;

	for (int64_t i = 0; i < b->o->iters && !r && (!i || now_s() < b->until); i++)
		for (int k = 0; k < f->nengines && !r; k++)
			r = measure_engine(&f->engine[(i + k) % f->nengines]);
	return r;
}

static void report(struct file *f)
{
	static const char *const key[NFIGURES] = { "bytes_per_s", "cpu_s_per_gb", "p50_us",
						   "p99_us" };
	struct bench *b = f->b;

	b->until = INFINITY; /* every row has its samples */
	for (int p = 0; p < NPASSES; p++)
		for (int i = 0; i < f->nengines; i++) {
			const struct engine *s = &f->engine[i];
			struct stats st = { 0 };

			bench_row(b, 1, 0);
			bench_text(b, "pass", pass_name[p]);
			bench_text(b, "io", s->name);
			bench_int(b, "bytes", opt.nbytes);
			bench_int(b, "block_bytes", opt.block);
			bench_int(b, "depth", opt.depth);
			for (int k = 0; k < NFIGURES; k++) {
				stats_of(s->sample[p][k], (size_t)s->n, &st);
				bench_stats(b, key[k], &st);
			}
		}
}

static int run(struct bench *b)
{
	struct file f = { .b = b };
	int r = prepare(&f);

	if (!r && b->o->verify)
		r = verify(&f);
	if (!r)
		r = measure(&f);
	if (!r)
		report(&f);
	for (int i = 0; i < f.nengines; i++)
		free(f.engine[i].sample[0][0]);
	return r;
}

static const struct column columns[] = {
	{ "pass", "\npass", 0, 0 },
	{ "io", "\nio", 0, 0 },
	{ "block_bytes", "block\nMiB", 0x1p-20, 0 },
	{ "depth", "\ndepth", 0, 0 },
	{ "bytes_per_s", "\nMB/s", 1e-6, 1 },
	{ "cpu_s_per_gb", "CPU\ns/GB", 0, 1 },
	{ "p50_us", "p50\nus", 0, 0 },
	{ "p99_us", "p99\nus", 0, 0 },
	{ NULL, NULL, 0, 0 },
};

const struct test test_file = {
	.name = "file",
	.text = "files of offload: written, read, and both concurrently",
	.options = options,
	.values = &opt,
	.columns = columns,
	.run = run,
};
