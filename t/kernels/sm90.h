/*
 * t/kernels/sm90.h - kernels of sm_90a on the host: functions with the names of kernels/sm90.cuh,
 * one fiber a thread of the GPU. Fibers run in random order; copies complete at random times,
 * products when they are waited for; shared memory is poisoned. A wait that never ends is a
 * failure. A program includes this and then one .cu.
 */
#ifndef TT_SM90_H
#define TT_SM90_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <vector>

#include <te/dtype.h>

#define TE_ATTN_DEV_CUH
#define TE_BEGIN_CUH
#define TE_DEV_CUH
#define TE_FP8_CUH
#define TE_SM90_CUH
#define DEV static inline
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __cluster_dims__(...)
#define __launch_bounds__(...)

extern "C" {
#include "kernels/sm90.h"
}

#define STACK 65536
#define MAX_SMEM 232448

static uint64_t state;

static uint32_t rnd(uint32_t n)
{
	uint64_t z = state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (uint32_t)((z ^ z >> 31) >> 32) % n;
}

#define CHECK(cond, ...)                                           \
	do {                                                       \
		if (!(cond)) {                                     \
			printf("# line %d: %s: ", __LINE__, #cond); \
			printf(__VA_ARGS__);                       \
			printf("\n");                              \
			fflush(stdout);                            \
			_exit(1);                                  \
		}                                                  \
	} while (0)

/* --- fibers --------------------------------------------------------------------- */

struct fiber;
typedef std::vector<fiber *> waiters;

struct barrier { /* an mbarrier */
	int64_t count, pending, bytes;
	uint32_t phase;
	waiters w;
};

struct meeting { /* of n threads */
	uint32_t arrived = 0, generation = 0;
	waiters w;
};

struct block {
	std::vector<uint8_t> smem, dirty;
	std::vector<barrier *> barriers; /* by address / 8 */
	meeting groups[16], all, *cluster;
	block *both[2];
	uint32_t index, rank;
};

struct mma { /* wgmma, not computed yet */
	float *d;
	int n, es;
	uint64_t a, b;
	const uint32_t *a_words; /* NULL: a is in shared memory */
	int add, a_t, b_t, a_e5m2, group;
	std::vector<float> was;
};

struct store_op {
	bool done, read; /* read: the block may write to its memory again */
};

struct warp { /* what its threads exchange */
	uint32_t at[32], v[32][4];
	meeting m;
};

struct fiber {
	ucontext_t ctx;
	block *b;
	uint32_t thread;
	std::vector<mma> mmas;
	int ngroups; /* committed */
	std::vector<store_op *> stores;
	waiters store_w;
	std::vector<uint32_t> dirty;
	bool ended;
};

struct index3 {
	uint32_t x, y, z;
};
index3 threadIdx, blockIdx, gridDim;
static uint32_t block_nthreads, cluster_nblocks;
static fiber *self;
static ucontext_t scheduler;
static waiters ready;
static std::vector<warp> warps; /* by block and warp */

static void wait_on(waiters &w)
{
	fiber *f = self;

	w.push_back(f);
	swapcontext(&f->ctx, &scheduler);
}

static void wake(waiters &w)
{
	ready.insert(ready.end(), w.begin(), w.end());
	w.clear();
}

/* the last of n threads ends the meeting */
static bool arrive(meeting &m, uint32_t n)
{
	CHECK(m.arrived < n, "%u of %u threads", m.arrived, n);
	if (++m.arrived < n)
		return false;
	m.arrived = 0;
	m.generation++;
	wake(m.w);
	return true;
}

/* until n threads are here */
static void meet(meeting &m, uint32_t n)
{
	const uint32_t generation = m.generation;

	if (arrive(m, n))
		return;
	while (m.generation == generation)
		wait_on(m.w);
}

/* --- copies, which complete at random times --------------------------------------- */

struct copy {
	bool store;
	block *b;
	fiber *f;
	store_op *op;
	uint32_t at, barrier;
	te_tensor_map map;
	int x, y, z;
	const void *from = NULL; /* bulk_load() of nbytes */
	uint32_t nbytes = 0;
	float *to = NULL; /* bulk_store() and bulk_add(), which read, and then write */
	bool adds = false;
	std::vector<float> read = {};
};
static std::vector<copy> copies;

static barrier &barrier_at(block *b, uint32_t at)
{
	CHECK(at % 8 == 0 && at / 8 < b->barriers.size() && b->barriers[at / 8], "%u", at);
	return *b->barriers[at / 8];
}

static void check_phase(barrier &m)
{
	if (m.pending || m.bytes)
		return;
	m.phase++;
	m.pending = m.count;
	wake(m.w);
}

/* words of a map: see map_of() */
static void complete(copy &c)
{
	if (c.from) {
		barrier &m = barrier_at(c.b, c.barrier);

		CHECK(c.at + c.nbytes <= c.b->smem.size(), "bulk copy to %u", c.at);
		memcpy(&c.b->smem[c.at], c.from, c.nbytes);
		m.bytes -= c.nbytes;
		check_phase(m);
		return;
	}
	if (c.to && c.read.empty()) {
		const float *v = (const float *)&c.b->smem[c.at];

		CHECK(c.at + c.nbytes <= c.b->smem.size(), "bulk copy of %u", c.at);
		for (uint32_t i = 0; i < c.nbytes; i++)
			CHECK(!c.b->dirty[c.at + i], "bulk copy of unpublished bytes");
		c.read.assign(v, v + c.nbytes / 4);
		copies.push_back(c);
		c.op->read = true;
		wake(c.f->store_w);
		return;
	}
	if (c.to) {
		for (uint32_t i = 0; i < c.nbytes / 4; i++)
			c.to[i] = c.adds ? c.to[i] + c.read[i] : c.read[i];
		c.op->done = true;
		wake(c.f->store_w);
		return;
	}
	uint8_t *p = (uint8_t *)c.map.word[0];
	const int64_t nx = (int64_t)c.map.word[1], ny = (int64_t)c.map.word[2];
	const int64_t nz = (int64_t)c.map.word[6];
	const int elem = (int)c.map.word[3], bx = (int)c.map.word[4], by = (int)c.map.word[5];

	CHECK(c.at % 1024 == 0, "box at %u", c.at);
	for (int r = 0; r < by; r++)
		for (int i = 0; i < bx * elem; i++) {
			const uint32_t to = c.at + r * 128 + ((i / 16 ^ r % 8) * 16 + i % 16);
			const int64_t x = c.x + i / elem, y = c.y + r;
			const bool in = x >= 0 && x < nx && y >= 0 && y < ny && c.z >= 0 &&
					c.z < nz;
			uint8_t *g = p + ((c.z * ny + y) * nx + x) * elem + i % elem;

			CHECK(to < c.b->smem.size(), "box at %u", c.at);
			if (!c.store) {
				c.b->smem[to] = in ? *g : 0;
				continue;
			}
			CHECK(!c.b->dirty[to], "store of unpublished bytes");
			if (in)
				*g = c.b->smem[to];
		}
	if (c.store) {
		c.op->done = c.op->read = true;
		wake(c.f->store_w);
		return;
	}
	barrier &m = barrier_at(c.b, c.barrier);
	m.bytes -= bx * elem * by;
	check_phase(m);
}

static void run_all(std::vector<fiber> &fibers)
{
	/* from soon to only when all threads wait */
	static const uint32_t rarely[] = { 100, 2000, UINT32_MAX };
	const uint32_t odds = rarely[rnd(3)];
	size_t left = fibers.size();

	while (left) {
		CHECK(ready.size() || copies.size(), "deadlock: %zu threads wait", left);
		if (copies.size() && (ready.empty() || !rnd(odds))) {
			const uint32_t i = rnd((uint32_t)copies.size());
			copy c = copies[i];

			copies.erase(copies.begin() + i);
			complete(c);
			continue;
		}
		const uint32_t i = rnd((uint32_t)ready.size());

		self = ready[i];
		ready[i] = ready.back();
		ready.pop_back();
		threadIdx.x = self->thread;
		blockIdx.x = self->b->index;
		swapcontext(&scheduler, &self->ctx);
		left -= self->ended;
	}
	CHECK(copies.empty(), "%zu copies run after the end", copies.size());
}

/* --- kernels/sm90.cuh ---------------------------------------------------------------------- */

struct float2 {
	float x, y;
};
struct float4 {
	float x, y, z, w;
};
struct bf16 {
	uint16_t bits;
};
static float from_bits(uint32_t u)
{
	float f;

	memcpy(&f, &u, 4);
	return f;
}
static uint32_t bits_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, 4);
	return u;
}
static uint32_t to_bf16(float f)
{
	const uint32_t u = bits_of(f);

	return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
DEV float2 make_float2(float x, float y)
{
	return { x, y };
}
DEV float4 make_float4(float x, float y, float z, float w)
{
	return { x, y, z, w };
}
DEV uint32_t __float_as_uint(float f)
{
	return bits_of(f);
}
DEV float mul(float a, float b)
{
	return a * b;
}
DEV float add(float a, float b)
{
	return a + b;
}
DEV float __fmaf_rn(float a, float b, float c)
{
	return fmaf(a, b, c);
}
DEV uint32_t pack_bf16x2(float lo, float hi)
{
	return to_bf16(lo) | to_bf16(hi) << 16;
}
DEV float2 unpack_bf16x2(uint32_t w)
{
	return { from_bits(w << 16), from_bits(w & 0xffff0000u) };
}
DEV void __stcg(float4 *p, float4 v)
{
	*p = v;
}
DEV float4 __ldcg(const float4 *p)
{
	return *p;
}
struct uint2 {
	uint32_t x, y;
};
struct uint4 {
	uint32_t x, y, z, w;
};
DEV uint2 make_uint2(uint32_t x, uint32_t y)
{
	return { x, y };
}
DEV uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
	return { x, y, z, w };
}
DEV uint32_t atomicAdd(uint32_t *p, uint32_t n)
{
	return (*p += n) - n;
}
DEV void __threadfence(void)
{
}
DEV void te_begin(void)
{
}

DEV void te_begin_early(void)
{
}
template <int N> DEV void registers_lower(void)
{
}
template <int N> DEV void registers_raise(void)
{
}

/* not 0, so that addresses in the window and offsets differ */
DEV uint32_t smem_begin(void)
{
	return 1024;
}
static uint8_t *smem(uint32_t at, uint32_t nbytes)
{
	CHECK(at >= 1024 && at % nbytes == 0 && at + nbytes <= self->b->smem.size(), "%u", at);
	return &self->b->smem[at];
}
static void write(uint32_t at, const void *p, uint32_t nbytes)
{
	memcpy(smem(at, nbytes), p, nbytes);
	for (uint32_t i = 0; i < nbytes; i++)
		self->b->dirty[at + i] = 1;
	self->dirty.push_back(at);
	self->dirty.push_back(nbytes);
}
DEV void smem_store(uint32_t at, uint32_t x)
{
	memcpy(smem(at, 4), &x, 4);
}
DEV uint32_t smem_load(uint32_t at)
{
	uint32_t x;

	memcpy(&x, smem(at, 4), 4);
	return x;
}
DEV uint16_t smem_load_half(uint32_t at)
{
	uint16_t x;

	memcpy(&x, smem(at, 2), 2);
	return x;
}
DEV void smem_store4(uint32_t at, int a, int b, int c, int d)
{
	const int v[4] = { a, b, c, d };

	smem(at, 16);
	write(at, v, 16);
}
DEV void smem_load4(uint32_t at, int &a, int &b, int &c, int &d)
{
	int v[4];

	memcpy(v, smem(at, 16), 16);
	a = v[0];
	b = v[1];
	c = v[2];
	d = v[3];
}
DEV void smem_store2(uint32_t at, float x, float y)
{
	const float v[2] = { x, y };

	write(at, v, 8);
}
static warp &warp_of(void)
{
	return warps[self->b->index * (block_nthreads / 32) + self->thread / 32];
}
DEV void __syncwarp(void)
{
	meet(warp_of().m, 32);
}
DEV void smem_store_matrices(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
	warp &m = warp_of();
	const uint32_t lane = self->thread % 32, v[4] = { a, b, c, d };
	uint32_t row[4];

	m.at[lane] = at;
	memcpy(m.v[lane], v, sizeof(v));
	meet(m.m, 32);
	for (int i = 0; i < 4; i++)
		row[i] = m.v[4 * (lane % 8) + i][lane / 8];
	/* the next begins when all have read this one */
	meet(m.m, 32);
	write(at, row, 16);
}
DEV float2 smem_load2(uint32_t at)
{
	float2 v;

	memcpy(&v, smem(at, 8), 8);
	return v;
}
DEV void smem_load_matrices(uint32_t at, uint32_t (&w)[4])
{
	warp &m = warp_of();
	const uint32_t lane = self->thread % 32;

	m.at[lane] = at;
	meet(m.m, 32);
	for (uint32_t i = 0; i < 4; i++)
		memcpy(&w[i], smem(m.at[8 * i + lane / 4], 16) + lane % 4 * 4, 4);
	meet(m.m, 32);
}
DEV float __shfl_xor_sync(uint32_t, float x, int by)
{
	warp &w = warp_of();
	const uint32_t lane = self->thread % 32;
	float r;

	w.v[lane][0] = bits_of(x);
	meet(w.m, 32);
	r = from_bits(w.v[lane ^ by][0]);
	meet(w.m, 32);
	return r;
}
DEV int __shfl_sync(uint32_t, int x, int lane)
{
	warp &w = warp_of();

	w.v[self->thread % 32][0] = (uint32_t)x;
	meet(w.m, 32);
	x = (int)w.v[lane][0];
	meet(w.m, 32);
	return x;
}
/* a lane whose source is outside of the warp has its own value */
DEV int __shfl_down_sync(uint32_t, int x, uint32_t by)
{
	warp &w = warp_of();
	const uint32_t lane = self->thread % 32;

	w.v[lane][0] = (uint32_t)x;
	meet(w.m, 32);
	x = (int)w.v[lane + by < 32 ? lane + by : lane][0];
	meet(w.m, 32);
	return x;
}
/* the least or the largest of a warp */
static int reduce(int x, bool least)
{
	warp &w = warp_of();

	w.v[self->thread % 32][0] = (uint32_t)x;
	meet(w.m, 32);
	for (int i = 0; i < 32; i++)
		if (((int)w.v[i][0] < x) == least)
			x = (int)w.v[i][0];
	meet(w.m, 32);
	return x;
}
DEV int __reduce_min_sync(uint32_t, int x)
{
	return reduce(x, true);
}
DEV int __reduce_max_sync(uint32_t, int x)
{
	return reduce(x, false);
}
DEV void smem_publish(void)
{
	for (size_t i = 0; i < self->dirty.size(); i += 2)
		memset(&self->b->dirty[self->dirty[i]], 0, self->dirty[i + 1]);
	self->dirty.clear();
}
DEV uint32_t cluster_rank(void)
{
	return self->b->rank;
}
DEV void cluster_sync(void)
{
	meet(*self->b->cluster, cluster_nblocks * block_nthreads);
}
DEV void __syncthreads(void)
{
	meet(self->b->all, block_nthreads);
}
template <int N> DEV void threads_sync(int id)
{
	CHECK(id > 0 && id < 16, "barrier %d", id);
	meet(self->b->groups[id], N);
}
template <int N> DEV void threads_arrive(int id)
{
	CHECK(id > 0 && id < 16, "barrier %d", id);
	arrive(self->b->groups[id], N);
}
DEV void group_sync(int id)
{
	threads_sync<128>(id);
}
DEV void barrier_init(uint32_t at, uint32_t count)
{
	smem(at, 8);
	self->b->barriers[at / 8] = new barrier{ count, count, 0, 0, {} };
}
DEV void barrier_init_publish(void)
{
}
DEV void barrier_expect(uint32_t at, uint32_t nbytes)
{
	barrier &m = barrier_at(self->b, at);

	m.bytes += nbytes;
	m.pending--;
	check_phase(m);
}
DEV void barrier_arrive(uint32_t at, uint32_t rank)
{
	barrier &m = barrier_at(self->b->both[rank], at);

	CHECK(m.pending > 0, "too many arrivals");
	m.pending--;
	check_phase(m);
}
DEV void barrier_arrive(uint32_t at)
{
	barrier_arrive(at, self->b->rank);
}
DEV void barrier_wait(uint32_t at, uint32_t parity)
{
	barrier &m = barrier_at(self->b, at);

	while ((m.phase & 1) == parity)
		wait_on(m.w);
}
DEV void bulk_load(uint32_t to, const void *from, uint32_t nbytes, uint32_t barrier)
{
	CHECK(!(to % 16 || (uintptr_t)from % 16 || nbytes % 16 || !nbytes), "%u bytes", nbytes);
	copies.push_back({ false, self->b, NULL, NULL, to, barrier, {}, 0, 0, 0, from, nbytes });
}
DEV void tma_load(uint32_t to, const te_tensor_map *map, int x, int y, int z, uint32_t barrier)
{
	copies.push_back({ false, self->b, NULL, NULL, to, barrier, *map, x, y, z });
}
DEV void tma_load(uint32_t to, const te_tensor_map *map, int x, int y, uint32_t barrier)
{
	tma_load(to, map, x, y, 0, barrier);
}
DEV void tma_load_both(uint32_t to, const te_tensor_map *map, int x, int y, uint32_t barrier)
{
	for (int i = 0; i < 2; i++)
		copies.push_back({ false, self->b->both[i], NULL, NULL, to, barrier, *map, x, y,
				   0 });
}
DEV void tma_store(const te_tensor_map *map, int x, int y, int z, uint32_t from)
{
	store_op *op = new store_op{ false, false };

	self->stores.push_back(op);
	copies.push_back({ true, self->b, self, op, from, 0, *map, x, y, z });
}
DEV void tma_store(const te_tensor_map *map, int x, int y, uint32_t from)
{
	tma_store(map, x, y, 0, from);
}
static void stores_wait(size_t n, bool store_op::*what)
{
	std::vector<store_op *> &s = self->stores;

	for (size_t i = 0; i + n < s.size(); i++)
		while (!(s[i]->*what))
			wait_on(self->store_w);
	while (s.size() && s[0]->done) {
		delete s[0];
		s.erase(s.begin());
	}
}
template <int N> DEV void tma_store_wait(void)
{
	stores_wait(N, &store_op::read);
}

static void bulk(void *to, uint32_t from, uint32_t nbytes, bool adds)
{
	store_op *op = new store_op{ false, false };

	CHECK(!(from % 16 || (uintptr_t)to % 16 || nbytes % 16 || !nbytes), "%u bytes", nbytes);
	self->stores.push_back(op);
	copies.push_back({ true, self->b, self, op, from, 0, {}, 0, 0, 0, NULL, nbytes,
			   (float *)to, adds });
}
DEV void bulk_store(void *to, uint32_t from, uint32_t nbytes)
{
	bulk(to, from, nbytes, false);
}
DEV void bulk_add(float *to, uint32_t from, uint32_t nbytes)
{
	bulk(to, from, nbytes, true);
}
template <int N> DEV void bulk_wait(void)
{
	stores_wait(N, &store_op::done);
}
static waiters count_w;

DEV void count_wait(const uint32_t *count, uint32_t n)
{
	while (*count != n)
		wait_on(count_w);
}
DEV void count_set(uint32_t *count, uint32_t n)
{
	for (const store_op *s : self->stores)
		CHECK(s->done, "a copy is not complete");
	*count = n;
	wake(count_w);
}

DEV uint64_t wgmma_tile(uint32_t at, uint32_t leading)
{
	return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(leading >> 4) << 16 |
	       (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

DEV uint64_t wgmma_after(uint64_t tile, int nbytes)
{
	return tile + (nbytes >> 4);
}

/* an element of a tile, whose rows are rows of the operand or, t, of k */
static const uint8_t *element(uint64_t desc, int t, int row, int k, int es)
{
	const uint32_t at = (uint32_t)(desc & 0x3fff) << 4;
	const uint32_t lead = (uint32_t)(desc >> 16 & 0x3fff) << 4;
	const uint32_t stride = (uint32_t)(desc >> 32 & 0x3fff) << 4;
	uint32_t to = t ? at + row / 64 * lead + row % 64 * es + k / 8 * stride + k % 8 * 128 :
			  at + row / 8 * stride + row % 8 * 128 + k * es;

	to ^= (to >> 7 & 7) << 4;
	CHECK(to + es <= self->b->smem.size(), "operand at %u", to);
	CHECK(!self->b->dirty[to], "operand of unpublished bytes");
	return &self->b->smem[to];
}

static float fp8_of(uint8_t c, int e5m2)
{
	const int m = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, e = c >> m & (e5m2 ? 31 : 15);
	const float f = (float)(c & ((1 << m) - 1)) / (float)(1 << m);
	const float v = e ? ldexpf(1 + f, e - bias) : ldexpf(f, 1 - bias);

	if (e5m2 ? e == 31 : (c & 0x7f) == 0x7f)
		return NAN;
	return c & 0x80 ? -v : v;
}

static float fp8_values[2][256];

static inline float value(const uint8_t *p, int es, int e5m2)
{
	return es == 1 ? fp8_values[e5m2][*p] : from_bits((uint32_t)(p[0] | p[1] << 8) << 16);
}

/* the part of a row that one wgmma multiplies; with k innermost, 16 bytes stay together */
static void row_of(uint64_t desc, int t, int row, int es, int e5m2, float *v)
{
	const int n = t ? 1 : 16 / es; /* elements at one address */

	for (int k = 0; k < 32 / es; k += n) {
		const uint8_t *p = element(desc, t, row, k, es);

		for (int i = 0; i < n; i++)
			v[k + i] = value(p + i * es, es, e5m2);
	}
}

/* two rows of a from the registers of four threads, which run until they wait, too */
static void words_of(const uint32_t *p, float (&a)[2][32])
{
	warp &w = warp_of();
	const uint32_t lane = self->thread % 32;

	memcpy(w.v[lane], p, sizeof(w.v[lane]));
	meet(w.m, 32);
	for (int k = 0; k < 16; k++)
		for (int i = 0; i < 2; i++)
			a[i][k] = from_bits(w.v[lane / 4 * 4 + k % 8 / 2][k / 8 * 2 + i]
					    << (k % 2 ? 0 : 16) & 0xffff0000u);
	meet(w.m, 32);
}

static void compute(const mma &m)
{
	const int lane = self->thread % 32, warp = self->thread % 128 / 32, nk = 32 / m.es;
	float a[2][32], b[32];

	if (m.a_words) {
		words_of(m.a_words, a);
	} else {
		for (int i = 0; i < 2; i++)
			row_of(m.a, m.a_t, 16 * warp + lane / 4 + 8 * i, m.es, m.a_e5m2, a[i]);
	}
	for (int j = 0; j < m.n / 4; j++) {
		const int c = j % 2;
		float s[2] = { 0, 0 };

		row_of(m.b, m.b_t, j / 2 * 8 + 2 * (lane % 4) + c, m.es, 0, b);
		for (int k = 0; k < nk; k++) {
			s[0] += a[0][k] * b[k];
			s[1] += a[1][k] * b[k];
		}
		for (int i = 0; i < 2; i++) {
			float *d = m.d + j / 2 * 4 + 2 * i + c;

			*d = m.add ? *d + s[i] : s[i];
		}
	}
}

/* accumulators are unknown from the first of these until the wait */
static void issue(float *d, int n, int es, uint64_t a, uint64_t b, int add, int a_t, int b_t,
		  int a_e5m2, const uint32_t *a_words = NULL)
{
	mma m = { d, n, es, a, b, a_words, add, a_t, b_t, a_e5m2, self->ngroups, {} };

	for (mma &x : self->mmas)
		if (x.d == d) {
			self->mmas.push_back(m);
			return;
		}
	m.was.assign(d, d + n / 2);
	for (int i = 0; i < n / 2; i++)
		d[i] = NAN;
	self->mmas.push_back(m);
}
DEV void wgmma_begin(void)
{
}
DEV void wgmma_commit(void)
{
	self->ngroups++;
}
template <int LEFT, int N> DEV void wgmma_wait(float (&)[N])
{
	std::vector<mma> &m = self->mmas;

	while (m.size() && m[0].group < self->ngroups - LEFT) {
		if (m[0].was.size())
			memcpy(m[0].d, m[0].was.data(), m[0].was.size() * sizeof(float));
		compute(m[0]);
		m.erase(m.begin());
	}
	meet(warp_of().m, 32); /* the instruction is aligned */
}
template <bool A_T, bool B_T> struct bf16_256 {
	static void mma(float (&d)[128], uint64_t a, uint64_t b, int add)
	{
		issue(d, 256, 2, a, b, add, A_T, B_T, 0);
	}
};
struct e4m3_e4m3_256 {
	static void mma(float (&d)[128], uint64_t a, uint64_t b, int add)
	{
		issue(d, 256, 1, a, b, add, 0, 0, 0);
	}
};
struct e4m3_e4m3_128 {
	static void mma(float (&d)[64], uint64_t a, uint64_t b, int add)
	{
		issue(d, 128, 1, a, b, add, 0, 0, 0);
	}
};
struct e5m2_e4m3_128 {
	static void mma(float (&d)[64], uint64_t a, uint64_t b, int add)
	{
		issue(d, 128, 1, a, b, add, 0, 0, 1);
	}
};

template <int N> DEV void mma_bf16(float (&d)[N], uint64_t a, uint64_t b, int add)
{
	issue(d, 2 * N, 2, a, b, add, 0, 0, 0);
}
template <int N> DEV void mma_bf16_bt(float (&d)[N], const uint32_t *a, uint64_t b, int add)
{
	issue(d, 2 * N, 2, 0, b, add, 0, 1, 0, a);
}
DEV void mma_bf16_tt(float (&d)[32], uint64_t a, uint64_t b, int add)
{
	issue(d, 64, 2, a, b, add, 1, 1, 0);
}

/* --- launches ------------------------------------------------------------------------ */

static te_tensor_map map_of(const te_sm90_map &m)
{
	te_tensor_map r = {};

	CHECK((uintptr_t)m.p % 16 == 0 && m.nx * m.elem % 16 == 0, "map");
	CHECK(m.box_x * m.elem == 128 && m.box_y <= 256, "box %d x %d", m.box_x, m.box_y);
	r.word[0] = (uintptr_t)m.p;
	r.word[1] = (uint64_t)m.nx;
	r.word[2] = (uint64_t)m.ny;
	r.word[3] = (uint64_t)m.elem;
	r.word[4] = (uint64_t)m.box_x;
	r.word[5] = (uint64_t)m.box_y;
	r.word[6] = (uint64_t)(m.nz ? m.nz : 1);
	return r;
}

static void (*body_of_launch)(void);

static void fiber_main(void)
{
	body_of_launch();
	self->ended = true;
	swapcontext(&self->ctx, &scheduler);
}

static void launch(void (*body)(void), uint32_t nblocks, uint32_t nthreads, uint32_t cluster,
		   uint32_t smem_nbytes)
{
	const size_t nfibers = (size_t)nblocks * nthreads;
	std::vector<block> blocks(nblocks);
	std::vector<meeting> clusters(nblocks / cluster);
	std::vector<fiber> fibers(nfibers);
	char *stacks = (char *)mmap(NULL, nfibers * STACK, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(stacks != MAP_FAILED, "no memory");
	CHECK(smem_nbytes <= MAX_SMEM, "%u bytes of shared memory", smem_nbytes);
	body_of_launch = body;
	block_nthreads = nthreads;
	cluster_nblocks = cluster;
	gridDim.x = nblocks;
	warps = std::vector<warp>(nfibers / 32);
	for (uint32_t i = 0; i < nblocks; i++) {
		block &b = blocks[i];

		b.smem.assign(1024 + smem_nbytes, 0xff);
		b.dirty.assign(1024 + smem_nbytes, 0);
		b.barriers.assign(128 + smem_nbytes / 8, NULL);
		b.cluster = &clusters[i / cluster];
		b.index = i;
		b.rank = i % cluster;
		for (uint32_t j = 0; j < cluster; j++)
			b.both[j] = &blocks[i / cluster * cluster + j];
	}
	for (size_t i = 0; i < nfibers; i++) {
		fiber &f = fibers[i];

		f.b = &blocks[i / nthreads];
		f.thread = (uint32_t)(i % nthreads);
		f.ngroups = 0;
		f.ended = false;
		getcontext(&f.ctx);
		f.ctx.uc_stack.ss_sp = stacks + i * STACK;
		f.ctx.uc_stack.ss_size = STACK;
		f.ctx.uc_link = NULL;
		makecontext(&f.ctx, fiber_main, 0);
		ready.push_back(&f);
	}
	run_all(fibers);
	for (block &b : blocks)
		for (barrier *m : b.barriers)
			delete m;
	munmap(stacks, nfibers * STACK);
}

static void begin(int argc, char **argv)
{
	state = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	for (int i = 0; i < 512; i++)
		fp8_values[i / 256][i % 256] = fp8_of((uint8_t)i, i / 256);
}

#endif
