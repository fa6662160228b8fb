/* t/kernels/kernel_weights.c - copies of many weights by one launch are those of a launch each. */
#include "config.h"

#include <math.h>

#include "kernel_lib.h"
#include "kernels/optim/round.h"
#include "tt_ctx.h"

#define MAX_WEIGHTS 8
#define NSLOTS 20
#define WINDOW 3
#define NOW 41

/* a set of copies, with gaps between them and around the slots that are used */
struct set {
	struct te_k_weights a;
	struct te_k_weight *table;
	float *masters;
	struct te_k_weights_done *done;
	uint64_t *version;
};

static int64_t gap(int64_t align)
{
	return kc_is_unaligned() ? align * tt_rand_int(1, 5) : 256;
}

/* every third is BF16, others have codes row-wise, column-wise or both, with this scaling */
static struct set make(int n, const int64_t (*shape)[2], int record, int32_t scaling)
{
	const int fp4 = scaling == TE_K_SCALING_16X16;
	struct set s = { .table = kc_poison(TE_DTYPE_UINT8, n * (int64_t)sizeof(*s.table)) };
	int64_t nmasters = 0, nbytes = 0, ntiles = 0;

	for (int i = 0; i < n; i++) {
		const int pads = fp4 && i % 3 != 2;
		const int64_t rows = pads ? (shape[i][0] + 15) / 16 * 16 : shape[i][0];
		const int64_t cols = pads ? (shape[i][1] + 15) / 16 * 16 : shape[i][1];
		const int64_t codes = fp4 ? rows * cols / 2 : rows * cols;
		struct te_k_weight *w = &s.table[i];

		*w = (struct te_k_weight){ .master = nmasters, .rows = rows, .cols = cols,
					   .hp = -1, .row = -1, .col = -1,
					   .slot = 2 * i + 1,
					   .dtype = fp4 ? TE_DTYPE_E2M1 : kl_fp8[i & 1] };
		nmasters += rows * cols + (kc_is_unaligned() ? tt_rand_int(0, 9) : 64);
		if (i % 3 == 2) {
			w->hp = nbytes += gap(2);
			nbytes += 2 * rows * cols + rows * cols % 2 * 2;
		} else {
			w->scaling = scaling;
			if (i % 2) {
				w->pad_rows = (int16_t)tt_rand_int(0, rows < 16 ? rows - 1 : 15);
				w->pad_cols = (int16_t)tt_rand_int(0, cols < 16 ? cols - 1 : 15);
			}
			w->scale_inv = w->col_scale_inv = nbytes = (nbytes + 7) / 4 * 4;
			nbytes += 4 * te_k_scale_nfloats(w->scaling, rows, cols);
			if (scaling) {
				w->col_scale_inv = nbytes += 8;
				nbytes += 4 * te_k_scale_nfloats(w->scaling, cols, rows);
			}
			if (i % 4 != 1)
				w->row = nbytes += gap(1), nbytes += codes;
			if (i % 4 != 3)
				w->col = nbytes += gap(1), nbytes += codes;
		}
		nbytes = kc_is_unaligned() ? (nbytes + 3) / 4 * 4 : (nbytes + 255) / 256 * 256;
		w->tile = ntiles;
		ntiles += te_k_weight_ntiles(w);
	}
	s.masters = kc_normal(TE_DTYPE_FP32, nmasters, 2.0f);
	s.done = kc_poison(TE_DTYPE_UINT8, sizeof(*s.done));
	*s.done = (struct te_k_weights_done){ NOW - 1, NOW - 1, 0 };
	s.version = kc_poison(TE_DTYPE_UINT8, sizeof(*s.version));
	*s.version = NOW;
	s.a = (struct te_k_weights){
		.table = s.table,
		.masters = s.masters,
		.copies = kc_poison(TE_DTYPE_UINT8, nbytes),
		.scale = kc_poison(TE_DTYPE_FP32, NSLOTS),
		.amax = kc_poison(TE_DTYPE_FP32, NSLOTS * WINDOW),
		.part = kc_poison(TE_DTYPE_FP32, ntiles),
		.version = s.version,
		.done = s.done,
		.nmasters = nmasters,
		.copies_nbytes = nbytes,
		.ntiles = ntiles,
		.n = n,
		.nslots = NSLOTS,
		.window = WINDOW,
		.record = record,
		.scaling = scaling,
		.fmt_max = { 448.0f, 57344.0f },
	};
	for (int i = 0; i < NSLOTS; i++)
		s.a.scale[i] = 1.0f + 0.37f * (float)i;
	for (int i = 0; i < NSLOTS * WINDOW; i++)
		s.a.amax[i] = 1.0f + (float)(i % 7); /* some are above those of the weights */
	return s;
}

/* codes and scales of one that is scaled by blocks */
static void check_blocks(const struct set *s, const struct te_k_weight *w, struct te_k_quantize *k)
{
	const char *copies = s->a.copies;
	const int fp4 = w->dtype == TE_DTYPE_E2M1;
	const int64_t n = fp4 ? w->rows * w->cols / 2 : w->rows * w->cols;
	const int64_t nrow = te_k_scale_nfloats(w->scaling, w->rows, w->cols);
	const int64_t ncol = te_k_scale_nfloats(w->scaling, w->cols, w->rows);

	k->q.scale = k->q.amax = NULL;
	k->q.scale_inv = kc_poison(TE_DTYPE_FP32, nrow);
	k->q.col_scale_inv = kc_poison(TE_DTYPE_FP32, ncol);
	k->q.scaling = w->scaling;
	if (fp4) {
		KC_RUN(NVFP4_BEGIN, k);
		KC_RUN(NVFP4_AMAX, k);
	}
	KC_RUN(QUANTIZE, k);
	if (w->row >= 0) {
		ck_assert_mem_eq(copies + w->row, k->q.row, (size_t)n);
		ck_assert_mem_eq(copies + w->scale_inv, k->q.scale_inv, (size_t)nrow * 4);
	}
	if (w->col >= 0) {
		ck_assert_mem_eq(copies + w->col, k->q.col, (size_t)n);
		ck_assert_mem_eq(copies + w->col_scale_inv, k->q.col_scale_inv, (size_t)ncol * 4);
	}
}

/* the reference's copies against those of a launch for each weight */
static void check_copies(const struct set *s)
{
	const char *copies = s->a.copies;

	for (int i = 0; i < s->a.n; i++) {
		const struct te_k_weight *w = &s->table[i];
		const int64_t n = w->rows * w->cols;
		struct te_k_cast c = { s->masters + w->master, NULL, n, TE_DTYPE_FP32,
				       TE_DTYPE_BF16, NULL };
		struct te_k_quantize k = { .x = s->masters + w->master,
					   .rows = w->rows,
					   .cols = w->cols,
					   .dtype = TE_DTYPE_FP32,
					   .pad_rows = w->pad_rows,
					   .pad_cols = w->pad_cols };

		if (w->hp >= 0) {
			c.y = kc_poison(TE_DTYPE_BF16, n);
			KC_RUN(CAST, &c);
			ck_assert_mem_eq(copies + w->hp, c.y, (size_t)n * 2);
			continue;
		}
		k.q = kc_q(w->dtype, n, s->a.scale[w->slot], NULL);
		if (w->scaling != TE_K_SCALING_TENSOR) {
			check_blocks(s, w, &k);
			continue;
		}
		if (s->a.record)
			*k.q.amax = 1.0f + (float)(w->slot * WINDOW % 7);
		KC_RUN(QUANTIZE, &k);
		if (w->row >= 0)
			ck_assert_mem_eq(copies + w->row, k.q.row, (size_t)n);
		if (w->col >= 0)
			ck_assert_mem_eq(copies + w->col, k.q.col, (size_t)n);
		ck_assert_mem_eq(copies + w->scale_inv, k.q.scale_inv, sizeof(float));
		if (s->a.record)
			ck_assert_float_eq(s->a.amax[w->slot * WINDOW], *k.q.amax);
	}
}

/* tiles are 64 x 128; 8192 elements of BF16; the last is more tiles than blocks */
static const int64_t shapes[][MAX_WEIGHTS][2] = {
	{ { 1, 1 } },
	{ { 64, 128 }, { 65, 129 }, { 1, 8192 }, { 1, 8193 }, { 3, 63 }, { 130, 33 }, { 16, 136 } },
	{ { 256, 768 }, { 768, 256 }, { 1, 768 }, { 100, 1000 }, { 1, 7 } },
	{ { 16, 8 }, { 1100, 8200 }, { 700, 1024 } },
};

static int shape_count(size_t k)
{
	int n = 0;

	while (n < MAX_WEIGHTS && shapes[k][n][0])
		n++;
	return n;
}

static size_t nshapes(void)
{
	return kl_count(TT_LEN(shapes), 1);
}

/* 0: one scale, 1: amaxes are recorded, 2 to 4: blocks */
static const int32_t scalings[] = { TE_K_SCALING_TENSOR, TE_K_SCALING_TENSOR,
				    TE_K_SCALING_128X128, TE_K_SCALING_1X32, TE_K_SCALING_16X16 };

/* casts read the amaxes of NVFP4 */
static void run_amax(const struct te_k_weights *a)
{
	if (a->scaling != TE_K_SCALING_16X16)
		return;
	kc_defer(a->part);
	KC_RUN(WEIGHTS_AMAX, a);
}

KL_CASE(weights);

TEST_EACH(weights, copies_of_all_weights, 5, .parts = 5)
{
	for (size_t k = 0; k < nshapes(); k++) {
		struct set s = make(shape_count(k), shapes[k], _i == 1, scalings[_i]);

		run_amax(&s.a);
		KC_RUN(WEIGHTS_CAST, &s.a);
		ck_assert_uint_eq(s.done->copies, NOW);
		ck_assert_uint_eq(s.done->amax, _i == 1 ? NOW : NOW - 1);
		ck_assert_uint_eq(s.done->nblocks, 0);
		check_copies(&s);
		kc_reset();
	}
}

TEST_ALSO(odd, copies_of_all_weights, 5, .parts = 5);

TEST_EACH(weights, scales_from_their_own_amaxes, 2, .parts = 2)
{
	for (size_t k = 0; k < nshapes(); k++) {
		struct set s = make(shape_count(k), shapes[k], 0, 0);
		struct te_k_scale_current c = { .epsilon = k & 1 ? 1e3f : 0.0f, .pow2 = _i };
		struct te_k_weight *w = &s.table[s.a.n - 1];
		float *x = s.masters + w->master;

		s.a.epsilon = c.epsilon;
		s.a.pow2 = c.pow2;
		x[0] = k & 1 ? NAN : INFINITY;
		if (s.a.n > 1)
			memset(s.masters, 0, (size_t)(w->rows * w->cols) * sizeof(*s.masters));
		kc_defer(s.a.part);
		KC_RUN(WEIGHTS_AMAX, &s.a);
		ck_assert_uint_eq(s.done->copies, NOW - 1); /* the copies are still to be made */
		for (int i = 0; i < s.a.n; i++) {
			struct te_k_amax m = { .dtype = TE_DTYPE_FP32 };

			w = &s.table[i];
			m.x = s.masters + w->master;
			m.n = (w->rows - w->pad_rows) * (w->cols - w->pad_cols);
			c.amax = m.amax = kc_word(0.0f);
			c.scale = kc_word(0.0f);
			c.fmt_max = s.a.fmt_max[w->dtype == TE_DTYPE_E5M2];
			if (w->hp >= 0)
				continue;
			KC_RUN(AMAX, &m);
			KC_RUN(SCALE_CURRENT, &c);
			ck_assert_float_eq(s.a.amax[w->slot * WINDOW], *m.amax);
			ck_assert_float_eq(s.a.scale[w->slot], *c.scale);
		}
		x[0] = 1.0f;
		KC_RUN(WEIGHTS_CAST, &s.a);
		check_copies(&s);
		kc_reset();
	}
}

TEST_ALSO(odd, scales_from_their_own_amaxes, 2, .parts = 2);

/* what is current stays as it is, whatever the masters hold */
TEST_EACH(weights, current_copies_stay, 2)
{
	struct set s = make(shape_count(1), shapes[1], _i & 1, 0);
	void *was = malloc((size_t)s.a.copies_nbytes);
	float *scale = malloc(NSLOTS * sizeof(*scale));

	ck_assert(was && scale);
	KC_RUN(WEIGHTS_CAST, &s.a);
	memcpy(was, s.a.copies, (size_t)s.a.copies_nbytes);
	memcpy(scale, s.a.scale, NSLOTS * sizeof(*scale));
	for (int64_t i = 0; i < s.a.nmasters; i++)
		s.masters[i] *= 2.0f;
	kc_defer(s.a.part);
	KC_RUN(WEIGHTS_AMAX, &s.a);
	KC_RUN(WEIGHTS_CAST, &s.a);
	ck_assert_mem_eq(was, s.a.copies, (size_t)s.a.copies_nbytes);
	ck_assert_mem_eq(scale, s.a.scale, NSLOTS * sizeof(*scale));
	/* a training pass wants the amaxes once, an evaluation does not ask */
	if (!(_i & 1)) {
		s.a.record = 1;
		KC_RUN(WEIGHTS_CAST, &s.a);
		ck_assert_mem_ne(was, s.a.copies, (size_t)s.a.copies_nbytes);
		ck_assert_uint_eq(s.done->amax, NOW);
	}
	KC_RUN(WEIGHTS_CHANGED, (&(struct te_k_weights_changed){ s.version }));
	ck_assert_uint_eq(*s.version, NOW + 1);
	KC_RUN(WEIGHTS_CAST, &s.a);
	ck_assert_mem_ne(was, s.a.copies, (size_t)s.a.copies_nbytes);
	ck_assert_uint_eq(s.done->copies, NOW + 1);
	free(was);
	free(scale);
	kc_reset();
}

/*
 * The same codes, amaxes and scales of weights that are split, and their values in FP32. _i: as in
 * scalings, 1 without remainders; 5: scales from their own amaxes
 */
TEST_EACH(weights, copies_of_split_masters, 6, .parts = 6)
{
	for (size_t k = 0; k < nshapes(); k++) {
		struct set s = make(shape_count(k), shapes[k], _i == 1, _i < 5 ? scalings[_i] : 0);
		struct te_k_weights a = s.a;
		struct te_k_weight *table;
		int64_t values = s.a.copies_nbytes;

		a.masters = kc_split(s.masters, s.a.nmasters, &a.rest);
		if (_i == 1) { /* BF16 alone */
			a.rest = NULL;
			for (int64_t i = 0; i < s.a.nmasters; i++)
				s.masters[i] = te_round_float(
					(uint32_t)((const uint16_t *)a.masters)[i] << 16);
		}
		a.split = 1;
		table = kc_poison(TE_DTYPE_UINT8, a.n * (int64_t)sizeof(*table));
		memcpy(table, s.table, (size_t)a.n * sizeof(*table));
		for (int i = 0; i < a.n; i++)
			if (table[i].hp >= 0) {
				table[i].hp = values;
				values += 4 * (table[i].rows * table[i].cols + 3);
			}
		a.table = table;
		a.copies = kc_poison(TE_DTYPE_UINT8, values);
		a.copies_nbytes = values;
		a.scale = kc_poison(TE_DTYPE_FP32, NSLOTS);
		a.amax = kc_poison(TE_DTYPE_FP32, NSLOTS * WINDOW);
		a.part = kc_poison(TE_DTYPE_FP32, a.ntiles);
		a.done = kc_poison(TE_DTYPE_UINT8, sizeof(*a.done));
		memcpy(a.scale, s.a.scale, NSLOTS * sizeof(*a.scale));
		memcpy(a.amax, s.a.amax, NSLOTS * WINDOW * sizeof(*a.amax));
		*a.done = *s.a.done;
		run_amax(&s.a);
		run_amax(&a);
		if (_i == 5) {
			kc_defer(s.a.part);
			KC_RUN(WEIGHTS_AMAX, &s.a);
			kc_defer(a.part);
			KC_RUN(WEIGHTS_AMAX, &a);
			ck_assert_mem_eq(a.scale, s.a.scale, NSLOTS * sizeof(*a.scale));
		}
		KC_RUN(WEIGHTS_CAST, &s.a);
		KC_RUN(WEIGHTS_CAST, &a);
		ck_assert_mem_eq(a.amax, s.a.amax, NSLOTS * WINDOW * sizeof(*a.amax));
		for (int i = 0; i < a.n; i++) {
			const struct te_k_weight *w = &s.table[i];
			const size_t n = (size_t)(w->rows * w->cols) /
					 (w->dtype == TE_DTYPE_E2M1 && w->hp < 0 ? 2 : 1);
			const char *got = a.copies, *want = s.a.copies;

			if (w->hp >= 0)
				ck_assert_mem_eq(got + table[i].hp, s.masters + w->master, 4 * n);
			if (w->row >= 0)
				ck_assert_mem_eq(got + w->row, want + w->row, n);
			if (w->col >= 0)
				ck_assert_mem_eq(got + w->col, want + w->col, n);
			if (w->hp < 0)
				ck_assert_mem_eq(got + w->scale_inv, want + w->scale_inv, 4);
		}
		kc_reset();
	}
}

TEST_ALSO(odd, copies_of_split_masters, 6, .parts = 6);

/* codes without a master: the bytes transposed, and the scales of squares with them */
TEST_EACH(weights, transposes_codes, 2)
{
	static const int64_t shape[][2] = {
		{ 1, 1 }, { 16, 16 }, { 64, 64 }, { 65, 63 }, { 128, 129 }, { 7, 300 },
		{ 400, 272 },
	};

	for (size_t k = 0; k < TT_LEN(shape); k++) {
		const int64_t rows = shape[k][0], cols = shape[k][1], n = rows * cols;
		const int32_t scaling = _i ? TE_K_SCALING_128X128 : TE_K_SCALING_TENSOR;
		const int64_t nrow = te_k_scale_nfloats(scaling, rows, cols);
		const int64_t ncol = te_k_scale_nfloats(scaling, cols, rows);
		struct te_k_weights_done *done = kc_poison(TE_DTYPE_UINT8, sizeof(*done));
		uint64_t *version = kc_poison(TE_DTYPE_UINT8, sizeof(*version));
		uint8_t *row = kc_poison(TE_DTYPE_UINT8, n), *col = kc_poison(TE_DTYPE_UINT8, n);
		float *scale = kc_normal(TE_DTYPE_FP32, nrow, 1.0f);
		float *col_scale = kc_poison(TE_DTYPE_FP32, ncol);
		const struct te_k_weight_transpose a = {
			.row = row,
			.scale_inv = _i ? scale : NULL,
			.col = col,
			.col_scale_inv = _i ? col_scale : NULL,
			.version = version,
			.done = done,
			.rows = rows,
			.cols = cols,
			.scaling = scaling,
		};

		tt_fill_bytes(row, (size_t)n);
		*done = (struct te_k_weights_done){ NOW - 1, 0, 0 };
		*version = NOW;
		KC_RUN(WEIGHT_TRANSPOSE, &a);
		for (int64_t i = 0; i < n; i++)
			ck_assert_uint_eq(col[i % cols * rows + i / cols], row[i]);
		for (int64_t i = 0; _i && i < ncol; i++) {
			const int64_t ld = te_k_scale_ld(scaling, cols, rows);
			const int64_t c = i / ld * TE_K_BLOCK, r = i % ld * TE_K_BLOCK;
			const float want =
				r < rows ? scale[te_k_scale_index(scaling, rows, cols, r, c)] : 0;

			ck_assert_float_eq(col_scale[i], want);
		}
		ck_assert_uint_eq(done->copies, NOW);
		ck_assert_uint_eq(done->nblocks, 0);
		/* current: nothing happens */
		row[0] ^= 0xff;
		KC_RUN(WEIGHT_TRANSPOSE, &a);
		ck_assert_uint_ne(col[0], row[0]);
		kc_reset();
	}
}

TEST_ALSO(odd, transposes_codes, 2);
