/* t/kernels/comm_lib.c - see comm_lib.h. */
#include "config.h"

#include <math.h>

#include "comm_lib.h"
#include "libtecore/tensor/ctx.h"
#include "tt_num.h"

#define GUARD 64 /* bytes after each array, at least */

int cl_n;
struct te_stream *cl_stream[TE_K_COMM_RANKS];
uint64_t cl_deadline_ns;

static int64_t heap_nbytes, heap_used, buffer_nbytes, stride;
static uint8_t *mem;	 /* of the device: regions and heaps */
static uint8_t *ctls;	 /* of the device, 128 bytes for each rank */
static uint8_t *page;	 /* pinned: a status of 128 bytes for each rank, and the abort word */
static uint8_t *before[TE_K_COMM_RANKS], *got[TE_K_COMM_RANKS]; /* heaps */

uint8_t *cl_heap(int rank)
{
	return mem + rank * stride + te_k_comm_region_nbytes(buffer_nbytes);
}

static struct te_k_comm_ctl *ctl(int rank)
{
	return (struct te_k_comm_ctl *)(void *)(ctls + rank * 128);
}

const struct te_k_comm_status *cl_status(int rank)
{
	return (const struct te_k_comm_status *)(void *)(page + rank * 128);
}

static uint32_t *abort_word(void)
{
	return (uint32_t *)(void *)(page + TE_K_COMM_RANKS * 128);
}

void cl_open(int n, int64_t nbytes)
{
	cl_open_buffer(n, nbytes, te_k_comm_buffer_nbytes(TE_K_COMM_LL, n, nbytes / 2));
}

void cl_open_buffer(int n, int64_t nbytes, int64_t each)
{
	cl_n = n;
	heap_nbytes = (nbytes + 127) / 128 * 128;
	buffer_nbytes = each;
	stride = te_k_comm_region_nbytes(buffer_nbytes) + heap_nbytes;
	cl_deadline_ns = 60000000000u;
	/* the driver loads a kernel only while none runs, and a rank's waits for others */
	DO(te__ctx_load_shared(ctx));
	DO(te_mem_alloc(st, (size_t)(n * stride), (void **)&mem));
	DO(te_mem_alloc(st, (size_t)n * 128, (void **)&ctls));
	DO(te_pinned_alloc(ctx, (TE_K_COMM_RANKS + 1) * 128, (void **)&page));
	for (int r = 0; r < n; r++) {
		DO(te_stream_create(ctx, &cl_stream[r]));
		before[r] = malloc((size_t)heap_nbytes);
		got[r] = malloc((size_t)heap_nbytes);
		ck_assert(before[r] && got[r]);
	}
	cl_clear();
	cl_reset();
}

void cl_close(void)
{
	for (int r = 0; r < cl_n; r++) {
		cl_stream[r] = te_stream_unref(cl_stream[r]);
		free(before[r]);
		free(got[r]);
	}
	DO(te_mem_free(st, mem));
	DO(te_mem_free(st, ctls));
	DO(te_stream_sync(st));
	DO(te_pinned_free(ctx, page));
	cl_n = 0;
}

void cl_reset(void)
{
	cl_sync();
	memset(page, 0, (TE_K_COMM_RANKS + 1) * 128);
	DO(te_fill(st, mem, 0xff, (size_t)(cl_n * stride)));
	DO(te_fill(st, ctls, 0, (size_t)cl_n * 128));
	DO(te_stream_sync(st));
}

void cl_sync(void)
{
	for (int r = 0; r < cl_n; r++)
		DO(te_stream_sync(cl_stream[r]));
}

void cl_epoch_set(uint64_t epoch)
{
	cl_sync();
	for (int r = 0; r < cl_n; r++) {
		DO(te_fill_u32(st, &ctl(r)->epoch, (uint32_t)epoch, 4));
		DO(te_fill_u32(st, (uint32_t *)(void *)&ctl(r)->epoch + 1, (uint32_t)(epoch >> 32),
			       4));
	}
	DO(te_stream_sync(st));
}

uint64_t cl_epoch(int rank)
{
	struct te_k_comm_ctl c;

	cl_sync();
	DO(te_copy(st, &c, ctl(rank), sizeof(c)));
	DO(te_stream_sync(st));
	return c.epoch;
}

void cl_abort(void)
{
	__atomic_store_n(abort_word(), 1, __ATOMIC_RELEASE);
}

/* ---- calls ---- */

static int64_t element_nbytes(const struct cl_call *c)
{
	return (int64_t)te_dtype_nbytes((enum te_dtype)c->dtype);
}

int cl_takes(const struct cl_call *c, int algorithm)
{
	const int integers = c->dtype == TE_DTYPE_INT32 || c->dtype == TE_DTYPE_UINT8;

	if (algorithm == TE_K_COMM_ONE_SHOT &&
	    (integers || c->collective == TE_K_COLL_BROADCAST))
		return 0;
	if (algorithm == TE_K_COMM_TWO_SHOT && (integers || c->collective != TE_K_COLL_ALLREDUCE))
		return 0;
	return te_k_comm_buffer_nbytes(algorithm, cl_n, c->count * element_nbytes(c)) <=
	       buffer_nbytes;
}

/* elements */
static int64_t input_count(const struct cl_call *c)
{
	return c->collective == TE_K_COLL_REDUCE_SCATTER ? c->count * cl_n : c->count;
}

static int64_t output_count(const struct cl_call *c)
{
	return c->collective == TE_K_COLL_ALL_GATHER ? c->count * cl_n : c->count;
}

int64_t cl_input_nbytes(const struct cl_call *c)
{
	return input_count(c) * element_nbytes(c);
}

/* in place, a part of the larger array */
static int64_t part_at(const struct cl_call *c, int rank, int collective)
{
	return c->in == c->out && c->collective == collective ?
		       rank * c->count * element_nbytes(c) :
		       0;
}

static int64_t in_at(const struct cl_call *c, int rank)
{
	return c->in + part_at(c, rank, TE_K_COLL_ALL_GATHER);
}

static int64_t out_at(const struct cl_call *c, int rank)
{
	return c->out + part_at(c, rank, TE_K_COLL_REDUCE_SCATTER);
}

int64_t cl_room(int64_t nbytes, int64_t align)
{
	const int64_t at =
		heap_used + (tt_rand_int(0, 1) ? align * tt_rand_int(0, 32 / align) : 0);

	heap_used = (at + nbytes + GUARD + 15) / 16 * 16;
	ck_assert_msg(heap_used <= heap_nbytes, "a heap of %lld bytes is too small",
		      (long long)heap_nbytes);
	return at;
}

struct cl_call cl_call_of(int collective, int algorithm, int op, int dtype, int64_t count)
{
	const int reduces = collective == TE_K_COLL_ALLREDUCE ||
			    collective == TE_K_COLL_REDUCE_SCATTER;
	struct cl_call c = { algorithm, reduces ? op : 0, dtype, 1, count, 0, 0, NULL,
			     collective, 0 };
	const int64_t es = element_nbytes(&c);

	while (c.algorithm < 0 || !cl_takes(&c, c.algorithm))
		c.algorithm = (int32_t)tt_rand_int(0, CL_ALGORITHMS - 1);
	if (collective == TE_K_COLL_BROADCAST)
		c.root = (int32_t)tt_rand_int(0, cl_n - 1);
	/* all blocks of all ranks are resident on a GPU of 132 multiprocessors */
	c.max_blocks = (int32_t)tt_rand_int(1, 128 / cl_n < 24 ? 128 / cl_n : 24);
	if (tt_rand_int(0, 2)) {
		c.in = cl_room(input_count(&c) * es, es);
		c.out = cl_room(output_count(&c) * es, es);
	} else {
		const int64_t parts = input_count(&c) + output_count(&c) - 2 * count;

		c.in = c.out = cl_room((count + parts) * es, es);
	}
	cl_fill(&c);
	return c;
}

struct cl_call cl_call_new(int algorithm, int op, int dtype, int64_t count)
{
	return cl_call_of(TE_K_COLL_ALLREDUCE, algorithm, op, dtype, count);
}

struct cl_call cl_call_after(const struct cl_call *first, int collective)
{
	struct cl_call c = cl_call_of(collective, -1, TE_K_COMM_MAX, first->dtype, first->count);

	ck_assert(first->collective != TE_K_COLL_REDUCE_SCATTER || first->in != first->out);
	if (c.out == c.in)
		c.out = cl_room(output_count(&c) * element_nbytes(&c), 4);
	c.in = first->out;
	c.of = first;
	return c;
}

void cl_clear(void)
{
	heap_used = 0;
	for (int r = 0; r < cl_n; r++)
		tt_poison(before[r], (size_t)heap_nbytes);
}

void *cl_input(const struct cl_call *c, int rank)
{
	return before[rank] + in_at(c, rank);
}

const void *cl_output(const struct cl_call *c, int rank)
{
	return got[rank] + out_at(c, rank);
}

void cl_fill(const struct cl_call *c)
{
	const size_t nbytes = (size_t)cl_input_nbytes(c);
	const int integers = c->dtype == TE_DTYPE_INT32 || c->dtype == TE_DTYPE_UINT8;
	const int bits = integers || tt_rand_int(0, 3) == 0;

	for (int r = 0; r < cl_n; r++) {
		if (bits) {
			tt_fill_bytes(cl_input(c, r), nbytes);
			/* words that are an empty packet's */
			for (int k = 0; k < 4 && nbytes >= 16; k++)
				memset((uint8_t *)cl_input(c, r) +
					       tt_rand_int(0, (int64_t)nbytes / 16 - 1) * 16,
				       0xff, 16);
		} else
			for (int64_t i = 0; i < input_count(c); i++)
				tt_set(c->dtype, cl_input(c, r), i, 4.0f * tt_rand_normal());
	}
}

void cl_upload(void)
{
	for (int r = 0; r < cl_n; r++)
		DO(te_copy(cl_stream[r], cl_heap(r), before[r], (size_t)heap_nbytes));
	cl_sync();
}

struct te_k_comm cl_comm(int rank)
{
	return (struct te_k_comm){
		.slots = mem,
		.ctl = ctl(rank),
		.abort = abort_word(),
		.status = (struct te_k_comm_status *)(void *)(page + rank * 128),
		.stride = stride,
		.buffer_nbytes = buffer_nbytes,
		.deadline_ns = cl_deadline_ns,
		.nranks = cl_n,
		.rank = rank,
	};
}

void cl_launch(const struct cl_call *c, int rank)
{
	struct te_k_comm k = cl_comm(rank);

	k.in = cl_heap(rank) + in_at(c, rank);
	k.out = cl_heap(rank) + out_at(c, rank);
	k.count = c->count;
	k.dtype = c->dtype;
	k.op = c->op;
	k.algorithm = c->algorithm;
	k.max_blocks = c->max_blocks;
	if (c->algorithm == TE_K_COMM_ZERO_COPY)
		k.arrays = (uint32_t)(c->in * 31 + c->out) & 0x7fffff;
	k.root = c->root;
	switch (c->collective) {
	case TE_K_COLL_REDUCE_SCATTER:
		DO(TE__LAUNCH(cl_stream[rank], COMM_REDUCE_SCATTER, &k));
		break;
	case TE_K_COLL_ALL_GATHER:
		DO(TE__LAUNCH(cl_stream[rank], COMM_ALL_GATHER, &k));
		break;
	case TE_K_COLL_BROADCAST:
		DO(TE__LAUNCH(cl_stream[rank], COMM_BROADCAST, &k));
		break;
	default:
		DO(TE__LAUNCH(cl_stream[rank], COMM_ALLREDUCE, &k));
	}
}

void cl_launch_all(const struct cl_call *c)
{
	for (int r = 0; r < cl_n; r++)
		cl_launch(c, r);
}

/* ---- results ---- */

static uint32_t get_bits(int32_t dtype, const uint8_t *p, int64_t i)
{
	const size_t es = te_dtype_nbytes((enum te_dtype)dtype);
	uint32_t u = 0;

	memcpy(&u, p + (size_t)i * es, es); /* little-endian */
	return u;
}

static float to_number(int32_t dtype, uint32_t bits)
{
	float x;

	switch (dtype) {
	case TE_DTYPE_FP32:
		memcpy(&x, &bits, sizeof(x));
		return x;
	case TE_DTYPE_BF16:
		return te_bf16_decode((uint16_t)bits);
	case TE_DTYPE_FP16:
		return te_fp16_decode((uint16_t)bits);
	default:
		return te_fp8_decode((enum te_dtype)dtype, (uint8_t)bits);
	}
}

static int is_less(float a, float b)
{
	return a < b || (a == b && signbit(a) && !signbit(b));
}

static uint32_t of_numbers(const struct cl_call *c, const float *x)
{
	static const uint32_t nan[] = { 0x7fffffff, 0x7fff, 0x7fff, 0x7f, 0x7f };
	float s = x[0];
	uint8_t p[4];

	for (int r = 1; r < cl_n; r++) {
		if (c->op == TE_K_COMM_SUM || c->op == TE_K_COMM_AVG)
			s = s + x[r];
		else if (isnan(s) || isnan(x[r]))
			s = NAN;
		else if (is_less(x[r], s) == (c->op == TE_K_COMM_MIN))
			s = x[r];
	}
	if (c->op == TE_K_COMM_AVG)
		s = s / (float)cl_n;
	if (isnan(s))
		return nan[c->dtype];
	tt_set(c->dtype, p, 0, s);
	return get_bits(c->dtype, p, 0);
}

static uint32_t of_integers(const struct cl_call *c, const int64_t *x)
{
	int64_t s = x[0];

	for (int r = 1; r < cl_n; r++) {
		if (c->op == TE_K_COMM_SUM || c->op == TE_K_COMM_AVG)
			s += x[r];
		else if ((x[r] < s) == (c->op == TE_K_COMM_MIN))
			s = x[r];
	}
	if (c->op == TE_K_COMM_AVG)
		s /= cl_n;
	return (uint32_t)s & (c->dtype == TE_DTYPE_UINT8 ? 0xffu : 0xffffffffu);
}

static uint32_t input_of(const struct cl_call *c, int rank, int64_t i)
{
	return c->of ? cl_expected(c->of, rank, i) :
		       get_bits(c->dtype, before[rank] + in_at(c, rank), i);
}

/* element i of a rank's part: by oneshot, no upper word of half a packet is an empty one's */
static uint32_t gathered(const struct cl_call *c, int rank, int64_t i)
{
	const int64_t es = element_nbytes(c), each = es < 4 ? 4 / es : 1;
	const uint32_t bits = input_of(c, rank, i), ones = UINT32_MAX >> (32 - 8 * es);

	if (cl_n == 1 || c->algorithm != TE_K_COMM_ONE_SHOT || i / each % 2 == 0 ||
	    i % each != each - 1)
		return bits;
	for (int64_t k = i - each + 1; k <= i; k++)
		if (input_of(c, rank, k) != ones)
			return bits;
	return bits & ones >> 1;
}

uint32_t cl_expected(const struct cl_call *c, int rank, int64_t i)
{
	float x[TE_K_COMM_RANKS] = { 0 };
	int64_t k[TE_K_COMM_RANKS] = { 0 };

	if (c->collective == TE_K_COLL_ALL_GATHER)
		return gathered(c, (int)(i / c->count), i % c->count);
	if (c->collective == TE_K_COLL_BROADCAST)
		return input_of(c, c->root, i);
	if (c->collective == TE_K_COLL_REDUCE_SCATTER)
		i += rank * c->count;
	for (int r = 0; r < cl_n; r++) {
		const uint32_t bits = input_of(c, r, i);

		if (cl_n == 1)
			return bits;
		x[r] = c->dtype <= TE_DTYPE_E5M2 ? to_number(c->dtype, bits) : 0.0f;
		k[r] = c->dtype == TE_DTYPE_INT32 ? (int64_t)(int32_t)bits : (int64_t)bits;
	}
	return c->dtype <= TE_DTYPE_E5M2 ? of_numbers(c, x) : of_integers(c, k);
}

void cl_all_well(void)
{
	for (int r = 0; r < cl_n; r++) {
		const struct te_k_comm_status *s = cl_status(r);

		ck_assert_msg(!s->complete,
			      "rank %d of %d: code %u in phase %u of epoch %llu, rank %d, "
			      "expected %llx, got %llx",
			      r, cl_n, s->code, s->phase, (unsigned long long)s->epoch, s->peer,
			      (unsigned long long)s->expected, (unsigned long long)s->got);
	}
}

uint8_t *cl_before(int rank)
{
	return before[rank];
}

const uint8_t *cl_got(int rank)
{
	return got[rank];
}

int64_t cl_heap_nbytes(void)
{
	return heap_nbytes;
}

void cl_read(void)
{
	cl_sync();
	cl_all_well();
	for (int r = 0; r < cl_n; r++)
		DO(te_copy(cl_stream[r], got[r], cl_heap(r), (size_t)heap_nbytes));
	cl_sync();
}

void cl_check(const struct cl_call *c, int ncalls)
{
	uint8_t *want = malloc((size_t)heap_nbytes);

	cl_read();
	for (int r = 0; r < cl_n; r++) {
		memcpy(want, before[r], (size_t)heap_nbytes);
		for (int k = 0; k < ncalls; k++) {
			const size_t es = te_dtype_nbytes((enum te_dtype)c[k].dtype);
			const int64_t at = out_at(&c[k], r);

			for (int64_t i = 0; i < output_count(&c[k]); i++) {
				const uint32_t bits = cl_expected(&c[k], r, i);

				memcpy(want + at + i * (int64_t)es, &bits, es);
				if (bits != get_bits(c[k].dtype, got[r] + at, i))
					ck_abort_msg("call %d: rank %d of %d, collective %d, root "
						     "%d, algorithm %d, op %d, %s, element %lld of "
						     "%lld, in %lld, out %lld: got %x, want %x",
						     k, r, cl_n, c[k].collective, c[k].root,
						     c[k].algorithm, c[k].op,
						     te_dtype_name((enum te_dtype)c[k].dtype),
						     (long long)i, (long long)c[k].count,
						     (long long)c[k].in, (long long)c[k].out,
						     get_bits(c[k].dtype, got[r] + at, i), bits);
			}
		}
		for (int64_t i = 0; i < heap_nbytes; i++)
			if (want[i] != got[r][i])
				ck_abort_msg("rank %d: byte %lld of the heap was written", r,
					     (long long)i);
	}
	free(want);
}
