# One folder a family. Each .cu becomes a .fatbin80, .fatbin90, ... for each level, and libtecore holds
# them all through images.S, which is made from this list: kernels/FAMILY/NAME.cu is FAMILY_NAME_80.
# files with the same code for 8.0 and 8.6, and others: a block of 8.6 has less shared memory
KERNEL_SAME_CU = \
	kernels/act/act.cu \
	kernels/attn/cached.cu \
	kernels/attn/sinks.cu \
	kernels/comm/allreduce.cu \
	kernels/comm/collectives.cu \
	kernels/comm/fold.cu \
	kernels/comm/messages.cu \
	kernels/comm/norm.cu \
	kernels/comm/nvls.cu \
	kernels/elem/elem.cu \
	kernels/elem/heads.cu \
	kernels/embed/embed.cu \
	kernels/gemm/block.cu \
	kernels/gemm/few_rows.cu \
	kernels/gemm/gemm.cu \
	kernels/gemm/mx.cu \
	kernels/norm/backward.cu \
	kernels/norm/both.cu \
	kernels/norm/cast.cu \
	kernels/norm/forward.cu \
	kernels/norm/once.cu \
	kernels/norm/qk.cu \
	kernels/norm/rows.cu \
	kernels/optim/optim.cu \
	kernels/quant/mx.cu \
	kernels/quant/quant.cu \
	kernels/reduce/reduce.cu \
	kernels/rope/rope.cu \
	kernels/weights/weights.cu

KERNEL_86_CU = \
	kernels/attn/attn.cu \
	kernels/attn/more.cu \
	kernels/attn/wide.cu \
	kernels/loss/loss.cu

KERNEL_CU = $(KERNEL_86_CU) $(KERNEL_SAME_CU)

# wgmma, TMA and clusters: level 90 only
KERNEL_SM90_CU = \
	kernels/attn/sm90.cu \
	kernels/attn/sm90_bwd.cu \
	kernels/attn/step.cu \
	kernels/gemm/sm90.cu

KERNEL_C = \
	kernels/act/act.c \
	kernels/act/launch.c \
	kernels/attn/attn.c \
	kernels/attn/cached.c \
	kernels/attn/launch.c \
	kernels/attn/plan.c \
	kernels/comm/collectives.c \
	kernels/comm/comm.c \
	kernels/comm/launch.c \
	kernels/comm/messages.c \
	kernels/comm/norm.c \
	kernels/comm/nvls.c \
	kernels/elem/elem.c \
	kernels/elem/launch.c \
	kernels/embed/embed.c \
	kernels/embed/launch.c \
	kernels/gemm/few_rows.c \
	kernels/gemm/gemm.c \
	kernels/gemm/launch.c \
	kernels/gemm/plan.c \
	kernels/gemm/schedule.c \
	kernels/kernels.c \
	kernels/launch.c \
	kernels/loss/launch.c \
	kernels/loss/loss.c \
	kernels/micro.c \
	kernels/norm/launch.c \
	kernels/norm/norm.c \
	kernels/optim/launch.c \
	kernels/optim/optim.c \
	kernels/quant/launch.c \
	kernels/quant/nvfp4.c \
	kernels/quant/quant.c \
	kernels/quant/scale.c \
	kernels/reduce/launch.c \
	kernels/reduce/reduce.c \
	kernels/ref.c \
	kernels/rope/launch.c \
	kernels/rope/rope.c \
	kernels/simd.c \
	kernels/weights/launch.c \
	kernels/weights/weights.c

KERNEL_H = \
	kernels/act/act.h \
	kernels/attn/attn.h \
	kernels/attn/cached.h \
	kernels/attn/geometry.h \
	kernels/attn/online.h \
	kernels/attn/sm90.h \
	kernels/comm/comm.h \
	kernels/comm/fold.h \
	kernels/comm/geometry.h \
	kernels/comm/messages.h \
	kernels/comm/norm.h \
	kernels/comm/ref.h \
	kernels/elem/elem.h \
	kernels/elem/geometry.h \
	kernels/embed/embed.h \
	kernels/embed/geometry.h \
	kernels/exp.h \
	kernels/gemm/gemm.h \
	kernels/gemm/geometry.h \
	kernels/gemm/schedule.h \
	kernels/gemm/sm90.h \
	kernels/kernels.def \
	kernels/kernels.h \
	kernels/launch.h \
	kernels/loss/geometry.h \
	kernels/loss/loss.h \
	kernels/micro.h \
	kernels/norm/geometry.h \
	kernels/norm/norm.h \
	kernels/optim/geometry.h \
	kernels/optim/optim.h \
	kernels/optim/round.h \
	kernels/philox.h \
	kernels/quant/geometry.h \
	kernels/quant/quant.h \
	kernels/reduce/geometry.h \
	kernels/reduce/reduce.h \
	kernels/ref.h \
	kernels/rope/geometry.h \
	kernels/rope/rope.h \
	kernels/simd.h \
	kernels/sm90.h \
	kernels/te_k.h \
	kernels/team.h \
	kernels/tile.h \
	kernels/weights/geometry.h \
	kernels/weights/weights.h

KERNEL_CUH = \
	kernels/approx.cuh \
	kernels/attn/cached.cuh \
	kernels/attn/dev.cuh \
	kernels/attn/fp32.cuh \
	kernels/attn/quantize.cuh \
	kernels/attn/sm90.cuh \
	kernels/attn/strip.cuh \
	kernels/attn/tile.cuh \
	kernels/begin.cuh \
	kernels/block.cuh \
	kernels/comm/algorithms.cuh \
	kernels/comm/comm.cuh \
	kernels/comm/reduce.cuh \
	kernels/dev.cuh \
	kernels/fp8.cuh \
	kernels/gelu.cuh \
	kernels/gemm/finish.cuh \
	kernels/gemm/tile.cuh \
	kernels/mma.cuh \
	kernels/norm/norm.cuh \
	kernels/norm/rows.cuh \
	kernels/quant/mx.cuh \
	kernels/rope/sincos.cuh \
	kernels/sm90.cuh \
	kernels/split.cuh \
	kernels/tile.cuh \
	kernels/weights/weights.cuh

# one image for each level that --with-gpu-archs names: a compute capability, 80 is 8.0
KERNEL_FATBIN =
if GPU_80
KERNEL_FATBIN += $(KERNEL_CU:.cu=.fatbin80)
endif
# the .cu files of which level 86 has the images of level 80
KERNEL_86_AS_80 =
if GPU_86
if GPU_86_AS_80
KERNEL_FATBIN += $(KERNEL_86_CU:.cu=.fatbin86)
KERNEL_86_AS_80 += $(KERNEL_SAME_CU)
else
KERNEL_FATBIN += $(KERNEL_CU:.cu=.fatbin86)
endif
endif
if GPU_89
KERNEL_FATBIN += $(KERNEL_CU:.cu=.fatbin89)
endif
if GPU_90
KERNEL_FATBIN += $(KERNEL_CU:.cu=.fatbin90) $(KERNEL_SM90_CU:.cu=.fatbin90)
endif
SUFFIXES += .cu .fatbin80 .fatbin86 .fatbin89 .fatbin90
AM_V_NVCC = $(AM_V_NVCC_@AM_V@)
AM_V_NVCC_ = $(AM_V_NVCC_@AM_DEFAULT_V@)
AM_V_NVCC_0 = @echo "  NVCC    " $@;
AM_V_NVCC_1 =
# NVCC_QUICK: an option with which .ci/run compiles kernels in less time
KERNEL_NVCC = $(AM_V_NVCC)$(MKDIR_P) $(@D) && \
	$(NVCC) -fatbin $(NVCCFLAGS) $(NVCC_COMPRESS) -I$(top_srcdir) -MMD -MP -MF $@.d -o $@ $<
.cu.fatbin80:
	$(KERNEL_NVCC) $(NVCC_GENCODE_80) $(NVCC_QUICK)
.cu.fatbin86:
	$(KERNEL_NVCC) $(NVCC_GENCODE_86) $(NVCC_QUICK)
.cu.fatbin89:
	$(KERNEL_NVCC) $(NVCC_GENCODE_89) $(NVCC_QUICK)
.cu.fatbin90:
	$(KERNEL_NVCC) $(NVCC_GENCODE_90) $(NVCC_QUICK)
-include $(KERNEL_FATBIN:=.d)
# kernels with instructions or registers that t/kernels/t0013 and t0022 look at: never NVCC_QUICK, and
# with what ptxas reports
KERNEL_TESTED = \
	kernels/attn/sm90.fatbin90 \
	kernels/attn/sm90_bwd.fatbin90 \
	kernels/comm/nvls.fatbin90 \
	kernels/elem/heads.fatbin90 \
	kernels/gemm/sm90.fatbin90
$(KERNEL_TESTED): %.fatbin90: %.cu
	$(KERNEL_NVCC) $(NVCC_GENCODE_90) -Xptxas -v 2>$@.log || { cat $@.log; exit 1; }

# te__kernel_images: name, start, end and level of each; a NULL name ends it
kernels/images.S: $(srcdir)/kernels/local.mk Makefile
	$(AM_V_GEN)$(MKDIR_P) kernels && { \
		for f in $(KERNEL_FATBIN); do \
			n=`echo $$f | sed 's,kernels/,,;s,/,_,;s,\.fatbin,_,'`; \
			echo "	.section .rodata"; \
			echo "	.balign 64"; \
			echo "te__image_$$n: .incbin \"$$f\""; \
			echo "te__image_end_$$n: .byte 0"; \
			echo "te__image_name_$$n: .asciz \"$$n\""; \
		done; \
		for f in $(KERNEL_86_AS_80); do \
			n=`echo $$f | sed 's,kernels/,,;s,/,_,;s,\.cu,_,'`; \
			echo "te__image_name_$${n}86: .asciz \"$${n}86\""; \
		done; \
		echo "	.section .data.rel.ro,\"aw\",%progbits"; \
		echo "	.balign 8"; \
		echo "	.globl te__kernel_images"; \
		echo "	.hidden te__kernel_images"; \
		echo "te__kernel_images:"; \
		for f in $(KERNEL_FATBIN); do \
			n=`echo $$f | sed 's,kernels/,,;s,/,_,;s,\.fatbin,_,'`; \
			echo "	.quad te__image_name_$$n, te__image_$$n, te__image_end_$$n, $${f##*.fatbin}"; \
		done; \
		for f in $(KERNEL_86_AS_80); do \
			n=`echo $$f | sed 's,kernels/,,;s,/,_,;s,\.cu,_,'`; \
			n80=te__image_$${n}80 end80=te__image_end_$${n}80; \
			echo "	.quad te__image_name_$${n}86, $$n80, $$end80, 86"; \
		done; \
		echo "	.quad 0, 0, 0, 0"; \
		echo "	.section .note.GNU-stack,\"\",%progbits"; \
	} >$@.tmp && mv $@.tmp $@

EXTRA_DIST += $(KERNEL_CU) $(KERNEL_SM90_CU)
noinst_HEADERS += $(KERNEL_CUH)
CLEANFILES += kernels/*/*.fatbin[89][0-9] kernels/*/*.fatbin[89][0-9].d \
	kernels/*/*.fatbin90.log kernels/images.S
