/* opts.h - the options of te_perftest, from one table. */
#ifndef OPTS_H
#define OPTS_H

#include <stdint.h>

#include "perftest.h"

#define OPTS_LIST_MAX 32

/* "1,10,64K" */
struct list {
	int64_t v[OPTS_LIST_MAX];
	int n;
};

/* One field for each row of the table in opts.c; strings point into argv. */
struct opts {
	const struct test *test; /* NULL with --list, --help and --version only */
	const char *backend;
	const char *cache;
	int64_t device, iters, warmup, seed;
	double seconds;
	int64_t verify, json, list;
	/* words are sets: bit i stands for the i-th choice */
	uint32_t kind;	 /* graph: enum node_kind */
	uint32_t recipe; /* quantize */
	uint32_t copies; /* quantize */
	uint32_t edges; /* graph, step: bit i stands for i of TE_CAPTURE_* */
	struct list nodes;
	struct list copy_bytes;
	int64_t node_bytes, rebind;
	int64_t rows, cols;
	uint32_t call;			     /* calls; 0: all */
	int64_t call_rows, call_cols, depth; /* 0: the device decides */
	uint32_t norm_op, act_op;    /* norm, act */
	uint32_t op_pass;	     /* norm, act, attn */
	uint32_t types;		     /* gemm */
	int64_t m, n, k;	     /* 0: the device decides; n: offload too */
	uint32_t step_recipe;	     /* step */
	int64_t layers, width, heads, vocab, batch, seq_len;
	uint32_t attn_types; /* attn */
	struct list comm_bytes;
	uint32_t comm_algorithm; /* bit i: i of enum te_comm_algorithm */
	uint32_t comm_type;	 /* bit 0: BF16, else FP32 */
	int64_t max_blocks, symmetric;
	uint32_t comm_fuse; /* bit i: i of enum comm_fuse */
	int64_t comm_cols, comm_gemm;
	const char *tune; /* a file; or NULL */
	const char *comm_transport; /* NULL: that of the environment */
	struct list verbs_bytes;
	const char *transport, *perftest; /* verbs; perftest: a host, or NULL */
	int64_t verbs_depth;
	uint32_t io;		 /* file: bit 0: io_uring, bit 1: threads */
	const char *dir, *check; /* file */
	int64_t file_bytes, block, file_depth, fio;
	uint32_t offload_way; /* offload: bit 0: streams, bit 1: graph */
	int64_t offload_bytes, offload_group;
	int64_t attn_batch, attn_seq_len, attn_heads, kv_heads, head_dim; /* 0: see opts.c */
};

/*
 * Fill o from its defaults, then the command line. --help and
 * --version print and set *ret_done. An exit status.
 */
int opts_parse(struct opts *o, int argc, char **argv, int *ret_done);

#endif
