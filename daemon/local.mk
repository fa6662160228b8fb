# The node service: all of it but its main function, for tests and fuzz targets too, and the program.
noinst_LTLIBRARIES += daemon/libted.la
daemon_libted_la_SOURCES = \
	daemon/client.c \
	daemon/close.c \
	daemon/conf.c \
	daemon/conf.h \
	daemon/job.c \
	daemon/loop.c \
	daemon/metrics.c \
	daemon/reply.c \
	daemon/request.c \
	daemon/share.c \
	daemon/socket.c \
	daemon/spill.c \
	daemon/start.c \
	daemon/ted.h \
	daemon/written.c
daemon_libted_la_LIBADD = tools/lib/libtools.la
daemon_libted_la_CPPFLAGS = $(AM_CPPFLAGS) -DTED_CONF='"$(sysconfdir)/ted.conf"'

sbin_PROGRAMS += daemon/ted
daemon_ted_SOURCES = daemon/main.c
daemon_ted_LDADD = daemon/libted.la libtecore/libtecore.la

dist_man5_MANS += man/ted.conf.5
dist_man8_MANS += man/ted.8

# an example: the service reads the one in $(sysconfdir), which is the administrator's
dist_doc_DATA += daemon/ted.conf

# units of systemd, for the system and for users
UNITS = \
	daemon/system/ted.service \
	daemon/system/ted.socket \
	daemon/user/ted.service \
	daemon/user/ted.socket
$(UNITS): Makefile
	$(AM_V_GEN)$(MKDIR_P) $(@D) && \
	sed -e 's,@sbindir[@],$(sbindir),g' $(srcdir)/$@.in >$@.tmp && mv $@.tmp $@
daemon/system/ted.service: daemon/system/ted.service.in
daemon/system/ted.socket: daemon/system/ted.socket.in
daemon/user/ted.service: daemon/user/ted.service.in
daemon/user/ted.socket: daemon/user/ted.socket.in
if HAVE_UNITDIR
systemunitdir = $(systemdunitdir)/system
nodist_systemunit_DATA = daemon/system/ted.service daemon/system/ted.socket
userunitdir = $(systemdunitdir)/user
nodist_userunit_DATA = daemon/user/ted.service daemon/user/ted.socket
endif
CLEANFILES += $(UNITS)
EXTRA_DIST += $(UNITS:=.in)
