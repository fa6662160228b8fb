/* te/capture.h - capturing queued work as graphs, replaying them and updating them. */
#ifndef TE_CAPTURE_H
#define TE_CAPTURE_H

#include <stddef.h>
#include <stdint.h>
#include <te/export.h>
#include <te/stream.h>

TE_BEGIN_DECLS

/*
 * Thread, for all of this header: only one thread at a time may modify a recording, and no thread
 * may launch it meanwhile. No function here waits for queued launches or changes what they do.
 */

/**
 * te_capture_begin, te_capture_end - record queued work instead of running it
 * @stream:  the stream to capture, or to launch the recording on
 * @ret_rec: the recording, with one reference
 * @rec:     the recording to launch
 *
 * Between the two, calls that need an immediate result (sync, alloc, free) return
 * -EBUSY and do not affect the capture. te_capture_end creates the executable graph; a
 * capture of no work is valid. If queueing work fails, the capture becomes invalid:
 * te_capture_end then returns that error and the stream is usable again.
 * Memory used by recorded work must outlive the recording.
 * Thread: as at the top of this header; one stream by one thread at a time.  Since: 0.1
 */
TE_EXPORT int te_capture_begin(struct te_stream *stream);
TE_EXPORT int te_capture_end(struct te_stream *stream, struct te_recording **ret_rec);
TE_EXPORT int te_recording_launch(struct te_recording *rec, struct te_stream *stream);
struct te_recording_info {
	size_t size; /* set by the INIT macro; lets the struct grow */
	uint64_t nnodes, nedges;
	uint64_t nkernels, ncopies, nfills, nhost;
	uint64_t ninstantiated; /* executables created so far: 1 at first */
	uint64_t nupdated;	/* in-place updates by te_capture_update so far */
};
#define TE_RECORDING_INFO_INIT { sizeof(struct te_recording_info), 0, 0, 0, 0, 0, 0, 0, 0 }
TE_EXPORT int te_recording_info(const struct te_recording *rec, struct te_recording_info *ret_info);
TE_EXPORT struct te_recording *te_recording_ref(struct te_recording *rec);
TE_EXPORT struct te_recording *te_recording_unref(struct te_recording *rec);

enum te_node_kind {
	TE_NODE_KERNEL,
	TE_NODE_COPY,
	TE_NODE_FILL,
	TE_NODE_HOST,
	TE_NODE_EVENT, /* te_event_record_external */
	TE_NODE_OTHER, /* a kind that only driver calls record */
};

struct te_node_info {
	size_t size; /* set by the INIT macro; lets the struct grow */
	enum te_node_kind kind;
	/* the kernel's name, for example "quantize"; "gemm" for every node of a GEMM; "" for other
	 * kinds. Valid until the process ends */
	const char *name;
	uint64_t nbytes; /* bytes copied or filled, or of arguments; 0 where unknown */
	int32_t ndeps;
};
#define TE_NODE_INFO_INIT { sizeof(struct te_node_info), TE_NODE_KERNEL, NULL, 0, 0 }

/**
 * te_recording_node, te_recording_deps - the nodes of a recording and their edges
 * @rec:       the recording
 * @index:     the node's number, from 0; a node depends on nodes of lower index only
 * @ret:       initialised by TE_NODE_INFO_INIT
 * @cap:       capacity of ret_index, in elements; no more are written
 * @ret_index: gets the indices; NULL with cap 0
 *
 * te_recording_deps returns how many nodes the node depends on, and writes their indices in
 * ascending order. Indices are valid until the next te_capture_update.
 * Thread: as at the top of this header.  Since: 0.1
 * Errors: -EINVAL, also for an index without a node.
 */
TE_EXPORT int te_recording_node(const struct te_recording *rec, uint64_t index,
				struct te_node_info *ret);
TE_EXPORT int te_recording_deps(const struct te_recording *rec, uint64_t index, int32_t cap,
				uint64_t *ret_index);

/**
 * te_recording_dot - the graph as text for dot(1)
 * @rec:      the recording
 * @title:    the graph's name; NULL for "recording"
 * @ret_text: released with free(3)
 *
 * Thread: as at the top of this header.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM.
 */
TE_EXPORT int te_recording_dot(const struct te_recording *rec, const char *title, char **ret_text);

/* order nodes by the memory they access; the others run concurrently */
#define TE_CAPTURE_CONCURRENT 1u
/* programmatic dependent launch: kernels may be scheduled before their dependencies end */
#define TE_CAPTURE_PDL 2u

/**
 * te_capture_edges - choose how the nodes of a capture depend on each other
 * @stream: the capturing stream
 * @edges:  TE_CAPTURE_*; 0, the default: each node depends on the previous one of its stream
 *
 * Call it between te_capture_begin and the end of that capture; it applies to the whole capture.
 * Results are bit-identical for every choice. With TE_CAPTURE_CONCURRENT a node depends on the
 * earlier nodes that write memory it uses or use memory it writes; others may run concurrently
 * with it. The library does not know the memory of host calls, events and nodes queued without it.
 * Unless te_capture_access declares their memory, they are full barriers: they depend on all
 * earlier nodes, and all later nodes depend on them. A capture that several streams joined keeps
 * the order of these streams.
 * Thread: one stream by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -TE_ESTATE (no capture was begun on the stream).
 */
TE_EXPORT int te_capture_edges(struct te_stream *stream, uint32_t edges);

/* Memory that user-defined work accesses. Without a size: it never gets another member. */
struct te_access {
	const void *ptr;
	size_t nbytes;
	uint32_t flags; /* TE_ACCESS_WRITE; 0: read only */
	/* offset of ptr in the work's arguments, in bytes: the copied bytes of a te_host_call, or a
	 * kernel's parameters; -1: not declared */
	int32_t at;
};
#define TE_ACCESS_WRITE 1u /* written, and perhaps read too */
#define TE_ACCESS_MAX 16   /* ranges of one declaration */

/**
 * te_capture_access, te_capture_access_end - declare memory that user-defined work accesses
 * @stream: the stream that the work is queued on
 * @n:      0 to TE_ACCESS_MAX; 0: no memory that other work uses
 * @access: n ranges, copied
 *
 * Declares all device and pinned memory that host calls, and work queued by driver calls on
 * te_stream_native(), access. The declaration applies to work queued until te_capture_access_end or
 * the end of the capture. The accesses declared for an event of te_event_record_external determine
 * which nodes it depends on. In a recording with TE_CAPTURE_CONCURRENT such nodes have the
 * dependencies of these accesses; without a declaration they are full barriers. If several nodes
 * are queued, each has all of the ranges. Work that the library queues meanwhile keeps its own
 * accesses. An omitted access is not detected: the node may then run concurrently with one that it
 * conflicts with. te_recording_rebind replaces pointers at the declared offsets. Outside a capture
 * begun by te_capture_begin, the calls have no effect.
 * Thread: one stream by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -EBUSY (declared already, not ended), -TE_ESTATE (end without a beginning),
 * -ENOMEM, -TE_ECUDA. If the arguments do not hold ptr at the declared offset, te_host_call, or
 * te_capture_end for a kernel, returns -EINVAL.
 */
TE_EXPORT int te_capture_access(struct te_stream *stream, int n, const struct te_access *access);
TE_EXPORT int te_capture_access_end(struct te_stream *stream);

enum te_update {
	TE_UPDATE_IN_PLACE = 1,
	TE_UPDATE_INSTANTIATED = 2,
};

/**
 * te_capture_update - end a capture as te_capture_end does, into an existing recording
 * @stream:  the capturing stream
 * @rec:     the recording to update
 * @ret_how: TE_UPDATE_IN_PLACE if the nodes, in capture order, have the same kinds and edges as
 *           before and the backend can update them; TE_UPDATE_INSTANTIATED if the recording got a
 *           new executable; NULL if not wanted
 *
 * All bindings are removed; te_recording_binding creates new ones, from number 0. On
 * failure the recording is unchanged. After -EINVAL for an argument the capture continues.
 * Thread: as at the top of this header; one stream by one thread at a time.  Since: 0.1
 * Errors: as te_capture_end.
 */
TE_EXPORT int te_capture_update(struct te_stream *stream, struct te_recording *rec,
				enum te_update *ret_how);

struct te_binding_info {
	size_t size;	   /* set by the INIT macro; lets the struct grow */
	int32_t nuses;	   /* node arguments that point into the memory */
	int32_t patchable; /* 1: te_recording_rebind can replace them all */
};
#define TE_BINDING_INFO_INIT { sizeof(struct te_binding_info), 0, 0 }

/**
 * te_recording_binding - find all uses of [ptr, ptr + nbytes) in a recording
 * @rec:          the recording
 * @ptr, @nbytes: the memory; nbytes above 0
 * @ret:          the uses found; NULL if not wanted
 *
 * Creates a binding and returns its number, from 0, or the number of the binding that has this
 * memory already. Bindings are valid until the next te_capture_update. A use is an argument of a
 * library kernel, a copy or a fill that points into the memory, or a range of te_capture_access.
 * Arguments of other host calls are not searched. The following uses cannot be patched: a copy, a
 * fill or a declared range that extends beyond the memory; a declared range without its offset in
 * the arguments; on the cuda backend a GEMM that cuBLASLt computes, and a declared host call, copy
 * or fill; and any use in a recording that has undeclared nodes not queued through this library,
 * since the memory they access is unknown.
 * Thread: as at the top of this header.  Since: 0.1
 * Errors: -EINVAL (no memory, or it overlaps the memory of another binding), -ENOMEM.
 */
TE_EXPORT int te_recording_binding(struct te_recording *rec, const void *ptr, size_t nbytes,
				struct te_binding_info *ret);

/**
 * te_recording_rebind - make later launches use other memory
 * @rec:      the recording
 * @n:        bindings to rebind
 * @bindings: numbers of the bindings, each once
 * @ptrs:     new memory of each binding, with the size, kind (device or host) and address modulo 16
 *            of its present memory
 *
 * Either all are rebound or none. A binding that already has the given memory costs nothing.
 * Launches queued earlier keep the memory they were queued with. Memory must outlive the launches
 * that use it. In a recording with TE_CAPTURE_CONCURRENT the dependencies hold for the captured
 * addresses only: rebound memory must not overlap memory that another node or binding uses if
 * either of the two is written, unless both are at their captured addresses. Otherwise -EINVAL,
 * with a message that names the two.
 * Thread: as at the top of this header.  Since: 0.1
 * Errors: -EINVAL, -EOPNOTSUPP (a use cannot be patched: the message names the node),
 * -ENOMEM, -TE_ECUDA.
 */
TE_EXPORT int te_recording_rebind(struct te_recording *rec, int n, const int32_t *bindings,
				  void *const *ptrs);

/**
 * te_event_record_external - record an event from within a recording
 * @event:  the event to record
 * @stream: the stream in which it is recorded
 *
 * Outside a capture the same as te_event_record. In a capture the record becomes a
 * node: each launch records the event when it reaches the node. te_event_wait and te_event_sync
 * wait for that only; later nodes of the launch may still run. A wait queued after
 * te_recording_launch returned waits for that launch's record. A capturing stream cannot wait for
 * the event (-TE_ESTATE). The recording holds a reference to the event.
 * Thread: one stream by one thread at a time.  Since: 0.1
 * Errors: as te_event_record.
 */
TE_EXPORT int te_event_record_external(struct te_event *event, struct te_stream *stream);

TE_END_DECLS

#endif
