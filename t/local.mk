# Check programs are t/AREA/TOPIC.c, scripts t/AREA/tNNNN-WHAT.t; both print TAP.
# A program needs one line in a list below; its source is TOPIC.c and it links
# the whole inside of libtecore.
TT_CORE = \
	t/core/errno \
	t/core/log \
	t/core/param
TT_GRAPH =
TT_COMM =
TT_TOOLS =
TT_SH =

TEST_EXTENSIONS = .t
TAP = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
LOG_DRIVER = $(TAP)
T_LOG_DRIVER = $(TAP)
T_LOG_COMPILER = $(SHELL)
# TE_* of the caller would change what tests see
AM_TESTS_ENVIRONMENT = \
	unset TE_LOG TE_BACKEND; \
	TT_TAP=1; export TT_TAP; \
	abs_top_srcdir='$(abs_top_srcdir)'; export abs_top_srcdir; \
	abs_top_builddir='$(abs_top_builddir)'; export abs_top_builddir; \
	CC='$(CC)'; export CC; \
	CXX='$(CXX)'; export CXX; \
	TE_SANITIZE='$(TE_SANITIZE)'; export TE_SANITIZE; \
	MANDOC='$(MANDOC)'; export MANDOC; \
	NM='$(NM)'; export NM; \
	READELF='$(READELF)'; export READELF;

if HAVE_CHECK
AM_CPPFLAGS += -I$(top_srcdir)/t/lib
check_LTLIBRARIES += t/lib/libtt.la
t_lib_libtt_la_SOURCES = \
	t/lib/tt.c \
	t/lib/tt.h \
	t/lib/tt_fault.c
t_lib_libtt_la_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)

check_PROGRAMS += $(TT_CORE) $(TT_GRAPH) $(TT_COMM) $(TT_TOOLS)
LDADD = \
	t/lib/libtt.la \
	libtegraph/libtegraph_internal.la \
	libtecomm/libtecomm_internal.la \
	libtecore/libtecore_internal.la \
	$(CHECK_LIBS)
TESTS += $(TT_CORE) $(TT_GRAPH) $(TT_COMM) $(TT_TOOLS)
endif

dist_check_SCRIPTS += $(TT_SH)
TESTS += $(TT_SH)

# The reason of each failure and skip, then "N passed, N failed, N skipped". A
# program that fails a test also exits non-zero, which is no second failure.
check-report:
	@for f in $(TEST_LOGS); do \
		grep -h -E '^(FAIL|XPASS|ERROR|SKIP): ' $$f; \
	done; \
	for f in $(TEST_LOGS); do \
		cat $${f%.log}.trs || echo ':test-result: ERROR'; echo end; \
	done | $(AWK) ' \
		/^:test-result: (PASS|XFAIL)/ { pass++ } \
		/^:test-result: (FAIL|XPASS)/ { fail++ } \
		/^:test-result: SKIP/ { skip++ } \
		/^:test-result: ERROR/ { error++ } \
		/^end/ { \
			p += pass; s += skip; f += fail ? fail : error; \
			pass = fail = skip = error = 0; \
		} \
		END { printf "%d passed, %d failed, %d skipped\n", p, f, s }'
.PHONY: check-report
