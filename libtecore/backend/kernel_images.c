/* kernel_images.c - which device kernels are embedded in this build. */
#include "config.h"

#include "libtecore/internal.h"

#ifdef HAVE_KERNELS
#define TE_K_MODULE(name)                                     \
	extern const unsigned char te__fatbin_##name[];       \
	extern const unsigned char te__fatbin_##name##_end[];
#include "kernels/te_k_modules.def"
#undef TE_K_MODULE
#endif

const struct te__kernel_image te__kernel_images[] = {
#ifdef HAVE_KERNELS
#define TE_K_MODULE(name) { #name, te__fatbin_##name, te__fatbin_##name##_end },
#include "kernels/te_k_modules.def"
#undef TE_K_MODULE
#endif
	{ NULL, NULL, NULL },
};
