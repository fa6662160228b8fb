/* base.h - parsing of parameters, shared inside libtecore only; private.h has their values. */
#ifndef TE_CORE_INTERNAL_H
#define TE_CORE_INTERNAL_H

#include <te/dtype.h>
#include "libtecore/base/private.h"

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

/* 0, or -EINVAL without an error message: the caller knows the variable's name */
int te__param_parse(enum te__param_type type, const char *choices,
		    const char *text, union te__param_value *ret_value);

/* the choices of TE_GEMM_HOST */
enum { TE__GEMM_HOST_TILES, TE__GEMM_HOST_BLAS, TE__GEMM_HOST_REF };

/* the choices of TE_ATTENTION and TE_GEMM_PROVIDER */
enum { TE__ATTENTION_AUTO, TE__ATTENTION_MMA, TE__ATTENTION_SM90 };
enum { TE__GEMM_CUBLASLT, TE__GEMM_SM90, TE__GEMM_MMA };

/* the choices of TE_GRADIENTS */
enum { TE__GRADIENTS_AUTO, TE__GRADIENTS_ONCE, TE__GRADIENTS_APART };

/* the choices of TE_PLAN_SEPARATE */
enum { TE__SEPARATE_AUTO, TE__SEPARATE_ON, TE__SEPARATE_OFF };

/* the folder of TE_CACHE_DIR, created if it does not exist; NULL: do not keep files */
const char *te__param_cache_dir(void);

/* logs, once per process, variables that are unknown or invalid; returns -EINVAL with an error
 * message if one is invalid */
int te__param_check(const char *fn);

/* a row of params.def and its value */
struct te__param_seen {
	const char *name, *dflt, *unit, *category, *text;
	enum te__param_type type;
	const char *value, *source; /* as in struct te_param_info */
	const char *invalid;	    /* invalid value of the environment, or NULL */
};
struct te__param_seen te__param_seen(int id);

/* check a filter such as info,comm=trace, and take it if install is 1; -EINVAL without an error
 * message */
int te__log_parse(const char *spec, int install);

/* FP8 GEMMs have extents that are multiples of it; padding has codes of 0 */
#define TE__FP8_EXTENT 16
static inline int64_t te__fp8_extent(int64_t n)
{
	return (n + TE__FP8_EXTENT - 1) / TE__FP8_EXTENT * TE__FP8_EXTENT;
}

static inline int te__is_fp8(int32_t dtype)
{
	return dtype == TE_DTYPE_E4M3 || dtype == TE_DTYPE_E5M2;
}

/* 1: elements are codes with a scale-inverse */
static inline int te__is_codes(int32_t dtype)
{
	return te__is_fp8(dtype) || dtype == TE_DTYPE_E2M1;
}

/* bytes of n elements; of E2M1 n is even */
static inline int64_t te__nbytes_of(int32_t dtype, int64_t n)
{
	return dtype == TE_DTYPE_E2M1 ? n / 2 : n * (int64_t)te_dtype_nbytes((enum te_dtype)dtype);
}

/* patterns.c: 1: one of n patterns matches the name of a value */
int te__patterns_match(const char *name, const char *const *pattern, int n);
/* -EINVAL, naming fn: the list of option "X" does not have nX patterns */
int te__patterns_check(const char *fn, const char *option, int32_t n, const char *const *pattern);

#endif
