# Tools use installed headers and libraries only. They need jansson.
if HAVE_JANSSON
bin_PROGRAMS +=
endif
