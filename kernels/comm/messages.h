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
 * order in which they were sent. It has one or more *lanes*, of which each works as follows. A
 * message is sent in chunks of at most a slot: chunk i by lane i modulo the lanes of the message
 * (te_k_comm_lanes()), each of which is a block of a GPU; the host has one lane. A lane numbers its
 * chunks from 0 on. Chunk k is in slot k modulo TE_K_COMM_SLOTS of the receiver's region. The
 * sender writes it, then its header; the receiver copies it, then stores a number in the sender's
 * region: this chunk and those before it have been taken, so that their slots are free.
 *
 * Each header has the signature of its message, which the receiver compares with its own. All
 * messages use lane 0, so that a difference is found there.
 *
 * A *group* is a launch with any messages, also of several calls. Its messages to one rank are a
 * *chain*, and those from one rank, too. A block has some lanes of a chain, and transfers them in
 * ascending order for one message after the other. The other rank may have the messages in several
 * launches, or other blocks: the first lane of the first message that is not complete is the next
 * one for a block of each rank.
 *
 * GPUs send small messages, unless they are reduced, in packets with flags, as algorithm ll does,
 * through memory apart from the slots: for the chunk that the message has in lane 0. The receiver
 * empties them. GPUs do not wait at the end of a message until the last chunk is marked as taken:
 * a later launch does that (messages.cu).
 *
 * Rank r's memory for its messages to and from rank p, all bits set at first, so that numbers
 * begin after -1:
 *	small		[TE_K_COMM_SLOTS] of TE_K_COMM_SMALL_MOST bytes in packets with flags; not
 *			on the host
 *	lanes, each:
 *	taken		of r's chunks, the last that p has taken, stored by p; alone in 128 bytes
 *	5 counters	for r alone: the last chunk and message that it has sent to p and received
 *			from p, and the last chunk of p that it may mark as taken; 128 bytes
 *	slots		of p's chunks to r: header, 128 bytes, and data
 */
#ifndef TE_K_COMM_MESSAGES_H
#define TE_K_COMM_MESSAGES_H

#define TE_K_COMM_SLOTS 4
#define TE_K_COMM_LANES 64		/* on GPUs */
#define TE_K_COMM_SLOT_MOST (64 << 10)	/* maximum bytes of a slot */
#define TE_K_COMM_SMALL_MOST (8 << 10)	/* bytes of a small message */

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
	TE_K_COMM_TAKEN,
};

/*
 * comm has in, out, slots, ctl, abort, status, sizes, the type, and op of a reduction; count,
 * algorithm, root and arrays are unused. Bit r of sends and receives: there is a
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
	int32_t nlanes; /* lanes of a channel: 1 or TE_K_COMM_LANES */
};

/* one end of a message, in a list of ends that are all in progress at once */
struct te_k_comm_end {
	uint8_t *data;
	int64_t nbytes;
	uint64_t signature; /* te_k_comm_message() */
	int16_t peer;
	int16_t sends; /* 1: data is sent to the peer; 0: received from it */
	int32_t next;  /* position in the list of the next one of this direction and peer; -1 */
};

#define TE_K_COMM_ENDS 16 /* maximum of a group */

/* as in struct te_k_comm_messages; signatures have the types; no message of the rank to itself */
struct te_k_comm_group {
	struct te_k_comm comm;
	int32_t n, nlanes;
	struct te_k_comm_end ends[TE_K_COMM_ENDS];
};

TE_K_INLINE int64_t te_k_comm_slot_nbytes(int64_t buffer_nbytes)
{
	const int64_t n = buffer_nbytes / 128 & ~(int64_t)127;

	return n < 1024 ? 1024 : n > TE_K_COMM_SLOT_MOST ? TE_K_COMM_SLOT_MOST : n;
}

TE_K_INLINE int64_t te_k_comm_lane_nbytes(int64_t buffer_nbytes)
{
	return 256 + TE_K_COMM_SLOTS * (128 + te_k_comm_slot_nbytes(buffer_nbytes));
}

TE_K_INLINE int64_t te_k_comm_channel_nbytes(int64_t buffer_nbytes, int32_t nlanes)
{
	return (nlanes > 1 ? 2 * TE_K_COMM_SLOTS * TE_K_COMM_SMALL_MOST : 0) +
	       nlanes * te_k_comm_lane_nbytes(buffer_nbytes);
}

/* offset in the region of a rank of its memory for messages to and from a peer */
TE_K_INLINE int64_t te_k_comm_channel(const struct te_k_comm_messages *a, int32_t peer)
{
	return te_k_comm_region_nbytes(a->comm.buffer_nbytes) +
	       peer * te_k_comm_channel_nbytes(a->comm.buffer_nbytes, a->nlanes);
}

/* offset of the packets of a small message whose chunk this is */
TE_K_INLINE int64_t te_k_comm_small(const struct te_k_comm_messages *a, int32_t peer,
				    uint64_t chunk)
{
	return te_k_comm_channel(a, peer) +
	       (int64_t)(chunk % TE_K_COMM_SLOTS) * 2 * TE_K_COMM_SMALL_MOST;
}

/* offset of a lane, which begins with the word of taken chunks */
TE_K_INLINE int64_t te_k_comm_lane(const struct te_k_comm_messages *a, int32_t peer, int32_t lane)
{
	return te_k_comm_channel(a, peer + 1) -
	       (a->nlanes - lane) * te_k_comm_lane_nbytes(a->comm.buffer_nbytes);
}

/* offset of its counters */
TE_K_INLINE int64_t te_k_comm_counters(const struct te_k_comm_messages *a, int32_t peer,
				       int32_t lane)
{
	return te_k_comm_lane(a, peer, lane) + 128;
}

/* offset of the slot of a chunk, whose data is 128 bytes further */
TE_K_INLINE int64_t te_k_comm_slot(const struct te_k_comm_messages *a, int32_t peer, int32_t lane,
				   uint64_t chunk)
{
	return te_k_comm_lane(a, peer, lane) + 256 +
	       (int64_t)(chunk % TE_K_COMM_SLOTS) *
		       (128 + te_k_comm_slot_nbytes(a->comm.buffer_nbytes));
}

/* the maximum number of messages of a launch on a rank, with one to itself */
TE_K_INLINE int32_t te_k_comm_most_messages(int32_t kind, int32_t nranks)
{
	return kind == TE_K_COMM_POINT	  ? 2 :
	       kind == TE_K_COMM_REDUCE	  ? 1 :
	       kind == TE_K_COMM_ALLTOALL ? 2 * nranks - 1 :
					    nranks;
}

/*
 * Maximum lanes of a message. This and the rest depend only on values that both its ends have, or
 * else have other signatures for.
 */
TE_K_INLINE int32_t te_k_comm_most_lanes(const struct te_k_comm_messages *a)
{
	const int32_t n = a->comm.max_blocks / te_k_comm_most_messages(a->kind, a->comm.nranks);

	return n > a->nlanes ? a->nlanes : n < 1 ? 1 : n;
}

/* 1: the message is sent in packets with flags */
TE_K_INLINE int te_k_comm_is_small(const struct te_k_comm_messages *a, int64_t nbytes)
{
	return a->nlanes > 1 && nbytes <= TE_K_COMM_SMALL_MOST && a->kind != TE_K_COMM_REDUCE;
}

/* bytes of a chunk but the last; a multiple of 128 */
TE_K_INLINE int64_t te_k_comm_chunk_nbytes(const struct te_k_comm_messages *a, int64_t nbytes)
{
	const int64_t slot = te_k_comm_slot_nbytes(a->comm.buffer_nbytes);
	int64_t n = TE_K_COMM_SMALL_MOST;

	if (te_k_comm_is_small(a, nbytes))
		return n;
	if (nbytes / te_k_comm_most_lanes(a) > n)
		n = (nbytes / te_k_comm_most_lanes(a) + 1023) & ~(int64_t)1023;
	return n < slot ? n : slot;
}

TE_K_INLINE int64_t te_k_comm_nchunks(const struct te_k_comm_messages *a, int64_t nbytes)
{
	const int64_t each = te_k_comm_chunk_nbytes(a, nbytes);

	return nbytes > each ? (nbytes + each - 1) / each : 1;
}

/* lanes of the message */
TE_K_INLINE int32_t te_k_comm_lanes(const struct te_k_comm_messages *a, int64_t nbytes)
{
	const int64_t n = te_k_comm_nchunks(a, nbytes), most = te_k_comm_most_lanes(a);

	return (int32_t)(n < most ? n : most);
}

/* the kind, and the max_blocks that divide lanes, of a message with this signature */
TE_K_INLINE void te_k_comm_set_message(struct te_k_comm_messages *a, uint64_t signature)
{
	a->kind = (int32_t)(signature >> 48 & 15);
	a->comm.max_blocks = (int32_t)(signature >> 52 & 255);
}

/* bits 0 to 39 count, 40 type, 44 op of a reduction, 48 kind, 52 max_blocks if they divide lanes */
TE_K_INLINE uint64_t te_k_comm_message(const struct te_k_comm_messages *a, int64_t count)
{
	return (uint64_t)count | (uint64_t)a->comm.dtype << 40 | (uint64_t)a->comm.op << 44 |
	       (uint64_t)a->kind << 48 |
	       (uint64_t)(a->nlanes > 1 ? a->comm.max_blocks : 0) << 52;
}

#endif
