teinclude_HEADERS += \
	include/te/capture.h \
	include/te/checkpoint.h \
	include/te/ctx.h \
	include/te/decoder.h \
	include/te/dtype.h \
	include/te/errno.h \
	include/te/export.h \
	include/te/gemm.h \
	include/te/kernel.h \
	include/te/log.h \
	include/te/offload.h \
	include/te/op.h \
	include/te/optim.h \
	include/te/param.h \
	include/te/plan.h \
	include/te/quant.h \
	include/te/region.h \
	include/te/seq.h \
	include/te/spill.h \
	include/te/stream.h \
	include/te/te.h \
	include/te/tensor.h
nodist_teinclude_HEADERS += include/te/version.h

# everything, for tests of internals
noinst_LTLIBRARIES += libtecore/libtecore_internal.la
libtecore_libtecore_internal_la_SOURCES = \
	libtecore/backend/backend.c \
	libtecore/backend/backend.h \
	libtecore/backend/cuda/capture.c \
	libtecore/backend/cuda/cublaslt.c \
	libtecore/backend/cuda/cublaslt_api.h \
	libtecore/backend/cuda/cuda.c \
	libtecore/backend/cuda/cuda.h \
	libtecore/backend/cuda/device.c \
	libtecore/backend/cuda/driver.c \
	libtecore/backend/cuda/driver.h \
	libtecore/backend/cuda/edges.c \
	libtecore/backend/cuda/event.c \
	libtecore/backend/cuda/exec.c \
	libtecore/backend/cuda/features.c \
	libtecore/backend/cuda/gemm_cache.c \
	libtecore/backend/cuda/gemm_cache.h \
	libtecore/backend/cuda/graph.c \
	libtecore/backend/cuda/graph.h \
	libtecore/backend/cuda/images.c \
	libtecore/backend/cuda/images.h \
	libtecore/backend/cuda/launch.c \
	libtecore/backend/cuda/memory.c \
	libtecore/backend/cuda/module.c \
	libtecore/backend/cuda/multicast.def \
	libtecore/backend/cuda/nodes.c \
	libtecore/backend/cuda/nvml.c \
	libtecore/backend/cuda/nvml.h \
	libtecore/backend/cuda/share.c \
	libtecore/backend/cuda/sm90.c \
	libtecore/backend/cuda/stream.c \
	libtecore/backend/cuda/syms.def \
	libtecore/backend/cuda/user.c \
	libtecore/backend/cuda/work.c \
	libtecore/backend/devmem.c \
	libtecore/backend/devmem.h \
	libtecore/backend/edges.c \
	libtecore/backend/edges.h \
	libtecore/backend/entries.def \
	libtecore/backend/host/capture.c \
	libtecore/backend/host/cgroup.c \
	libtecore/backend/host/command.c \
	libtecore/backend/host/device.c \
	libtecore/backend/host/event.c \
	libtecore/backend/host/graph.c \
	libtecore/backend/host/host.c \
	libtecore/backend/host/host.h \
	libtecore/backend/host/order.c \
	libtecore/backend/host/replay.c \
	libtecore/backend/host/share.c \
	libtecore/backend/host/stream.c \
	libtecore/backend/host/team.c \
	libtecore/backend/host/topology.c \
	libtecore/backend/host/work.c \
	libtecore/backend/numa.c \
	libtecore/backend/numa.h \
	libtecore/base/base.h \
	libtecore/base/dl.c \
	libtecore/base/dtype.c \
	libtecore/base/dtype_inline.h \
	libtecore/base/environ.c \
	libtecore/base/errno.c \
	libtecore/base/fault.c \
	libtecore/base/gguf.h \
	libtecore/base/grow.h \
	libtecore/base/log.c \
	libtecore/base/multicast.c \
	libtecore/base/names.c \
	libtecore/base/names.h \
	libtecore/base/param.c \
	libtecore/base/params.def \
	libtecore/base/patterns.c \
	libtecore/base/private.h \
	libtecore/base/sealed.c \
	libtecore/base/search.h \
	libtecore/base/sized.c \
	libtecore/base/splitmix64.h \
	libtecore/base/text.c \
	libtecore/base/thread.c \
	libtecore/base/userns.c \
	libtecore/base/userns.h \
	libtecore/base/version.c \
	libtecore/base/wire.c \
	libtecore/base/wire.h \
	libtecore/capture/bindings.c \
	libtecore/capture/nodes.c \
	libtecore/capture/rebind.c \
	libtecore/capture/recording.c \
	libtecore/capture/recording.h \
	libtecore/capture/used.c \
	libtecore/capture/used.h \
	libtecore/offload/crc32c.c \
	libtecore/offload/crc32c.h \
	libtecore/offload/extents.c \
	libtecore/offload/limits.c \
	libtecore/offload/limits.h \
	libtecore/offload/measure.c \
	libtecore/offload/offload.c \
	libtecore/offload/offload.h \
	libtecore/offload/pinned.c \
	libtecore/offload/pinned.h \
	libtecore/offload/rates.c \
	libtecore/offload/spill.c \
	libtecore/offload/spill.h \
	libtecore/offload/spill_file.c \
	libtecore/offload/spill_impl.h \
	libtecore/offload/spill_io.h \
	libtecore/offload/spill_request.c \
	libtecore/offload/spill_serve.c \
	libtecore/offload/spill_ted.c \
	libtecore/offload/spill_threads.c \
	libtecore/offload/spill_uring.c \
	libtecore/offload/spill_watch.c \
	libtecore/ops/activation.c \
	libtecore/ops/attention.c \
	libtecore/ops/bias.c \
	libtecore/ops/common.c \
	libtecore/ops/common.h \
	libtecore/ops/cross_entropy.c \
	libtecore/ops/dropout.c \
	libtecore/ops/embedding.c \
	libtecore/ops/gemm.c \
	libtecore/ops/head_loss.c \
	libtecore/ops/identity.c \
	libtecore/ops/kernel.c \
	libtecore/ops/kernel.h \
	libtecore/ops/kernel_act.c \
	libtecore/ops/kernel_adamw.c \
	libtecore/ops/kernel_attend.c \
	libtecore/ops/kernel_attention.c \
	libtecore/ops/kernel_cross_entropy.c \
	libtecore/ops/kernel_elem.c \
	libtecore/ops/kernel_embedding.c \
	libtecore/ops/kernel_norm.c \
	libtecore/ops/kernel_rope.c \
	libtecore/ops/linear.c \
	libtecore/ops/norm.c \
	libtecore/ops/op.c \
	libtecore/ops/op.h \
	libtecore/ops/qk_norm.c \
	libtecore/ops/quantize.c \
	libtecore/ops/reshape.c \
	libtecore/ops/residual.c \
	libtecore/ops/rope.c \
	libtecore/ops/scale.c \
	libtecore/plan/bind.c \
	libtecore/plan/build.c \
	libtecore/plan/build.h \
	libtecore/plan/build_backward.c \
	libtecore/plan/build_forward.c \
	libtecore/plan/build_steps.c \
	libtecore/plan/calibrate.c \
	libtecore/plan/checkpoint.c \
	libtecore/plan/choose.c \
	libtecore/plan/choose.h \
	libtecore/plan/columns.c \
	libtecore/plan/costs.c \
	libtecore/plan/costs.h \
	libtecore/plan/decoder.c \
	libtecore/plan/decoder.h \
	libtecore/plan/decoder_plans.c \
	libtecore/plan/draw.c \
	libtecore/plan/few_rows.c \
	libtecore/plan/fuse.c \
	libtecore/plan/fusions.c \
	libtecore/plan/hosted.c \
	libtecore/plan/layout.c \
	libtecore/plan/masters.c \
	libtecore/plan/moves.c \
	libtecore/plan/moves.h \
	libtecore/plan/moves_run.c \
	libtecore/plan/moves_times.c \
	libtecore/plan/numerics.c \
	libtecore/plan/offsets.c \
	libtecore/plan/optim.c \
	libtecore/plan/optim.h \
	libtecore/plan/optim_casts.c \
	libtecore/plan/optim_file.c \
	libtecore/plan/optim_groups.c \
	libtecore/plan/patterns.c \
	libtecore/plan/place.c \
	libtecore/plan/place.h \
	libtecore/plan/plan.c \
	libtecore/plan/plan.h \
	libtecore/plan/print.c \
	libtecore/plan/profile.c \
	libtecore/plan/rates.c \
	libtecore/plan/recompute.c \
	libtecore/plan/report.c \
	libtecore/plan/run.c \
	libtecore/plan/saved.c \
	libtecore/plan/seq.c \
	libtecore/plan/seq.h \
	libtecore/plan/seq_bind.c \
	libtecore/plan/seq_codes.c \
	libtecore/plan/seq_fusion.c \
	libtecore/plan/seq_parts.c \
	libtecore/plan/seq_store.c \
	libtecore/plan/seq_weights.c \
	libtecore/plan/span.h \
	libtecore/plan/weights.c \
	libtecore/quant/block.c \
	libtecore/quant/cast.c \
	libtecore/quant/current.c \
	libtecore/quant/delayed.c \
	libtecore/quant/mxfp8.c \
	libtecore/quant/none.c \
	libtecore/quant/nvfp4.c \
	libtecore/quant/quant.h \
	libtecore/quant/recipe.c \
	libtecore/quant/recipe.h \
	libtecore/quant/state.c \
	libtecore/tensor/capture.c \
	libtecore/tensor/capturing.c \
	libtecore/tensor/ctx.c \
	libtecore/tensor/ctx.h \
	libtecore/tensor/event.c \
	libtecore/tensor/fork.c \
	libtecore/tensor/memory.c \
	libtecore/tensor/stream.c \
	libtecore/tensor/stream_core.c \
	libtecore/tensor/tensor.c \
	libtecore/tensor/variants.c \
	libtecore/tensor/wait.c \
	libtecore/tensor/window.c \
	libtecore/tensor/work.c
libtecore_libtecore_internal_la_SOURCES += $(KERNEL_C) $(KERNEL_H)
libtecore_libtecore_internal_la_LIBADD = \
	$(BLAS_LIBS) $(HWLOC_LIBS) $(LIBURING_LIBS) $(LZMA_LIBS) $(TECORE_LIBS)
if HAVE_NVCC
nodist_libtecore_libtecore_internal_la_SOURCES = kernels/images.S
# works only while no per-target flags rename the object
kernels/images.lo: $(KERNEL_IMAGES)
endif

lib_LTLIBRARIES += libtecore/libtecore.la
libtecore_libtecore_la_SOURCES =
libtecore_libtecore_la_LIBADD = libtecore/libtecore_internal.la
libtecore_libtecore_la_LDFLAGS = $(AM_LDFLAGS) -version-info $(TE_VERSION_INFO) \
	-no-undefined \
	-Wl,--version-script=libtecore/libtecore.ver
# EXTRA_: plain _DEPENDENCIES would replace the automatic list
EXTRA_libtecore_libtecore_la_DEPENDENCIES = libtecore/libtecore.ver
EXTRA_DIST += libtecore/libtecore.map

# The node of the private symbols carries the version: libtegraph or libtecomm of another version
# is refused by the dynamic linker.
libtecore/libtecore.ver: $(srcdir)/libtecore/libtecore.map $(top_builddir)/config.status
	$(AM_V_GEN)$(MKDIR_P) libtecore && \
	sed 's/^LIBTECORE_PRIVATE {/LIBTECORE_PRIVATE_$(PACKAGE_VERSION) {/' \
		$(srcdir)/libtecore/libtecore.map >$@
CLEANFILES += libtecore/libtecore.ver
pkgconfig_DATA += libtecore/libtecore.pc
