/*
 * te/log.h - log messages of the libraries.
 *
 * The libraries log nothing unless TE_LOG or te_log_filter() enables messages.
 * Without a callback messages are written to stderr.
 */
#ifndef TE_LOG_H
#define TE_LOG_H

#include <te/export.h>

TE_BEGIN_DECLS

enum te_log_level {
	TE_LOG_OFF = 0,
	TE_LOG_ERROR = 1,
	TE_LOG_WARN = 2,
	TE_LOG_INFO = 3,
	TE_LOG_DEBUG = 4,
	TE_LOG_TRACE = 5
};

/**
 * te_log_fn - receives one log message
 * @arg:      the arg of te_log_set()
 * @level:    TE_LOG_ERROR to TE_LOG_TRACE
 * @category: area and topic, such as "core/quant"
 * @text:     one line without "te:", level, category or newline
 *
 * Called on the thread that logs, one call at a time. It must not call the
 * te_log functions.
 */
typedef void te_log_fn(void *arg, enum te_log_level level, const char *category,
		       const char *text);

/**
 * te_log_set - pass log messages to a function instead of stderr
 * @fn:  the function; NULL restores stderr
 * @arg: passed to fn; must outlive its use
 *
 * Thread: any thread; on return the previous function is no longer running.
 * Since:  0.1
 */
TE_EXPORT void te_log_set(te_log_fn *fn, void *arg);

/**
 * te_log_filter - choose which messages are logged; overrides TE_LOG
 * @spec: levels by category, "warn" or "info,comm=trace"; "off" for none.
 *        A category applies to itself and all below it; the longest match wins.
 *
 * Thread: any thread.
 * Errors: -EINVAL for a spec that cannot be parsed; the old one remains in effect.
 * Since:  0.1
 */
TE_EXPORT int te_log_filter(const char *spec);

TE_END_DECLS

#endif
