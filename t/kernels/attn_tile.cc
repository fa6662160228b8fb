/*
 * t/kernels/attn_tile.cc - attention with tiles by mma.sync (kernels/attn/tile.cuh) and the gradient
 * of a bias (kernels/attn/bias.cu), run by fibers.h, against the reference functions: launch.c
 * gives the blocks and their shared memory, which is poisoned; copies complete at random times until
 * they are waited for. A script compiles this and runs it with a seed; CU is the file with the
 * kernels, TE_ARCH the level.
 */
#include "fibers.h"

#include <float.h>
#include <stdarg.h>

#include <deque>
#include <functional>
#include <string>

#include <te/dtype.h>

#ifndef CU
#define CU "kernels/attn/wide.cu"
#endif

/* block-scope variables are static */
#undef __shared__
#define __shared__ thread_local
#define __align__(n) __attribute__((aligned(n)))

#define TE_MMA_CUH
#define TE_APPROX_CUH
#define MAX_SMEM 232448

/* --- instructions ------------------------------------------------------------------ */

struct int2 {
	int x, y;
};
DEV int2 make_int2(int x, int y)
{
	return { x, y };
}
DEV float exp2_approx(float x)
{
	return exp2f(x);
}
DEV float reciprocal_approx(float x)
{
	return 1.0f / x;
}
DEV float __fdividef(float x, float y)
{
	return x / y;
}
DEV int atomicMin(int *p, int x)
{
	const int was = *p;

	*p = min(was, x);
	return was;
}
DEV int atomicMax(int *p, int x)
{
	const int was = *p;

	*p = max(was, x);
	return was;
}

/* what lanes of a warp give to each other, in turns: nobody is two instructions ahead */
struct given {
	uint32_t w[6];
	const uint16_t *p;
};
static given gifts[2][32][32];
static uint32_t turns[1024];

static given (&trade(const given &mine))[32]
{
	const uint32_t t = self->thread, turn = turns[t]++ % 2;

	gifts[turn][t / 32][t % 32] = mine;
	meet(warps[t / 32], 32);
	return gifts[turn][t / 32];
}

DEV uint32_t __shfl_sync(uint32_t, uint32_t x, int lane)
{
	return trade({ { x } })[lane].w[0];
}
DEV int __reduce_min_sync(uint32_t, int x)
{
	given (&all)[32] = trade({ { (uint32_t)x } });
	int least = x;

	for (const given &g : all)
		least = min(least, (int)g.w[0]);
	return least;
}
DEV int __reduce_max_sync(uint32_t, int x)
{
	given (&all)[32] = trade({ { (uint32_t)x } });
	int most = x;

	for (const given &g : all)
		most = max(most, (int)g.w[0]);
	return most;
}
DEV void __syncwarp(void)
{
	trade({});
}

static meeting groups[16];
template <int N> DEV void sync_warps(int i)
{
	meet(groups[i], 32 * N);
}

static uint32_t nsmem; /* bytes of shared memory of this launch */
#define te_smem tt_smem
thread_local __align__(256) uint4 tt_smem[MAX_SMEM / 16 + 64];

DEV uint32_t smem_addr(const void *p)
{
	const uint64_t at = (uint64_t)p - (uint64_t)tt_smem;

	CHECK(at < nsmem, "%zu of %u bytes", (size_t)at, nsmem);
	return (uint32_t)at;
}
static uint16_t *at_smem(uint32_t addr, size_t nbytes)
{
	CHECK(addr % nbytes == 0 && addr + nbytes <= nsmem, "%u of %u bytes", addr, nsmem);
	return (uint16_t *)((char *)tt_smem + addr);
}

/* groups of copies of each thread, the last one open */
typedef std::vector<std::function<void(void)>> copies;
static std::deque<copies> queue[1024];

static void copy_async(uint32_t dst, const void *src, int n, size_t nbytes)
{
	uint16_t *to = at_smem(dst, nbytes);
	std::deque<copies> &mine = queue[self->thread];
	const auto copy = [=] {
		memset(to, 0, nbytes);
		memcpy(to, src, (size_t)n);
	};

	CHECK((uint64_t)src % nbytes == 0, "source %p", src);
	if (mine.empty())
		mine.emplace_back();
	if (rnd(2))
		copy();
	else
		mine.back().push_back(copy);
}
DEV void cp_async16(uint32_t dst, const void *src, int n)
{
	copy_async(dst, src, n, 16);
}
DEV void cp_async4(uint32_t dst, const void *src, int n)
{
	copy_async(dst, src, n, 4);
}
DEV void cp_async_commit(void)
{
	queue[self->thread].emplace_back();
}
template <int N> DEV void cp_async_wait(void)
{
	std::deque<copies> &mine = queue[self->thread];

	while (mine.size() > N + 1) {
		for (const auto &copy : mine.front())
			copy();
		mine.pop_front();
	}
}

static void load_matrices(uint32_t (&r)[4], uint32_t addr, bool trans)
{
	given (&all)[32] = trade({ {}, at_smem(addr, 16) });
	const uint32_t a = self->thread % 32 / 4, b = self->thread % 4 * 2;

	for (uint32_t i = 0; i < 4; i++)
		r[i] = trans ? all[8 * i + b].p[a] | (uint32_t)all[8 * i + b + 1].p[a] << 16 :
			       all[8 * i + a].p[b] | (uint32_t)all[8 * i + a].p[b + 1] << 16;
}
DEV void ldmatrix(uint32_t (&r)[4], uint32_t addr)
{
	load_matrices(r, addr, false);
}
DEV void ldmatrix_trans(uint32_t (&r)[4], uint32_t addr)
{
	load_matrices(r, addr, true);
}

static float half_of(uint32_t w, int hi)
{
	return __uint_as_float(hi ? w & 0xffff0000 : w << 16);
}
DEV void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	given (&all)[32] = trade({ { a[0], a[1], a[2], a[3], b0, b1 } });
	const uint32_t row = self->thread % 32 / 4, col = self->thread % 4 * 2;

	for (uint32_t c = 0; c < 4; c++)
		for (uint32_t k = 0; k < 16; k++) {
			const uint32_t t = k % 8 / 2, second = k / 8;

			d[c] += half_of(all[4 * row + t].w[2 * second + c / 2], k % 2) *
				half_of(all[4 * (col + c % 2) + t].w[4 + second], k % 2);
		}
}
static uint32_t bf16_bits(float x)
{
	const uint32_t u = __float_as_uint(x);

	return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
DEV uint32_t pack_bf16(float lo, float hi)
{
	return bf16_bits(lo) | bf16_bits(hi) << 16;
}

#include "kernels/attn/bias.cu"
#include CU

extern "C" {
#include "kernels/launch.h"

int te__geo_attn_fwd(const void *args, struct te__geometry *ret);
int te__geo_attn_bwd_dkv(const void *args, struct te__geometry *ret);
int te__geo_attn_bwd_dq(const void *args, struct te__geometry *ret);
int te__geo_attn_bwd_bias(const void *args, struct te__geometry *ret);
void te__h_attn_fwd(const struct te_k_attn_fwd *a);
void te__h_attn_bwd_pre(const struct te_k_attn_bwd *a);
void te__h_attn_bwd_dkv(const struct te_k_attn_bwd *a);
void te__h_attn_bwd_dq(const struct te_k_attn_bwd *a);
void te__h_attn_bwd_bias(const struct te_k_attn_bwd *a);

/* what they and the reference functions call */
void te__k_for(int64_t n, int64_t, void (*fn)(void *arg, int64_t begin, int64_t end), void *arg)
{
	fn(arg, 0, n);
}
void *te__k_take(size_t nbytes)
{
	return aligned_alloc(64, (nbytes + 63) / 64 * 64);
}
void te__k_give(void *p)
{
	free(p);
}
int te__param_enum(int)
{
	return 0;
}
size_t te_dtype_nbytes(enum te_dtype dtype)
{
	return dtype == TE_DTYPE_FP32 ? 4 : 2;
}
const char *te_dtype_name(enum te_dtype)
{
	return "that";
}
int te__geo_launch(struct te__geometry *k, const char *func, int64_t nblocks, unsigned nthreads)
{
	k->func = func;
	k->grid[0] = (unsigned)nblocks;
	k->block[0] = nthreads;
	return 0;
}
int te__fail_at(const char *, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	printf("# ");
	vprintf(fmt, ap);
	printf("\n");
	va_end(ap);
	return code;
}
}

/* --- launches ---------------------------------------------------------------------- */

static te_k_attn_fwd f;
static te_k_attn_bwd g;

#define FWD_KERNEL(name) { #name, [] { name(f); } },
#define BWD_KERNEL(name) { #name, [] { name(g); } },
#define KERNELS(D, variant)                              \
	FWD_KERNEL(te_k_attn_fwd_bf16_##D##variant)      \
	BWD_KERNEL(te_k_attn_bwd_dkv_bf16_##D##variant)  \
	BWD_KERNEL(te_k_attn_bwd_dq_bf16_##D##variant)
static const struct {
	std::string name;
	void (*fn)(void);
} kernels[] = {
#ifdef TT_MORE
	KERNELS(d32, _more) KERNELS(d64, _more) KERNELS(d96, _more) KERNELS(d128, _more)
#else
	KERNELS(d256, ) KERNELS(d256, _more)
#endif
	BWD_KERNEL(te_k_attn_bwd_bias_bf16)
};

static void run(int (*geometry)(const void *, struct te__geometry *), const void *args)
{
	struct te__geometry k = { NULL, { 1, 1, 1 }, { 1, 1, 1 }, 0, { TE_ARCH, 0, 0 } };
	const int r = geometry(args, &k);
	bool found = false;

	CHECK(!r, "%d", r);
	CHECK(k.smem <= (TE_ARCH == 86 ? 99 << 10 : TE_ARCH == 80 ? 163 << 10 : MAX_SMEM),
	      "%s: %u bytes", k.func, k.smem);
	for (const auto &kernel : kernels) {
		if (kernel.name != k.func)
			continue;
		found = true;
		nsmem = k.smem;
		memset(tt_smem, 0xff, sizeof(tt_smem));
		launch(kernel.fn, k.grid[0], k.block[0], k.grid[1]);
		for (std::deque<copies> &q : queue) {
			for (const copies &c : q)
				CHECK(c.empty(), "%s: nobody waited for a copy", k.func);
			q.clear();
		}
		for (size_t i = nsmem; i < sizeof(tt_smem); i++)
			CHECK(((uint8_t *)tt_smem)[i] == 0xff, "%s: byte %zu of %u", k.func, i,
			      nsmem);
	}
	CHECK(found, "%s is not here", k.func);
}

/* --- cases --------------------------------------------------------------------------- */

/* heads of d channels of BF16 at some strides, aligned to 16 bytes */
struct heads {
	te_k_strides s;
	int64_t batch, ntokens, nheads, d;
	std::vector<uint16_t> v;

	uint16_t *data()
	{
		return (uint16_t *)(((uintptr_t)v.data() + 15) / 16 * 16);
	}
};

static void fill(heads &h)
{
	h.v.resize((size_t)(te_k_attn_extent(h.s, h.batch, h.ntokens, h.nheads, h.d) + 8));
	for (uint16_t &x : h.v)
		x = (uint16_t)bf16_bits((float)(rnd(2001) + rnd(2001)) / 2000 - 1);
}

/* packed: of width heads in a row */
static heads heads_of(int64_t batch, int64_t ntokens, int64_t nheads, int64_t d, bool packed)
{
	const int64_t wide = packed ? d : d + 8 * rnd(2);
	heads h = { { ntokens * nheads * wide, nheads * wide, wide }, batch, ntokens, nheads, d };

	if (!packed && rnd(2))
		h.s = { ntokens * nheads * wide, wide, ntokens * wide };
	fill(h);
	return h;
}

static heads copy_of(const heads &h)
{
	heads c = h;

	for (uint16_t &x : c.v)
		x = 0x4567;
	return c;
}

/* within some roundings of BF16, relative to the largest number of a head; gaps have their bits */
static void near(const char *what, heads &got, heads &want)
{
	const int64_t n = te_k_attn_extent(got.s, got.batch, got.ntokens, got.nheads, got.d);

	for (int64_t i = 0; i < got.batch * got.ntokens * got.nheads; i++) {
		const int64_t at = i / got.nheads / got.ntokens * got.s.batch +
				   i / got.nheads % got.ntokens * got.s.token +
				   i % got.nheads * got.s.head;
		float most = 0x1p-10f;

		for (int64_t c = at; c < at + got.d; c++)
			most = max(most, fabsf(half_of(want.data()[c], 0)));
		for (int64_t c = at; c < at + got.d; c++) {
			const float x = half_of(got.data()[c], 0), y = half_of(want.data()[c], 0);

			CHECK(fabsf(x - y) <= most / 32,
			      "%s, batch %d, T %d, %d keys, heads %d/%d of %d and %d, window %d, "
			      "cap %g, full %d, right %d, bottom %d, documents %d, offsets %d, "
			      "bias %d, slopes %d, sinks %d, threshold %u: head %d, %d: %g, not %g",
			      what, (int)f.batch, (int)f.seqlen, (int)f.more.klen, f.nheads, f.nkv,
			      f.head_dim, f.more.head_dim_v, f.window, (double)f.softcap, f.full,
			      f.more.right, f.more.bottom, f.first != NULL,
			      f.more.q_offsets ? f.more.nseqs : 0, f.more.bias != NULL,
			      f.more.slopes != NULL, f.more.sinks != NULL, f.threshold, (int)i,
			      (int)(c - at), (double)x, (double)y);
			got.data()[c] = want.data()[c];
		}
	}
	CHECK(!memcmp(got.data(), want.data(), (size_t)n * 2), "%s: gaps", what);
}

static int any_width(int turn)
{
#ifdef TT_MORE
	return turn % 3 ? 8 * (1 + (int)rnd(16)) : 1 + (int)rnd(128);
#else
	return turn % 3 ? 8 * (17 + (int)rnd(16)) : 129 + (int)rnd(128);
#endif
}

static std::vector<int32_t> offsets(int n, int64_t ntokens)
{
	std::vector<int32_t> x;

	for (int i = 0; i <= n; i++)
		x.push_back((int32_t)rnd((uint32_t)ntokens + 1));
	std::sort(x.begin(), x.end());
	return x;
}

static std::vector<float> words(int64_t n, float most)
{
	std::vector<float> x((size_t)n);

	for (float &w : x)
		w = most * ((float)rnd(2001) / 1000 - 1);
	return x;
}

static void run_case(int turn)
{
	static const uint64_t seed = 77, offset = 5;
	const bool separate = turn % 4 == 1 || turn % 4 == 2;
	std::vector<float> lse, lse_got, delta, bias, dbias, dbias_got, slopes, sinks;
	std::vector<int32_t> first, q_offsets, k_offsets;
	int64_t n, klen;
	int d, dv;

	f = {};
	f.batch = 1 + rnd(2);
	f.seqlen = 1 + rnd(f.batch > 1 ? 40 : 150);
	f.nkv = 1 + (int)rnd(2);
	f.nheads = f.nkv * (1 + (int)rnd(2));
#ifdef TT_MORE
	const bool more = true;
#else
	const bool more = separate || turn & 1;
#endif
	d = dv = f.head_dim = any_width(turn);
	klen = f.seqlen;
	f.scale = 1.0f / sqrtf((float)d);
	f.dtype = TE_DTYPE_BF16;
	if (separate) {
		klen = f.more.klen = rnd(3) ? 1 + rnd(f.batch > 1 ? 40 : 150) : f.seqlen;
		dv = f.more.head_dim_v = rnd(2) ? any_width(turn) : d;
		f.more.bottom = (int)rnd(2);
	}
	n = f.batch * f.seqlen;
	if (more) {
		f.window = rnd(2) ? 1 + (int)rnd((uint32_t)klen) : 0;
		f.softcap = rnd(2) ? 0.5f + (float)rnd(4) : 0.0f;
		f.threshold = rnd(2) ? 1000 + rnd(30000) : 0;
		f.full = (int)rnd(2);
		f.more.right = f.full && rnd(2) ? 1 + (int)rnd((uint32_t)klen) : 0;
		if (!separate && rnd(2)) {
			const int64_t len = 1 + rnd(70);

			for (int64_t i = 0; i < n; i++)
				first.push_back((int32_t)(i % f.seqlen / len * len));
			f.first = first.data();
		}
		if (separate && f.batch == 1 && rnd(2)) {
			f.more.nseqs = 1 + (int)rnd(5);
			q_offsets = offsets(f.more.nseqs, f.seqlen);
			k_offsets = offsets(f.more.nseqs, klen);
			f.more.q_offsets = q_offsets.data();
			if (klen != f.seqlen || rnd(2))
				f.more.k_offsets = k_offsets.data();
		}
		if (rnd(2)) {
			sinks = words(f.nheads, 2);
			f.more.sinks = sinks.data();
		}
		if (f.softcap == 0.0f && rnd(2)) {
			slopes = words(f.nheads, 0.2f);
			f.more.slopes = slopes.data();
		}
		if (f.softcap == 0.0f && rnd(2)) {
			f.more.bias_head = rnd(2) ? f.seqlen * klen : 0;
			bias = words((f.more.bias_head ? f.nheads : 1) * f.seqlen * klen, 2);
			for (float &x : bias)
				x = rnd(20) ? x : -INFINITY;
			f.more.bias = bias.data();
			dbias.resize(bias.size());
			dbias_got = dbias;
		}
		if (!separate && !TE_K_ATTN_HAS_MORE(&f))
			f.window = 1 + (int)rnd(f.seqlen);
	}
	f.tag = 3;
	f.seed = &seed;
	f.offset = &offset;

	heads q = heads_of(f.batch, f.seqlen, separate ? f.nheads : f.nheads + 2 * f.nkv, d,
			   !separate);
	heads k = heads_of(f.batch, klen, f.nkv, d, false);
	heads v = heads_of(f.batch, klen, f.nkv, dv, false);
	heads out = heads_of(f.batch, f.seqlen, f.nheads, dv, !separate);
	heads dout = out, got = copy_of(out), dq = copy_of(q), dk = copy_of(k), dv_ = copy_of(v);
	heads dq_got = dq, dk_got = dk, dv_got = dv_;

	out = got;
	fill(dout);
	lse.resize((size_t)(n * f.nheads));
	lse_got.resize(lse.size());
	delta.resize(lse.size());
	f.qkv = q.data();
	if (separate) {
		f.more.k = k.data();
		f.more.v = v.data();
		f.more.qs = q.s;
		f.more.ks = k.s;
		f.more.vs = v.s;
		f.more.os = out.s;
	}
	f.out = out.data();
	f.lse = lse.data();
	te__h_attn_fwd(&f);
	f.out = got.data();
	f.lse = lse_got.data();
	run(te__geo_attn_fwd, &f);
	near("out", got, out);
	for (size_t i = 0; i < lse.size(); i++)
		CHECK(lse[i] == lse_got[i] || fabsf(lse[i] - lse_got[i]) < 0.01f,
		      "lse %zu: %g, not %g", i, (double)lse_got[i], (double)lse[i]);
	g = {};
	g.qkv = f.qkv;
	g.out = out.data();
	g.dout = dout.data();
	g.lse = lse.data();
	g.delta = delta.data();
	g.seed = f.seed;
	g.offset = f.offset;
	g.batch = f.batch;
	g.seqlen = f.seqlen;
	g.nheads = f.nheads;
	g.nkv = f.nkv;
	g.head_dim = d;
	g.scale = f.scale;
	g.threshold = f.threshold;
	g.tag = f.tag;
	g.dtype = f.dtype;
	g.window = f.window;
	g.first = f.first;
	g.softcap = f.softcap;
	g.full = f.full;
	g.more = f.more;
	g.dqkv = dq.data();
	g.dk = dk.data();
	g.dv = dv_.data();
	te__h_attn_bwd_pre(&g);
	te__h_attn_bwd_dkv(&g);
	te__h_attn_bwd_dq(&g);
	g.dbias = dbias.data();
	if (f.more.bias)
		te__h_attn_bwd_bias(&g);
	g.dqkv = dq_got.data();
	g.dk = dk_got.data();
	g.dv = dv_got.data();
	run(te__geo_attn_bwd_dkv, &g);
	run(te__geo_attn_bwd_dq, &g);
	near("dq", dq_got, dq);
	near("dk", dk_got, dk);
	near("dv", dv_got, dv_);
	g.dbias = dbias_got.data();
	if (f.more.bias)
		run(te__geo_attn_bwd_bias, &g);
	for (size_t i = 0; i < dbias.size(); i++)
		CHECK(fabsf(dbias[i] - dbias_got[i]) < 1e-4f, "dbias %zu: %g, not %g", i,
		      (double)dbias_got[i], (double)dbias[i]);
}

int main(int argc, char **argv)
{
	const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	const int n = argc > 2 ? atoi(argv[2]) : 20;

	for (int i = 0; i < n; i++) {
		state = seed * 1000 + (uint64_t)i;
		run_case(i);
	}
	return 0;
}
