/*
 * messages.cu - messages between ranks. sm_90a. messages.h has the protocol. te_comm_send() refuses
 * other backends than host until this has run on a GPU.
 *
 *  kernel    blocks                       threads
 *  messages  2 for each rank: from, to    512
 *
 * A block has one message and waits for its chunks only, so that messages do not wait for each
 * other; the blocks of all ranks must be resident. Reductions are not implemented.
 */
#include "kernels/comm/comm.cuh"

/* bytes by packets where both arrays are aligned */
DEV void copy_bytes(uint8_t *dst, const uint8_t *src, int64_t nbytes)
{
	const int whole = aligned(dst) && aligned(src);
	const int64_t n = whole ? nbytes / TE_K_COMM_PACKET : 0;

	for (int64_t i = threadIdx.x; i < n; i += COMM_THREADS)
		((uint4 *)dst)[i] = ((const uint4 *)src)[i];
	for (int64_t i = n * TE_K_COMM_PACKET + threadIdx.x; i < nbytes; i += COMM_THREADS)
		dst[i] = src[i];
}

DEV uint64_t *word_at(const struct te_k_comm &a, int rank, int64_t offset)
{
	return (uint64_t *)(region(a, rank) + offset);
}

/* thread 0 waits until the slot is free, or has the chunk; all threads get the result */
DEV bool wait_chunk(const struct te_k_comm_messages &a, struct op &o, int sends, int peer,
		    uint64_t chunk, uint64_t signature, const uint64_t *word)
{
	bool ok = true;

	if (threadIdx.x == 0) {
		const uint32_t phase = sends ? TE_K_COMM_SEND : TE_K_COMM_RECEIVE;
		uint64_t x;

		while (x = load_acquire(word), ok && (sends ? chunk - x > TE_K_COMM_SLOTS :
							      x != chunk))
			ok = again(a.comm, o, phase, 1u << peer, chunk, x);
		if (ok && !sends && word[1] != signature) {
			fail(a.comm, o.epoch, TE_K_COMM_MISMATCH, phase, 1u << peer, signature,
			     word[1]);
			ok = false;
		}
		o.since = 0;
	}
	return __syncthreads_and(ok);
}

extern "C" __global__ void __launch_bounds__(COMM_THREADS)
te_k_comm_messages(const __grid_constant__ struct te_k_comm_messages a)
{
	const int peer = (int)blockIdx.x >> 1, sends = (int)blockIdx.x & 1, me = a.comm.rank;
	const int counter = sends ? TE_K_COMM_SENT : TE_K_COMM_RECEIVED;
	uint8_t *data;
	int64_t count, nbytes, each, nchunks;

	te_begin();
	if (!((sends ? a.sends : a.receives) >> peer & 1) || load_relaxed(&a.comm.ctl->failed))
		return;
	data = sends ? (uint8_t *)a.comm.in + a.in_at[peer] :
		       (uint8_t *)a.comm.out + a.out_at[peer];
	count = sends ? a.in_count[peer] : a.out_count[peer];
	nbytes = count * element_nbytes(a.comm.dtype);
	if (peer == me) {
		if (sends && (uint8_t *)a.comm.out + a.out_at[me] != data)
			copy_bytes((uint8_t *)a.comm.out + a.out_at[me], data, nbytes);
		return;
	}
	each = te_k_comm_slot_nbytes(a.comm.buffer_nbytes);
	nchunks = te_k_comm_nchunks(&a.comm, nbytes);

	uint64_t *chunks = word_at(a.comm, me, te_k_comm_counter(&a.comm, peer, counter));
	const uint64_t first = chunks[0] + 1, signature = te_k_comm_message(&a, count);
	struct op o = {};

	o.epoch = chunks[1] + 1;
	for (int64_t k = 0; k < nchunks; k++) {
		const uint64_t chunk = first + k;
		const int64_t left = nbytes - k * each, n = left < each ? left : each;
		uint64_t *slot = sends ? word_at(a.comm, peer, te_k_comm_slot(&a.comm, me, chunk)) :
					 word_at(a.comm, me, te_k_comm_slot(&a.comm, peer, chunk));
		uint64_t *taken = sends ? word_at(a.comm, me, te_k_comm_channel(&a.comm, peer)) :
					  word_at(a.comm, peer, te_k_comm_channel(&a.comm, me));

		if (!wait_chunk(a, o, sends, peer, chunk, signature, sends ? taken : slot))
			return;
		if (sends)
			copy_bytes((uint8_t *)(slot + 16), data + k * each, n);
		else
			copy_bytes(data + k * each, (const uint8_t *)(slot + 16), n);
		__syncthreads();
		if (threadIdx.x == 0) {
			if (sends)
				slot[1] = signature;
			store_release(sends ? slot : taken, chunk);
		}
	}
	if (threadIdx.x == 0) {
		chunks[0] = first + nchunks - 1;
		chunks[1] = o.epoch;
	}
}
