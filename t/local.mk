# Check programs are t/AREA/TOPIC.c, scripts t/AREA/tNNNN-WHAT.t; both print TAP.
# A program needs one line in a list below; its source is TOPIC.c and it links
# the whole inside of libtecore.
TT_CORE = \
	t/core/attn \
	t/core/attn_gpu \
	t/core/backend \
	t/core/backend_gpu \
	t/core/cublaslt \
	t/core/cuda_abi \
	t/core/cuda_driver \
	t/core/cuda_exec \
	t/core/dtype \
	t/core/edges \
	t/core/errno \
	t/core/faults \
	t/core/fusion \
	t/core/fusion_gpu \
	t/core/gemm \
	t/core/gemm_exact \
	t/core/gemm_exact_gpu \
	t/core/gemm_gpu \
	t/core/host_kernels \
	t/core/kernels \
	t/core/kernels_gpu \
	t/core/log \
	t/core/ops \
	t/core/ops_gpu \
	t/core/optim \
	t/core/param \
	t/core/parts \
	t/core/parts_gpu \
	t/core/place \
	t/core/plan \
	t/core/plan_gpu \
	t/core/quant \
	t/core/recording \
	t/core/recording_gpu \
	t/core/seq \
	t/core/tensor
TT_GRAPH = \
	t/graph/change \
	t/graph/change_gpu \
	t/graph/faults \
	t/graph/graph \
	t/graph/graph_gpu \
	t/graph/lifetimes \
	t/graph/locale \
	t/graph/rules \
	t/graph/rules_gpu \
	t/graph/schedule \
	t/graph/sweep \
	t/graph/sweep_gpu
TT_COMM =
TT_TOOLS =
TT_SH = \
	t/meta/t0001-exports.t \
	t/meta/t0002-needed.t \
	t/meta/t0003-headers.t \
	t/meta/t0004-manpages.t \
	t/meta/t0005-manlint.t \
	t/meta/t0006-examples.t \
	t/meta/t0007-layers.t \
	t/meta/t0008-sources.t \
	t/meta/t0009-kernels.t \
	t/meta/t0010-pages7.t

if HAVE_JANSSON
TT_TOOLS += \
	t/tools/data \
	t/tools/hfconfig \
	t/tools/perftest_stats \
	t/tools/safetensors
TT_SH += \
	t/tools/t8001-te_plot.t \
	t/tools/t8002-te_train-usage.t \
	t/tools/t8003-te_train-resume.t \
	t/tools/t8004-te_train-checkpoints.t \
	t/tools/t8005-te_train-run.t \
	t/tools/t8006-te_train-golden.t \
	t/tools/t8007-te_info.t \
	t/tools/t8008-te_perftest.t \
	t/tools/t8009-te_train-graph.t
endif

TEST_EXTENSIONS = .t
TAP = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
LOG_DRIVER = $(TAP)
T_LOG_DRIVER = $(TAP)
T_LOG_COMPILER = $(SHELL)
# TE_* of the caller would change what tests see. Threads of a BLAS take the cores of
# other tests, and ThreadSanitizer does not see how they wait for each other.
AM_TESTS_ENVIRONMENT = \
	for v in `env | sed -n 's/^\(TE_[A-Z0-9_]*\)=.*/\1/p'`; do unset $$v; done; \
	OPENBLAS_NUM_THREADS=1; export OPENBLAS_NUM_THREADS; \
	TT_TAP=1; export TT_TAP; \
	TT_EXAMPLES='$(EXAMPLES)'; export TT_EXAMPLES; \
	TT_HEADERS='$(teinclude_HEADERS) $(nodist_teinclude_HEADERS)'; export TT_HEADERS; \
	TT_MANS='$(dist_man1_MANS) $(dist_man3_MANS) $(dist_man7_MANS) $(nodist_man7_MANS)'; \
	export TT_MANS; \
	TT_SANITIZE='$(TE_SANITIZE)'; export TT_SANITIZE; \
	abs_top_srcdir='$(abs_top_srcdir)'; export abs_top_srcdir; \
	abs_top_builddir='$(abs_top_builddir)'; export abs_top_builddir; \
	CC='$(CC)'; export CC; \
	CXX='$(CXX)'; export CXX; \
	MANDOC='$(MANDOC)'; export MANDOC; \
	NM='$(NM)'; export NM; \
	READELF='$(READELF)'; export READELF;

if HAVE_CHECK
TT_SH += t/core/t1001-shuffle.t
AM_CPPFLAGS += -I$(top_srcdir)/t/lib
check_LTLIBRARIES += t/lib/libtt.la
t_lib_libtt_la_SOURCES = \
	t/lib/tt.c \
	t/lib/tt.h \
	t/lib/tt_ctx.c \
	t/lib/tt_ctx.h \
	t/lib/tt_fault.c \
	t/lib/tt_gate.c \
	t/lib/tt_gate.h \
	t/lib/tt_num.c \
	t/lib/tt_num.h
t_lib_libtt_la_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)

# the one program that may see the headers of CUDA
t_core_cuda_abi_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)

t_core_cublaslt_SOURCES = t/core/cublaslt.c t/core/cuda_fake.h
t_core_cuda_driver_SOURCES = t/core/cuda_driver.c t/core/cuda_fake.h
t_core_cuda_exec_SOURCES = \
	t/core/cuda_exec.c \
	t/core/cuda_exec_edges.c \
	t/core/cuda_exec_lib.c \
	t/core/cuda_exec_lib.h \
	t/core/cuda_fake.h \
	t/core/cuda_fake_graph.c \
	t/core/cuda_fake_graph.h

t_core_host_kernels_SOURCES = \
	t/core/host_kernels.c \
	t/core/host_kernels_acts.c \
	t/core/host_kernels_elem.c \
	t/core/host_kernels_lib.c \
	t/core/host_kernels_lib.h \
	t/core/host_kernels_rows.c \
	t/core/host_kernels_train.c

PARTS_CASES = t/core/parts_cases.c t/core/parts_cases.h t/core/plan_model.c t/core/plan_model.h
t_core_parts_SOURCES = t/core/parts.c $(PARTS_CASES)
t_core_parts_gpu_SOURCES = t/core/parts_gpu.c $(PARTS_CASES)

PLAN_CASES = t/core/plan_cases.c t/core/plan_cases.h t/core/plan_model.c t/core/plan_model.h
t_core_plan_SOURCES = t/core/plan.c $(PLAN_CASES)
t_core_plan_gpu_SOURCES = t/core/plan_gpu.c $(PLAN_CASES)
# units of te_train
TE_TRAIN_LDADD = tools/te_train/libte_train.la $(LDADD) $(JANSSON_LIBS) $(ZLIB_LIBS)
t_tools_data_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
t_tools_data_LDADD = $(TE_TRAIN_LDADD)
t_tools_hfconfig_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
t_tools_hfconfig_LDADD = $(TE_TRAIN_LDADD)
t_tools_perftest_stats_LDADD = tools/te_perftest/libte_perftest.la $(LDADD) $(JANSSON_LIBS)
t_tools_safetensors_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
t_tools_safetensors_LDADD = $(TE_TRAIN_LDADD)

BACKEND_CASES = \
	t/core/backend_captures.c \
	t/core/backend_cases.c \
	t/core/backend_cases.h \
	t/core/backend_faults.c \
	t/core/backend_lib.c \
	t/core/backend_lib.h \
	t/core/backend_memory.c \
	t/core/backend_public.c \
	t/core/backend_streams.c \
	t/core/backend_work.c
t_core_backend_SOURCES = t/core/backend.c $(BACKEND_CASES)
t_core_backend_gpu_SOURCES = t/core/backend_gpu.c $(BACKEND_CASES)

FUSION_CASES = t/core/fusion_cases.c t/core/fusion_cases.h
t_core_fusion_SOURCES = t/core/fusion.c $(FUSION_CASES)
t_core_fusion_gpu_SOURCES = t/core/fusion_gpu.c $(FUSION_CASES)

GEMM_CASES = t/core/gemm_cases.c t/core/gemm_cases.h
t_core_gemm_SOURCES = t/core/gemm.c $(GEMM_CASES)
t_core_gemm_gpu_SOURCES = t/core/gemm_gpu.c $(GEMM_CASES)

GEMM_EXACT_CASES = t/core/gemm_exact_cases.c t/core/gemm_exact_cases.h
t_core_gemm_exact_SOURCES = t/core/gemm_exact.c $(GEMM_EXACT_CASES)
t_core_gemm_exact_gpu_SOURCES = t/core/gemm_exact_gpu.c $(GEMM_EXACT_CASES)

CHANGE_CASES = t/graph/caster.c t/graph/caster.h t/graph/change_cases.c t/graph/change_cases.h \
	t/core/plan_model.c t/core/plan_model.h
t_graph_change_SOURCES = t/graph/change.c $(CHANGE_CASES)
t_graph_change_gpu_SOURCES = t/graph/change_gpu.c $(CHANGE_CASES)

t_graph_faults_SOURCES = t/graph/faults.c t/graph/caster.c t/graph/caster.h \
	t/core/plan_model.c t/core/plan_model.h

GRAPH_CASES = \
	t/core/plan_model.c \
	t/core/plan_model.h \
	t/graph/caster.c \
	t/graph/caster.h \
	t/graph/graph_capture.c \
	t/graph/graph_cases.c \
	t/graph/graph_cases.h \
	t/graph/graph_lib.c \
	t/graph/graph_lib.h \
	t/graph/graph_models.c \
	t/graph/graph_replay.c
t_graph_graph_SOURCES = t/graph/graph.c $(GRAPH_CASES)
t_graph_graph_gpu_SOURCES = t/graph/graph_gpu.c $(GRAPH_CASES)

RULES_CASES = \
	t/core/plan_model.c \
	t/core/plan_model.h \
	t/graph/rules_arguments.c \
	t/graph/rules_capture.c \
	t/graph/rules_cases.c \
	t/graph/rules_cases.h \
	t/graph/rules_lib.c \
	t/graph/rules_lib.h \
	t/graph/rules_replay.c
t_graph_rules_SOURCES = t/graph/rules.c $(RULES_CASES)
t_graph_rules_gpu_SOURCES = t/graph/rules_gpu.c $(RULES_CASES)

SWEEP_CASES = t/graph/sweep_cases.c t/graph/sweep_cases.h
t_graph_sweep_SOURCES = t/graph/sweep.c $(SWEEP_CASES)
t_graph_sweep_gpu_SOURCES = t/graph/sweep_gpu.c $(SWEEP_CASES)

ATTN_CASES = t/core/attn_cases.c t/core/attn_cases.h \
	t/core/kernel_check.c t/core/kernel_check.h
t_core_attn_SOURCES = t/core/attn.c $(ATTN_CASES)
t_core_attn_gpu_SOURCES = t/core/attn_gpu.c $(ATTN_CASES)

KERNEL_CASES = \
	t/core/kernel_acts.c \
	t/core/kernel_cases.c \
	t/core/kernel_cases.h \
	t/core/kernel_check.c \
	t/core/kernel_check.h \
	t/core/kernel_elem.c \
	t/core/kernel_lib.c \
	t/core/kernel_lib.h \
	t/core/kernel_rows.c \
	t/core/kernel_train.c
t_core_kernels_SOURCES = t/core/kernels.c $(KERNEL_CASES)
t_core_kernels_gpu_SOURCES = t/core/kernels_gpu.c $(KERNEL_CASES)

ORDERS = t/graph/orders.c t/graph/orders.h
t_graph_lifetimes_SOURCES = t/graph/lifetimes.c $(ORDERS)
t_graph_schedule_SOURCES = t/graph/schedule.c $(ORDERS)

RECORDING_CASES = \
	t/core/plan_model.c \
	t/core/plan_model.h \
	t/core/recording_cases.c \
	t/core/recording_cases.h \
	t/core/recording_events.c \
	t/core/recording_faults.c \
	t/core/recording_lib.c \
	t/core/recording_lib.h \
	t/core/recording_nodes.c \
	t/core/recording_slots.c \
	t/core/recording_updates.c
t_core_recording_SOURCES = t/core/recording.c $(RECORDING_CASES)
t_core_recording_gpu_SOURCES = t/core/recording_gpu.c $(RECORDING_CASES)

OP_CASES = t/core/op_cases.c t/core/op_cases.h t/core/op_run.c t/core/op_run.h
t_core_ops_SOURCES = t/core/ops.c $(OP_CASES)
t_core_ops_gpu_SOURCES = t/core/ops_gpu.c $(OP_CASES)

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
EXTRA_DIST += \
	t/installcheck.sh \
	t/lib/tap.sh \
	t/meta/common.sh \
	t/tools/te_train.sh
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

installcheck-local:
	@env DESTDIR='$(DESTDIR)' bindir='$(bindir)' libdir='$(libdir)' \
		includedir='$(includedir)' mandir='$(mandir)' pkgconfigdir='$(pkgconfigdir)' \
		srcdir='$(srcdir)' CC='$(CC)' CXX='$(CXX)' PKG_CONFIG='$(PKG_CONFIG)' \
		HEADERS='$(teinclude_HEADERS) $(nodist_teinclude_HEADERS)' \
		MANS='$(dist_man1_MANS) $(dist_man3_MANS) $(dist_man7_MANS) $(nodist_man7_MANS)' \
		PROGRAMS='$(bin_PROGRAMS)' EXAMPLES='$(EXAMPLES)' SANITIZE='$(TE_SANITIZE)' \
		$(SHELL) $(srcdir)/t/installcheck.sh

# distcheck configures as this tree was
AM_DISTCHECK_CONFIGURE_FLAGS = --with-nvcc='$(TE_WITH_NVCC)'

# golden data and what made it
EXTRA_DIST += \
	t/data/dtype_f32.inc \
	t/data/dtype_fp8.inc \
	t/data/gen_dtype.py \
	t/data/gen_hf.py \
	t/data/hf_gpt2.json \
	t/data/hf_gpt2.safetensors \
	t/data/hf_llama.json \
	t/data/hf_llama.safetensors \
	t/data/hf_qwen2.json \
	t/data/hf_qwen2.safetensors
