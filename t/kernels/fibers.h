/*
 * t/kernels/fibers.h - kernels without instructions of a level on the host: the built-in functions
 * that kernels/dev.cuh and block.cuh use, one fiber a thread of the GPU. A program includes this
 * and then one .cu. Inline assembly is left out: the functions of dev.cuh that consist of it, among
 * them stores of BF16, must not be called.
 */
#ifndef TT_FIBERS_H
#define TT_FIBERS_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#define TE_BEGIN_CUH
#define DEV static inline
#ifndef TE_ARCH
#define TE_ARCH 80
#endif
#define __CUDA_ARCH__ 800 /* instructions, whatever the level */
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define asm(...)

using std::max;
using std::min;

#define STACK 65536

#define CHECK(cond, ...)                                            \
	do {                                                        \
		if (!(cond)) {                                      \
			printf("# line %d: %s: ", __LINE__, #cond); \
			printf(__VA_ARGS__);                        \
			printf("\n");                               \
			fflush(stdout);                             \
			_exit(1);                                   \
		}                                                   \
	} while (0)

static uint64_t state;

static uint32_t rnd(uint32_t n)
{
	uint64_t z = state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (uint32_t)((z ^ z >> 31) >> 32) % n;
}

/* --- fibers --------------------------------------------------------------------- */

struct index3 {
	uint32_t x, y, z;
};
static index3 threadIdx, blockIdx, gridDim, blockDim;

struct fiber {
	ucontext_t ctx;
	uint32_t thread;
	std::vector<uint8_t> stack;
	bool ended;
};

struct meeting { /* of n threads */
	uint32_t arrived, generation;
	std::vector<fiber *> waiters;
};

static std::vector<fiber> fibers;
static std::vector<fiber *> ready;
static fiber *self;
static ucontext_t scheduler;
static meeting all, warps[32];
static uint32_t lanes[32][32]; /* values that the threads of a warp exchange */
static void (*body)(void);

static void meet(meeting &m, uint32_t n)
{
	const uint32_t generation = m.generation;

	if (++m.arrived == n) {
		m.arrived = 0;
		m.generation++;
		ready.insert(ready.end(), m.waiters.begin(), m.waiters.end());
		m.waiters.clear();
		return;
	}
	while (m.generation == generation) {
		m.waiters.push_back(self);
		swapcontext(&self->ctx, &scheduler);
	}
}

static void enter(void)
{
	body();
	self->ended = true;
}

/* all blocks of ny rows, one by one; threads in random order */
static void launch(void (*kernel)(void), uint32_t nblocks, uint32_t nthreads, uint32_t ny = 1)
{
	body = kernel;
	gridDim = { nblocks, ny, 1 };
	blockDim = { nthreads, 1, 1 };
	fibers.resize(nthreads);
	for (uint32_t b = 0; b < nblocks * ny; b++) {
		size_t left = nthreads;

		blockIdx = { b % nblocks, b / nblocks, 0 };
		for (uint32_t i = 0; i < nthreads; i++) {
			fiber &f = fibers[i];

			f.thread = i;
			f.ended = false;
			f.stack.resize(STACK);
			getcontext(&f.ctx);
			f.ctx.uc_stack.ss_sp = f.stack.data();
			f.ctx.uc_stack.ss_size = STACK;
			f.ctx.uc_link = &scheduler;
			makecontext(&f.ctx, enter, 0);
			ready.push_back(&f);
		}
		while (left) {
			CHECK(ready.size(), "deadlock: %zu threads wait", left);
			const uint32_t i = rnd((uint32_t)ready.size());

			self = ready[i];
			ready[i] = ready.back();
			ready.pop_back();
			threadIdx = { self->thread, 0, 0 };
			swapcontext(&scheduler, &self->ctx);
			left -= self->ended;
		}
	}
}

DEV void te_begin(void)
{
}

DEV void te_begin_early(void)
{
}

DEV void __syncthreads(void)
{
	meet(all, blockDim.x);
}

/* every lane's word, for all of them */
static void exchange(uint32_t x, uint32_t got[32])
{
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;

	lanes[warp][lane] = x;
	meet(warps[warp], 32);
	memcpy(got, lanes[warp], sizeof(lanes[warp]));
	meet(warps[warp], 32);
}

DEV uint32_t __shfl_xor_sync(uint32_t, uint32_t x, int d)
{
	uint32_t got[32];

	exchange(x, got);
	return got[(self->thread % 32) ^ (uint32_t)d];
}

DEV uint32_t __reduce_max_sync(uint32_t, uint32_t x)
{
	uint32_t got[32];

	exchange(x, got);
	return *std::max_element(got, got + 32);
}

DEV uint32_t __reduce_add_sync(uint32_t, uint32_t x)
{
	uint32_t got[32], sum = 0;

	exchange(x, got);
	for (uint32_t w : got)
		sum += w;
	return sum;
}

/* --- words ----------------------------------------------------------------------- */

struct float2 {
	float x, y;
};
struct float4 {
	float x, y, z, w;
};
struct uint2 {
	uint32_t x, y;
};
struct uint4 {
	uint32_t x, y, z, w;
};
DEV float2 make_float2(float x, float y)
{
	return { x, y };
}
DEV float4 make_float4(float x, float y, float z, float w)
{
	return { x, y, z, w };
}
DEV uint2 make_uint2(uint32_t x, uint32_t y)
{
	return { x, y };
}
DEV uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
	return { x, y, z, w };
}
DEV float __uint_as_float(uint32_t u)
{
	float f;

	memcpy(&f, &u, 4);
	return f;
}
DEV float __int_as_float(int32_t u)
{
	return __uint_as_float((uint32_t)u);
}
DEV uint32_t __float_as_uint(float f)
{
	uint32_t u;

	memcpy(&u, &f, 4);
	return u;
}
DEV float __shfl_xor_sync(uint32_t m, float x, int d)
{
	return __uint_as_float(__shfl_xor_sync(m, __float_as_uint(x), d));
}
DEV float __shfl_sync(uint32_t, float x, int lane)
{
	uint32_t got[32];

	exchange(__float_as_uint(x), got);
	return __uint_as_float(got[lane]);
}
DEV double __shfl_xor_sync(uint32_t, double x, int)
{
	return x;
}
DEV float __fmul_rn(float a, float b)
{
	return a * b;
}
DEV float __fadd_rn(float a, float b)
{
	return a + b;
}
DEV float __fsub_rn(float a, float b)
{
	return a - b;
}
DEV float __fdiv_rn(float a, float b)
{
	return a / b;
}
DEV float __fsqrt_rn(float x)
{
	return sqrtf(x);
}
DEV float __fmaf_rn(float a, float b, float c)
{
	return fmaf(a, b, c);
}
DEV double __dadd_rn(double a, double b)
{
	return a + b;
}
DEV uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t s)
{
	const uint64_t w = a | (uint64_t)b << 32;
	uint32_t r = 0;

	for (int i = 0; i < 4; i++)
		r |= (uint32_t)(w >> (s >> (4 * i) & 7) * 8 & 255) << (8 * i);
	return r;
}
template <class T> DEV T __ldcs(const T *p)
{
	return *p;
}
template <class T> DEV void __stcs(T *p, const T &x)
{
	*p = x;
}
DEV uint32_t atomicMax(uint32_t *p, uint32_t x)
{
	const uint32_t was = *p;

	*p = max(was, x);
	return was;
}
DEV uint32_t atomicAdd(uint32_t *p, uint32_t x)
{
	return (*p += x) - x;
}
DEV unsigned long long atomicAdd(unsigned long long *p, unsigned long long x)
{
	return (*p += x) - x;
}
DEV void __threadfence(void)
{
}
DEV uint64_t __cvta_generic_to_shared(const void *p)
{
	return (uint64_t)p;
}

#endif
