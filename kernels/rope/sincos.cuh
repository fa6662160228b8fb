/* sincos.cuh - sines and cosines of positions, shared by rope.cu and attn/cached.cu. */
#ifndef TE_ROPE_SINCOS_CUH
#define TE_ROPE_SINCOS_CUH

#include "kernels/dev.cuh"

/*
 * Sine and cosine of position * frequency. The angle is reduced to [-pi/4, pi/4] in FP64, which
 * keeps more than 24 bits up to 2^26; the polynomials are from Cephes' sinf.c, accurate to
 * about 1 ulp there. CUDA's sinf and cosf would put a table in local memory for the reduction of
 * larger angles, which do not occur.
 */
DEV void sincos_of(float angle, float *ret_sin, float *ret_cos)
{
	const double turns = rint((double)angle * 0.63661977236758134308);
	const float x = (float)fma(turns, -6.12323399573676603587e-17,
				   fma(turns, -1.57079632679489655800, (double)angle));
	const int quarter = (int)(int64_t)turns & 3;
	const float z = x * x;
	const float s = fmaf(fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z,
				  -1.6666654611e-1f) * z, x, x);
	const float c = fmaf(fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z,
				  4.166664568298827e-2f) * z, z, fmaf(-0.5f, z, 1.0f));

	*ret_sin = quarter & 1 ? c : s;
	*ret_cos = quarter & 1 ? s : c;
	if (quarter & 2)
		*ret_sin = -*ret_sin;
	if ((quarter + 1) & 2)
		*ret_cos = -*ret_cos;
}

#endif
