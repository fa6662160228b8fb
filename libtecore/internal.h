/* internal.h - shared inside libtecore only: its parameters. */
#ifndef TE_CORE_INTERNAL_H
#define TE_CORE_INTERNAL_H

#include <te/dtype.h>
#include <te/private.h>

/* TE_PARAM_LOG and so on, one a row of params.def */
enum te__param {
#define TE_PARAM(name, type, dflt, unit, category, text) TE_PARAM_##name,
#include "libtecore/params.def"
#undef TE_PARAM
	TE_PARAM_END
};

enum te__param_type {
	TE__PARAM_BOOL,
	TE__PARAM_INT,
	TE__PARAM_SIZE,
	TE__PARAM_DOUBLE,
	TE__PARAM_STRING,
	TE__PARAM_ENUM,
};

union te__param_value {
	int64_t i; /* BOOL, INT, SIZE; ENUM: the choice, from 0 */
	double d;
};

/* 0, or -EINVAL without a detail: the caller knows whose text this is */
int te__param_parse(enum te__param_type type, const char *choices,
		    const char *text, union te__param_value *ret_value);

/* each asserts that the row has that type */
int te__param_bool(enum te__param id);
int64_t te__param_int(enum te__param id);
size_t te__param_size(enum te__param id);
double te__param_double(enum te__param id);
const char *te__param_str(enum te__param id);
int te__param_enum(enum te__param id); /* index into the choices, from 0 */

/* the choices of TE_GEMM_HOST */
enum { TE__GEMM_HOST_AUTO, TE__GEMM_HOST_BLAS, TE__GEMM_HOST_REF };

/* the folder of TE_CACHE_DIR, made if it was not there; NULL: keep no files */
const char *te__param_cache_dir(void);

/* log, once a process, variables that are unknown or unreadable */
void te__param_warn(void);

/* device kernels of this build; ends with a NULL name */
struct te__kernel_image {
	const char *name;		/* kernels/te_NAME.cu */
	const unsigned char *start;	/* a fatbin */
	const unsigned char *end;
};
extern const struct te__kernel_image te__kernel_images[];

static inline int te__is_fp8(int32_t dtype)
{
	return dtype == TE_DTYPE_E4M3 || dtype == TE_DTYPE_E5M2;
}

#endif
