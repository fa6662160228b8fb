# One folder a family. Each .cu becomes a .fatbin80, .fatbin90, ... for each level, and one .ptx, and
# libtecore holds them all through images.S, which is made from this list: kernels/FAMILY/NAME.cu is
# FAMILY_NAME_80 and FAMILY_NAME_ptx80.
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
	kernels/gemm/any.cu \
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
	kernels/attn/bias.cu \
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
	kernels/attn/starts.cuh \
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
	kernels/gemm/decode.cuh \
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

# machine code of each level that --with-gpu-archs names: a compute capability, 80 is 8.0
KERNEL_FATBIN =
if GPU_80
KERNEL_FATBIN += $(KERNEL_CU:.cu=.fatbin80)
endif
# the .cu files of which level 86 has the code of level 80
KERNEL_86_AS_80 =
if GPU_86
if GPU_86_AS_80
KERNEL_FATBIN += $(KERNEL_86_CU:.cu=.fatbin86)
KERNEL_86_AS_80 += $(KERNEL_SAME_CU)
$(KERNEL_86_CU:.cu=.ptx.img): %.ptx.img: %.fatbin86
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
# the .cu files with PTX, the levels of which are in KERNEL_PTX_CC; texts of all levels in one file
KERNEL_PTX_CU =
KERNEL_PTX_SM90_CU =
if GPU_PTX
KERNEL_PTX_CU += $(KERNEL_CU)
endif
if GPU_PTX_90
KERNEL_PTX_SM90_CU += $(KERNEL_SM90_CU)
endif
KERNEL_PTX = $(KERNEL_PTX_CU:.cu=.ptx) $(KERNEL_PTX_SM90_CU:.cu=.ptx)
KERNEL_CODE_IMG = $(KERNEL_FATBIN:=.img)
KERNEL_PTX_IMG = $(KERNEL_PTX:=.img)
KERNEL_IMAGES = $(KERNEL_CODE_IMG) $(KERNEL_PTX_IMG)
SUFFIXES += .cu .fatbin80 .fatbin86 .fatbin89 .fatbin90
AM_V_NVCC = $(AM_V_NVCC_@AM_V@)
AM_V_NVCC_ = $(AM_V_NVCC_@AM_DEFAULT_V@)
AM_V_NVCC_0 = @echo "  NVCC    " $@;
AM_V_NVCC_1 =
# NVCC_80 and others make NAME.fatbin80, and NAME.80.ptx if there is PTX of the level.
# NVCC_QUICK: an option with which .ci/run compiles kernels in less time
KERNEL_NVCC = $(MKDIR_P) $(@D) && \
	$(NVCC) $(NVCCFLAGS) $(NVCC_COMPRESS) -I$(top_srcdir) -MMD -MP -MF $@.d -MT $@
.cu.fatbin80:
	$(AM_V_NVCC)$(KERNEL_NVCC) $(NVCC_QUICK) $(NVCC_80)
.cu.fatbin86:
	$(AM_V_NVCC)$(KERNEL_NVCC) $(NVCC_QUICK) $(NVCC_86)
.cu.fatbin89:
	$(AM_V_NVCC)$(KERNEL_NVCC) $(NVCC_QUICK) $(NVCC_89)
.cu.fatbin90:
	$(AM_V_NVCC)$(KERNEL_NVCC) $(NVCC_QUICK) $(NVCC_90)
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
	$(AM_V_NVCC){ $(KERNEL_NVCC) -Xptxas -v $(NVCC_90); } 2>$@.log || { cat $@.log; exit 1; }

# what the library has: .xz files, or as they are without liblzma
$(KERNEL_CODE_IMG): %.img: %
	$(AM_V_GEN)$(KERNEL_XZ_CODE) <$< >$@.tmp && mv $@.tmp $@
$(KERNEL_PTX_CU:.cu=.ptx.img): %.ptx.img: $(KERNEL_PTX_FROM)
$(KERNEL_PTX_SM90_CU:.cu=.ptx.img): %.ptx.img: %.fatbin90
$(KERNEL_PTX_IMG): $(srcdir)/kernels/ptx.awk
	$(AM_V_GEN)for cc in $(KERNEL_PTX_CC); do \
		f=`echo $@ | sed "s/ptx.img$$/$$cc.ptx/"`; \
		test -f $$f || continue; \
		LC_ALL=C $(AWK) -f $(srcdir)/kernels/ptx.awk $$f && printf '\0' || exit 1; \
	done >$@.txt && $(KERNEL_XZ_PTX) <$@.txt >$@.tmp && mv $@.tmp $@ && rm $@.txt

# te__kernel_images: name, start, end, level and PTX of each; a NULL name ends it
kernels/images.S: $(srcdir)/kernels/local.mk Makefile
	$(AM_V_GEN)$(MKDIR_P) kernels && { \
		for f in $(KERNEL_FATBIN) $(KERNEL_PTX); do \
			n=`echo $$f | sed 's,kernels/,,;s,[/.],_,g;s,_fatbin,_,'`; \
			echo "	.section .rodata"; \
			echo "	.balign 64"; \
			echo "te__image_$$n: .incbin \"$$f.img\""; \
			echo "te__image_end_$$n: .byte 0"; \
		done; \
		row() { \
			echo "	.section .rodata"; \
			echo "te__image_name_$$1: .asciz \"$$1\""; \
			echo "	.section .data.rel.ro,\"aw\",%progbits"; \
			echo "	.quad te__image_name_$$1, te__image_$$2, te__image_end_$$2, $$3, $$4"; \
		}; \
		echo "	.section .data.rel.ro,\"aw\",%progbits"; \
		echo "	.balign 8"; \
		echo "	.globl te__kernel_images"; \
		echo "	.hidden te__kernel_images"; \
		echo "te__kernel_images:"; \
		for f in $(KERNEL_FATBIN); do \
			n=`echo $$f | sed 's,kernels/,,;s,/,_,;s,\.fatbin,_,'`; \
			row $$n $$n $${f##*.fatbin} 0; \
		done; \
		for f in $(KERNEL_86_AS_80:.cu=); do \
			n=`echo $$f | sed 's,kernels/,,;s,/,_,'`; \
			row $${n}_86 $${n}_80 86 0; \
		done; \
		for cc in $(KERNEL_PTX_CC); do \
			for f in $(KERNEL_PTX_CU:.cu=); do \
				n=`echo $$f | sed 's,kernels/,,;s,/,_,'` text=$$cc; \
				case "$$cc $(KERNEL_86_AS_80) " in "86 "*"$$f.cu "*) text=80;; esac; \
				row $${n}_ptx$$cc $${n}_ptx $$cc $$text; \
			done; \
		done; \
		for f in $(KERNEL_PTX_SM90_CU:.cu=); do \
			n=`echo $$f | sed 's,kernels/,,;s,/,_,'`; \
			row $${n}_ptx90 $${n}_ptx 90 90; \
		done; \
		echo "	.quad 0, 0, 0, 0, 0"; \
		echo "	.section .note.GNU-stack,\"\",%progbits"; \
	} >$@.tmp && mv $@.tmp $@

EXTRA_DIST += kernels/ptx.awk $(KERNEL_CU) $(KERNEL_SM90_CU)
noinst_HEADERS += $(KERNEL_CUH)
CLEANFILES += kernels/*/*.fatbin[89][0-9] kernels/*/*.fatbin[89][0-9].d kernels/*/*.img \
	kernels/*/*.[89][0-9].ptx kernels/*/*.fatbin90.log kernels/images.S
