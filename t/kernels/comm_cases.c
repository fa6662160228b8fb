/* t/kernels/comm_cases.c - see comm_cases.h. */
#include "config.h"

#include <math.h>
#include <time.h>
#include <unistd.h>

#include <te/capture.h>

#include "tt.h"
#include "comm_lib.h"
#include "kernel_check.h"
#include "kernels/launch.h"

#define SUM TE_K_COMM_SUM

static const int32_t every_type[] = {
	TE_DTYPE_FP32, TE_DTYPE_BF16,  TE_DTYPE_FP16,  TE_DTYPE_E4M3,
	TE_DTYPE_E5M2, TE_DTYPE_INT32, TE_DTYPE_UINT8,
};
#define NFLOATS 5

static int32_t any_type(void)
{
	return every_type[tt_rand_int(0, TT_LEN(every_type) - 1)];
}

static int any_op(void)
{
	return (int)tt_rand_int(0, TE_K_COMM_OPS - 1);
}

static const int every_collective[] = {
	TE_K_COLL_ALLREDUCE,
	TE_K_COLL_REDUCE_SCATTER,
	TE_K_COLL_ALL_GATHER,
	TE_K_COLL_BROADCAST,
};

/* algorithms whose packets are full by their data: floating types only */
static bool is_lamport(int algorithm)
{
	return algorithm == TE_K_COMM_ONE_SHOT || algorithm == TE_K_COMM_TWO_SHOT;
}

/* leading collectives of the table that have the algorithm */
static int ncollectives(int algorithm)
{
	return algorithm == TE_K_COMM_TWO_SHOT ? 1 :
	       algorithm == TE_K_COMM_ONE_SHOT ? 3 :
						 (int)TT_LEN(every_collective);
}

/* one that has the algorithm; -1: any */
static int any_collective(int algorithm)
{
	return every_collective[tt_rand_int(0, ncollectives(algorithm) - 1)];
}

/* the count of an array of about so many elements, or of parts of it */
static int64_t count_of(int collective, int64_t count)
{
	const int parts = collective == TE_K_COLL_REDUCE_SCATTER ||
			  collective == TE_K_COLL_ALL_GATHER;

	return parts ? count / cl_n + 1 : count;
}

static struct cl_call any_call(int64_t most)
{
	const int collective = any_collective(-1);

	return cl_call_of(collective, -1, any_op(), any_type(),
			  count_of(collective, tt_rand_int(1, most)));
}

/* the call, alone */
static void run(const struct cl_call *c)
{
	cl_upload();
	cl_launch_all(c);
	cl_check(c, 1);
}

/* the call by all algorithms that can do it: the same bits, which are those of the oracle */
static void run_all_algorithms(struct cl_call c)
{
	for (c.algorithm = 0; c.algorithm < CL_ALGORITHMS; c.algorithm++)
		if (cl_takes(&c, c.algorithm))
			run(&c);
}

/* _i: a number of ranks, 1 to 8, of each collective */
#define EACH_COLLECTIVE ((int)TT_LEN(every_collective) * TE_K_COMM_RANKS)
#define NRANKS (_i % TE_K_COMM_RANKS + 1)
#define COLLECTIVE every_collective[_i / TE_K_COMM_RANKS]

CTX_CASE(results, "numeric");

TEST_EACH(results, all_types_and_ops_have_the_bits_of_a_loop, EACH_COLLECTIVE, .parts = 3)
{
	static const int64_t around[] = { 1, 2, 4, 8, 16, 64, 512, 1024, 2048, 4096 };
	const int has_ops = COLLECTIVE == TE_K_COLL_ALLREDUCE ||
			    COLLECTIVE == TE_K_COLL_REDUCE_SCATTER;

	cl_open(NRANKS, 65536);
	for (size_t t = 0; t < TT_LEN(every_type); t++)
		for (int op = 0; op < (has_ops ? TE_K_COMM_OPS : 1); op++)
			for (int k = 0; k < (COLLECTIVE ? 1 : TT_FEWER(2)); k++) {
				const int64_t at = around[tt_rand_int(0, TT_LEN(around) - 1)];
				const int64_t count = count_of(COLLECTIVE, at + tt_rand_int(-1, 1));

				cl_clear();
				if (count)
					run_all_algorithms(cl_call_of(COLLECTIVE, -1, op,
								      every_type[t], count));
			}
	cl_close();
}

/* every eighth of the counts 1 to 4097, from _i: all of them with all numbers of ranks */
TEST_EACH(results, all_counts_have_the_bits_of_a_loop, TE_K_COMM_RANKS, .parts = 3)
{
	cl_open(_i + 1, 65536);
	for (int64_t count = 1 + _i; count <= 4097; count += TT_FEWER(8) < 8 ? 64 : 8) {
		const int collective = any_collective(-1);
		struct cl_call c;

		cl_clear();
		c = cl_call_of(collective, -1, any_op(), any_type(), count_of(collective, count));
		run(&c);
	}
	cl_close();
}

/* more packets than all threads of the blocks have, so that each has several */
TEST_EACH(results, large_arrays, EACH_COLLECTIVE, .parts = 3)
{
	const int32_t dtype = any_type();
	const int64_t es = (int64_t)te_dtype_nbytes((enum te_dtype)dtype);
	const int64_t nbytes = TT_FEWER(500000) >> tt_rand_int(0, 3);
	const int64_t count = nbytes / es + tt_rand_int(0, 1);
	struct cl_call c;

	cl_open(NRANKS, 1 << 20);
	cl_clear();
	c = cl_call_of(COLLECTIVE, -1, any_op(), dtype, count_of(COLLECTIVE, count));
	c.max_blocks = (int32_t)tt_rand_int(1, 3);
	run_all_algorithms(c);
	cl_close();
}

/*
 * Arrays of which staging memory has a small part, so that staged has many steps; packets of other
 * algorithms in the same memory follow.
 */
TEST_EACH(results, arrays_much_larger_than_staging_memory, EACH_COLLECTIVE, .parts = 3)
{
	struct cl_call c[CL_MAX_CALLS];

	cl_open_buffer(NRANKS, 1 << 20, te_k_comm_buffer_nbytes(TE_K_COMM_STAGED, NRANKS, 1) +
					      128 * tt_rand_int(0, 20));
	for (int k = 0; k < TT_FEWER(2); k++) {
		const int ncalls = 4;

		cl_clear();
		for (int m = 0; m < ncalls; m++) {
			const int32_t dtype = any_type();
			const int64_t es = (int64_t)te_dtype_nbytes((enum te_dtype)dtype);
			const int64_t count = tt_rand_int(1, 120000) / es + 1;

			c[m] = m % 2 ? any_call(60) :
				       cl_call_of(COLLECTIVE, TE_K_COMM_STAGED, any_op(), dtype,
						  count_of(COLLECTIVE, count));
		}
		cl_upload();
		for (int r = 0; r < cl_n; r++)
			for (int m = 0; m < ncalls; m++)
				cl_launch(&c[m], r);
		cl_check(c, ncalls);
	}
	cl_close();
}

TEST_EACH(results, reduce_scatter_and_all_gather_are_all_reduce, TE_K_COMM_RANKS, .parts = 3)
{
	cl_open(_i + 1, 262144);
	for (int k = 0; k < TT_FEWER(8); k++) {
		const int32_t dtype = any_type();
		const int op = any_op();
		struct cl_call c[3];

		do {
			cl_clear();
			c[0] = cl_call_of(TE_K_COLL_REDUCE_SCATTER, -1, op, dtype,
					  tt_rand_int(1, 1200));
		} while (c[0].in == c[0].out);
		c[1] = cl_call_after(&c[0], TE_K_COLL_ALL_GATHER);
		c[2] = cl_call_new(-1, op, dtype, cl_n * c[0].count);
		c[2].in = c[0].in;
		cl_upload();
		for (int m = 0; m < 3; m++)
			cl_launch_all(&c[m]);
		cl_check(c, 3);
		for (int r = 0; r < cl_n; r++)
			ck_assert_mem_eq(cl_output(&c[1], r), cl_output(&c[2], r),
					 (size_t)cl_input_nbytes(&c[2]));
	}
	cl_close();
}

/* ---- data that looks like the protocol's ---- */

static void put_word(uint8_t *p, int64_t nbytes, int64_t at, uint32_t word)
{
	if (at >= 0 && at + 4 <= nbytes)
		memcpy(p + at, &word, sizeof(word));
}

/* bytes of each kind of trap */
static void trap(int kind, uint8_t *p, int64_t nbytes)
{
	static const uint32_t word[] = {
		0xffffffff, 0x7fffffff, 0x80000000, 0x80008000, 0x80808080, 0x00000001, 0x00010001,
		0x01010101, 0x7f800000, 0xff80ff80, 0x7c007c00, 0x7c7c7c7c, 0xdededede, 0xfffffffe,
		0x7fc00000, 0xffc0ffc0,
	};

	if (kind < (int)TT_LEN(word)) {
		for (int64_t i = 0; i < nbytes; i++)
			p[i] = (uint8_t)(word[kind] >> i % 4 * 8);
		return;
	}
	/* numbers, and the empty packet's word at one of 16 alignments */
	tt_fill_bytes(p, (size_t)nbytes);
	for (int64_t i = kind - (int)TT_LEN(word); i < nbytes; i += 16)
		put_word(p, nbytes, i, 0xffffffff);
}
#define NTRAPS 32

CTX_CASE(payload, "numeric");

TEST_EACH(payload, any_payload_arrives, NTRAPS, .parts = 3)
{
	cl_open((int)tt_rand_int(2, 8), 16384);
	for (size_t t = 0; t < TT_LEN(every_type); t++) {
		struct cl_call c;
		const int64_t es = (int64_t)te_dtype_nbytes((enum te_dtype)every_type[t]);

		for (size_t k = 0; k < TT_LEN(every_collective); k++) {
			cl_clear();
			c = cl_call_of(every_collective[k], -1, any_op(), every_type[t],
				       count_of(every_collective[k], tt_rand_int(1, 1000 / es)));
			for (int r = 0; r < cl_n; r++)
				trap(tt_rand_int(0, 3) ? _i : (int)tt_rand_int(0, NTRAPS - 1),
				     cl_input(&c, r), cl_input_nbytes(&c));
			run_all_algorithms(c);
		}
	}
	cl_close();
}

/* x + -0 is x: what one rank sends arrives unchanged, unless it is NaN */
TEST_EACH(payload, numbers_travel_unchanged, NTRAPS, .parts = 3)
{
	cl_open((int)tt_rand_int(2, 8), 16384);
	for (int t = 0; t < NFLOATS; t++) {
		static const uint8_t sign[] = { 4, 2, 2, 1, 1 }; /* bytes from one to the next */
		const int from = (int)tt_rand_int(0, cl_n - 1);
		struct cl_call c;
		int64_t nbytes;

		cl_clear();
		c = cl_call_new(-1, SUM, every_type[t], 500);
		nbytes = c.count * sign[t];
		for (int r = 0; r < cl_n; r++) {
			uint8_t *p = cl_input(&c, r);

			for (int64_t i = 0; i < nbytes; i++)
				p[i] = i % sign[t] == sign[t] - 1 ? 0x80 : 0;
			if (r == from)
				trap(_i, p, nbytes);
		}
		for (int64_t i = 0; i < c.count; i++) {
			uint32_t sent = 0;
			float x;

			memcpy(&sent, (uint8_t *)cl_input(&c, from) + i * sign[t], sign[t]);
			x = t == 0 ? 0.0f :
			    t == 1 ? te_bf16_decode((uint16_t)sent) :
			    t == 2 ? te_fp16_decode((uint16_t)sent) :
				     te_fp8_decode((enum te_dtype)every_type[t], (uint8_t)sent);
			if (t == 0)
				memcpy(&x, &sent, sizeof(x));
			/* FP8 saturates */
			if (!isnan(x) && !(t == 4 && isinf(x)))
				ck_assert_uint_eq(cl_expected(&c, 0, i), sent);
		}
		run_all_algorithms(c);
	}
	cl_close();
}

/* ---- many operations ---- */

#define MANY 40

static void delay(void *us)
{
	usleep(*(uint32_t *)us);
}

/* queued without waiting; delays: at random times on random ranks */
static void many(int ncalls, int delays)
{
	struct cl_call c[CL_MAX_CALLS];

	cl_clear();
	for (int k = 0; k < ncalls; k++)
		c[k] = any_call(tt_rand_int(0, 3) ? 100 : 1200);
	cl_upload();
	for (int r = 0; r < cl_n; r++)
		for (int k = 0; k < ncalls; k++) {
			const uint32_t us = (uint32_t)tt_rand_int(0, 2000);

			if (delays && tt_rand_int(0, 7) == 0)
				DO(te_host_call(cl_stream[r], delay, &us, sizeof(us)));
			cl_launch(&c[k], r);
		}
	cl_check(c, ncalls);
}

CTX_CASE(order, "protocol");

TEST_EACH(order, operations_in_a_row, TE_K_COMM_RANKS)
{
	cl_open(_i + 1, 262144);
	for (int k = 0; k < TT_FEWER(8); k++)
		many(MANY, 0);
	cl_close();
}

TEST_EACH(order, ranks_that_are_late, TE_K_COMM_RANKS, .from = 1)
{
	cl_open(_i + 1, 262144);
	for (int k = 0; k < TT_FEWER(3); k++)
		many(MANY, 1);
	cl_close();
}

/* the output of an operation is the input of the next one, on ranks that are late */
TEST_EACH(order, results_are_complete_when_a_kernel_ends, CL_ALGORITHMS)
{
	cl_open((int)tt_rand_int(2, 8), 65536);
	for (int k = 0; k < TT_FEWER(24); k++) {
		struct cl_call c[2];

		cl_clear();
		c[0] = cl_call_new(_i, any_op(), every_type[tt_rand_int(0, NFLOATS - 1)],
				   tt_rand_int(1, 2000));
		c[1] = cl_call_after(&c[0], TE_K_COLL_ALLREDUCE);
		cl_upload();
		for (int r = 0; r < cl_n; r++) {
			const uint32_t us = (uint32_t)tt_rand_int(0, 1000);

			if (tt_rand_int(0, 1))
				DO(te_host_call(cl_stream[r], delay, &us, sizeof(us)));
			cl_launch(&c[0], r);
			cl_launch(&c[1], r);
		}
		cl_check(c, 2);
	}
	cl_close();
}

TEST(order, epochs_wrap)
{
	static const uint64_t first[] = {
		((uint64_t)1 << 24) - 5, ((uint64_t)1 << 31) - 5, ((uint64_t)1 << 32) - 5,
		((uint64_t)1 << 40) - 5, 0x7ffffffb,
	};

	cl_open((int)tt_rand_int(2, 8), 262144);
	for (size_t k = 0; k < TT_LEN(first); k++) {
		cl_epoch_set(first[k]);
		many(12, 0);
		for (int r = 0; r < cl_n; r++)
			ck_assert_uint_eq(cl_epoch(r), first[k] + 12);
	}
	cl_close();
}

TEST(order, no_elements_are_no_operation)
{
	struct cl_call none, c;

	cl_open(3, 16384);
	none = c = cl_call_new(TE_K_COMM_ONE_SHOT, SUM, TE_DTYPE_FP32, 100);
	none.count = 0;
	cl_upload();
	/* not on all ranks: none waits for it */
	cl_launch(&none, 1);
	cl_launch_all(&c);
	cl_check(&c, 1);
	for (int r = 0; r < 3; r++)
		ck_assert_uint_eq(cl_epoch(r), 1);
	cl_close();
}

/* ---- graphs ---- */

/* recordings of several calls, replayed, with calls between that are not recorded */
TEST_EACH(order, replays, 2)
{
	static const uint32_t edges[] = { 0, TE_CAPTURE_CONCURRENT | TE_CAPTURE_PDL };
	struct te_recording *rec[2][TE_K_COMM_RANKS];
	struct cl_call c[CL_MAX_CALLS];
	const int each = 8;

	cl_open((int)tt_rand_int(2, 8), 131072);
	for (int k = 0; k < 2 * each + 1; k++)
		c[k] = any_call(600);
	for (int r = 0; r < cl_n; r++)
		for (int g = 0; g < 2; g++) {
			DO(te_capture_begin(cl_stream[r]));
			DO(te_capture_edges(cl_stream[r], edges[_i]));
			for (int k = 0; k < each; k++)
				cl_launch(&c[g * each + k], r);
			DO(te_capture_end(cl_stream[r], &rec[g][r]));
		}
	for (int round = 0; round < TT_FEWER(20); round++) {
		for (int k = 0; k < 2 * each + 1; k++)
			cl_fill(&c[k]);
		cl_upload();
		for (int r = 0; r < cl_n; r++) {
			DO(te_recording_launch(rec[0][r], cl_stream[r]));
			cl_launch(&c[2 * each], r);
			DO(te_recording_launch(rec[1][r], cl_stream[r]));
		}
		cl_check(c, 2 * each + 1);
	}
	for (int r = 0; r < cl_n; r++)
		for (int g = 0; g < 2; g++)
			te_recording_unref(rec[g][r]);
	cl_close();
}

/* ---- failures ---- */

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* with the regions, words and records as at first, everything works */
static void recovers(void)
{
	cl_reset();
	cl_deadline_ns = 60000000000u;
	many(10, 0);
}

CTX_CASE(failures, "protocol");

TEST_EACH(failures, a_rank_that_skips_an_operation_is_named, CL_ALGORITHMS)
{
	const int ms = 200;
	struct cl_call c[3];
	double from;
	int who;

	cl_open((int)tt_rand_int(2, 8), 65536);
	who = (int)tt_rand_int(0, cl_n - 1);
	for (int k = 0; k < 3; k++)
		c[k] = cl_call_of(any_collective(_i), _i, SUM, TE_DTYPE_BF16,
				  tt_rand_int(300, 1000));
	cl_upload();
	from = now_s();
	cl_launch_all(&c[0]);
	cl_deadline_ns = (uint64_t)ms * 1000000;
	for (int k = 1; k < 3; k++)
		for (int r = 0; r < cl_n; r++)
			if (r != who)
				cl_launch(&c[k], r);
	cl_sync();
	ck_assert_double_lt(now_s() - from, 30.0);
	for (int r = 0; r < cl_n; r++) {
		const struct te_k_comm_status *s = cl_status(r);

		ck_assert_uint_eq(s->complete, r != who);
		ck_assert_uint_eq(cl_epoch(r), 1);
		if (r == who)
			continue;
		ck_assert_uint_eq(s->code, TE_K_COMM_TIMEOUT);
		ck_assert_int_eq(s->peer, who);
		ck_assert_uint_eq(s->missing, 1u << who);
		ck_assert_uint_eq(s->epoch, 1);
	}
	/* that rank is alone now */
	cl_launch(&c[1], who);
	cl_sync();
	/* unless the packets of the others, which are there, are all that it needs */
	if (_i != TE_K_COMM_LL && _i != TE_K_COMM_ONE_SHOT)
		ck_assert_uint_eq(cl_status(who)->code, TE_K_COMM_TIMEOUT);
	recovers();
	cl_close();
}

/* all arrays of a rank are as they were */
static void check_untouched(int rank)
{
	const size_t n = (size_t)cl_heap_nbytes();
	uint8_t *got = malloc(n);

	DO(te_copy(cl_stream[rank], got, cl_heap(rank), n));
	DO(te_stream_sync(cl_stream[rank]));
	ck_assert_int_eq(memcmp(got, cl_before(rank), n), 0);
	free(got);
}

/* a rank writes its inputs to staging memory before it compares headers: two operations
 * may write to the same bytes there, which no rank reads */
CTX_CASE(mismatches, "protocol overlap");

TEST_EACH(mismatches, another_operation_is_a_mismatch, 8)
{
	for (int k = 0; k < TT_FEWER(4); k++) {
		const int code = _i == 6 ? TE_K_COMM_MISMATCH_AT : TE_K_COMM_MISMATCH;
		struct cl_call c, d;
		int who;

		cl_open((int)tt_rand_int(2, 8), _i == 6 ? 2 << 20 : 65536);
		who = (int)tt_rand_int(0, cl_n - 1);
		c = d = cl_call_new(-1, SUM, TE_DTYPE_BF16, tt_rand_int(1, 1000));
		switch (_i) {
		case 0:
			d.algorithm = (d.algorithm + 1) % CL_ALGORITHMS;
			break;
		case 1:
			d.op = TE_K_COMM_MIN;
			break;
		case 2:
			d.dtype = TE_DTYPE_FP16;
			break;
		case 3:
			d.count += d.count > 500 ? -1 : 1;
			break;
		case 4:
			c.algorithm = tt_rand_int(0, 1) ? TE_K_COMM_LL : TE_K_COMM_STAGED;
			d.algorithm = c.algorithm;
			d.collective = TE_K_COLL_ALL_GATHER;
			break;
		case 5:
			c.collective = d.collective = TE_K_COLL_BROADCAST;
			c.algorithm = d.algorithm = TE_K_COMM_ZERO_COPY;
			d.root = (c.root + 1) % cl_n;
			break;
		case 6: /* the same call with other arrays */
			c = cl_call_new(TE_K_COMM_ZERO_COPY, SUM, TE_DTYPE_BF16,
					tt_rand_int(1, 100000));
			d = cl_call_new(TE_K_COMM_ZERO_COPY, SUM, TE_DTYPE_BF16, c.count);
			d.max_blocks = c.max_blocks;
			break;
		default:
			d.max_blocks++;
		}
		cl_upload();
		for (int r = 0; r < cl_n; r++)
			cl_launch(r == who ? &d : &c, r);
		cl_sync();
		for (int r = 0; r < cl_n && _i == 6; r++)
			check_untouched(r);
		for (int r = 0; r < cl_n; r++) {
			const struct te_k_comm_status *s = cl_status(r);

			ck_assert_uint_eq(s->complete, 1);
			ck_assert_uint_eq(s->code, code);
			ck_assert_uint_eq(s->phase, TE_K_COMM_HEADER);
			if (r != who)
				ck_assert_int_eq(s->peer, who);
			ck_assert_int_ne(s->peer, r);
			ck_assert_uint_ne(s->expected, s->got);
			ck_assert_uint_eq(r == who ? s->got : s->expected,
					  cl_status(who == 0)->expected);
		}
		recovers();
		cl_close();
	}
}

TEST_EACH(failures, an_abort_ends_all_waits, CL_ALGORITHMS)
{
	struct cl_call c;

	cl_open((int)tt_rand_int(2, 8), 65536);
	c = cl_call_of(any_collective(_i), _i, SUM, TE_DTYPE_FP32, 500);
	cl_upload();
	cl_deadline_ns = 0; /* none */
	for (int r = 1; r < cl_n; r++)
		for (int k = 0; k < 2; k++)
			cl_launch(&c, r);
	usleep((useconds_t)tt_rand_int(0, 50000));
	cl_abort();
	cl_sync();
	for (int r = 1; r < cl_n; r++) {
		ck_assert_uint_eq(cl_status(r)->code, TE_K_COMM_ABORTED);
		ck_assert_int_eq(cl_status(r)->peer, 0);
		ck_assert_uint_eq(cl_epoch(r), 0);
	}
	recovers();
	cl_close();
}

/* ---- launches ---- */

static void setup_check(void)
{
	kc_open(backend);
}

CASE(memory, "numeric", .setup = setup_check, .teardown = kc_close);

/* _i: a type; of the memory that kernel_check.c sees; with one rank, there is no other */
TEST_EACH(memory, memory_is_that_of_kernels_def, TT_LEN(every_type))
{
	const int32_t dtype = every_type[_i];
	const int64_t n = tt_rand_int(1, 5000);
	const int64_t each = te_k_comm_buffer_nbytes(TE_K_COMM_LL, 1, 4 * n) + (1 << 14);
	struct te_k_comm k = {
		.in = kc_poison(dtype, n),
		.out = kc_poison(dtype, n),
		.slots = kc_poison(TE_DTYPE_UINT8, te_k_comm_region_nbytes(each)),
		.ctl = kc_poison(TE_DTYPE_UINT8, sizeof(*k.ctl)),
		.abort = kc_poison(TE_DTYPE_UINT8, sizeof(*k.abort)),
		.status = kc_poison(TE_DTYPE_UINT8, sizeof(*k.status)),
		.count = n,
		.buffer_nbytes = each,
		.nranks = 1,
		.dtype = dtype,
		.max_blocks = 7,
	};

	tt_fill_bytes((void *)(uintptr_t)k.in, (size_t)n * te_dtype_nbytes((enum te_dtype)dtype));
	for (k.algorithm = 0; k.algorithm < CL_ALGORITHMS; k.algorithm++) {
		const int n_of = ncollectives(k.algorithm);

		memset(k.ctl, 0, sizeof(*k.ctl));
		if (is_lamport(k.algorithm) && _i >= NFLOATS)
			continue;
		KC_RUN(COMM_ALLREDUCE, &k);
		if (n_of > 1) {
			KC_RUN(COMM_REDUCE_SCATTER, &k);
			KC_RUN(COMM_ALL_GATHER, &k);
		}
		if (n_of > 3)
			KC_RUN(COMM_BROADCAST, &k);
	}
}

/* _i: a floating type */
TEST_EACH(memory, parts_of_reductions_have_the_bits_of_the_reference, NFLOATS)
{
	for (int i = 0; i < TT_FEWER(60); i++) {
		const int64_t es = (int64_t)te_dtype_nbytes((enum te_dtype)every_type[_i]);
		const int64_t n = tt_rand_int(1, i % 8 ? 300 : 50000);
		const int64_t gap = tt_rand_int(0, 3) * 16 + (i % 3 ? 0 : es);
		const int part = (int)tt_rand_int(0, 3); /* the first, one between, the last, all */
		struct te_k_comm_fold k = {
			.n = n,
			.nin = (int32_t)tt_rand_int(1, 9),
			.nranks = (int32_t)tt_rand_int(9, 200),
			.dtype = every_type[_i],
			.op = any_op(),
		};
		uint8_t *in;

		kc_unaligned(i & 1);
		k.stride = (n * es + 15) / 16 * 16 + gap;
		in = kc_poison(every_type[_i], (k.nin - 1) * k.stride / es + n);
		for (int r = 0; r < k.nin; r++)
			tt_fill_bytes(in + r * k.stride, (size_t)(n * es));
		k.in = in;
		if (part == 1 || part == 2)
			k.from = kc_anything(TE_DTYPE_FP32, n);
		if (part < 2)
			k.sums = i & 2 && k.from ? (float *)(uintptr_t)k.from :
						   kc_poison(TE_DTYPE_FP32, n);
		else
			k.out = kc_poison(every_type[_i], n);
		KC_RUN(COMM_FOLD, &k);
		kc_reset();
	}
}

static const enum te_k_id every_id[] = {
	TE_K_COMM_ALLREDUCE,
	TE_K_COMM_REDUCE_SCATTER,
	TE_K_COMM_ALL_GATHER,
	TE_K_COMM_BROADCAST,
};

CASE(launches, "host");

/* _i: a collective */
TEST_EACH(launches, geometry_is_the_same_on_all_ranks, TT_LEN(every_id))
{
	const enum te_k_id id = every_id[_i];
	struct te_k_comm k = { .nranks = 8, .count = 1, .max_blocks = 16 };
	struct te__geometry g, other;

	k.buffer_nbytes = te_k_comm_buffer_nbytes(TE_K_COMM_LL, 8, 1 << 20);
	for (k.algorithm = 0; k.algorithm < CL_ALGORITHMS; k.algorithm++)
		for (k.count = 1; k.count < 1 << 18; k.count = k.count * 3 / 2 + 1) {
			if (_i >= ncollectives(k.algorithm)) {
				fails(te__geometry(id, &k, &g), -EINVAL, "no algorithm");
				continue;
			}
			k.rank = 0;
			DO(te__geometry(id, &k, &g));
			ck_assert_uint_ge(g.grid[0], 1);
			ck_assert_uint_le(g.grid[0], 16);
			k.rank = 5;
			DO(te__geometry(id, &k, &other));
			ck_assert_str_eq(g.func, other.func);
			ck_assert_mem_eq(g.grid, other.grid, sizeof(g.grid));
			ck_assert_mem_eq(g.block, other.block, sizeof(g.block));
		}
	k.count = 0;
	k.algorithm = TE_K_COMM_LL;
	DO(te__geometry(id, &k, &g));
	ck_assert_uint_eq(g.grid[0], 0);
}

TEST(launches, geometry_refuses_what_the_kernels_cannot_do)
{
	const struct te_k_comm good = {
		.nranks = 8,
		.count = 1000,
		.max_blocks = 16,
		.algorithm = TE_K_COMM_TWO_SHOT,
		.buffer_nbytes = te_k_comm_buffer_nbytes(TE_K_COMM_TWO_SHOT, 8, 4000),
	};
	struct te_k_comm k = good;
	struct te__geometry g;

	DO(te__geometry(TE_K_COMM_ALLREDUCE, &k, &g));
#define REFUSES(change, code, text)                                                      \
	do {                                                                             \
		k = good;                                                                \
		change;                                                                  \
		fails(te__geometry(TE_K_COMM_ALLREDUCE, &k, &g), code, text);            \
	} while (0)
	REFUSES(k.nranks = 9, -EINVAL, "rank 0 of 9");
	REFUSES(k.rank = 8, -EINVAL, "rank 8 of 8");
	REFUSES(k.rank = -1, -EINVAL, "rank -1 of 8");
	REFUSES(k.root = 8, -EINVAL, "root 8");
	REFUSES(k.root = -1, -EINVAL, "root -1");
	REFUSES(k.root = TE_K_COMM_BARRIER, -EINVAL, "root 4"); /* of a sum */
	REFUSES(k.algorithm = TE_K_COMM_ALGORITHMS, -EINVAL, "no algorithm");
	REFUSES(k.op = TE_K_COMM_OPS, -EINVAL, "no algorithm");
	REFUSES(k.algorithm = TE_K_COMM_NVLS, -EINVAL, "no multicast memory");
	REFUSES(k.algorithm = TE_K_COMM_NVLS_ONE_SHOT, -EINVAL, "no multicast memory");
	REFUSES(k.algorithm = TE_K_COMM_NVLS; k.multicast = (uint8_t *)128; k.op = TE_K_COMM_MIN,
		-EINVAL, "takes sums and averages");
	REFUSES(k.max_blocks = 0, -EINVAL, "0 blocks");
	REFUSES(k.max_blocks = TE_K_COMM_CTAS + 1, -EINVAL, "129 blocks");
	REFUSES(k.dtype = TE_DTYPE_INT32, -TE_EDTYPE, "not int32");
	REFUSES(k.count += 32, -TE_ESHAPE, "do not fit");
	REFUSES(k.algorithm = TE_K_COMM_STAGED; k.buffer_nbytes = 65536, -TE_ESHAPE, "do not fit");
#undef REFUSES
}
