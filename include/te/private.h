/*
 * te/private.h - what libtecore lends libtegraph and libtecomm of the same
 * version, and the three share: failing, logging, allocating. Not installed.
 *
 * A file may name its log category before the first include:
 *	#define TE_LOG_CATEGORY "core/quant"
 */
#ifndef TE_PRIVATE_H
#define TE_PRIVATE_H

#include <stddef.h>
#include <stdint.h>

#include <te/errno.h>
#include <te/export.h>
#include <te/log.h>

#ifndef TE_LOG_CATEGORY
#define TE_LOG_CATEGORY "core"
#endif

/*
 * Each records the sentence for the calling thread, logs it at debug, and
 * returns code, so that a caller writes
 *	return te__fail(-TE_ESHAPE, "te_gemm: a is [%d,%d], b [%d,%d]", ...);
 * once, where the code is decided. Callers above pass the code up untouched.
 */
#define te__fail(code, ...) te__fail_at(TE_LOG_CATEGORY, (code), __VA_ARGS__)
/* returns -TE_ECUDA; the sentence gets the CUresult's number behind it */
#define te__fail_cuda(curesult, ...) \
	te__fail_cuda_at(TE_LOG_CATEGORY, (curesult), __VA_ARGS__)
/* returns code; status is an ibv_wc_status */
#define te__fail_verbs(code, status, ...) \
	te__fail_verbs_at(TE_LOG_CATEGORY, (code), (status), __VA_ARGS__)

TE_EXPORT int te__fail_at(const char *category, int code, const char *fmt, ...)
	TE_PRINTF(3, 4);
TE_EXPORT int te__fail_cuda_at(const char *category, int curesult,
			       const char *fmt, ...) TE_PRINTF(3, 4);
TE_EXPORT int te__fail_verbs_at(const char *category, int code, int status,
				const char *fmt, ...) TE_PRINTF(4, 5);

/* arguments are not evaluated for a line nobody asked for */
#define te__log(level, ...)                                                  \
	do {                                                                 \
		if (te__log_on((level), TE_LOG_CATEGORY))                    \
			te__log_at((level), TE_LOG_CATEGORY, __VA_ARGS__);   \
	} while (0)
#define te__log_error(...) te__log(TE_LOG_ERROR, __VA_ARGS__)
#define te__log_warn(...) te__log(TE_LOG_WARN, __VA_ARGS__)
#define te__log_info(...) te__log(TE_LOG_INFO, __VA_ARGS__)
#define te__log_debug(...) te__log(TE_LOG_DEBUG, __VA_ARGS__)
#define te__log_trace(...) te__log(TE_LOG_TRACE, __VA_ARGS__)

TE_EXPORT int te__log_on(enum te_log_level level, const char *category);
TE_EXPORT void te__log_at(enum te_log_level level, const char *category,
			  const char *fmt, ...) TE_PRINTF(3, 4);

/*
 * All host memory of the libraries comes from these, so that tests can fail
 * the nth allocation and count what is left. Memory from them goes back
 * through te__free(), which takes NULL.
 */
TE_EXPORT void *te__malloc(size_t nbytes) __attribute__((malloc));
TE_EXPORT void *te__calloc(size_t n, size_t nbytes) __attribute__((malloc));
TE_EXPORT void *te__realloc(void *p, size_t nbytes);
TE_EXPORT void *te__aligned_alloc(size_t align, size_t nbytes)
	__attribute__((malloc));
TE_EXPORT char *te__strdup(const char *s) __attribute__((malloc));
TE_EXPORT void te__free(void *p);
/* returns p, which the caller of the library releases with free(3) */
TE_EXPORT void *te__give(void *p);
/* releases what libc allocated for us, as open_memstream(3) does */
TE_EXPORT void te__free_libc(void *p);
TE_EXPORT int64_t te__alloc_live(void); /* allocations not yet freed */

struct te_stream;
/* 0, or -EBUSY naming fn, or without a sentence if that is NULL, while the stream takes part in a
 * capture */
TE_EXPORT int te__stream_not_capturing(const struct te_stream *stream, const char *fn);
/*
 * What is queued on the stream from now on runs when all has that is queued on the other; where the
 * other is capturing, all that was queued before, and the stream does not join. Of one context.
 * -EBUSY while the first takes part in any capture, or the other in one that began without this
 * library.
 */
TE_EXPORT int te__stream_follow(struct te_stream *stream, struct te_stream *other);

/*
 * Fault injection. Every allocation above and every driver call passes a fault
 * point; te__fault_set(n) makes the nth from then on fail, once; 0 disarms.
 * te__fault_point() returns 1 where the caller shall fail.
 */
TE_EXPORT void te__fault_set(uint64_t nth);
TE_EXPORT int te__fault_point(void);
TE_EXPORT int te__fault_fired(void); /* whether the armed fault happened */

#endif
