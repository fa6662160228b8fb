# A kernels/te_NAME.cu becomes te_NAME.fatbin, which libtecore/kernels_embed.S holds.
# Each has a row in te_k_modules.def too.
KERNEL_CU = \
	kernels/te_act.cu \
	kernels/te_attn.cu \
	kernels/te_elem.cu \
	kernels/te_embed.cu \
	kernels/te_gemm.cu \
	kernels/te_loss.cu \
	kernels/te_norm.cu \
	kernels/te_optim.cu \
	kernels/te_quant.cu \
	kernels/te_reduce.cu

KERNEL_INC = \
	kernels/te_attn_dev.cuh \
	kernels/te_attn_fp32.cuh \
	kernels/te_attn_strip.cuh \
	kernels/te_attn_tile.cuh \
	kernels/te_begin.cuh \
	kernels/te_dev.cuh \
	kernels/te_k.def \
	kernels/te_k.h \
	kernels/te_k_ptr.def \
	kernels/te_mma.cuh \
	kernels/te_philox.h \
	kernels/te_tile.cuh

KERNEL_FATBIN = $(KERNEL_CU:.cu=.fatbin)
SUFFIXES += .cu .fatbin
AM_V_NVCC = $(AM_V_NVCC_@AM_V@)
AM_V_NVCC_ = $(AM_V_NVCC_@AM_DEFAULT_V@)
AM_V_NVCC_0 = @echo "  NVCC    " $@;
AM_V_NVCC_1 =
.cu.fatbin:
	$(AM_V_NVCC)$(MKDIR_P) $(@D) && \
	$(NVCC) -fatbin $(NVCC_GENCODE) $(NVCCFLAGS) -I$(top_srcdir) \
		-I$(top_srcdir)/kernels -MMD -MP -MF $(@:.fatbin=.d) -o $@ $<
-include $(KERNEL_FATBIN:.fatbin=.d)

EXTRA_DIST += $(KERNEL_CU)
noinst_HEADERS += $(KERNEL_INC) kernels/te_k_modules.def
CLEANFILES += $(KERNEL_FATBIN) $(KERNEL_FATBIN:.fatbin=.d)
