# The Fortran module is installed as a source: .mod files suit one compiler only.
teinclude_DATA = include/te/te.f90

TE_PUBLIC_H = $(teinclude_HEADERS) $(nodist_teinclude_HEADERS)
include/te/te.f90: include/fortran.awk $(TE_PUBLIC_H)
	$(AM_V_GEN)$(MKDIR_P) include/te && \
	$(AWK) -f $(srcdir)/include/fortran.awk \
		`for h in $(TE_PUBLIC_H); do test -f $$h || h=$(srcdir)/$$h; echo $$h; done` \
		>$@.tmp && mv $@.tmp $@
EXTRA_DIST += include/fortran.awk
CLEANFILES += include/te/te.f90
