/*
 * t/kernels/heads.cc - the copies of kernels/elem/heads.cu, run by fibers.h, give the bits of the
 * reference functions: FP32 and BF16, heads that ranks divide and share, aligned and not. Sums of
 * BF16 are left out. t0021-heads.t compiles this and runs it with a seed.
 */
#include "fibers.h"
#include "ref.h"

#include "kernels/elem/heads.cu"

extern "C" {
void te__h_heads_split(const struct te_k_heads *a);
void te__h_heads_join(const struct te_k_heads *a);
}

static te_k_heads k;

#define KERNEL(name)                                                              \
	static void name(void)                                                    \
	{                                                                         \
		k.dtype == TE_DTYPE_FP32 ? te_k_##name##_fp32(k) : te_k_##name##_bf16(k); \
	}
KERNEL(heads_split)
KERNEL(heads_join)

/* numbers, as bytes of an array, with some around */
static std::vector<uint8_t> numbers(int64_t n)
{
	std::vector<uint8_t> v((size_t)n * (k.dtype == TE_DTYPE_FP32 ? 4 : 2) + 64);

	for (size_t i = 0; i < v.size(); i++)
		v[i] = (uint8_t)(i % 4 == 3 ? 0x3f ^ rnd(2) << 7 : rnd(256));
	return v;
}

/* both functions write into what has the same bytes before */
static void compare(const char *what, bool split, int64_t n, int64_t nwritten, size_t at)
{
	std::vector<uint8_t> in = numbers(n), got = numbers(nwritten), want = got;
	const uint32_t threads = std::min(HEADS_THREADS, 32 + 32 * (int)rnd(8));

	(split ? k.tokens : k.parts) = in.data() + at;
	(split ? k.parts : k.tokens) = want.data() + at;
	split ? te__h_heads_split(&k) : te__h_heads_join(&k);
	(split ? k.parts : k.tokens) = got.data() + at;
	launch(split ? heads_split : heads_join, (uint32_t)(k.nseqs * k.ntokens), threads);
	for (size_t i = 0; i < got.size(); i++)
		CHECK(got[i] == want[i],
		      "%s, byte %zu of %d sequences, %d tokens, %d ranks, %d and %d (%d) heads of "
		      "%d, type %d: %02x, not %02x", what, i, (int)k.nseqs, (int)k.ntokens,
		      k.nranks, k.nheads, k.nkv, k.kv, k.head_dim, k.dtype, got[i], want[i]);
}

static void run_case(int turn)
{
	const bool shared = turn % 3 == 0;
	const size_t at = turn % 4 == 1 ? 4 : 0;
	int64_t ntokens, nparts;

	k = {};
	k.dtype = turn % 2 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	k.nseqs = 1 + rnd(2);
	k.ntokens = 1 + rnd(6);
	k.nranks = (1 + (int)rnd(4)) * (1 + shared);
	k.kv = shared ? 1 : (int)rnd(3);
	k.nkv = shared ? k.nranks / 2 : k.kv * k.nranks;
	k.nheads = k.nranks * (k.kv ? k.kv * (1 + (int)rnd(3)) : 2);
	k.head_dim = rnd(2) ? 8 * (1 + (int)rnd(18)) : 1 + (int)rnd(40);
	ntokens = k.nseqs * k.ntokens * (k.nheads + 2 * k.nkv) * k.head_dim;
	nparts = k.nseqs * k.nranks * te_k_heads_part(&k);
	compare("split", true, ntokens, nparts, at);
	if (!shared || k.dtype == TE_DTYPE_FP32)
		compare("join", false, nparts, ntokens, at);
}

int main(int argc, char **argv)
{
	const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	const int n = argc > 2 ? atoi(argv[2]) : 60;

	for (int i = 0; i < n; i++) {
		state = seed * 1000 + (uint64_t)i;
		run_case(i);
	}
	return 0;
}
