/* comm.c - te_perftest comm: operations of the ranks that te_run or mpirun has started. */
#include "config.h"

#include <stdlib.h>

#include <te/collective.h>
#include <te/tensor.h>

#include "comm.h"
#include "tools/lib/say.h"

static struct comm_opts opt;

static const struct option_field options[] = {
	{ "bytes", OPTION_LIST, AT(bytes), "1K,16K,256K,1M,4M,16M", 1, 0x1p40, 0, "N,...",
	  "bytes of an array" },
	{ "algorithm", OPTION_WORDS, AT(algorithm), "auto", 0, 0, 0, TE_COMM_ALGORITHM_NAMES,
	  "algorithm of all-reduce" },
	{ "call", OPTION_WORDS, AT(call), "allreduce", 0, 0, 0,
	  "allreduce|sendrecv|alltoall|gather|scatter|reduce|send",
	  "operation; --fuse and --algorithm, except nccl, apply to allreduce only" },
	{ "types", OPTION_WORDS, AT(types), "bf16", 0, 0, 0, "bf16|fp32", "element type" },
	{ "symmetric", OPTION_FLAG, AT(symmetric), NULL, 0, 1, 0, NULL,
	  "arrays in symmetric memory (te_comm_alloc)" },
	{ "fuse", OPTION_WORDS, AT(fuse), "none", 0, 0, 0, "none|add-rms|add-rms-fp8",
	  "all-reduce, or with residual, RMSNorm and FP8 (te_comm_allreduce_norm)" },
	{ "cols", OPTION_COUNT, AT(cols), "4096", 16, 16384, 0, "N",
	  "columns of a row with --fuse" },
	{ "gemm", OPTION_FLAG, AT(gemm), NULL, 0, 1, 0, NULL,
	  "also while GEMMs run on another stream: how much both slow down" },
	{ "tune", OPTION_TEXT, AT(tune), NULL, 0, 0, 0, "FILE",
	  "measure the algorithms, and write TE_COMM_TABLE for these ranks" },
	{ "max-blocks", OPTION_COUNT, AT(max_blocks), "0", 0, 128, 0, "N",
	  "most blocks of a kernel; 0: as many as are useful" },
	{ "transport", OPTION_WORD, AT(transport), NULL, 0, 0, 0, "auto|fabric|verbs|tcp",
	  "between nodes (TE_COMM_TRANSPORT, else auto)" },
	{ "depth", OPTION_COUNT, AT(depth), "50", 1, 1000, 0, "N",
	  "operations of a recording, each of which depends on the one before" },
	{ 0 },
};

/* measurements of each size: fusions of all-reduce, then the other calls */
#define FORMS (COMM_FUSES + COMM_CALLS - 1)

/* bit i: i of enum te_comm_algorithm, for the form; 0: there are no such rows */
static uint32_t algorithms_of(const struct comm *c, int form)
{
	const int call = form - COMM_FUSES + 1;
	/* all ranks begin to use NCCL together */
	const int nccl = call == COMM_SENDRECV || call == COMM_ALLTOALL ||
			 (call == COMM_SEND && c->nranks % 2 == 0);

	if (form < COMM_FUSES)
		return (opt.call & 1) && opt.fuse >> form & 1 ? opt.algorithm : 0;
	if (!(opt.call >> call & 1))
		return 0;
	return 1u << TE_COMM_AUTO | (nccl ? opt.algorithm & 1u << TE_COMM_NCCL : 0);
}

/* each size, form and algorithm */
static int rows(struct comm *c)
{
	int r = STATUS_OK, left = 0;

	for (int form = 0; form < FORMS; form++)
		left += opt.bytes.n * __builtin_popcount(algorithms_of(c, form));

	c->dtype = opt.types & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	c->max_blocks = (int32_t)opt.max_blocks;
	for (int i = 0; i < opt.bytes.n * FORMS && !r; i++) {
		const int form = i % FORMS, reduces = form < COMM_FUSES;
		const uint32_t algorithms = algorithms_of(c, form);

		c->fuse = reduces ? form : COMM_FUSE_NONE;
		c->call = reduces ? COMM_ALLREDUCE : (enum comm_call)(form - COMM_FUSES + 1);
		for (int k = 0; algorithms >> k && !r; k++) {
			if (!(algorithms >> k & 1))
				continue;
			c->algorithm = (enum te_comm_algorithm)k;
			comm_size(c, opt.bytes.v[i / FORMS]);
			if (c->count)
				r = comm_agree_on_time(c);
			if (c->count && !r)
				r = comm_measure(c, left);
			left--;
		}
	}
	return r;
}

static int begin(void)
{
	return opt.transport && setenv("TE_COMM_TRANSPORT", opt.transport, 1) ?
		       say_failed("not enough memory") :
		       STATUS_OK;
}

static int run(struct bench *b)
{
	struct te_comm_opts co = TE_COMM_OPTS_INIT;
	struct comm c = { .o = &opt, .b = b, .symmetric = (int)opt.symmetric };
	int r;

	for (int i = 0; i < opt.bytes.n && (opt.symmetric || opt.tune); i++)
		if ((uint64_t)opt.bytes.v[i] * 2 + (8 << 20) > co.pool_nbytes)
			co.pool_nbytes = (uint64_t)opt.bytes.v[i] * 2 + (8 << 20);
	r = te_comm_create(b->ctx, &co, &c.comm);
	if (r < 0)
		return say_te(r, "comm");
	c.rank = te_comm_rank(c.comm);
	c.nranks = te_comm_nranks(c.comm);
	if (c.nranks == 1)
		say_note("comm: there is one rank; te_run -n N te_perftest comm measures N");
	b->silent = c.rank != 0;
	r = te_mem_alloc(b->stream, 3 * sizeof(*c.word), (void **)&c.word);
	r = r < 0 ? say_te(r, "comm") : opt.tune ? comm_tune(&c) : rows(&c);
	if (c.word)
		te_mem_free(b->stream, c.word);
	te_stream_sync(b->stream);
	te_comm_unref(c.alone);
	te_comm_unref(c.comm);
	return r;
}

static const struct column columns[] = {
	{ "ranks", "\nranks", 0, 0 },
	{ "call", "\ncall", 0, 0 },
	{ "type", "\ntype", 0, 0 },
	{ "bytes", "\nbytes", 0, 0 },
	{ "memory", "\nmemory", 0, 0 },
	{ "algorithm", "\nalgorithm", 0, 0 },
	{ "fuse", "\nfuse", 0, 0 },
	{ "blocks", "\nblocks", 0, 0 },
	{ "launches", "\nlaunches", 0, 0 },
	{ "max_us", "slowest rank\nus", 0, 1 },
	{ "p99_us", "p99\nus", 0, 0 },
	{ "algorithm_bytes_per_s", "bytes / time\nGB/s", 1e-9, 0 },
	{ "bus_bytes_per_s", "bus\nGB/s", 1e-9, 0 },
	{ "speedup", "speedup\nby fusion", 0, 0 },
	{ "slowdown", "slowdown\nby GEMMs", 0, 0 },
	{ "gemm_slowdown", "slowdown\nof GEMMs", 0, 0 },
	{ NULL, NULL, 0, 0 },
};

const struct test test_comm = {
	.name = "comm",
	.text = "all-reduce, or messages, among the ranks of te_run or mpirun",
	.options = options,
	.values = &opt,
	.columns = columns,
	.begin = begin,
	.run = run,
};
