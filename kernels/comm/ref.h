/*
 * ref.h - shared by the reference kernels of collective operations: the protocol of comm.h.
 *
 * A kernel calls te__hc_begin(), sends its data, calls te__hc_headers(), receives, and calls
 * te__hc_end(). Functions that return int return 0, or -1 after a failure, which they have
 * described in *status: the kernel ends at once.
 */
#ifndef TE__COMM_REF_H
#define TE__COMM_REF_H

#include "kernels/ref.h"

/* processors of the machine; 0: not known yet */
extern _Atomic int te__hc_nprocessors;

/* an operation of a rank */
struct te__hc_op {
	const struct te_k_comm *a;
	uint64_t epoch, signature;
	uint64_t since; /* ns; 0: no wait took long yet */
	uint32_t attempts;
	int sleeps;	  /* this wait, after many attempts */
	uint32_t nsleeps; /* since the bell was last set */
	uint32_t es; /* bytes of an element */
	int64_t nbytes, npackets;
	int64_t chunk; /* packets */
};

/* sends headers with this signature; -1: there is nothing to do */
int te__hc_begin(struct te__hc_op *o, const struct te_k_comm *a, uint64_t signature);
/* receives the headers of the other ranks */
int te__hc_headers(struct te__hc_op *o);
/* the operation was successful */
void te__hc_end(const struct te__hc_op *o);

/* wake ranks that sleep: after data, headers and flags for them, before a wait for others */
void te__hc_ring(const struct te__hc_op *o);
void te__hc_ring_one(const struct te__hc_op *o, int rank);

/* bytes to packet index of a rank and those after it; ll sends two packets, with flags, for each */
void te__hc_send(const struct te__hc_op *o, int to, int64_t index, const void *data,
		 int64_t nbytes);
/* bytes from packets of this rank, sent by another; phase: for *status */
int te__hc_receive(struct te__hc_op *o, enum te_k_comm_phase phase, int from, int64_t index,
		   void *data, int64_t nbytes);
/* memory of packet index of a rank: of the buffer of this operation */
uint8_t *te__hc_packet(const struct te__hc_op *o, int rank, int64_t index);

/* all accesses of this rank are before its flags, which it sets at the others; rings */
void te__hc_flags_set(const struct te__hc_op *o, enum te_k_comm_phase phase, int64_t step);
/* for the flags of all others; staged: they may be one step further */
int te__hc_flags_wait(struct te__hc_op *o, enum te_k_comm_phase phase, int64_t step);

/* a flag of this rank's region: of a rank, or TE_K_COMM_ARRIVED */
uint64_t *te__hc_flag(const struct te__hc_op *o, enum te_k_comm_phase phase, int index);
/* after an attempt without success: 0 to make another one; or -1 */
int te__hc_again(struct te__hc_op *o, enum te_k_comm_phase phase, int peer, uint32_t missing,
		 uint64_t expected, uint64_t got);
/* describes a failure in *status; -1 */
int te__hc_fail(const struct te__hc_op *o, enum te_k_comm_code code, enum te_k_comm_phase phase,
		int peer, uint32_t missing, uint64_t expected, uint64_t got);
/* half a packet as it is sent: NaN in place of the upper word of an empty one */
uint64_t te__hc_full(uint64_t x);

#define TE__HC_BLOCK 64 /* packets that are reduced together */
#define TE__HC_LANES (TE__HC_BLOCK * TE_K_COMM_PACKET) /* maximum elements of a block */
_Static_assert(TE__HC_LANES <= TE__H_CHUNK, "a block is a chunk");

/* for (i = begin; i < end; i += TE__HC_BLOCK) with n packets at i */
#define TE__HC_BLOCKS(i, n, begin, end)                                                    \
	for (int64_t i = (begin), n; i < (end) && (n = te__h_min((end) - i, TE__HC_BLOCK), 1); \
	     i += TE__HC_BLOCK)

/* reduce nbytes of the operands of all ranks, at most a block; dst must not be an operand */
void te__hc_reduce(const struct te__hc_op *o, const uint8_t *const *src, int64_t nbytes,
		   uint8_t *dst);
/* nbytes, at most a block, of sums become averages */
void te__hc_average(const struct te__hc_op *o, int64_t nbytes, uint8_t *dst);

/* nvls.c: algorithms nvls and nvls-oneshot */
int te__hc_nvls_two_shot(struct te__hc_op *o);
int te__hc_nvls_one_shot(struct te__hc_op *o);

#endif
