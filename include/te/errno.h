/*
 * te/errno.h - result codes and the detail behind the last failure.
 *
 * Functions return int: 0 or more is success, less is -errno or one of the
 * codes below, negated. A failing function records a sentence that names what
 * was at fault, for the calling thread.
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
	X(TE_EKERNEL, 1003, "this build holds no such device kernel")          \
	X(TE_ESHAPE, 1004, "shapes do not fit each other")                     \
	X(TE_EDTYPE, 1005, "an element type does not fit the operation")       \
	X(TE_ECHANNEL, 1006, "the channels of a sequence do not match")        \
	X(TE_EPLAN, 1007, "a sequence cannot be planned, or its plan is stale") \
	X(TE_ESTATE, 1008, "the object is not in a state that allows this")    \
	X(TE_ECORRUPT, 1009, "a file or blob is damaged or cut short")         \
	X(TE_EFORMAT, 1010, "a file or blob is of another kind or version")    \
	X(TE_ENUMERIC, 1011, "a value is not finite or out of range")          \
	X(TE_EORDER, 1012, "passes are in an order that cannot run")

enum te_errno {
#define TE_ERRNO_ENUM(name, number, text) name = number,
	TE_ERRNO_MAP(TE_ERRNO_ENUM)
#undef TE_ERRNO_ENUM
	TE_ERRNO_END /* one above the highest code */
};

/**
 * te_strerror - name a result code
 * @r: what a function returned, or its negation
 *
 * Returns a sentence without a full stop; "success" for every r that is
 * neither an errno nor a TE_E code. Never NULL. The text of an errno is valid
 * until the thread's next call; that of a TE_E code for ever.
 *
 * Thread: any thread.
 * Since:  0.1
 */
TE_EXPORT const char *te_strerror(int r);

/**
 * te_error_detail - say what was at fault in the thread's last failure
 *
 * Returns "" when nothing failed since te_error_clear() or thread start. The
 * string is the thread's own and valid until its next failing call.
 *
 * Thread: any thread; speaks of the calling thread only.
 * Since:  0.1
 */
TE_EXPORT const char *te_error_detail(void);

/**
 * te_error_cuda - the CUresult behind the thread's last failure, or 0
 *
 * Thread: any thread; speaks of the calling thread only.
 * Since:  0.1
 */
TE_EXPORT int te_error_cuda(void);

/**
 * te_error_verbs - the ibv_wc_status behind the thread's last failure, or 0
 *
 * Thread: any thread; speaks of the calling thread only.
 * Since:  0.1
 */
TE_EXPORT int te_error_verbs(void);

/**
 * te_error_clear - forget the thread's last failure
 *
 * Thread: any thread; speaks of the calling thread only.
 * Since:  0.1
 */
TE_EXPORT void te_error_clear(void);

TE_END_DECLS

#endif
