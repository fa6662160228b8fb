/*
 * t/kernels/mx.cc - the casts of kernels/quant/mx.cu, run by fibers.h, give the bits of the
 * reference functions: both copies and their scales, of sizes with tails, of BF16 and FP32, and
 * back. t0019-mx.t compiles this and runs it with a seed.
 */
#include "fibers.h"
#include "ref.h"

#include "kernels/quant/mx.cu"

extern "C" {
void te__h_quantize(const struct te_k_quantize *a);
void te__h_nvfp4_begin(const struct te_k_quantize *a);
void te__h_nvfp4_amax(const struct te_k_quantize *a);
void te__h_dequantize(const struct te_k_dequantize *a);
}

static te_k_quantize k;
static te_k_dequantize d;

#define KERNEL(name)                            \
	static void name(void)                  \
	{                                       \
		k.dtype == TE_DTYPE_FP32 ?      \
			te_k_##name##_fp32(k) : \
			te_k_##name##_bf16(k);  \
	}
KERNEL(quantize_1x32)
KERNEL(nvfp4_amax)
KERNEL(quantize_1x16)
KERNEL(quantize_1x16_random)
KERNEL(quantize_16x16)

static void begin(void)
{
	te_k_nvfp4_begin(k);
}

static void back(void)
{
	d.xdtype == TE_DTYPE_E2M1 ? te_k_dequantize_mx_e2m1_fp32(d) :
	d.xdtype == TE_DTYPE_E4M3 ? te_k_dequantize_mx_e4m3_fp32(d) :
				    te_k_dequantize_mx_e5m2_fp32(d);
}

/*
 * Numbers of many magnitudes; kinds 1 and 2: with NaN, infinite and subnormal ones; 3: 448 and the
 * next number, blocks of which have scales of 1 and 1/2; 4: tiny ones.
 */
static uint32_t draw(int kind)
{
	static const uint32_t special[] = { 0,		0x80000000, 0x7fc00000, 0xffc10000,
					    0x7f800000, 0xff800000, 0x00010000, 0x807f0000,
					    0x00800000, 0x7f7f0000, 0x3f800000, 0x43e00000 };
	const uint32_t w = rnd(0x80000000) << 1 ^ rnd(2);

	if (kind == 3)
		return 0x43e00000 + !rnd(100);
	if (kind == 4)
		return w & 0x80ffffff;
	if (kind && !rnd(kind == 1 ? 60 : 3))
		return special[rnd(12)];
	return (w & 0x807fffff) | (117 + (w >> 23 & 15)) << 23;
}

struct copies {
	std::vector<uint8_t> row, col;
	std::vector<float> row_scales, col_scales;
};

static const float poison = -77.0f;

/* arrays that are longer, at addresses of some alignment */
static void copies_make(copies *c, size_t at)
{
	const size_t n = (size_t)(k.rows * k.cols) / (k.q.dtype == TE_DTYPE_E2M1 ? 2 : 1);

	c->row.assign(n + 64, 0xa5);
	c->col.assign(n + 64, 0xa5);
	c->row_scales.assign((size_t)te_k_scale_nfloats(k.q.scaling, k.rows, k.cols) + 8, poison);
	c->col_scales.assign((size_t)te_k_scale_nfloats(k.q.scaling, k.cols, k.rows) + 8, poison);
	k.q.row = k.q.row ? c->row.data() + at : NULL;
	k.q.col = k.q.col ? c->col.data() + at : NULL;
	k.q.scale_inv = c->row_scales.data() + 4 * (at % 2);
	k.q.col_scale_inv = c->col_scales.data() + 4 * (at % 2);
}

static bool same_code(uint8_t a, uint8_t b)
{
	const int nan = k.q.dtype == TE_DTYPE_E4M3 ? 0x7f : 0x7d;

	return a == b ||
	       (k.q.dtype != TE_DTYPE_E2M1 && (a & 0x7f) >= nan && (b & 0x7f) >= nan);
}

static void compare(const char *what, const std::vector<uint8_t> &got,
		    const std::vector<uint8_t> &want)
{
	for (size_t i = 0; i < got.size(); i++)
		CHECK(same_code(got[i], want[i]),
		      "%s byte %zu of [%d, %d], scaling %d, type %d of %d: %02x, not %02x", what, i,
		      (int)k.rows, (int)k.cols, k.q.scaling, k.q.dtype, k.dtype, got[i], want[i]);
}

static void compare(const char *what, const std::vector<float> &got, const std::vector<float> &want)
{
	const uint8_t *g = (const uint8_t *)got.data(), *w = (const uint8_t *)want.data();

	for (size_t i = 0; i < 4 * got.size(); i++)
		CHECK(g[i] == w[i],
		      "%s scales, byte %zu of [%d, %d], scaling %d of %d: %02x, not %02x", what, i,
		      (int)k.rows, (int)k.cols, k.q.scaling, k.dtype, g[i], w[i]);
}

static void dequantize(const copies &c, size_t at)
{
	const size_t n = (size_t)((k.rows - k.pad_rows) * (k.cols - k.pad_cols));
	std::vector<float> got(n + 8, poison), want(n + 8, poison);

	d = { c.row.data() + at, want.data(), k.q.scale_inv, k.rows, k.cols, k.q.dtype,
	      TE_DTYPE_FP32, k.q.scaling, k.pad_rows, k.pad_cols };
	te__h_dequantize(&d);
	d.y = got.data();
	launch(back, (uint32_t)((k.rows * k.cols + TE_FLAT_ELEMS - 1) / TE_FLAT_ELEMS),
	       TE_FLAT_THREADS);
	for (size_t i = 0; i < n + 8; i++)
		CHECK(__float_as_uint(got[i]) == __float_as_uint(want[i]) ||
			      (isnan(got[i]) && isnan(want[i])),
		      "element %zu of [%d, %d] back from scaling %d: %a, not %a", i, (int)k.rows,
		      (int)k.cols, k.q.scaling, (double)got[i], (double)want[i]);
}

static void run_case(int turn)
{
	const bool fp4 = turn % 3 != 0;
	const int step = fp4 ? 16 : 1;
	const size_t at = turn % 4 == 3 ? rnd(16) : 0, x_at = turn % 5 == 4;
	const int kind = (int)rnd(5);
	const float noop = (float)(rnd(12) == 0);
	const bool bf16 = rnd(2);
	std::vector<uint32_t> x;
	std::vector<uint16_t> h;
	copies got, want;

	k = {};
	k.rows = step * (1 + rnd(fp4 ? 18 : 280));
	k.cols = step * (1 + rnd(fp4 ? 18 : 280));
	k.q.dtype = fp4 ? TE_DTYPE_E2M1 : rnd(2) ? TE_DTYPE_E4M3 : TE_DTYPE_E5M2;
	k.q.scaling = !fp4 ? TE_K_SCALING_1X32 : rnd(3) ? TE_K_SCALING_1X16 : TE_K_SCALING_16X16;
	k.stochastic = k.q.scaling == TE_K_SCALING_1X16 && rnd(2);
	k.q.row = rnd(4) ? &k : NULL;
	k.q.col = !k.q.row || rnd(4) ? &k : NULL;
	if (!k.q.col)
		k.rows = 1 + rnd(280);
	if (rnd(3) == 0) {
		k.pad_rows = (int16_t)rnd((uint32_t)std::min(k.rows, (int64_t)16));
		k.pad_cols = (int16_t)rnd((uint32_t)std::min(k.cols, (int64_t)16));
	}
	k.q.epsilon = rnd(3) ? 0.0f : 100.0f;
	k.q.noop = rnd(3) ? &noop : NULL;
	k.dtype = bf16 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	for (int64_t i = 0; i < (k.rows - k.pad_rows) * (k.cols - k.pad_cols) + (int)x_at; i++) {
		x.push_back(draw(kind));
		h.push_back((uint16_t)(x.back() >> 16));
	}
	k.x = bf16 ? (const void *)(h.data() + x_at) : (const void *)(x.data() + x_at);

	copies_make(&want, at);
	if (fp4) {
		te__h_nvfp4_begin(&k);
		te__h_nvfp4_amax(&k);
	}
	te__h_quantize(&k);

	const uint32_t nblocks = (uint32_t)((k.rows + 127) / 128 * ((k.cols + 127) / 128));
	const uint32_t nthreads = !fp4 ? BLOCK_THREADS : NVFP4_THREADS * (bf16 ? 1 : 2);

	copies_make(&got, at);
	if (fp4) {
		launch(begin, 1, 32);
		launch(nvfp4_amax, nblocks, nthreads);
	}
	launch(!fp4					? quantize_1x32 :
	       k.q.scaling == TE_K_SCALING_16X16	? quantize_16x16 :
	       k.stochastic				? quantize_1x16_random :
							  quantize_1x16,
	       nblocks, nthreads);
	compare("row-wise", got.row_scales, want.row_scales);
	compare("column-wise", got.col_scales, want.col_scales);
	compare("row-wise", got.row, want.row);
	compare("column-wise", got.col, want.col);
	if (k.q.row && !(k.q.noop && noop == 1.0f))
		dequantize(got, at);
}

static te_k_weights set;

static void cast_set(void)
{
	const bool fp4 = set.scaling == TE_K_SCALING_16X16;

	set.split ? (fp4 ? te_k_weights_cast_nvfp4_split(set) :
			   te_k_weights_cast_mxfp8_split(set)) :
		    (fp4 ? te_k_weights_cast_nvfp4(set) : te_k_weights_cast_mxfp8(set));
}

/* weights of a set, one with row-wise codes only, have the bits of casts of each */
static void run_set(bool fp4, bool split)
{
	enum { N = 3 };
	te_k_weight table[N] = {};
	copies got[N], want[N];
	te_k_weights_done done = { 1, 1, 0 };
	const uint64_t version = 2;
	std::vector<uint32_t> x;
	std::vector<uint16_t> upper, rest;
	char *const base = (char *)&set;

	set = {};
	for (int i = 0; i < N; i++) {
		te_k_weight &w = table[i];

		k = {};
		w.rows = k.rows = 16 * (1 + rnd(16));
		w.cols = k.cols = 16 * (1 + rnd(16));
		w.pad_rows = k.pad_rows = (int16_t)rnd(16);
		w.pad_cols = k.pad_cols = (int16_t)rnd(16);
		w.master = (int64_t)x.size();
		w.dtype = k.q.dtype = fp4 ? TE_DTYPE_E2M1 : TE_DTYPE_E4M3;
		w.scaling = k.q.scaling = fp4 ? TE_K_SCALING_16X16 : TE_K_SCALING_1X32;
		k.dtype = TE_DTYPE_FP32;
		k.q.row = &k;
		k.q.col = i ? &k : NULL;
		for (int64_t e = (w.rows - w.pad_rows) * (w.cols - w.pad_cols); e > 0; e--)
			x.push_back(draw(0));
		k.x = x.data() + w.master;
		copies_make(&want[i], 0);
		if (fp4) {
			te__h_nvfp4_begin(&k);
			te__h_nvfp4_amax(&k);
		}
		te__h_quantize(&k);
		copies_make(&got[i], 0);
		if (fp4) {
			te__h_nvfp4_begin(&k);
			te__h_nvfp4_amax(&k);
		}
		w.hp = -1;
		w.row = (char *)k.q.row - base;
		w.col = i ? (char *)k.q.col - base : -1;
		w.scale_inv = (char *)k.q.scale_inv - base;
		w.col_scale_inv = (char *)k.q.col_scale_inv - base;
		w.tile = set.ntiles;
		set.ntiles += te_k_weight_ntiles(&w);
	}
	for (const uint32_t u : x) {
		rest.push_back((uint16_t)u);
		upper.push_back((uint16_t)((u >> 16) + (u >> 15 & 1)));
	}
	set.table = table;
	set.masters = split ? (const void *)upper.data() : x.data();
	set.rest = split ? rest.data() : NULL;
	set.copies = base;
	set.version = &version;
	set.done = &done;
	set.n = N;
	set.scaling = k.q.scaling;
	set.split = split;
	launch(cast_set, 2, BLOCK_THREADS);
	CHECK(done.copies == version && !done.nblocks, "the set is not done");
	for (int i = 0; i < N; i++) {
		compare("a weight's row-wise", got[i].row_scales, want[i].row_scales);
		compare("a weight's column-wise", got[i].col_scales, want[i].col_scales);
		compare("a weight's row-wise", got[i].row, want[i].row);
		compare("a weight's column-wise", got[i].col, want[i].col);
	}
}

int main(int argc, char **argv)
{
	const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	const int n = argc > 2 ? atoi(argv[2]) : 60;

	for (int i = 0; i < n; i++) {
		state = seed * 1000 + (uint64_t)i;
		run_case(i);
	}
	for (int i = 0; i < 4; i++)
		run_set(i & 1, i & 2);
	return 0;
}
