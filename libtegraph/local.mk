teinclude_HEADERS += \
	include/te/graph.h \
	include/te/schedule.h \
	include/te/step.h

noinst_LTLIBRARIES += libtegraph/libtegraph_internal.la
libtegraph_libtegraph_internal_la_SOURCES = \
	libtegraph/bind.c \
	libtegraph/callable.c \
	libtegraph/capture.c \
	libtegraph/grads.c \
	libtegraph/graph.c \
	libtegraph/graph_internal.h \
	libtegraph/memory.c \
	libtegraph/replay.c \
	libtegraph/report.c \
	libtegraph/rng.c \
	libtegraph/schedule.c \
	libtegraph/step.c \
	libtegraph/version.c

lib_LTLIBRARIES += libtegraph/libtegraph.la
libtegraph_libtegraph_la_SOURCES =
libtegraph_libtegraph_la_LIBADD = libtegraph/libtegraph_internal.la libtecore/libtecore.la
libtegraph_libtegraph_la_LDFLAGS = $(AM_LDFLAGS) -version-info $(TE_VERSION_INFO) \
	-no-undefined \
	-Wl,--version-script=$(srcdir)/libtegraph/libtegraph.map
EXTRA_libtegraph_libtegraph_la_DEPENDENCIES = libtegraph/libtegraph.map
EXTRA_DIST += libtegraph/libtegraph.map
pkgconfig_DATA += libtegraph/libtegraph.pc
