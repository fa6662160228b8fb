/* kernels_embed.S - each kernels/te_NAME.fatbin between te__fatbin_NAME and its _end. */
	.macro fatbin name
	.section .rodata
	.balign 64
	.globl te__fatbin_\name
	.hidden te__fatbin_\name
	.globl te__fatbin_\name\()_end
	.hidden te__fatbin_\name\()_end
te__fatbin_\name:
	.incbin "kernels/te_\name\().fatbin"
te__fatbin_\name\()_end:
	.byte 0
	.endm

#define TE_K_MODULE(name) fatbin name
#include "kernels/te_k_modules.def"

	.section .note.GNU-stack,"",%progbits
