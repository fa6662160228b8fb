# Tools use installed headers and libraries only. All but te_run need jansson.
bin_PROGRAMS += \
	tools/te_run

tools_te_run_SOURCES = \
	tools/run/agent.c \
	tools/run/frame.c \
	tools/run/hosts.c \
	tools/run/job.c \
	tools/run/output.c \
	tools/run/ranks.c \
	tools/run/run.h \
	tools/te_run.c
tools_te_run_LDADD = tools/lib/libtools.la libtecomm/libtecomm.la libtecore/libtecore.la

# what tools share; te_run needs none of what jansson is for
noinst_LTLIBRARIES += tools/lib/libtools.la
tools_lib_libtools_la_SOURCES = \
	tools/lib/clock.h \
	tools/lib/option.c \
	tools/lib/option.h \
	tools/lib/say.c \
	tools/lib/say.h

dist_man1_MANS += \
	man/te_run.1

# one script, which bash-completion finds under the name of each tool
COMPLETIONS = \
	tools/completion/te_run
completiondir = $(datadir)/bash-completion/completions
nodist_completion_DATA = $(COMPLETIONS)
CLEANFILES += $(COMPLETIONS)
$(COMPLETIONS): tools/completion.bash
	$(AM_V_GEN)$(MKDIR_P) tools/completion && cp $(srcdir)/tools/completion.bash $@

if HAVE_JANSSON
bin_PROGRAMS += \
	tools/te_export \
	tools/te_generate \
	tools/te_info \
	tools/te_perftest/te_perftest \
	tools/te_plot \
	tools/te_train/te_train \
	tools/tectl

tools_lib_libtools_la_SOURCES += \
	tools/lib/chat.c \
	tools/lib/chat.h \
	tools/lib/choices.c \
	tools/lib/choices.h \
	tools/lib/device.c \
	tools/lib/device.h \
	tools/lib/digest.c \
	tools/lib/digest.h \
	tools/lib/folder.c \
	tools/lib/folder.h \
	tools/lib/gguf.c \
	tools/lib/gguf.h \
	tools/lib/gguf_arch.c \
	tools/lib/gguf_arch.h \
	tools/lib/hfconfig.c \
	tools/lib/hfconfig.h \
	tools/lib/hffields.c \
	tools/lib/hffields.h \
	tools/lib/lora.c \
	tools/lib/lora.h \
	tools/lib/model.c \
	tools/lib/model.h \
	tools/lib/model_init.c \
	tools/lib/model_path.c \
	tools/lib/model_path.h \
	tools/lib/pyjson.c \
	tools/lib/pyjson.h \
	tools/lib/record.c \
	tools/lib/record.h \
	tools/lib/rotary.c \
	tools/lib/rotary.h \
	tools/lib/safetensors.c \
	tools/lib/safetensors.h \
	tools/lib/shard.c \
	tools/lib/shard.h \
	tools/lib/stop.c \
	tools/lib/stop.h \
	tools/lib/target.c \
	tools/lib/target.h \
	tools/lib/tensors.c \
	tools/lib/tensors.h \
	tools/lib/tokenizer.c \
	tools/lib/tokenizer.h \
	tools/lib/tokens.c \
	tools/lib/tokens.h \
	tools/lib/weight_map.c \
	tools/lib/weight_map.h \
	tools/lib/weights.c \
	tools/lib/weights.h \
	tools/lib/weights_read.c \
	tools/lib/weights_slice.h

tools_te_export_SOURCES = \
	tools/export/export.c \
	tools/export/export.h \
	tools/export/folder.c \
	tools/export/gguf.c \
	tools/te_export.c
tools_te_export_LDADD = tools/lib/libtools.la $(TOKEN_LA) libtegraph/libtegraph.la \
	libtecomm/libtecomm.la libtecore/libtecore.la $(JANSSON_LIBS) -lm

tools_te_generate_SOURCES = \
	tools/generate/generate.h \
	tools/generate/prompts.c \
	tools/generate/talk.c \
	tools/generate/talk.h \
	tools/generate/text.c \
	tools/te_generate.c
tools_te_generate_LDADD = tools/lib/libtools.la $(TOKEN_LA) libtegraph/libtegraph.la \
	libtecomm/libtecomm.la libtecore/libtecore.la $(JANSSON_LIBS) -lm

tools_te_info_SOURCES = \
	tools/te_info.c
tools_te_info_LDADD = tools/lib/libtools.la libtegraph/libtegraph.la libtecomm/libtecomm.la \
	libtecore/libtecore.la $(JANSSON_LIBS)

tools_tectl_SOURCES = \
	tools/tectl.c
tools_tectl_LDADD = tools/lib/libtools.la libtecore/libtecore.la $(JANSSON_LIBS)

tools_te_plot_SOURCES = \
	tools/te_plot.c
tools_te_plot_LDADD = tools/libplot_log.la tools/lib/libtools.la libtecore/libtecore.la

# for a fuzz target too
noinst_LTLIBRARIES += tools/libplot_log.la
tools_libplot_log_la_SOURCES = \
	tools/plot_log.c \
	tools/plot_log.h
tools_libplot_log_la_LIBADD = $(JANSSON_LIBS)

# tests of te_perftest, in the order of --list: each is the test_X of its source
PERFTESTS = graph step decode copy cast quantize norm act gemm attn calls comm verbs file offload
nodist_tools_te_perftest_libte_perftest_la_SOURCES = tools/te_perftest/list.c
CLEANFILES += tools/te_perftest/list.c
tools/te_perftest/list.c: Makefile
	$(AM_V_GEN)$(MKDIR_P) $(@D) && { \
		echo '#include "tools/te_perftest/perftest.h"'; \
		printf 'extern const struct test test_%s;\n' $(PERFTESTS); \
		echo 'const struct test *const tests[] = {'; \
		printf '\t&test_%s,\n' $(PERFTESTS); \
		echo '0 };'; \
	} >$@.tmp && mv $@.tmp $@

# all of te_perftest but its main function, for its unit tests too
noinst_LTLIBRARIES += tools/te_perftest/libte_perftest.la
tools_te_perftest_libte_perftest_la_SOURCES = \
	tools/te_perftest/attn.c \
	tools/te_perftest/bench.c \
	tools/te_perftest/bench.h \
	tools/te_perftest/call.c \
	tools/te_perftest/call.h \
	tools/te_perftest/call_check.c \
	tools/te_perftest/calls.c \
	tools/te_perftest/comm.c \
	tools/te_perftest/comm.h \
	tools/te_perftest/comm_data.c \
	tools/te_perftest/comm_fuse.c \
	tools/te_perftest/comm_gemm.c \
	tools/te_perftest/comm_row.c \
	tools/te_perftest/comm_tune.c \
	tools/te_perftest/copy.c \
	tools/te_perftest/copy.h \
	tools/te_perftest/decode.c \
	tools/te_perftest/file.c \
	tools/te_perftest/gemm.c \
	tools/te_perftest/graph.c \
	tools/te_perftest/offload.c \
	tools/te_perftest/opts.c \
	tools/te_perftest/opts.h \
	tools/te_perftest/perftest.h \
	tools/te_perftest/replay.c \
	tools/te_perftest/replay.h \
	tools/te_perftest/report.c \
	tools/te_perftest/stats.c \
	tools/te_perftest/stats.h \
	tools/te_perftest/step.c \
	tools/te_perftest/verbs.c
tools_te_perftest_libte_perftest_la_LIBADD = tools/lib/libtools.la

tools_te_perftest_te_perftest_SOURCES = \
	tools/te_perftest/main.c
tools_te_perftest_te_perftest_LDADD = tools/te_perftest/libte_perftest.la \
	libtecomm/libtecomm.la libtecore/libtecore.la $(JANSSON_LIBS) -lm

# all of te_train but its main function, for its unit tests too
noinst_LTLIBRARIES += tools/te_train/libte_train.la
tools_te_train_libte_train_la_SOURCES = \
	tools/te_train/answers.c \
	tools/te_train/answers.h \
	tools/te_train/batch.c \
	tools/te_train/batch.h \
	tools/te_train/blocks.c \
	tools/te_train/blocks.h \
	tools/te_train/chunks.c \
	tools/te_train/chunks.h \
	tools/te_train/ckpt.c \
	tools/te_train/ckpt.h \
	tools/te_train/ckpt_files.c \
	tools/te_train/ckpt_files.h \
	tools/te_train/ckpt_keep.c \
	tools/te_train/ckpt_parts.c \
	tools/te_train/copy.c \
	tools/te_train/data.c \
	tools/te_train/data.h \
	tools/te_train/dataset.c \
	tools/te_train/dump.c \
	tools/te_train/dump.h \
	tools/te_train/graph.c \
	tools/te_train/graph.h \
	tools/te_train/groups.c \
	tools/te_train/groups.h \
	tools/te_train/inflate.c \
	tools/te_train/inflate.h \
	tools/te_train/jsonl.c \
	tools/te_train/jsonl.h \
	tools/te_train/kept.c \
	tools/te_train/kept.h \
	tools/te_train/lock.c \
	tools/te_train/lock.h \
	tools/te_train/loop.c \
	tools/te_train/loop.h \
	tools/te_train/magic.c \
	tools/te_train/magic.h \
	tools/te_train/mem.c \
	tools/te_train/mem.h \
	tools/te_train/mix.c \
	tools/te_train/mix.h \
	tools/te_train/numerics.c \
	tools/te_train/numerics.h \
	tools/te_train/opts.c \
	tools/te_train/opts.def \
	tools/te_train/opts.h \
	tools/te_train/order.c \
	tools/te_train/order.h \
	tools/te_train/pipeline.c \
	tools/te_train/pipeline.h \
	tools/te_train/profile.c \
	tools/te_train/profile.h \
	tools/te_train/program.c \
	tools/te_train/program.h \
	tools/te_train/progress.c \
	tools/te_train/progress.h \
	tools/te_train/ranks.c \
	tools/te_train/ranks.h \
	tools/te_train/ranks_weights.c \
	tools/te_train/reading.c \
	tools/te_train/reading.h \
	tools/te_train/recipes.c \
	tools/te_train/recipes.h \
	tools/te_train/recover.c \
	tools/te_train/returns.c \
	tools/te_train/returns.h \
	tools/te_train/sample.c \
	tools/te_train/sample.h \
	tools/te_train/save.c \
	tools/te_train/setup.c \
	tools/te_train/source.c \
	tools/te_train/source.h \
	tools/te_train/texts.c \
	tools/te_train/texts.h \
	tools/te_train/trainer.c
tools_te_train_libte_train_la_CFLAGS = $(AM_CFLAGS) $(ZLIB_CFLAGS) $(LZMA_CFLAGS) $(ZSTD_CFLAGS)
tools_te_train_libte_train_la_LIBADD = tools/lib/libtools.la $(ZLIB_LIBS) $(LZMA_LIBS) $(ZSTD_LIBS)

tools_te_train_te_train_SOURCES = \
	tools/te_train/main.c
tools_te_train_te_train_LDADD = tools/te_train/libte_train.la $(TOKEN_LA) libtegraph/libtegraph.la \
	libtecomm/libtecomm.la libtecore/libtecore.la $(JANSSON_LIBS) -lm

COMPLETIONS += \
	tools/completion/te_export \
	tools/completion/te_generate \
	tools/completion/te_info \
	tools/completion/te_perftest \
	tools/completion/te_plot \
	tools/completion/te_train \
	tools/completion/tectl

dist_man1_MANS += \
	man/te_export.1 \
	man/te_generate.1 \
	man/te_info.1 \
	man/te_perftest.1 \
	man/te_plot.1 \
	man/te_train.1 \
	man/tectl.1
else
EXTRA_DIST += \
	man/te_export.1 \
	man/te_generate.1 \
	man/te_info.1 \
	man/te_perftest.1 \
	man/te_plot.1 \
	man/te_train.1 \
	man/tectl.1
endif
EXTRA_DIST += tools/completion.bash

if HAVE_TOKEN
bin_PROGRAMS += \
	tools/te_token

tools_te_token_SOURCES = \
	tools/te_token.c
tools_te_token_LDADD = tools/lib/libtools.la libtetoken/libtetoken.la libtecore/libtecore.la

COMPLETIONS += \
	tools/completion/te_token

dist_man1_MANS += \
	man/te_token.1
else
EXTRA_DIST += \
	man/te_token.1
endif
