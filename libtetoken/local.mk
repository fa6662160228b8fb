TOKEN_LA =
TOKEN_INTERNAL_LA =
if HAVE_TOKEN
TOKEN_LA += libtetoken/libtetoken.la
TOKEN_INTERNAL_LA += libtetoken/libtetoken_internal.la
teinclude_HEADERS += \
	include/te/token.h

noinst_LTLIBRARIES += libtetoken/libtetoken_internal.la
libtetoken_libtetoken_internal_la_SOURCES = \
	libtetoken/bpe.c \
	libtetoken/decode.c \
	libtetoken/encode.c \
	libtetoken/gguf.c \
	libtetoken/gguf_save.c \
	libtetoken/json.c \
	libtetoken/json.h \
	libtetoken/json_model.c \
	libtetoken/normalize.c \
	libtetoken/ranks.c \
	libtetoken/sentencepiece.c \
	libtetoken/split.c \
	libtetoken/store.c \
	libtetoken/token.c \
	libtetoken/token_internal.h \
	libtetoken/train.c \
	libtetoken/unigram.c \
	libtetoken/version.c \
	libtetoken/vocab.c
libtetoken_libtetoken_internal_la_CFLAGS = $(AM_CFLAGS) $(PCRE2_CFLAGS) \
	$(UTF8PROC_CFLAGS)
libtetoken_libtetoken_internal_la_LIBADD = $(JANSSON_LIBS) $(PCRE2_LIBS) $(UTF8PROC_LIBS)

lib_LTLIBRARIES += libtetoken/libtetoken.la
libtetoken_libtetoken_la_SOURCES =
libtetoken_libtetoken_la_LIBADD = libtetoken/libtetoken_internal.la libtecore/libtecore.la
libtetoken_libtetoken_la_LDFLAGS = $(AM_LDFLAGS) -version-info $(TE_VERSION_INFO) \
	-no-undefined \
	-Wl,--version-script=$(srcdir)/libtetoken/libtetoken.map
EXTRA_libtetoken_libtetoken_la_DEPENDENCIES = libtetoken/libtetoken.map
pkgconfig_DATA += libtetoken/libtetoken.pc

dist_man3_MANS += \
	man/te_token_open.3
else
EXTRA_DIST += \
	include/te/token.h \
	man/te_token_open.3
endif
EXTRA_DIST += libtetoken/libtetoken.map
