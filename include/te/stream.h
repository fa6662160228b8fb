/* te/stream.h - ordered queues, events, memory, copies and recorded graphs. */
#ifndef TE_STREAM_H
#define TE_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <te/ctx.h>
#include <te/export.h>

TE_BEGIN_DECLS

struct te_stream;    /* opaque, reference counted */
struct te_event;     /* opaque, reference counted */
struct te_recording; /* a captured graph, instantiated; opaque, reference counted */

/**
 * te_stream_create - an ordered queue of work on the context's device
 *
 * Work of one stream runs in order; streams run beside each other. A failure of
 * queued work is sticky: later calls on the stream return it with its sentence.
 * Thread: one stream by one thread at a time.
 * Errors: -EINVAL, -ENOMEM, -EAGAIN (no thread could be started), -TE_ECUDA.
 */
TE_EXPORT int te_stream_create(struct te_ctx *ctx, struct te_stream **ret_stream);
TE_EXPORT struct te_stream *te_stream_ref(struct te_stream *stream);
TE_EXPORT struct te_stream *te_stream_unref(struct te_stream *stream);
TE_EXPORT struct te_ctx *te_stream_ctx(const struct te_stream *stream);
/* the CUstream, for launching one's own kernels; NULL on host */
TE_EXPORT void *te_stream_native(const struct te_stream *stream);
/**
 * te_stream_workspace - scratch of the caller for products on the stream
 * @ptr: device memory, aligned to 256 bytes; NULL: the library's own again
 *
 * Without it each stream, and each recording, that multiplies on a GPU holds 32 MiB of its own.
 * Recordings made on the stream keep using @ptr, so that many can share it: the caller keeps the
 * memory until they are gone, and two that share it from running at once.
 * te_ctx_workspace_nbytes tells how much is needed; 0 on host, where @ptr is not used.
 * Errors: -EINVAL (too small, not aligned), -EBUSY while capturing.
 */
TE_EXPORT int te_stream_workspace(struct te_stream *stream, void *ptr, size_t nbytes);
TE_EXPORT size_t te_ctx_workspace_nbytes(const struct te_ctx *ctx);
/* wait until everything queued has run; -EBUSY while capturing */
TE_EXPORT int te_stream_sync(struct te_stream *stream);
/* 1 idle, 0 still working, or an error */
TE_EXPORT int te_stream_query(struct te_stream *stream);

/**
 * te_event_* - points in a stream that other streams and the CPU wait for
 *
 * te_event_wait makes later work of the stream wait until the most recent
 * record of the event has been reached. During capture a wait on an event
 * recorded in the captured stream joins the other stream to the capture.
 * te_event_elapsed_ms needs both events reached: -EBUSY else.
 */
TE_EXPORT int te_event_create(struct te_ctx *ctx, struct te_event **ret_event);
TE_EXPORT struct te_event *te_event_ref(struct te_event *event);
TE_EXPORT struct te_event *te_event_unref(struct te_event *event);
TE_EXPORT int te_event_record(struct te_event *event, struct te_stream *stream);
TE_EXPORT int te_event_wait(struct te_event *event, struct te_stream *stream);
TE_EXPORT int te_event_sync(struct te_event *event);
TE_EXPORT int te_event_query(struct te_event *event);
TE_EXPORT int te_event_elapsed_ms(struct te_event *from, struct te_event *to, double *ret_ms);

/**
 * te_mem_alloc - device memory, ordered by a stream; 256-byte aligned
 *
 * The memory may be used by work queued on @stream afterwards, and by other
 * streams once they waited for it. te_mem_free is ordered the same way.
 * Errors: -EINVAL (zero bytes), -ENOMEM (says how much was asked and is free),
 * -EBUSY while capturing, -TE_ECUDA.
 */
TE_EXPORT int te_mem_alloc(struct te_stream *stream, size_t nbytes, void **ret_ptr);
TE_EXPORT int te_mem_free(struct te_stream *stream, void *ptr);
/* pinned host memory: copies to and from it are asynchronous; not stream ordered */
TE_EXPORT int te_pinned_alloc(struct te_ctx *ctx, size_t nbytes, void **ret_ptr);
TE_EXPORT int te_pinned_free(struct te_ctx *ctx, void *ptr);

/* copy between any two of device and host memory, in stream order; host memory must stay
 * until then */
TE_EXPORT int te_copy(struct te_stream *stream, void *dst, const void *src, size_t nbytes);
/* set bytes, or 32-bit words (nbytes a multiple of 4, dst aligned to 4), of device or pinned
 * memory */
TE_EXPORT int te_fill(struct te_stream *stream, void *dst, uint8_t value, size_t nbytes);
TE_EXPORT int te_fill_u32(struct te_stream *stream, void *dst, uint32_t value, size_t nbytes);

typedef void (*te_host_fn)(void *arg);
/**
 * te_host_call - run a CPU function in stream order
 *
 * The @nbytes at @arg are copied, and fn gets the copy; with @nbytes 0 fn gets
 * @arg itself. Captured, the node keeps the copy and runs at every launch.
 * fn must not call this library.
 */
TE_EXPORT int te_host_call(struct te_stream *stream, te_host_fn fn, const void *arg, size_t nbytes);

/**
 * te_capture_begin, te_capture_end - record what is queued instead of running it
 *
 * Between the two, calls that need a result now (sync, alloc, free) return
 * -EBUSY and leave the capture as it is. te_capture_end instantiates: an
 * empty capture is valid. A failed call inside a capture invalidates it:
 * te_capture_end then returns that error and the stream is usable again.
 * Memory used by recorded work must outlive the recording.
 */
TE_EXPORT int te_capture_begin(struct te_stream *stream);
TE_EXPORT int te_capture_end(struct te_stream *stream, struct te_recording **ret_rec);
TE_EXPORT int te_recording_launch(struct te_recording *rec, struct te_stream *stream);
struct te_recording_info {
	size_t size; /* set by the INIT macro; lets the struct grow */
	uint64_t nnodes, nedges;
	uint64_t nkernels, ncopies, nfills, nhost;
	uint64_t ninstantiated; /* executables ever made of it: 1 at first */
	uint64_t nupdated;	/* times that te_capture_update changed one in place */
};
#define TE_RECORDING_INFO_INIT { sizeof(struct te_recording_info), 0, 0, 0, 0, 0, 0, 0, 0 }
TE_EXPORT int te_recording_info(const struct te_recording *rec, struct te_recording_info *ret_info);
TE_EXPORT struct te_recording *te_recording_ref(struct te_recording *rec);
TE_EXPORT struct te_recording *te_recording_unref(struct te_recording *rec);

TE_END_DECLS

#endif
