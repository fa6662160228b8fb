/* t/kernels/ref.h - what reference functions of kernels/ call, for programs with fibers.h. */
#ifndef TT_REF_H
#define TT_REF_H

#include <stdlib.h>
#include <te/dtype.h>

extern "C" {
void te__k_for(int64_t n, int64_t, void (*fn)(void *arg, int64_t begin, int64_t end), void *arg)
{
	fn(arg, 0, n);
}
void *te__k_take(size_t nbytes)
{
	return malloc(nbytes);
}
void te__k_give(void *p)
{
	free(p);
}
int te__param_enum(int)
{
	return 0;
}
size_t te_dtype_nbytes(enum te_dtype dtype)
{
	return dtype == TE_DTYPE_FP32 ? 4 : dtype == TE_DTYPE_BF16 ? 2 : 1;
}
}

#endif
