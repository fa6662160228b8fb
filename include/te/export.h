/* te/export.h - macros for declarations in public headers. */
#ifndef TE_EXPORT_H
#define TE_EXPORT_H

/* makes a symbol visible: the libraries are built with hidden visibility */
#define TE_EXPORT __attribute__((visibility("default")))

#define TE_PRINTF(fmt_arg, first_arg) \
	__attribute__((format(printf, fmt_arg, first_arg)))

#ifdef __cplusplus
#define TE_BEGIN_DECLS extern "C" {
#define TE_END_DECLS }
#else
#define TE_BEGIN_DECLS
#define TE_END_DECLS
#endif

#endif
