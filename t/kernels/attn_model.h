/* t/kernels/attn_model.h - attention forward and backward in FP64, with error bounds. */
#ifndef ATTN_MODEL_H
#define ATTN_MODEL_H

#include "tt.h"
#include "kernels/te_k.h"

struct shape {
	int64_t batch, T;
	int nheads, nkv, d;
	int64_t S; /* keys; 0: T */
	int dv;	   /* channels of v and out; 0: d */
};

/* values of an operand, as its array holds them, and its gradient; element at is the first one */
struct operand {
	double *x, *abs, *g, *g_err;
	struct te_k_strides s;
	int64_t at;
};

struct model {
	struct shape s;
	int32_t dtype;
	double scale, w;
	uint64_t words[2]; /* seed, offset */
	uint32_t threshold, tag;
	int32_t first_head, other_heads;
	int32_t window, full, right, bottom;
	const int32_t *first, *q_offsets, *k_offsets;
	int32_t nseqs;
	double softcap;
	const float *bias, *slopes, *sinks;
	int64_t bias_head;
	struct operand q, k, v; /* packed: these have the same arrays */
	struct te_k_strides os;
	double *out, *dout, *dout_abs; /* as the arrays hold them */
	/* results and their error bounds; the bound of an element of no head is -1 */
	double *o, *o_err, *lse, *lse_err, *delta, *delta_err;
	double *dbias, *dbias_err, *dsinks, *dsinks_err;
	double *mine[32]; /* arrays of model_doubles() */
	int nmine;
};

/* zeros; model_free() frees them */
double *model_doubles(struct model *m, int64_t n);
double *model_values(struct model *m, int32_t dtype, const void *p, int64_t n);
double *model_magnitudes(struct model *m, const double *x, int64_t n);
/* the same, -1 for elements of no head */
double *model_errors(struct model *m, int64_t n, struct te_k_strides s, int64_t at,
		     int64_t ntokens, int nheads, int d);
void model_free(struct model *m);

/* the dropout factor */
double model_factor(const struct model *m, int64_t bh, int64_t q, int64_t k);
/* keys of query q of sequence b: from the returned one to *ret_end - 1; *ret_at: its diagonal */
int64_t model_keys(const struct model *m, int64_t b, int64_t q, int64_t *ret_end, int64_t *ret_at);
void model_forward(struct model *m);
/* delta, of out and dout */
void model_pre(struct model *m);
/* lse and delta: what the kernels read */
void model_backward(struct model *m, const float *lse, const float *delta);

#endif
