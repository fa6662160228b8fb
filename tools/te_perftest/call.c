/* call.c - a call on tensors, see call.h: the memory of its sets, samples, and --verify. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <te/capture.h>
#include <te/dtype.h>
#include <te/param.h>

#include "call.h"
#include "tools/lib/say.h"

#define PERIOD 4099 /* numbers of a field repeat: a prime, so that rows differ */
#define ALIGN 256
#define TABLE_ROWS 4096

/* ---- memory ---- */

static int is_batched(const struct call *c, const struct field *f)
{
	return c->batch > 1 && (f->rows == ROWS || f->rows == HEADS);
}

int64_t call_rows(const struct call *c, int field)
{
	const struct field *f = &c->row.field[field];

	return c->extent[f->rows] * (is_batched(c, f) ? c->batch : 1);
}

int64_t call_cols(const struct call *c, int field)
{
	return c->extent[c->row.field[field].cols];
}

/* bytes of the row-wise and column-wise copies and of their scale-inverses; 0: absent */
static size_t part_of(const struct te_tensor *t, int part, void **ret)
{
	const enum te_scaling s = te_tensor_scaling(t);
	const int64_t rows = te_tensor_rows(t), cols = te_tensor_cols(t);
	const int64_t n =
		s ? te_scaling_nfloats(s, part == 3 ? cols : rows, part == 3 ? rows : cols) : 1;

	*ret = part == 0 ? te_tensor_data(t) :
	       part == 1 ? te_tensor_coldata(t) :
	       part == 2 ? te_tensor_scale_inv(t) :
	       s	 ? te_tensor_col_scale_inv(t) :
			   NULL;
	return !*ret ? 0 : part < 2 ? te_tensor_nbytes(t) : (size_t)n * sizeof(float);
}

static struct te_tensor **tensors(const struct call *c, int set)
{
	return c->tensor + (size_t)set * CALL_FIELDS_MAX;
}

/* copies an image to the memory of a set, or from it */
static int move(struct call *c, int set, uint8_t *image, int from)
{
	int r = 0;

	for (int i = 0; i < 4 * c->nfields && r >= 0; i++) {
		uint8_t *host = image + c->part[i / 4][i % 4];
		void *p;
		const size_t nbytes = part_of(tensors(c, set)[i / 4], i % 4, &p);

		if (nbytes)
			r = te_copy(c->b->stream, from ? host : p, from ? p : host, nbytes);
	}
	return bench_idle(c->b, r);
}

/* initial contents of the memory */
static int reset(struct call *c, int set)
{
	int r = move(c, set, c->host, 0);

	return r < 0 || !c->row.init ? r : c->row.init(c, tensors(c, set));
}

static int make_set(struct call *c, int set)
{
	int r = 0;

	for (int i = 0; i < c->nfields && r >= 0; i++) {
		const struct field *f = &c->row.field[i];
		const int64_t shape[] = { c->batch, c->extent[f->rows], c->extent[f->cols] };
		const int whole = is_batched(c, f);
		struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;

		o.flags = f->copies;
		o.scaling = f->scaling;
		r = te_tensor_create(c->b->ctx, f->dtype, whole ? 3 : 2, whole ? shape : shape + 1,
				     &o, &tensors(c, set)[i]);
	}
	return r;
}

static void fill(struct call *c, int field)
{
	const struct field *f = &c->row.field[field];
	const int64_t n = call_rows(c, field) * call_cols(c, field);
	uint8_t *p = c->host + c->part[field][0];
	float x[PERIOD];

	if (f->fill == ZEROS)
		return;
	if (f->fill == DOCUMENTS) {
		for (int64_t i = 0; c->document && i < n; i++) {
			const int64_t token = i % c->extent[ROWS];
			const int32_t first = (int32_t)(token - token % c->document);

			memcpy(p + 4 * i, &first, 4);
		}
		return;
	}
	if (f->dtype == TE_DTYPE_UINT8 || f->dtype == TE_DTYPE_E2M1) {
		bench_random(c->b, p, (size_t)(f->dtype == TE_DTYPE_E2M1 ? n / 2 : n));
		return;
	}
	bench_normal(c->b, x, PERIOD);
	for (int64_t i = 0; i < n; i++) {
		const float v = f->fill == NORMAL ? x[i % PERIOD] : fabsf(x[i % PERIOD]);
		/* tokens also select classes: COLS of them */
		const double most = fmin(TABLE_ROWS, (double)c->extent[COLS]);
		const int32_t token = f->fill == TOKENS ? (int32_t)(v * 1e6f) % (int32_t)most : 0;
		const uint16_t half = te_bf16_encode(v);

		if (f->fill == TOKENS)
			memcpy(p + 4 * i, &token, 4);
		else if (f->dtype == TE_DTYPE_FP32)
			memcpy(p + 4 * i, &v, 4);
		else if (f->dtype == TE_DTYPE_BF16)
			memcpy(p + 2 * i, &half, 2);
		else
			p[i] = te_fp8_encode(f->dtype, v);
	}
}

int call_is_fp8(enum te_dtype type)
{
	return type == TE_DTYPE_E4M3 || type == TE_DTYPE_E5M2;
}

/* scale-inverses of codes: 1, or for blocks powers of two from 1/8 to 8 */
static void fill_scales(struct call *c, int field)
{
	const struct field *f = &c->row.field[field];
	float *p = (void *)(c->host + c->part[field][2]);
	const size_t n = (c->part[field][3] - c->part[field][2]) / sizeof(*p);
	const int is_fp4 = f->dtype == TE_DTYPE_E2M1;
	uint64_t z = 3;

	for (size_t i = 0; (is_fp4 || call_is_fp8(f->dtype)) && f->fill != ZEROS && i < n; i++) {
		if (f->scaling)
			bench_random(c->b, &z, sizeof(z));
		if (f->scaling == TE_SCALING_1X32)
			memset(p + i, 124 + (int)(z % 7), sizeof(*p)); /* E8M0 */
		else if (is_fp4 && i >= 4)
			memset(p + i, 32 + 8 * (int)(z % 7), sizeof(*p)); /* E4M3 */
		else if (is_fp4)
			p[i] = 1; /* the first word is the copy's */
		else
			p[i] = ldexpf(1, (int)(z % 7) - 3);
	}
}

/* offsets of the parts, from the tensors of set 0, and their contents */
static int make_image(struct call *c)
{
	for (int i = 0; i < 4 * c->nfields; i++) {
		void *p;

		c->part[i / 4][i % 4] = c->nbytes;
		c->nbytes += (part_of(tensors(c, 0)[i / 4], i % 4, &p) + ALIGN - 1) / ALIGN * ALIGN;
	}
	c->host = calloc(c->nbytes, 1);
	if (!c->host)
		return -ENOMEM;
	for (int i = 0; i < c->nfields; i++) {
		fill(c, i);
		fill_scales(c, i);
	}
	return 0;
}

/* sets the bytes that one call moves; returns the bytes that it uses of a set */
static double count_bytes(struct call *c)
{
	double used = 0;

	for (int i = 0; i < c->nfields; i++) {
		const struct field *f = &c->row.field[i];
		const int ncopies = f->copies ? __builtin_popcount(f->copies) : 1;
		const double nbytes = (double)(call_rows(c, i) * call_cols(c, i) * ncopies) *
				      (f->dtype == TE_DTYPE_E2M1 ?
					       0.5 :
					       (double)te_dtype_nbytes(f->dtype));
		/* a table is read once a token, or updated once a token that occurs */
		const double part = (double)c->extent[ROWS] / (double)c->extent[TABLE];
		const double times = f->rows != TABLE ? f->times :
				     f->times > 1     ? f->times * fmin(1, part) :
							part;

		c->traffic += times * nbytes;
		used += fmin(times, 1) * nbytes;
	}
	return used;
}

static int make_quant(struct call *c)
{
	const enum te_dtype type = !strcmp(c->recipe, "nvfp4") ? TE_DTYPE_E2M1 : TE_DTYPE_E4M3;
	struct te_recipe recipe = TE_RECIPE_INIT;
	int r = te_recipe_from_name(c->recipe, &recipe);

	return r < 0 ? r : te_quant_create(c->b->ctx, &recipe, 1, &type, &c->quant);
}

int call_open(struct call *c)
{
	double used;
	int r = 0;

	c->extent[ONE] = 1;
	c->extent[TWO] = 2;
	c->extent[TABLE] = TABLE_ROWS;
	c->extent[WS] = c->row.ws_nbytes ? (int64_t)c->row.ws_nbytes(c) : 0;
	while (c->row.field[c->nfields].rows != NONE)
		c->nfields++;
	used = count_bytes(c);
	c->nsets = c->once ? 1 : bench_nsets(c->b, used);
	c->cpu_most = c->b->o->iters * c->depth;
	c->tensor = calloc((size_t)c->nsets * CALL_FIELDS_MAX, sizeof(*c->tensor));
	c->cpu_us = c->depth ? malloc((size_t)(c->cpu_most + c->depth) * sizeof(*c->cpu_us)) : NULL;
	if (!c->tensor || (c->depth && !c->cpu_us))
		return say_failed("out of memory");
	if (c->recipe)
		r = make_quant(c);
	for (int i = 0; i < c->nsets && r >= 0; i++) {
		r = make_set(c, i);
		if (r >= 0 && !i)
			r = make_image(c);
		if (r >= 0)
			r = reset(c, i);
	}
	return r < 0 ? say_te(r, "%s", c->row.name) : STATUS_OK;
}

void call_close(struct call *c)
{
	te_stream_sync(c->b->stream);
	for (int i = 0; c->tensor && i < c->nsets * CALL_FIELDS_MAX; i++)
		te_tensor_unref(c->tensor[i]);
	te_quant_unref(c->quant);
	free(c->tensor);
	free(c->host);
	free(c->cpu_us);
}

/* ---- samples ---- */

int call_work(void *arg)
{
	struct call *c = arg;
	struct te_tensor *const *t = tensors(c, c->at);

	c->at = (c->at + 1) % c->nsets;
	return c->row.queue(c, t);
}

/* alternately, so that clock drift affects all */
static int times(void *arg, double *ret_us)
{
	struct call *c = arg;
	const int64_t at = c->ncpu < c->cpu_most ? c->ncpu : c->cpu_most;
	int r = bench_calls_us(c->b, call_work, c, c->depth, c->cpu_us ? c->cpu_us + at : NULL,
			       &ret_us[0]);

	if (!r && c->ncpu < c->cpu_most)
		c->ncpu += c->depth;
	if (!r && c->other)
		r = bench_device_us(c->b, call_work, c->other, c->other->depth, &ret_us[1]);
	return r;
}

/*
 * A call and a launch of its recording write the same bytes to a set's memory, at least one, and
 * the row's simple loop confirms them.
 */
static int verify(struct call *c, int set)
{
	uint8_t *got[2] = { malloc(c->nbytes), malloc(c->nbytes) };
	struct te_recording *rec = NULL;
	int r = got[0] && got[1] ? 0 : -ENOMEM;

	for (int i = 0; i < 2 && r >= 0; i++) {
		memcpy(got[i], c->host, c->nbytes);
		r = reset(c, set);
		if (r >= 0 && i)
			r = te_capture_begin(c->b->stream);
		if (r >= 0)
			r = c->row.queue(c, tensors(c, set));
		if (r >= 0 && i)
			r = te_capture_end(c->b->stream, &rec);
		if (r >= 0 && i)
			r = te_recording_launch(rec, c->b->stream);
		if (r >= 0)
			r = move(c, set, got[i], 1);
		r = bench_idle(c->b, r);
	}
	te_recording_unref(rec);
	if (r < 0)
		r = say_te(r, "verify");
	else if (!memcmp(got[0], c->host, c->nbytes))
		r = say_failed("verify: %s wrote nothing", c->row.name);
	else
		r = bench_equal(c->row.name, got[1], got[0], c->nbytes);
	if (!r && c->row.check)
		r = c->row.check(c, got[0]);
	free(got[0]);
	free(got[1]);
	return r;
}

int call_measure(struct call *c, struct stats *ret_us)
{
	struct bench *b = c->b;
	int n, r = STATUS_OK;

	if (b->o->verify)
		r = verify(c, 0);
	if (!r && b->o->verify && c->nsets > 1)
		r = verify(c, c->nsets - 1);
	if (!r) /* loads the kernels, too */
		r = bench_batch(b, call_work, c, 1000, 1, 16, &n);
	if (r)
		return r;
	if (!c->depth)
		c->depth = n;
	if (c->other)
		r = bench_batch(b, call_work, c->other, 1000, 1, 16, &c->other->depth);
	return r ? r : bench_series(b, times, c, 1 + (c->other != NULL), ret_us);
}

/* cores that the threads of a kernel run on */
static double cores(const struct bench *b)
{
	struct te_param_info p = TE_PARAM_INFO_INIT;
	double n = 0;

	for (size_t i = 0; i < te_param_count(); i++)
		if (!te_param_info(i, &p) && !strcmp(p.name, "TE_HOST_THREADS"))
			n = strtod(p.value, NULL);
	/* 0: as many threads as cores, 64 at most */
	return fmin(n > 0 ? n : 64, b->dev.nprocs);
}

void call_rate(const struct call *c, double flop_per_s)
{
	const struct te_device_info *d = &c->b->dev;
	const enum te_dtype type = c->row.field[0].dtype;
	const double peak = type == TE_DTYPE_FP32 ? d->peak_fp32_flops :
			    type == TE_DTYPE_BF16 ? d->peak_bf16_flops :
						    d->peak_fp8_flops;

	bench_num(c->b, "flop_per_s", flop_per_s);
	if (!strcmp(d->backend, "host"))
		bench_num(c->b, "flop_per_s_per_core", flop_per_s / cores(c->b));
	bench_num(c->b, "peak_ratio", flop_per_s / (peak > 0 ? peak : NAN));
}

int call_count(struct call *c, int64_t *ret_n)
{
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct te_recording *rec = NULL;
	int r = te_capture_begin(c->b->stream);

	if (r >= 0)
		r = c->row.queue(c, tensors(c, 0));
	if (r >= 0)
		r = te_capture_end(c->b->stream, &rec);
	if (r >= 0)
		r = te_recording_info(rec, &info);
	te_recording_unref(rec);
	*ret_n = (int64_t)(info.nkernels + info.ncopies + info.nfills);
	return r < 0 ? say_te(r, "%s", c->row.name) : STATUS_OK;
}

/* ---- --verify ---- */

double call_element(const struct call *c, const uint8_t *image, int field, int64_t i)
{
	static const float e2m1[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
	const uint8_t *p = image + c->part[field][0];
	uint16_t half;
	float x;
	int code;

	switch (c->row.field[field].dtype) {
	case TE_DTYPE_FP32:
		memcpy(&x, p + 4 * i, 4);
		return x;
	case TE_DTYPE_BF16:
		memcpy(&half, p + 2 * i, 2);
		return te_bf16_decode(half);
	case TE_DTYPE_E2M1:
		code = p[i / 2] >> i % 2 * 4;
		return code & 8 ? -e2m1[code & 7] : e2m1[code & 7];
	default:
		return te_fp8_decode(c->row.field[field].dtype, p[i]);
	}
}

int call_near(const struct call *c, const char *what, int64_t i, double got, double want,
	      double bound)
{
	if (fabs(got - want) <= bound)
		return STATUS_OK;
	return say_failed("verify: %s: element %lld of %s is %g, want %g within %g", c->row.name,
			  (long long)i, what, got, want, bound);
}
