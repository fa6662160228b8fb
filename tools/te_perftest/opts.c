/* opts.c - the options of te_perftest: the parser and --help use one row of a table each. */
#include "config.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <te/capture.h>

#include "opts.h"
#include "tools/lib/option.h"
#include "tools/lib/say.h"

enum kind {
	FLAG,
	INT,  /* with a unit of option_unit(), or without */
	LIST, /* of such numbers: "a,b,c" */
	TIME, /* seconds, see option_seconds() */
	TEXT, /* any */
	WORD, /* one of the choices in arg, "a|b|c" */
	WORDS /* some of them: "a,c" */
};

struct row {
	const char *name;
	const char *tests; /* those with this option, "a b"; NULL: all */
	enum kind kind;
	size_t offset;
	const char *dflt; /* NULL: none */
	double lo, hi;
	const char *arg;
	const char *help;
};

#define CALL_CHOICES                                                                       \
	"transpose|embedding|embedding-bwd|bias|bias-bwd|add|dropout|rmsnorm|rmsnorm-bwd|" \
	"gelu|gelu-bwd|rope|attention|attention-bwd|cross-entropy|cross-entropy-bwd|"      \
	"adamw|gemm|quantize"
#define AT(field) offsetof(struct opts, field)

static const struct row rows[] = {
	{ "backend", NULL, WORD, AT(backend), NULL, 0, 0, "auto|host|cuda",
	  "where to run (TE_BACKEND, else auto)" },
	{ "device", NULL, INT, AT(device), "-1", -1, 1023, "N",
	  "which device of the backend; -1: by the rank that a launcher has given" },
	{ "iters", NULL, INT, AT(iters), "100", 1, 1 << 20, "N", "maximum samples of a figure" },
	{ "warmup", NULL, INT, AT(warmup), "10", 0, 1 << 20, "N",
	  "maximum samples discarded before" },
	{ "seconds", NULL, TIME, AT(seconds), "20", 0.01, 3600, "TIME",
	  "time limit of the test, shared by its figures" },
	{ "seed", NULL, INT, AT(seed), "1", 0, 1e15, "N", "of random data" },
	{ "verify", NULL, FLAG, AT(verify), "0", 0, 1, NULL,
	  "compare results with a reference before measuring" },
	{ "json", NULL, FLAG, AT(json), "0", 0, 1, NULL, "print one JSON object" },
	{ "list", NULL, FLAG, AT(list), "0", 0, 1, NULL, "print the tests and exit" },

	{ "nodes", "graph", LIST, AT(nodes), "1,10,100,1000", 1, 100000, "N,...",
	  "nodes of a graph" },
	{ "kind", "graph", WORDS, AT(kind), "kernel,fill,copy", 0, 0, "kernel|fill|copy",
	  "what the nodes are: te_cast, te_fill_u32 or te_copy" },
	{ "bytes", "graph", INT, AT(node_bytes), "4K", 4, 1 << 30, "N",
	  "bytes that a node reads or fills" },
	{ "rebind", "graph", INT, AT(rebind), "8", 1, 100000, "N",
	  "maximum nodes whose output is rebound" },
	{ "edges", "graph step", WORDS, AT(edges), "serial,pdl,all", 0, 0,
	  "serial|concurrent|pdl|all", "capture flags: 0, TE_CAPTURE_CONCURRENT, _PDL or both" },
	{ "recipe", "step", WORDS, AT(step_recipe), "bf16,fp8-delayed", 0, 0,
	  "fp32|bf16|fp8-delayed|fp8-current|fp8-block", "number formats" },
	{ "layers", "step", INT, AT(layers), "12", 1, 1000, "N", "layers of the model" },
	{ "width", "step", INT, AT(width), "256", 2, 1 << 16, "N", "width of a token" },
	{ "heads", "step", INT, AT(heads), "4", 1, 1024, "N", "attention heads" },
	{ "vocab", "step", INT, AT(vocab), "256", 1, 1 << 20, "N", "size of the vocabulary" },
	{ "batch", "step", INT, AT(batch), "1", 1, 1 << 16, "N", "sequences of a step" },
	{ "seq-len", "step", INT, AT(seq_len), "64", 1, 1 << 16, "N", "tokens of a sequence" },

	{ "bytes", "copy", LIST, AT(copy_bytes), "64K,1M,16M,256M", 1, 0x1p40, "N,...",
	  "bytes of a copy" },
	{ "cache", "copy cast quantize norm act gemm attn calls", WORD, AT(cache), "cold", 0, 0,
	  "cold|warm", "cycle through buffers larger than the L2 cache, or use one" },
	{ "rows", "cast quantize norm act", INT, AT(rows), "4096", 1, 1 << 24, "N",
	  "rows of a tensor" },
	{ "cols", "cast quantize norm act", INT, AT(cols), "4096", 1, 1 << 24, "N",
	  "columns of a tensor" },
	{ "recipe", "quantize", WORDS, AT(recipe), "delayed,current", 0, 0,
	  "delayed|current|block|block-weight", "recipe that gives the scales" },
	{ "copies", "quantize", WORDS, AT(copies), "row,both", 0, 0, "row|both",
	  "write the row-wise copy, or both copies" },
	{ "op", "norm", WORDS, AT(norm_op), "layernorm,rmsnorm", 0, 0, "layernorm|rmsnorm",
	  "operation" },
	{ "op", "act", WORDS, AT(act_op), "gelu,silu", 0, 0, "gelu|silu", "operation" },
	{ "pass", "norm act attn", WORDS, AT(op_pass), "forward,both", 0, 0, "forward|both",
	  "forward for evaluation, or forward and backward" },
	{ "call", "calls", WORDS, AT(call), NULL, 0, 0, CALL_CHOICES,
	  "which calls (all)" },
	{ "rows", "calls", INT, AT(call_rows), "0", 0, 1 << 20, "N",
	  "rows of the main tensor; 0: 4096, or 256 on the host" },
	{ "cols", "calls", INT, AT(call_cols), "0", 0, 1 << 20, "N",
	  "columns of it; 0: the same" },
	{ "bytes", "comm", LIST, AT(comm_bytes), "1K,16K,256K,1M,4M,16M", 1, 0x1p40, "N,...",
	  "bytes of an array" },
	{ "algorithm", "comm", WORDS, AT(comm_algorithm), "auto", 0, 0,
	  "auto|ll|oneshot|twoshot|zerocopy|staged|nccl|nvls|nvls-oneshot|exchange|chain",
	  "how data is exchanged" },
	{ "types", "comm", WORDS, AT(comm_type), "bf16", 0, 0, "bf16|fp32", "element type" },
	{ "symmetric", "comm", FLAG, AT(symmetric), "0", 0, 1, NULL,
	  "arrays in symmetric memory (te_comm_alloc)" },
	{ "fuse", "comm", WORDS, AT(comm_fuse), "none", 0, 0, "none|add-rms|add-rms-fp8",
	  "all-reduce, or with residual, RMSNorm and FP8 (te_comm_allreduce_norm)" },
	{ "cols", "comm", INT, AT(comm_cols), "4096", 16, 16384, "N",
	  "columns of a row with --fuse" },
	{ "gemm", "comm", FLAG, AT(comm_gemm), "0", 0, 1, NULL,
	  "also while GEMMs run on another stream: how much both slow down" },
	{ "tune", "comm", TEXT, AT(tune), NULL, 0, 0, "FILE",
	  "measure the algorithms, and write TE_COMM_TABLE for these ranks" },
	{ "max-blocks", "comm", INT, AT(max_blocks), "0", 0, 128, "N",
	  "most blocks of a kernel; 0: as many as are useful" },
	{ "transport", "comm", WORD, AT(comm_transport), NULL, 0, 0, "auto|fabric|verbs|tcp",
	  "between nodes (TE_COMM_TRANSPORT, else auto)" },
	{ "depth", "comm", INT, AT(depth), "50", 1, 1000, "N",
	  "operations of a recording, each of which depends on the one before" },
	{ "depth", "calls", INT, AT(depth), "64", 1, 128, "N",
	  "calls that are queued back to back" },
	{ "bytes", "verbs", LIST, AT(verbs_bytes), "8,64,1K,4K,64K,1M,4M", 0, 1e9, "N,...",
	  "bytes of a message" },
	{ "transport", "verbs", WORD, AT(transport), "verbs", 0, 0, "verbs|tcp",
	  "what carries the messages" },
	{ "depth", "verbs", INT, AT(verbs_depth), "16", 1, 64, "N",
	  "messages that are sent at once, for the rate" },
	{ "perftest", "verbs", TEXT, AT(perftest), NULL, 0, 0, "HOST",
	  "measure ib_write_lat and ib_write_bw in turn; HOST is that of rank 1" },
	{ "dir", "file", TEXT, AT(dir), "", 0, 0, "DIR",
	  "folder of the file; empty: TE_OFFLOAD_DIR, or else the current one" },
	{ "io", "file", WORDS, AT(io), "io_uring,threads", 0, 0, "io_uring|threads",
	  "what reads and writes" },
	{ "bytes", "file", INT, AT(file_bytes), "256M", 1 << 16, 1e15, "N", "bytes of the file" },
	{ "block", "file", INT, AT(block), "4M", 4096, 1 << 28, "N", "bytes of an operation" },
	{ "depth", "file", INT, AT(file_depth), "8", 1, 256, "N",
	  "operations in flight in each direction" },
	{ "check", "file", WORD, AT(check), "off", 0, 0, "off|sample|all",
	  "blocks whose checksum is compared" },
	{ "fio", "file", FLAG, AT(fio), "0", 0, 1, NULL, "measure fio in turn, in --dir" },
	{ "bytes", "offload", INT, AT(offload_bytes), "64M", 1 << 12, 0x1p40, "N",
	  "bytes that are copied in each direction" },
	{ "group", "offload", INT, AT(offload_group), "4M", 1 << 8, 0x1p40, "N",
	  "bytes of a copy" },
	{ "way", "offload", WORDS, AT(offload_way), "streams,graph", 0, 0, "streams|graph",
	  "copies on a stream of each direction, or the nodes of a graph" },
	{ "n", "offload", INT, AT(n), "0", 0, 1 << 15, "N",
	  "rows and columns of the GEMMs that are the load; 0: 4096, or 192 on the host" },
	{ "types", "gemm", WORDS, AT(types), "bf16,fp8", 0, 0,
	  "fp32|bf16|fp8|fp8-block|fp8-block-dw",
	  "types of the operands; D is BF16, or FP32 for FP32" },
	{ "m", "gemm", INT, AT(m), "0", 0, 1 << 20, "N",
	  "rows of D; 0: 4096, or 256 on the host" },
	{ "n", "gemm", INT, AT(n), "0", 0, 1 << 20, "N", "columns of D; 0: the same" },
	{ "k", "gemm", INT, AT(k), "0", 0, 1 << 20, "N", "terms of a sum; 0: the same" },
	{ "types", "attn", WORDS, AT(attn_types), "bf16", 0, 0, "fp32|bf16",
	  "type of all tensors" },
	{ "batch", "attn", INT, AT(attn_batch), "4", 1, 1 << 16, "N", "sequences" },
	{ "seq-len", "attn", INT, AT(attn_seq_len), "0", 0, 1 << 16, "N",
	  "tokens of a sequence; 0: 2048, or 256 on the host" },
	{ "heads", "attn", INT, AT(attn_heads), "8", 1, 1024, "N", "query heads" },
	{ "kv-heads", "attn", INT, AT(kv_heads), "0", 0, 1024, "N",
	  "key and value heads; 0: the same" },
	{ "head-dim", "attn", INT, AT(head_dim), "64", 1, 128, "N", "channels of a head" },
};
#define NROWS (sizeof(rows) / sizeof(rows[0]))
_Static_assert(NROWS + 2 <= OPTION_ROWS_MAX, "option_next() takes fewer options");

static int row_is_of(const struct row *row, const struct test *test)
{
	size_t len = test ? strlen(test->name) : 0;

	for (const char *p = row->tests; p; p = strchr(p, ' ')) {
		p += *p == ' ';
		if (test && !strncmp(p, test->name, len) && (p[len] == ' ' || !p[len]))
			return 1;
	}
	return !row->tests;
}

/* 1 if text up to a comma or the end is an integer within the row's bounds */
static int number(const struct row *row, const char *text, const char **ret_end, int64_t *ret)
{
	char *end;
	double x;

	errno = 0;
	*ret = strtoll(text, &end, 10);
	if (end == text || errno)
		return 0;
	x = (double)*ret * option_unit(&end);
	if (x >= row->lo && x <= row->hi)
		*ret = (int64_t)x;
	*ret_end = end;
	return x >= row->lo && x <= row->hi && (!*end || *end == ',');
}

static int set_numbers(const struct row *row, const char *text, int64_t *v, int room, int *ret_n)
{
	const char *p = text;
	int n = 0;

	do {
		if (n == room)
			return say_bad("--%s: \"%s\" has more than %d number%s", row->name, text,
				       room, room > 1 ? "s" : "");
		p += *p == ',';
		if (!number(row, p, &p, &v[n++])) {
			return say_bad("--%s: \"%s\": not %s from %.0f to %.0f", row->name, text,
				       room > 1 ? "whole numbers" : "a whole number", row->lo,
				       row->hi);
		}
	} while (*p);
	*ret_n = n;
	return STATUS_OK;
}

static int set_words(const struct row *row, const char *text, uint32_t *ret)
{
	*ret = 0;
	for (const char *p = text; p; p = strchr(p, ',')) {
		int i;

		p += p != text;
		i = option_choice(row->arg, p, strcspn(p, ","));
		if (i < 0)
			return say_bad("--%s: \"%s\": expected words of %s", row->name, text,
				       row->arg);
		*ret |= 1u << i;
	}
	return STATUS_OK;
}

static int row_set(struct opts *o, const struct row *row, const char *text)
{
	void *field = (char *)o + row->offset;
	struct list *list = field;
	double x;
	int n;

	switch (row->kind) {
	case FLAG:
	case INT:
		return set_numbers(row, text, field, 1, &n);
	case LIST:
		return set_numbers(row, text, list->v, OPTS_LIST_MAX, &list->n);
	case TIME:
		x = option_seconds(text);
		if (!(x >= row->lo && x <= row->hi)) {
			return say_bad("--%s: \"%s\" is not a time from %g to %g seconds",
				       row->name, text, row->lo, row->hi);
		}
		*(double *)field = x;
		return STATUS_OK;
	case TEXT:
		*(const char **)field = text;
		return STATUS_OK;
	case WORD:
		if (option_choice(row->arg, text, strlen(text)) < 0)
			return say_bad("--%s: \"%s\": expected one of %s", row->name, text,
				       row->arg);
		*(const char **)field = text;
		return STATUS_OK;
	case WORDS:
		return set_words(row, text, field);
	}
	return STATUS_OK;
}

static void print_rows(const struct test *test)
{
	for (size_t i = 0; i < NROWS; i++) {
		const struct row *row = &rows[i];
		int n;

		if (test ? !row->tests || !row_is_of(row, test) : !!row->tests)
			continue;
		n = printf("  --%s%s%s%s", row->name, row->arg ? " " : "",
			   row->arg ? row->arg : "", row->kind == WORDS ? ",..." : "");
		printf("%s%*s%s", n > 26 ? "\n" : "", n > 26 ? 28 : 28 - n, "", row->help);
		if (row->dflt && row->kind != FLAG)
			printf(" (%s)", row->dflt);
		putchar('\n');
	}
}

static void print_help(void)
{
	printf("usage: te_perftest TEST [options]\n"
	       "       te_perftest --list [--json]\n"
	       "Measures a part of the library on a device, compared with its limit.\n\n"
	       "Every test\n");
	print_rows(NULL);
	for (size_t i = 0; tests[i]; i++) {
		printf("\n%s: %s\n", tests[i]->name, tests[i]->text);
		print_rows(tests[i]);
	}
	printf("\nOther\n  --help                    print this\n"
	       "  --version                 print the version\n"
	       "Exit status: 0 success, 1 failure or --verify found a wrong result,\n"
	       "2 bad usage.\n");
}

/* the row of an option of this test; options of several tests may have the same name */
static const struct row *row_of(const char *name, const struct test *test)
{
	for (size_t i = 0; i < NROWS; i++) {
		if (!strcmp(rows[i].name, name) && row_is_of(&rows[i], test))
			return &rows[i];
	}
	return NULL;
}

struct given {
	const char *name, *text;
};

static int find_test(struct opts *o, int n, char *const *word)
{
	if (n > 1)
		return say_bad("unexpected argument \"%s\"", word[1]);
	if (n && !(o->test = test_find(word[0])))
		return say_bad("unknown test \"%s\"; --list prints the tests", word[0]);
	return STATUS_OK;
}

int opts_parse(struct opts *o, int argc, char **argv, int *ret_done)
{
	struct option_row list[NROWS + 1] = { 0 };
	const struct option_table options = { .help = print_help, .rows = list };
	struct given given[64];
	int ngiven = 0, c, r;

	*ret_done = 0;
	memset(o, 0, sizeof(*o));
	for (size_t i = 0; i < NROWS; i++) {
		list[i] = (struct option_row){
			.name = rows[i].name, .key = (int)i + 1000, .arg = rows[i].arg
		};
		r = rows[i].dflt ? row_set(o, &rows[i], rows[i].dflt) : STATUS_OK;
		if (r)
			return r;
	}
	while ((c = option_next(&options, argc, argv)) >= 0) {
		if (ngiven == (int)(sizeof(given) / sizeof(given[0])))
			return say_bad("too many options");
		given[ngiven].name = rows[c - 1000].name;
		given[ngiven++].text = optarg ? optarg : "1";
	}
	if (c != OPTION_END) {
		*ret_done = c == OPTION_DONE;
		return *ret_done ? STATUS_OK : STATUS_BAD;
	}
	r = find_test(o, argc - optind, argv + optind);
	for (int i = 0; i < ngiven && !r; i++) {
		const struct row *row = row_of(given[i].name, o->test);

		if (!row && !o->test)
			return say_bad("--%s: no test given", given[i].name);
		if (!row)
			return say_bad("--%s: not an option of %s", given[i].name, o->test->name);
		r = row_set(o, row, given[i].text);
	}
	if (!r && !o->test && !o->list)
		return say_bad("no test given; --list prints the tests, --help the options");
	return r;
}
