/*
 * file.c - te_perftest file: files of offload written, read, and both at once, by each engine and
 * by fio. All of them take turns, because the rate of a drive changes with time and with its other
 * users.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <te/spill.h>

#include "bench.h"
#include "program.h"
#include "tools/lib/say.h"

static struct {
	char *dir, *check;
	uint32_t io; /* bit 0: io_uring, bit 1: threads */
	int64_t nbytes, block, depth, fio;
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
	{ "fio", OPTION_FLAG, AT(fio), NULL, 0, 1, 0, NULL, "measure fio in turn, in --dir" },
	{ 0 },
};

enum { WRITE, READ, BOTH, NPASSES };
enum { RATE, CPU, P50, P99, NFIGURES };
#define NSUBJECTS 3
#define OUTPUT_MAX ((size_t)1 << 20) /* maximum output of fio */

static const char *const pass_name[NPASSES] = { "write", "read", "both" };

struct subject {
	const char *name;
	int is_fio;
	int64_t n; /* samples */
	double *sample[NPASSES][NFIGURES];
};

struct file {
	struct bench *b;
	struct subject subject[NSUBJECTS];
	int nsubjects;
	char *fio_file; /* file that fio writes and reads, or NULL */
};

static int add_subject(struct file *f, const char *name, int is_fio)
{
	struct subject *s = &f->subject[f->nsubjects++];
	const size_t iters = (size_t)f->b->o->iters;
	double *all = calloc(NPASSES * NFIGURES * iters, sizeof(*all));

	if (!all)
		return say_failed("no memory for %zu samples", iters);
	s->name = name;
	s->is_fio = is_fio;
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

static void keep(struct subject *s, int pass, const struct te_spill_rate *rate)
{
	s->sample[pass][RATE][s->n] = rate->bytes_per_s;
	s->sample[pass][CPU][s->n] = rate->cpu_s_per_gb;
	s->sample[pass][P50][s->n] = rate->p50_us;
	s->sample[pass][P99][s->n] = rate->p99_us;
}

static int round_of_engine(struct subject *s)
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

/* fio: a program and its output, one JSON object */

static int run_program(char *const argv[], char *ret_text)
{
	struct program p;
	int r = program_start(&p, argv, 0);

	if (r)
		return say_bad("--fio: cannot run %s: %s", argv[0], strerror(r));
	if (program_end(&p, ret_text, OUTPUT_MAX))
		return say_failed("%s failed: %.200s", argv[0], ret_text);
	return STATUS_OK;
}

static double number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static double percentile(const json_t *dir, const char *which)
{
	const json_t *lat = json_object_get(dir, "clat_ns");

	return 1e-3 * number(json_object_get(lat, "percentile"), which);
}

/* fio's results of a run: the sum of both directions, the larger of their latencies */
static int parse_fio(const char *text, struct te_spill_rate *ret)
{
	const char *start = strchr(text, '{');
	json_t *o = start ? json_loads(start, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
	const json_t *job = json_array_get(json_object_get(o, "jobs"), 0);
	const json_t *w = json_object_get(job, "write"), *r = json_object_get(job, "read");
	const double nbytes = number(w, "io_bytes") + number(r, "io_bytes");
	const double ms = fmax(number(w, "runtime"), number(r, "runtime"));

	if (nbytes > 0 && ms > 0) {
		ret->bytes_per_s = nbytes / ms * 1e3;
		ret->cpu_s_per_gb = (number(job, "usr_cpu") + number(job, "sys_cpu")) / 100 *
				    number(job, "job_runtime") * 1e-3 / (nbytes * 1e-9);
		ret->p50_us = fmax(percentile(w, "50.000000"), percentile(r, "50.000000"));
		ret->p99_us = fmax(percentile(w, "99.000000"), percentile(r, "99.000000"));
	}
	json_decref(o);
	if (nbytes > 0 && ms > 0)
		return STATUS_OK;
	return say_failed("fio: unexpected output: %.200s", text);
}

static int pass_of_fio(struct file *f, int pass, char *text, struct te_spill_rate *ret)
{
	static const char *const rw[NPASSES] = { "write", "read", "rw" };
	char option[4][64], file[4200], how[16];
	char *argv[] = { "fio", "--name=te", "--ioengine=io_uring", "--direct=1", "--fixedbufs=1",
			 "--registerfiles=1", "--overwrite=1", "--output-format=json", option[0],
			 option[1], option[2], option[3], file, how, NULL };

	snprintf(option[0], sizeof(option[0]), "--size=%lld", (long long)opt.nbytes);
	snprintf(option[1], sizeof(option[1]), "--bs=%lld", (long long)opt.block);
	snprintf(option[2], sizeof(option[2]), "--iodepth=%lld",
		 (long long)opt.depth * (pass == BOTH ? 2 : 1));
	snprintf(option[3], sizeof(option[3]), "--randseed=%lld", (long long)f->b->o->seed);
	snprintf(file, sizeof(file), "--filename=%s", f->fio_file);
	snprintf(how, sizeof(how), "--rw=%s", rw[pass]);
	if (run_program(argv, text))
		return STATUS_FAILED;
	return parse_fio(text, ret);
}

static int round_of_fio(struct file *f, struct subject *s)
{
	char *text = malloc(OUTPUT_MAX);
	struct te_spill_rate rate;
	int r = text ? STATUS_OK : say_failed("no memory for the output of fio");

	for (int pass = 0; pass < NPASSES && !r; pass++) {
		r = pass_of_fio(f, pass, text, &rate);
		if (!r)
			keep(s, pass, &rate);
	}
	s->n++;
	free(text);
	return r;
}

/* fio treats a colon as the end of a name */
static int name_fio_file(struct file *f)
{
	const char *dir = opt.dir;
	char *path = NULL;

	if (!*dir)
		return say_bad("--fio: --dir must say in which folder");
	if (asprintf(&path, "%s/te-fio.%ld", dir, (long)getpid()) < 0)
		return say_failed("no memory for a name");
	f->fio_file = path;
	return strchr(path, ':') ? say_bad("--fio: %s: the path has a colon", path) : STATUS_OK;
}

static int prepare(struct file *f)
{
	static const char *const engine[] = { "io_uring", "threads" };
	int r = STATUS_OK;

	for (int i = 0; i < 2 && !r; i++)
		if (opt.io >> i & 1)
			r = add_subject(f, engine[i], 0);
	if (!r && opt.fio)
		r = name_fio_file(f);
	if (!r && opt.fio)
		r = add_subject(f, "fio", 1);
	return r;
}

/* checksums of all bytes read are compared */
static int verify(struct file *f)
{
	int r = 0;

	for (int i = 0; i < f->nsubjects && !r; i++) {
		struct te_spill_opts so = opts_of(f->subject[i].name);
		struct te_spill_rates rates = TE_SPILL_RATES_INIT;

		so.verify = TE_SPILL_VERIFY_ALL;
		if (!f->subject[i].is_fio)
			r = te_spill_measure(&so, &rates);
	}
	return r < 0 ? say_te(r, "verify") : STATUS_OK;
}

static int measure(struct file *f)
{
	const struct bench *b = f->b;
	int r = STATUS_OK;

	for (int64_t i = 0; i < b->o->iters && !r && (!i || bench_now() < b->until); i++)
		for (int k = 0; k < f->nsubjects && !r; k++) {
			struct subject *s = &f->subject[(i + k) % f->nsubjects];

			r = s->is_fio ? round_of_fio(f, s) : round_of_engine(s);
		}
	return r;
}

static void report(struct file *f)
{
	static const char *const key[NFIGURES] = { "bytes_per_s", "cpu_s_per_gb", "p50_us",
						   "p99_us" };
	struct stats fio[NPASSES] = { { 0 } };
	struct bench *b = f->b;

	/* from the last one, which is fio if fio is installed */
	for (int p = 0; p < NPASSES; p++) {
		const struct subject *s = &f->subject[f->nsubjects - 1];

		if (s->is_fio)
			stats_of(memcpy(b->sample, s->sample[p][RATE], (size_t)s->n * 8),
				 (size_t)s->n, &fio[p]);
	}
	b->until = INFINITY; /* every row has its samples */
	for (int p = 0; p < NPASSES; p++)
		for (int i = 0; i < f->nsubjects; i++) {
			const struct subject *s = &f->subject[i];
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
				if (k == RATE && fio[p].n && !s->is_fio)
					bench_num(b, "fio_ratio", st.median / fio[p].median);
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
	for (int i = 0; i < f.nsubjects; i++)
		free(f.subject[i].sample[0][0]);
	if (f.fio_file)
		unlink(f.fio_file);
	free(f.fio_file);
	return r;
}

static const struct column columns[] = {
	{ "pass", "\npass", 0, 0 },
	{ "io", "\nio", 0, 0 },
	{ "block_bytes", "block\nMiB", 0x1p-20, 0 },
	{ "depth", "\ndepth", 0, 0 },
	{ "bytes_per_s", "\nMB/s", 1e-6, 1 },
	{ "fio_ratio", "of fio\n%", 100, 0 },
	{ "cpu_s_per_gb", "CPU\ns/GB", 0, 1 },
	{ "p50_us", "p50\nus", 0, 0 },
	{ "p99_us", "p99\nus", 0, 0 },
	{ NULL, NULL, 0, 0 },
};

const struct test test_file = {
	.name = "file",
	.text = "files of offload: written, read, and both at once",
	.options = options,
	.values = &opt,
	.columns = columns,
	.run = run,
};
