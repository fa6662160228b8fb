/*
 * te/errno.h - result codes and the message of the last failure.
 *
 * Functions return int: 0 or more is success, a negative value is -errno or one of the
 * codes below, negated. A failing function records an error message that names the
 * cause, for the calling thread.
 */
#ifndef TE_ERRNO_H
#define TE_ERRNO_H

#include <te/export.h>

TE_BEGIN_DECLS

/* name, number (never reused), text of te_strerror() */
#define TE_ERRNO_MAP(X)                                                        \
	X(TE_ECUDA, 1000, "a CUDA driver call failed")                         \
	X(TE_EBLAS, 1001, "a cuBLASLt call failed, or cuBLASLt is absent")     \
	X(TE_EDEVICE, 1002, "the device is absent or not supported")           \
	X(TE_EKERNEL, 1003, "this build has no such device kernel")            \
	X(TE_ESHAPE, 1004, "shapes do not match")                              \
	X(TE_EDTYPE, 1005, "an operation does not support an element type")    \
	X(TE_ECHANNEL, 1006, "the channels of a sequence do not match")        \
	X(TE_EPLAN, 1007, "a sequence cannot be planned, or its plan is stale") \
	X(TE_ESTATE, 1008, "the state of the object does not allow this")      \
	X(TE_ECORRUPT, 1009, "a file or blob is damaged or truncated")         \
	X(TE_EFORMAT, 1010, "a file or blob has another format or version")    \
	X(TE_ENUMERIC, 1011, "a value is not finite or out of range")          \
	X(TE_EORDER, 1012, "the order of passes is not valid")                 \
	X(TE_EPEER, 1013, "a rank has ended or cannot be reached")             \
	X(TE_EMISMATCH, 1014, "ranks do not agree")                            \
	X(TE_EABORT, 1015, "a rank has aborted the communicator")

enum te_errno {
#define TE_ERRNO_ENUM(name, number, text) name = number,
	TE_ERRNO_MAP(TE_ERRNO_ENUM)
#undef TE_ERRNO_ENUM
	TE_ERRNO_END /* one above the highest code */
};

/**
 * te_strerror - name a result code
 * @r: the result of a function, or its negation
 *
 * Returns a text without a full stop. For an r that is neither an errno nor a TE_E code it is
 * "success", or "unknown error" if r is below 0. Never NULL. The text of an errno is valid
 * until the thread's next call; the text of a TE_E code until the process ends.
 *
 * Thread: any thread.
 * Since:  0.1
 */
TE_EXPORT const char *te_strerror(int r);

/**
 * te_error_detail - the error message of the thread's last failure
 *
 * Returns "" if nothing failed since te_error_clear() or thread start. The
 * string belongs to the thread and is valid until its next failing call.
 *
 * Thread: any thread; refers to the calling thread only.
 * Since:  0.1
 */
TE_EXPORT const char *te_error_detail(void);

/**
 * te_fail - give the error message of a failure that a callback returns
 * @code: a negative code, which te_fail returns
 * @fmt:  as printf(3): the error, and the name of the object at fault
 *
 * For operations, fusions, callables and hooks: return te_fail(-ENOSPC, "cache %s is full", name).
 * Without it the message says only which callback failed.
 *
 * Thread: any thread; the message is the calling thread's.
 * Since:  0.1
 */
TE_EXPORT int te_fail(int code, const char *fmt, ...) TE_PRINTF(2, 3);

/**
 * te_error_cuda - the CUresult that caused the thread's last failure, or 0
 *
 * Thread: any thread; refers to the calling thread only.
 * Since:  0.1
 */
TE_EXPORT int te_error_cuda(void);

/**
 * te_error_verbs - the ibv_wc_status that caused the thread's last failure, or 0
 *
 * Thread: any thread; refers to the calling thread only.
 * Since:  0.1
 */
TE_EXPORT int te_error_verbs(void);

/**
 * te_error_clear - clear the thread's last failure
 *
 * Thread: any thread; refers to the calling thread only.
 * Since:  0.1
 */
TE_EXPORT void te_error_clear(void);

TE_END_DECLS

#endif
