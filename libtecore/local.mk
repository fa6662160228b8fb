teinclude_HEADERS += \
	include/te/ctx.h \
	include/te/dtype.h \
	include/te/errno.h \
	include/te/export.h \
	include/te/gemm.h \
	include/te/log.h \
	include/te/op.h \
	include/te/optim.h \
	include/te/param.h \
	include/te/place.h \
	include/te/plan.h \
	include/te/quant.h \
	include/te/recording.h \
	include/te/region.h \
	include/te/seq.h \
	include/te/stream.h \
	include/te/tensor.h
nodist_teinclude_HEADERS += include/te/version.h
noinst_HEADERS += include/te/private.h include/te/splitmix64.h

# everything, for tests of internals
noinst_LTLIBRARIES += libtecore/libtecore_internal.la
libtecore_libtecore_internal_la_SOURCES = \
	libtecore/backend/backend.c \
	libtecore/backend/backend.h \
	libtecore/backend/cublaslt.c \
	libtecore/backend/cublaslt_api.h \
	libtecore/backend/cuda.c \
	libtecore/backend/cuda_driver.c \
	libtecore/backend/cuda_driver.h \
	libtecore/backend/cuda_edges.c \
	libtecore/backend/cuda_exec.c \
	libtecore/backend/cuda_graph.c \
	libtecore/backend/cuda_graph.h \
	libtecore/backend/cuda_internal.h \
	libtecore/backend/cuda_kernels.c \
	libtecore/backend/cuda_kernels.h \
	libtecore/backend/cuda_kernels_attn.c \
	libtecore/backend/cuda_kernels_gemm.c \
	libtecore/backend/cuda_module.c \
	libtecore/backend/cuda_syms.def \
	libtecore/backend/edges.c \
	libtecore/backend/edges.h \
	libtecore/backend/host.c \
	libtecore/backend/host.h \
	libtecore/backend/host_device.c \
	libtecore/backend/host_graph.c \
	libtecore/backend/host_kernels.c \
	libtecore/backend/host_order.c \
	libtecore/backend/kernel_images.c \
	libtecore/ctx.c \
	libtecore/ctx_internal.h \
	libtecore/dtype.c \
	libtecore/dtype_inline.h \
	libtecore/errno.c \
	libtecore/fault.c \
	libtecore/fusions.c \
	libtecore/gemm.c \
	libtecore/host/act.c \
	libtecore/host/attn.c \
	libtecore/host/elem.c \
	libtecore/host/embed.c \
	libtecore/host/gemm.c \
	libtecore/host/host.h \
	libtecore/host/loss.c \
	libtecore/host/norm.c \
	libtecore/host/optim.c \
	libtecore/host/quant.c \
	libtecore/host/reduce.c \
	libtecore/host/rows.c \
	libtecore/internal.h \
	libtecore/log.c \
	libtecore/op.c \
	libtecore/op_internal.h \
	libtecore/ops/activation.c \
	libtecore/ops/attention.c \
	libtecore/ops/bias.c \
	libtecore/ops/cross_entropy.c \
	libtecore/ops/dropout.c \
	libtecore/ops/embedding.c \
	libtecore/ops/linear.c \
	libtecore/ops/norm.c \
	libtecore/ops/ops_common.c \
	libtecore/ops/ops_internal.h \
	libtecore/ops/residual.c \
	libtecore/ops/rope.c \
	libtecore/optim.c \
	libtecore/param.c \
	libtecore/params.def \
	libtecore/place.c \
	libtecore/plan.c \
	libtecore/plan_bind.c \
	libtecore/plan_build.c \
	libtecore/plan_fuse.c \
	libtecore/plan_internal.h \
	libtecore/plan_layout.c \
	libtecore/plan_print.c \
	libtecore/quant.c \
	libtecore/quant_internal.h \
	libtecore/recording.c \
	libtecore/search.h \
	libtecore/seq.c \
	libtecore/seq_internal.h \
	libtecore/stream.c \
	libtecore/tensor.c \
	libtecore/used.c \
	libtecore/used.h \
	libtecore/version.c
libtecore_libtecore_internal_la_LIBADD = $(BLAS_LIBS) $(TECORE_LIBS)
if HAVE_NVCC
libtecore_libtecore_internal_la_SOURCES += libtecore/kernels_embed.S
# works only while no per-target flags rename the object
libtecore/kernels_embed.lo: $(KERNEL_FATBIN)
else
EXTRA_DIST += libtecore/kernels_embed.S
endif

lib_LTLIBRARIES += libtecore/libtecore.la
libtecore_libtecore_la_SOURCES =
libtecore_libtecore_la_LIBADD = libtecore/libtecore_internal.la
libtecore_libtecore_la_LDFLAGS = $(AM_LDFLAGS) -version-info $(TE_VERSION_INFO) \
	-no-undefined \
	-Wl,--version-script=$(srcdir)/libtecore/libtecore.map
# EXTRA_: plain _DEPENDENCIES would replace the automatic list
EXTRA_libtecore_libtecore_la_DEPENDENCIES = libtecore/libtecore.map
EXTRA_DIST += libtecore/libtecore.map
pkgconfig_DATA += libtecore/libtecore.pc
