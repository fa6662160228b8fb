/*
 * te/log.h - where the libraries' log lines go.
 *
 * The libraries are silent unless TE_LOG, te_log_filter() or both ask for
 * lines. Without a callback the lines go to stderr.
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
 * te_log_fn - receives one log line
 * @arg:      as given to te_log_set()
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
 * te_log_set - send log lines to a function instead of stderr
 * @fn:  the function, or NULL to go back to stderr
 * @arg: passed to fn; must outlive its use
 *
 * Thread: any thread; on return the previous function is no longer running.
 * Since:  0.1
 */
TE_EXPORT void te_log_set(te_log_fn *fn, void *arg);

/**
 * te_log_filter - choose which lines are made, in place of TE_LOG
 * @spec: levels by category, "warn" or "info,comm=trace"; "off" for none.
 *        A category names itself and all below it; the longest match wins.
 *
 * Thread: any thread.
 * Errors: -EINVAL for a spec that cannot be read; the old one stays.
 * Since:  0.1
 */
TE_EXPORT int te_log_filter(const char *spec);

TE_END_DECLS

#endif
