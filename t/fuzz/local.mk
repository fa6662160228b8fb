# Fuzz targets, see t/fuzz/fuzz.h. A target needs one line here, its source, and a folder of
# t/fuzz/corpus/ with its name.
FUZZ_TARGETS = \
	t/fuzz/checkpoint \
	t/fuzz/comm \
	t/fuzz/comm_table \
	t/fuzz/gemm_cache \
	t/fuzz/link_frame \
	t/fuzz/param \
	t/fuzz/quant \
	t/fuzz/run_frame \
	t/fuzz/run_job \
	t/fuzz/schedule \
	t/fuzz/ted \
	t/fuzz/ted_conf \
	t/fuzz/ted_written
if HAVE_JANSSON
FUZZ_TARGETS += \
	t/fuzz/ckpt \
	t/fuzz/config \
	t/fuzz/data \
	t/fuzz/gguf \
	t/fuzz/plot_log \
	t/fuzz/safetensors
endif

if HAVE_TOKEN
FUZZ_TARGETS += t/fuzz/token
endif

if HAVE_VERBS
FUZZ_TARGETS += t/fuzz/verbs_hello
endif

# what all targets read, and a program around them unless clang's has them
check_LTLIBRARIES += t/fuzz/libfuzz.la
t_fuzz_libfuzz_la_SOURCES = t/fuzz/fuzz.c t/fuzz/fuzz.h
if !FUZZ
t_fuzz_libfuzz_la_SOURCES += t/fuzz/main.c
endif
FUZZ_FILE_LDADD = t/fuzz/libfuzz.la $(FUZZ_LDFLAGS)
FUZZ_LDADD = \
	libtegraph/libtegraph_internal.la \
	libtecore/libtecore_internal.la \
	$(FUZZ_FILE_LDADD)
FUZZ_COMM_LDADD = libtecomm/libtecomm_internal.la $(FUZZ_LDADD)
FUZZ_TED_LDADD = daemon/libted.la $(FUZZ_LDADD)
FUZZ_TRAIN_LDADD = \
	tools/te_train/libte_train.la \
	$(TOKEN_INTERNAL_LA) \
	$(FUZZ_COMM_LDADD) \
	$(JANSSON_LIBS)

t_fuzz_checkpoint_LDADD = $(FUZZ_LDADD)
t_fuzz_ckpt_LDADD = $(FUZZ_TRAIN_LDADD)
t_fuzz_comm_LDADD = $(FUZZ_COMM_LDADD)
t_fuzz_comm_table_LDADD = $(FUZZ_COMM_LDADD)
t_fuzz_config_LDADD = $(FUZZ_TRAIN_LDADD)
t_fuzz_data_LDADD = $(FUZZ_TRAIN_LDADD)
t_fuzz_gemm_cache_LDADD = $(FUZZ_LDADD)
t_fuzz_gguf_LDADD = $(FUZZ_TRAIN_LDADD)
t_fuzz_link_frame_LDADD = $(FUZZ_COMM_LDADD)
t_fuzz_param_LDADD = $(FUZZ_LDADD)
t_fuzz_plot_log_LDADD = tools/libplot_log.la $(FUZZ_FILE_LDADD)
t_fuzz_quant_LDADD = $(FUZZ_LDADD)
t_fuzz_run_frame_SOURCES = t/fuzz/run_frame.c tools/run/frame.c tools/run/run.h
t_fuzz_run_frame_LDADD = $(FUZZ_FILE_LDADD)
t_fuzz_run_job_SOURCES = t/fuzz/run_job.c tools/run/frame.c tools/run/run.h
t_fuzz_run_job_LDADD = $(FUZZ_FILE_LDADD)
t_fuzz_safetensors_LDADD = $(FUZZ_TRAIN_LDADD)
t_fuzz_schedule_LDADD = $(FUZZ_LDADD)
t_fuzz_ted_LDADD = $(FUZZ_TED_LDADD)
t_fuzz_ted_conf_LDADD = $(FUZZ_TED_LDADD)
t_fuzz_ted_written_LDADD = $(FUZZ_TED_LDADD)
t_fuzz_token_LDADD = libtetoken/libtetoken_internal.la $(FUZZ_LDADD)
t_fuzz_verbs_hello_LDADD = $(FUZZ_COMM_LDADD)

# parsers have no threads
if !TSAN
check_PROGRAMS += $(FUZZ_TARGETS)
TT_SH += t/fuzz/t9001-corpus.t
endif
EXTRA_DIST += t/fuzz/corpus t/fuzz/ignored.list t/fuzz/t9001-corpus.t

# make fuzz, after --enable-fuzz: all targets, in FUZZ_SECONDS of the environment, 30 by default, for
# each of the jobs of make -j; an input that fails is left in the build folder
FUZZED = $(FUZZ_TARGETS:=.fuzzed)
fuzz: $(FUZZED)
.PHONY: fuzz $(FUZZED)
$(FUZZED): $(FUZZ_TARGETS)
	@t=$(@:.fuzzed=); name=`basename $$t`; n=`echo $(FUZZ_TARGETS) | wc -w`; \
	mkdir -p fuzz-corpus/$$name && \
	$$t -max_total_time=`expr $${FUZZ_SECONDS:-30} / $$n + 1` -timeout=10 -rss_limit_mb=4096 \
		-artifact_prefix=fuzz-$$name- -verbosity=0 -print_final_stats=0 \
		fuzz-corpus/$$name $(srcdir)/t/fuzz/corpus/$$name >fuzz-$$name.log 2>&1 || \
		{ tail -n 40 fuzz-$$name.log; echo "fuzz: $$name: FAILED"; exit 1; }; \
	echo "fuzz: $$name: `ls fuzz-corpus/$$name | wc -l` inputs"
