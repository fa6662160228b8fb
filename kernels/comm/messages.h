/*
 * messages.h - arguments of the kernel of messages between ranks: send, receive, all-to-all,
 * gather, scatter and reduce. Included by te_k.h; comm.h has regions, failures and results.
 *
 * A launch sends at most one message to each rank and receives at most one from each, all at once:
 * whatever the order in which ranks launch, no wait of one message keeps another from arriving.
 * Launches of a rank are not operations of comm.h: they have no epoch, and ranks that they have no
 * message for do not take part.
 *
 * A *channel* leads from each rank to each other one, and has the messages of that pair in the
 * order in which they were sent. A message is sent in one or more chunks of at most a slot, which
 * each channel numbers from 0 on. Chunk k is in slot k modulo TE_K_COMM_SLOTS of the receiver's
 * region. The sender writes it, then its number; the receiver copies it, then stores the number in
 * the sender's region, where it tells that the slot is free.
 *
 * Each slot has the signature of its message, which the receiver compares with its own.
 *
 * Rank r's memory for its messages to and from rank p, all bits set at first, so that numbers
 * begin after -1:
 *	taken		of r's chunks, the last that p has taken, stored by p; alone in 128 bytes
 *	4 counters	for r alone: the last chunk and message that it has sent to p and received
 *			from p; 128 bytes
 *	slots		of p's chunks to r: number and signature, 128 bytes, and data
 */
#ifndef TE_K_COMM_MESSAGES_H
#define TE_K_COMM_MESSAGES_H

/* bits 48 to 51 of a signature */
enum te_k_comm_kind {
	TE_K_COMM_POINT, /* from one rank to another */
	TE_K_COMM_ALLTOALL,
	TE_K_COMM_GATHER,
	TE_K_COMM_SCATTER,
	TE_K_COMM_REDUCE, /* the receiver reduces messages of all ranks: op; they have one size */
	TE_K_COMM_KINDS
};

/* words of 128 bytes each have; see above */
enum te_k_comm_counter {
	TE_K_COMM_SENT,
	TE_K_COMM_SENT_MESSAGES,
	TE_K_COMM_RECEIVED,
	TE_K_COMM_RECEIVED_MESSAGES,
};

/*
 * comm has in, out, slots, ctl, abort, status, sizes, the type, and op of a reduction; count,
 * algorithm, max_blocks, root and arrays are unused. Bit r of sends and receives: there is a
 * message to or from rank r, of the elements [r] at bytes [r] of in or out. A message of a rank to
 * itself is a copy, unless it has the same address.
 */
struct te_k_comm_messages {
	struct te_k_comm comm;
	int64_t in_nbytes, out_nbytes; /* bytes of in and out with all messages */
	int64_t in_at[TE_K_COMM_RANKS], in_count[TE_K_COMM_RANKS];
	int64_t out_at[TE_K_COMM_RANKS], out_count[TE_K_COMM_RANKS];
	uint32_t sends, receives;
	int32_t kind; /* enum te_k_comm_kind */
};

/* offset in the region of a rank of its memory for messages to and from a peer */
TE_K_INLINE int64_t te_k_comm_channel(const struct te_k_comm *a, int32_t peer)
{
	return te_k_comm_channels_at(a->buffer_nbytes) +
	       peer * te_k_comm_channel_nbytes(a->buffer_nbytes);
}

/* offset of a counter, and of the slot of a chunk, whose data is 128 bytes further */
TE_K_INLINE int64_t te_k_comm_counter(const struct te_k_comm *a, int32_t peer, int32_t counter)
{
	return te_k_comm_channel(a, peer) + 128 + counter * 8;
}

TE_K_INLINE int64_t te_k_comm_slot(const struct te_k_comm *a, int32_t peer, uint64_t chunk)
{
	return te_k_comm_channel(a, peer) + 256 +
	       (int64_t)(chunk % TE_K_COMM_SLOTS) *
		       (128 + te_k_comm_slot_nbytes(a->buffer_nbytes));
}

TE_K_INLINE int64_t te_k_comm_nchunks(const struct te_k_comm *a, int64_t nbytes)
{
	const int64_t each = te_k_comm_slot_nbytes(a->buffer_nbytes);

	return nbytes ? (nbytes + each - 1) / each : 1;
}

/* bits 0 to 39 count, 40 type, 44 op of a reduction, 48 kind */
TE_K_INLINE uint64_t te_k_comm_message(const struct te_k_comm_messages *a, int64_t count)
{
	return (uint64_t)count | (uint64_t)a->comm.dtype << 40 | (uint64_t)a->comm.op << 44 |
	       (uint64_t)a->kind << 48;
}

#endif
