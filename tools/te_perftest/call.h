/* call.h - a call on tensors, for tests of single kernels: memory, samples, and --verify. */
#ifndef CALL_H
#define CALL_H

#include <te/quant.h>
#include <te/tensor.h>

#include "bench.h"

#define CALL_FIELDS_MAX 12

enum fill { NORMAL, POSITIVE, TOKENS, DOCUMENTS, ZEROS };
/* an extent of a field, as an index of extent[] of struct call */
enum extent {
	NONE,
	ONE,
	TWO,
	ROWS,
	COLS,
	INNER, /* terms of a sum */
	HEADS,
	QKV,	/* columns of all heads: queries, keys and values */
	HEADED, /* columns of the results of all heads */
	TABLE,	/* rows of an embedding */
	RNG,	/* in bytes, like STATE and WS */
	MOMENT, /* bytes of a moment in FP8 */
	REST,	/* bytes that weights in BF16 lack */
	STATE,
	WS,
	EXTENTS
};

/* a tensor that the call reads or writes */
struct field {
	enum te_dtype dtype;
	enum extent rows, cols; /* NONE after the last field */
	enum fill fill;
	double times; /* times that all of it is read or written; 0: scratch */
	enum te_scaling scaling;
	uint32_t copies; /* TE_TENSOR_* */
};

struct call;
struct call_row {
	const char *name;
	int (*queue)(const struct call *c, struct te_tensor *const *t); /* t[i]: field i */
	struct field field[CALL_FIELDS_MAX];
	size_t (*ws_nbytes)(const struct call *c);		       /* or NULL */
	int (*init)(const struct call *c, struct te_tensor *const *t); /* the memory; or NULL */
	/* checks what the call wrote, in an image of its memory, with a simple loop; or NULL */
	int (*check)(const struct call *c, const uint8_t *got);
};

/* nsets sets of tensors; each call takes the next */
struct call {
	/* the caller sets: b, row, extent, batch, recipe, variant, document, once, depth, other */
	struct bench *b;
	struct call_row row;
	int64_t extent[EXTENTS];
	int64_t batch;	    /* sequences of fields with ROWS or HEADS, if above 1 */
	const char *recipe; /* name of quant's recipe, or NULL */
	int variant;	    /* an argument of the row's functions */
	int64_t document;   /* tokens of each document of a sequence; 0: one document */
	int once;	    /* 1: one set, regardless of the size of the caches */
	int depth;	    /* calls per sample; 0: as many as take a millisecond, up to 16 */
	int nfields, nsets, at;
	double traffic;		   /* bytes that one call has to read and write */
	struct te_tensor **tensor; /* [nsets][CALL_FIELDS_MAX] */
	struct te_quant *quant;
	/* image of the memory before a call: parts of each tensor at these offsets */
	uint8_t *host;
	size_t part[CALL_FIELDS_MAX][4], nbytes;
	double *cpu_us; /* CPU time of each call, if depth is set */
	int64_t ncpu, cpu_most;
	struct call *other; /* open call that is measured in turn, or NULL */
};

/* returns an exit status; the caller closes the call in any case */
int call_open(struct call *c);
void call_close(struct call *c);
/* queues one call; a bench_work */
int call_work(void *arg);
/* runs --verify, then measures the device time of a call and of the other one; returns an exit
 * status */
int call_measure(struct call *c, struct stats *ret_us);
/* counts the kernels, copies and fills that a call queues; returns an exit status */
int call_count(struct call *c, int64_t *ret_n);

int call_is_fp8(enum te_dtype type);
/* element i of a field as it is stored in an image: row-wise, without its scale */
double call_element(const struct call *c, const uint8_t *image, int field, int64_t i);
/* rows, of all sequences of a batch, and columns of a field */
int64_t call_rows(const struct call *c, int field);
int64_t call_cols(const struct call *c, int field);
/* --verify: reports values that differ by more than the bound; returns an exit status */
int call_near(const struct call *c, const char *what, int64_t i, double got, double want,
	      double bound);

/*
 * Adds flop_per_s and its fraction of the type's peak to the row; on the host also the rate per
 * core.
 */
void call_rate(const struct call *c, double flop_per_s);
/* columns of these figures, for a test's list */
#define RATE_COLUMNS                                                   \
	{ "flop_per_s", "rate\nTFLOP/s", 1e-12, 0 },                   \
		{ "flop_per_s_per_core", "a core\nGFLOP/s", 1e-9, 0 }, \
		{ "peak_ratio", "of peak\n%", 100, 0 }

/*
 * gemm.c: opens a GEMM of square matrices of a type, FP32 or BF16, with one set. Returns an exit
 * status; the caller closes it in any case.
 */
int gemm_open(struct call *c, struct bench *b, enum te_dtype type, int64_t n);

/* references for --verify, in call_check.c; a row has its fields in the order given here */
int check_cast(const struct call *c, const uint8_t *got);     /* x, y */
int check_quantize(const struct call *c, const uint8_t *got); /* x, y */
int check_norm(const struct call *c,
	       const uint8_t *got);			 /* x, gamma, beta, y, mean, rstd, dy, dx */
int check_act(const struct call *c, const uint8_t *got); /* x, y, dy, dx */
int check_gemm(const struct call *c, const uint8_t *got); /* a, w, d */
/* x, y; variant: the window */
int check_attn(const struct call *c, const uint8_t *got);

#endif
