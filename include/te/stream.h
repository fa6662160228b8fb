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
 * @ctx:        the device; the stream keeps a reference
 * @ret_stream: the stream, with one reference
 *
 * Work of one stream runs in order; streams run concurrently. A failure of queued work is
 * sticky: later calls on the stream return its code and error message.
 * Thread: a stream may be used by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM, -EAGAIN (no thread could be started), -TE_ECUDA.
 */
TE_EXPORT int te_stream_create(struct te_ctx *ctx, struct te_stream **ret_stream);
/**
 * te_stream_wrap - use a CUstream of the program
 * @ctx:        the device; the stream keeps a reference
 * @native:     a CUstream of the context's CUcontext, or NULL: the legacy default stream on a GPU,
 *              a new stream on host
 * @ret_stream: the stream, with one reference
 *
 * Work queued through the stream is ordered with what the program queues on @native itself. The
 * CUstream must outlive the stream, which does not destroy it. If the program captures it by
 * cuStreamBeginCapture, work of this library becomes part of that capture, and calls that cannot be
 * captured return -EBUSY. The legacy default stream (NULL or CU_STREAM_LEGACY) cannot be captured.
 * Thread: as te_stream_create.  Since: 0.1
 * Errors: -EINVAL (a CUstream of another CUcontext, or CU_STREAM_PER_THREAD), -EOPNOTSUPP (host,
 * not NULL), -ENOMEM, -EAGAIN, -TE_ECUDA.
 */
TE_EXPORT int te_stream_wrap(struct te_ctx *ctx, void *native, struct te_stream **ret_stream);
TE_EXPORT struct te_stream *te_stream_ref(struct te_stream *stream);
TE_EXPORT struct te_stream *te_stream_unref(struct te_stream *stream);
TE_EXPORT struct te_ctx *te_stream_ctx(const struct te_stream *stream);
/* the CUstream, for example to launch user-defined kernels; NULL on host */
TE_EXPORT void *te_stream_native(const struct te_stream *stream);
/**
 * te_stream_workspace - set a caller-provided workspace for GEMMs on the stream
 * @stream: the stream
 * @ptr:    device memory, aligned to 256 bytes; NULL: the library allocates the workspace, the
 *          default
 * @nbytes: size of the workspace
 * @ctx:    the device
 *
 * By default each stream and each recording that runs GEMMs on a GPU allocates 32 MiB.
 * Recordings captured on the stream keep using @ptr, so several can share it: the caller must
 * keep the memory until they are destroyed, and must not run two that share it concurrently.
 * te_ctx_workspace_nbytes returns the size needed; 0 on host, where @ptr is not used.
 * Thread: one stream by one thread at a time.  Since: 0.1
 * Errors: -EINVAL (too small, not aligned), -EBUSY while capturing.
 */
TE_EXPORT int te_stream_workspace(struct te_stream *stream, void *ptr, size_t nbytes);
TE_EXPORT size_t te_ctx_workspace_nbytes(const struct te_ctx *ctx);
/* wait until everything queued has run; -EBUSY while capturing */
TE_EXPORT int te_stream_sync(struct te_stream *stream);
/* returns 1 if all queued work has run, 0 if work is pending, or an error */
TE_EXPORT int te_stream_query(struct te_stream *stream);

/**
 * te_event_* - points in a stream that other streams and the CPU wait for
 * @ctx:       the device; the event keeps a reference
 * @ret_event: the event, with one reference
 * @event:     the event
 * @stream:    the stream that records the event or waits for it
 * @from, @to: events of one context
 * @ret_ms:    time between the two, in milliseconds
 *
 * te_event_wait makes later work of the stream wait until the most recent
 * record of the event has been reached. During capture a wait on an event
 * recorded in the captured stream makes the waiting stream part of the capture.
 * te_event_elapsed_ms returns -EBUSY unless both events have been reached.
 * Thread: one event, and one stream, by one thread at a time.  Since: 0.1
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
 * te_mem_alloc, te_mem_free - allocate and free device memory in stream order
 * @stream:  the stream that orders the call
 * @nbytes:  size of the memory, above 0
 * @ret_ptr: the memory
 * @ptr:     memory to free, or NULL
 *
 * The memory is aligned to 256 bytes. Work queued on @stream afterwards may use it, and so may
 * other streams that waited for @stream. te_mem_free is ordered the same way.
 * Thread: one stream by one thread at a time.  Since: 0.1
 * Errors: -EINVAL (zero bytes), -ENOMEM (the message gives the requested and the free size),
 * -EBUSY while capturing, -TE_ECUDA.
 */
TE_EXPORT int te_mem_alloc(struct te_stream *stream, size_t nbytes, void **ret_ptr);
TE_EXPORT int te_mem_free(struct te_stream *stream, void *ptr);
/* pinned host memory: copies to and from it are asynchronous; not stream ordered */
TE_EXPORT int te_pinned_alloc(struct te_ctx *ctx, size_t nbytes, void **ret_ptr);
TE_EXPORT int te_pinned_free(struct te_ctx *ctx, void *ptr);

/* copy between any two of device and host memory, in stream order; host memory must remain
 * valid until the copy has run */
TE_EXPORT int te_copy(struct te_stream *stream, void *dst, const void *src, size_t nbytes);
/* fill device or pinned memory with bytes, or with 32-bit words (nbytes a multiple of 4, dst
 * aligned to 4) */
TE_EXPORT int te_fill(struct te_stream *stream, void *dst, uint8_t value, size_t nbytes);
TE_EXPORT int te_fill_u32(struct te_stream *stream, void *dst, uint32_t value, size_t nbytes);

typedef void (*te_host_fn)(void *arg);
/**
 * te_host_call - run a CPU function in stream order
 * @stream:       the call is queued on it
 * @fn:           the function
 * @arg, @nbytes: its argument, in host memory
 *
 * The @nbytes at @arg are copied, and fn gets the copy; with @nbytes 0 fn gets
 * @arg itself. In a capture the call becomes a node that keeps the copy and runs at every launch.
 * fn must not call this library.
 * Thread: one stream by one thread at a time.  Since: 0.1
 */
TE_EXPORT int te_host_call(struct te_stream *stream, te_host_fn fn, const void *arg, size_t nbytes);

TE_END_DECLS

#endif
