teinclude_HEADERS += \
	include/te/collective.h \
	include/te/comm.h \
	include/te/comm_op.h \
	include/te/reducer.h

noinst_LTLIBRARIES += libtecomm/libtecomm_internal.la
libtecomm_libtecomm_internal_la_SOURCES = \
	libtecomm/bootstrap/addr.c \
	libtecomm/bootstrap/addr.h \
	libtecomm/bootstrap/again.c \
	libtecomm/bootstrap/auth.c \
	libtecomm/bootstrap/auth.h \
	libtecomm/bootstrap/boot.c \
	libtecomm/bootstrap/boot.h \
	libtecomm/bootstrap/bootstrap.h \
	libtecomm/bootstrap/callback.c \
	libtecomm/bootstrap/conn.c \
	libtecomm/bootstrap/conn.h \
	libtecomm/bootstrap/dial.c \
	libtecomm/bootstrap/dial.h \
	libtecomm/bootstrap/dir.c \
	libtecomm/bootstrap/frame.c \
	libtecomm/bootstrap/frame.h \
	libtecomm/bootstrap/id.c \
	libtecomm/bootstrap/lineage.c \
	libtecomm/bootstrap/lineage.h \
	libtecomm/bootstrap/local.c \
	libtecomm/bootstrap/local.h \
	libtecomm/bootstrap/mesh.c \
	libtecomm/bootstrap/pmix.c \
	libtecomm/collective/calls.c \
	libtecomm/collective/choose.c \
	libtecomm/collective/collective.c \
	libtecomm/collective/collective.h \
	libtecomm/collective/norm.c \
	libtecomm/collective/norm.h \
	libtecomm/collective/norm_apart.c \
	libtecomm/collective/reducer.c \
	libtecomm/collective/table.c \
	libtecomm/collective/table.h \
	libtecomm/comm.c \
	libtecomm/comm_internal.h \
	libtecomm/memory/broker.c \
	libtecomm/memory/broker.h \
	libtecomm/memory/client.c \
	libtecomm/memory/control.c \
	libtecomm/memory/control.h \
	libtecomm/memory/heap.c \
	libtecomm/memory/heap.h \
	libtecomm/memory/members.c \
	libtecomm/memory/members.h \
	libtecomm/memory/memory.c \
	libtecomm/memory/pool.c \
	libtecomm/memory/pool.h \
	libtecomm/memory/stage.c \
	libtecomm/memory/stage.h \
	libtecomm/memory/thread.c \
	libtecomm/memory/thread.h \
	libtecomm/memory/watch.c \
	libtecomm/memory/watch.h \
	libtecomm/nccl/nccl.c \
	libtecomm/nccl/nccl.h \
	libtecomm/nodes/device.c \
	libtecomm/nodes/nodes.c \
	libtecomm/nodes/nodes.h \
	libtecomm/nodes/rail.c \
	libtecomm/nodes/rail.h \
	libtecomm/nvls/nvls.c \
	libtecomm/nvls/nvls.h \
	libtecomm/ops/cross_entropy.c \
	libtecomm/ops/fusions.c \
	libtecomm/ops/ops.c \
	libtecomm/ops/ops.h \
	libtecomm/recover.c \
	libtecomm/split.c \
	libtecomm/transport/link.c \
	libtecomm/transport/link.h \
	libtecomm/transport/measure.c \
	libtecomm/transport/tcp.c \
	libtecomm/transport/tcp.h \
	libtecomm/version.c
if HAVE_VERBS
libtecomm_libtecomm_internal_la_SOURCES += \
	libtecomm/transport/verbs/device.c \
	libtecomm/transport/verbs/hello.c \
	libtecomm/transport/verbs/hello.h \
	libtecomm/transport/verbs/lib.c \
	libtecomm/transport/verbs/near.c \
	libtecomm/transport/verbs/open.c \
	libtecomm/transport/verbs/poll.c \
	libtecomm/transport/verbs/post.c \
	libtecomm/transport/verbs/syms.def \
	libtecomm/transport/verbs/verbs.c \
	libtecomm/transport/verbs/verbs.h \
	libtecomm/transport/verbs/vlink.h
else
libtecomm_libtecomm_internal_la_SOURCES += libtecomm/transport/verbs/none.c
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
