/*
 * te/param.h - the TE_* environment variables that this build supports, as te_info(1)
 * prints them. They are read once, at the first use of any of them.
 */
#ifndef TE_PARAM_H
#define TE_PARAM_H

#include <stddef.h>

#include <te/export.h>

TE_BEGIN_DECLS

struct te_param_info {
	size_t size;		/* set by the INIT macro; lets the struct grow */
	const char *name;	/* the environment variable */
	const char *type;	/* BOOL INT SIZE DOUBLE STRING ENUM */
	const char *value;	/* value in effect */
	const char *dflt;	/* value if the variable is not set */
	const char *unit;	/* "bytes", "ms", ...; the choices of an ENUM; or "" */
	const char *category;	/* CORE, GRAPH, COMM, ... */
	const char *text;	/* description, one sentence */
	const char *source;	/* "default", "environment" or "invalid" */
};
/* source "invalid": the variable cannot be parsed; value is the default, te_ctx_create fails */
#define TE_PARAM_INFO_INIT                                                     \
	{                                                                      \
		sizeof(struct te_param_info), NULL, NULL, NULL, NULL, NULL,    \
			NULL, NULL, NULL                                       \
	}

/**
 * te_param_count - the number of parameters that this build supports
 *
 * Thread: any thread.
 * Since:  0.1
 */
TE_EXPORT size_t te_param_count(void);

/**
 * te_param_info - describe one parameter
 * @i:        0 to te_param_count() - 1
 * @ret_info: initialised by TE_PARAM_INFO_INIT; its strings are valid until the
 *            process ends
 *
 * Thread: any thread.
 * Errors: -EINVAL for an index out of range or an unknown size.
 * Since:  0.1
 */
TE_EXPORT int te_param_info(size_t i, struct te_param_info *ret_info);

/**
 * te_param_unknown - name a TE_* variable of the environment that is not a parameter
 * @i: 0 and up
 *
 * Returns NULL if there are no more. The string is valid until the process ends.
 *
 * Thread: any thread.
 * Since:  0.1
 */
TE_EXPORT const char *te_param_unknown(size_t i);

TE_END_DECLS

#endif
