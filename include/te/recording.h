/* te/recording.h - what recorded graphs hold, and changing them in place. */
#ifndef TE_RECORDING_H
#define TE_RECORDING_H

#include <stddef.h>
#include <stdint.h>
#include <te/export.h>
#include <te/stream.h>

TE_BEGIN_DECLS

/*
 * Thread, for all of this header: a recording is changed by one thread at a
 * time, and launched by none meanwhile. Nothing here waits for launches that
 * are queued, nor changes what they do.
 */

enum te_node_kind {
	TE_NODE_KERNEL,
	TE_NODE_COPY,
	TE_NODE_FILL,
	TE_NODE_HOST,
	TE_NODE_EVENT, /* te_event_record_external */
	TE_NODE_OTHER, /* what only the backend's own calls can record */
};

struct te_node_info {
	size_t size; /* set by the INIT macro; lets the struct grow */
	enum te_node_kind kind;
	/* the kernel, "quantize"; "gemm" of each node that a product queued; else "".
	 * Lives for ever */
	const char *name;
	uint64_t nbytes; /* copied or filled, or bytes of arguments; 0 where unknown */
	int32_t ndeps;
};
#define TE_NODE_INFO_INIT { sizeof(struct te_node_info), TE_NODE_KERNEL, NULL, 0, 0 }

/**
 * te_recording_node, te_recording_deps - the nodes of a recording and their edges
 * @index: from 0; a node's dependencies have lower numbers than itself
 * @cap:   of ret_index; no more are written
 *
 * te_recording_deps returns how many nodes the node depends on, and writes
 * their numbers, ascending. Numbers hold until the next te_capture_update.
 * Errors: -EINVAL, also for an index that is no node's.
 */
TE_EXPORT int te_recording_node(const struct te_recording *rec, uint64_t index,
				struct te_node_info *ret);
TE_EXPORT int te_recording_deps(const struct te_recording *rec, uint64_t index, int32_t cap,
				uint64_t *ret_index);

/**
 * te_recording_dot - the graph as text for dot(1)
 * @title:    of the graph; NULL for "recording"
 * @ret_text: released with free(3)
 *
 * Errors: -EINVAL, -ENOMEM.
 */
TE_EXPORT int te_recording_dot(const struct te_recording *rec, const char *title, char **ret_text);

/* nodes wait for those only whose memory they use */
#define TE_CAPTURE_BY_DATA 1u
/* kernels may be placed on the device before those they wait for end */
#define TE_CAPTURE_EARLY 2u

/**
 * te_capture_edges - how nodes of a capture wait for each other
 * @edges: TE_CAPTURE_*; 0, as without the call: each waits for the end of the one before
 *
 * Between te_capture_begin and the end of that capture, for all of it. The results are the same to
 * the bit. Nodes are recorded in the order of the stream. By data, each then waits for those before
 * it that write what it uses or use what it writes, and others run beside it. Nodes of
 * which this library does not know the memory, those that were not queued through it, host calls
 * and events wait for all before them, and all behind wait for those. Where other streams take part
 * in the capture it stays in their order.
 * Errors: -EINVAL, -TE_ESTATE (no capture began on the stream).
 */
TE_EXPORT int te_capture_edges(struct te_stream *stream, uint32_t edges);

enum te_update {
	TE_UPDATE_IN_PLACE = 1,
	TE_UPDATE_INSTANTIATED = 2,
};

/**
 * te_capture_update - end a capture as te_capture_end does, into an existing recording
 * @ret_how: TE_UPDATE_IN_PLACE where nodes, in the order of their capture, are of the
 *           same kinds and have the same edges as before, and the backend can do it;
 *           else a new executable stands behind the same handle. Or NULL
 *
 * The slots are gone: te_recording_slot finds those of the new nodes, from number 0 on. On
 * failure the recording is as it was. -EINVAL for an argument leaves the capture as it is.
 * Errors: as te_capture_end.
 */
TE_EXPORT int te_capture_update(struct te_stream *stream, struct te_recording *rec,
				enum te_update *ret_how);

struct te_slot_info {
	size_t size;	   /* set by the INIT macro; lets the struct grow */
	int32_t nuses;	   /* arguments of nodes that point into the memory */
	int32_t patchable; /* 1: te_recording_rebind can replace them all */
};
#define TE_SLOT_INFO_INIT { sizeof(struct te_slot_info), 0, 0 }

/**
 * te_recording_slot - find once all that reads or writes [ptr, ptr + nbytes)
 * @ret: what was found, or NULL
 *
 * Returns the slot's number, from 0; the same one again for the memory that a slot is
 * bound to. Slots last until the next te_capture_update. Uses are pointers to within the
 * memory: of our kernels, copies and fills. What a host call's arguments point at is not
 * looked into. A copy or fill that reaches over an end of the memory cannot be patched;
 * neither can, on the cuda backend, a product of cuBLASLt's, and nothing at all in a
 * recording with nodes that were not queued through this library, since nobody knows what
 * those touch.
 * Errors: -EINVAL (no memory; uses that belong to another slot), -ENOMEM.
 */
TE_EXPORT int te_recording_slot(struct te_recording *rec, const void *ptr, size_t nbytes,
				struct te_slot_info *ret);

/**
 * te_recording_rebind - let later launches use other memory
 * @n:     slots to rebind
 * @slots: their numbers, each once
 * @ptrs:  memory of the slots' size and of the same kind (device or host), with the same
 *         remainder by 16 as what it replaces
 *
 * All or nothing. A slot bound to that memory already costs nothing. Launches queued
 * before use the memory from before. Memory must outlive the launches that use it.
 * Edges by data (TE_CAPTURE_BY_DATA) order what was captured: there, what the uses of a slot read
 * or write may overlap what else the nodes use by then only where none of both is written, or both
 * are where they were captured. Else -EINVAL names the slot and what it meets.
 * Errors: -EINVAL, -EOPNOTSUPP (a use cannot be patched: the sentence names the node),
 * -ENOMEM, -TE_ECUDA.
 */
TE_EXPORT int te_recording_rebind(struct te_recording *rec, int n, const int32_t *slots,
				  void *const *ptrs);

/**
 * te_event_record_external - record an event from inside of a recording
 *
 * Outside of a capture the same as te_event_record. In one, the record becomes a
 * node: each launch records the event when it gets there, and streams and the CPU wait for
 * it by te_event_wait and te_event_sync while later nodes of the launch may
 * still run. A wait asked for after te_recording_launch returned waits for that launch's
 * record. Inside of a capture the event cannot be waited for (-TE_ESTATE). The recording
 * keeps the event.
 * Errors: as te_event_record.
 */
TE_EXPORT int te_event_record_external(struct te_event *event, struct te_stream *stream);

TE_END_DECLS

#endif
