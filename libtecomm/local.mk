teinclude_HEADERS += \
	include/te/collective.h \
	include/te/comm.h \
	include/te/comm_op.h \
	include/te/reducer.h

noinst_LTLIBRARIES += libtecomm/libtecomm_internal.la
libtecomm_libtecomm_internal_la_SOURCES = \
	libtecomm/collective/algorithms.c \
	libtecomm/collective/calls.c \
	libtecomm/collective/choose.c \
	libtecomm/collective/collective.c \
	libtecomm/collective/collective.h \
	libtecomm/collective/comm.h \
	libtecomm/collective/explain.c \
	libtecomm/collective/messages.c \
	libtecomm/collective/nccl.c \
	libtecomm/collective/nccl.h \
	libtecomm/collective/nodes/device.c \
	libtecomm/collective/nodes/mail.c \
	libtecomm/collective/nodes/mail.h \
	libtecomm/collective/nodes/nodes.c \
	libtecomm/collective/nodes/nodes.h \
	libtecomm/collective/nodes/rail.c \
	libtecomm/collective/nodes/rail.h \
	libtecomm/collective/nodes/stage.c \
	libtecomm/collective/norm.c \
	libtecomm/collective/norm.h \
	libtecomm/collective/norm_apart.c \
	libtecomm/collective/reducer.c \
	libtecomm/collective/table.c \
	libtecomm/collective/table.h \
	libtecomm/collective/terms.c \
	libtecomm/comm.c \
	libtecomm/measure.c \
	libtecomm/meet/addr.c \
	libtecomm/meet/addr.h \
	libtecomm/meet/again.c \
	libtecomm/meet/agree.c \
	libtecomm/meet/agree.h \
	libtecomm/meet/auth.c \
	libtecomm/meet/auth.h \
	libtecomm/meet/boot.c \
	libtecomm/meet/boot.h \
	libtecomm/meet/bootstrap.h \
	libtecomm/meet/callback.c \
	libtecomm/meet/conn.c \
	libtecomm/meet/conn.h \
	libtecomm/meet/dial.c \
	libtecomm/meet/dial.h \
	libtecomm/meet/dir.c \
	libtecomm/meet/frame.c \
	libtecomm/meet/frame.h \
	libtecomm/meet/id.c \
	libtecomm/meet/join.c \
	libtecomm/meet/join.h \
	libtecomm/meet/lineage.c \
	libtecomm/meet/lineage.h \
	libtecomm/meet/local.c \
	libtecomm/meet/local.h \
	libtecomm/meet/mesh.c \
	libtecomm/meet/pass.c \
	libtecomm/meet/pass.h \
	libtecomm/meet/pmix.c \
	libtecomm/meet/state.c \
	libtecomm/meet/thread.c \
	libtecomm/meet/thread.h \
	libtecomm/memory.c \
	libtecomm/ops/context.c \
	libtecomm/ops/cross_entropy.c \
	libtecomm/ops/fusions.c \
	libtecomm/ops/ops.c \
	libtecomm/ops/ops.h \
	libtecomm/pool/alloc.c \
	libtecomm/pool/control.c \
	libtecomm/pool/control.h \
	libtecomm/pool/failure.c \
	libtecomm/pool/heap.c \
	libtecomm/pool/heap.h \
	libtecomm/pool/members.c \
	libtecomm/pool/members.h \
	libtecomm/pool/pool.c \
	libtecomm/pool/pool.h \
	libtecomm/pool/state.h \
	libtecomm/pool/watch.c \
	libtecomm/pool/watch.h \
	libtecomm/reach/link/link.c \
	libtecomm/reach/link/link.h \
	libtecomm/reach/link/tcp.c \
	libtecomm/reach/link/tcp.h \
	libtecomm/reach/reach.c \
	libtecomm/reach/reach.h \
	libtecomm/recover.c \
	libtecomm/split.c \
	libtecomm/version.c
if HAVE_VERBS
libtecomm_libtecomm_internal_la_SOURCES += \
	libtecomm/reach/link/verbs/device.c \
	libtecomm/reach/link/verbs/hello.c \
	libtecomm/reach/link/verbs/hello.h \
	libtecomm/reach/link/verbs/lib.c \
	libtecomm/reach/link/verbs/near.c \
	libtecomm/reach/link/verbs/open.c \
	libtecomm/reach/link/verbs/poll.c \
	libtecomm/reach/link/verbs/post.c \
	libtecomm/reach/link/verbs/syms.def \
	libtecomm/reach/link/verbs/verbs.c \
	libtecomm/reach/link/verbs/verbs.h \
	libtecomm/reach/link/verbs/vlink.h
else
libtecomm_libtecomm_internal_la_SOURCES += libtecomm/reach/link/verbs/none.c
endif
libtecomm_libtecomm_internal_la_CFLAGS = $(AM_CFLAGS) $(SODIUM_CFLAGS)
libtecomm_libtecomm_internal_la_LIBADD = $(SODIUM_LIBS)

lib_LTLIBRARIES += libtecomm/libtecomm.la
libtecomm_libtecomm_la_SOURCES =
libtecomm_libtecomm_la_LIBADD = libtecomm/libtecomm_internal.la libtecore/libtecore.la
libtecomm_libtecomm_la_LDFLAGS = $(AM_LDFLAGS) -version-info $(TE_VERSION_INFO) \
	-no-undefined \
	-Wl,--version-script=$(srcdir)/libtecomm/libtecomm.map
EXTRA_libtecomm_libtecomm_la_DEPENDENCIES = libtecomm/libtecomm.map
EXTRA_DIST += libtecomm/libtecomm.map
pkgconfig_DATA += libtecomm/libtecomm.pc
