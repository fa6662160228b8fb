# Check programs are t/AREA/TOPIC.c, scripts t/AREA/tNNNN-WHAT.t; both print TAP.
# A program needs one line in a list below; its source is TOPIC.c and it links the inside of all
# libraries, and libtt, which has the sources that several programs share. Programs of the lists
# TT_PAIRS and TT_LONG_PAIRS have a TT_PAIR().
# Those that take longest are started first.
TT_LONG = \
	t/comm/bootstrap_faults \
	t/comm/bootstrap_setup \
	t/comm/fabric \
	t/comm/faults \
	t/comm/nodes_faults \
	t/comm/nodes_random \
	t/comm/nvls
TT_LONG_PAIRS = \
	t/comm/allreduce \
	t/comm/messages \
	t/comm/pool \
	t/graph/equivalence \
	t/graph/graph \
	t/graph/step \
	t/kernels/attn \
	t/kernels/comm \
	t/kernels/comm_norm \
	t/kernels/kernels \
	t/ops/gemm
TT_PAIRS = \
	t/backend/backend \
	t/capture/recording \
	t/comm/context \
	t/comm/fusion \
	t/comm/nodes \
	t/comm/norm \
	t/comm/ops \
	t/comm/reducer \
	t/comm/vocab \
	t/graph/bind_update \
	t/graph/contract \
	t/graph/offload \
	t/graph/recompute \
	t/kernels/attn_cached \
	t/ops/kernel_calls \
	t/plan/checkpoint \
	t/plan/custom \
	t/plan/decoder \
	t/plan/fusion \
	t/plan/optim_groups \
	t/plan/optim_host \
	t/plan/plan \
	t/plan/plan_bind \
	t/plan/weights \
	t/tensor/window
TT_CORE = \
	t/backend/cgroup \
	t/backend/cublaslt \
	t/backend/cuda_abi \
	t/backend/cuda_driver \
	t/backend/cuda_exec \
	t/backend/cuda_multicast \
	t/backend/cuda_ptx \
	t/backend/cuda_share \
	t/backend/sm90 \
	t/backend/team \
	t/backend/topology \
	t/base/dl \
	t/base/errno \
	t/base/log \
	t/kernels/threads \
	t/offload/measure \
	t/offload/pinned \
	t/offload/spill \
	t/offload/spill_faults \
	t/offload/spill_systems \
	t/ops/gemm_exact \
	t/ops/gemm_exact_gpu \
	t/ops/ops \
	t/ops/ops_gpu \
	t/plan/faults \
	t/plan/numerics \
	t/plan/optim \
	t/plan/profile \
	t/plan/seq \
	t/plan/threads \
	t/quant/block \
	t/quant/nvfp4 \
	t/quant/recipe \
	t/tensor/caller \
	t/tensor/caller_gpu \
	t/tensor/tensor
TT_GRAPH = \
	t/graph/faults \
	t/graph/lifetimes \
	t/graph/locale \
	t/graph/schedule
TT_COMM = \
	t/comm/astray \
	t/comm/bootstrap \
	t/comm/bootstrap_net \
	t/comm/heap \
	t/comm/leaving \
	t/comm/link \
	t/comm/many \
	t/comm/nccl \
	t/comm/pass \
	t/comm/pmix \
	t/comm/split \
	t/comm/stacks \
	t/comm/table
if HAVE_VERBS
TT_COMM += t/comm/verbs
endif
TT_DAEMON =
TT_TOOLS =
TT_TOKEN =
if HAVE_TOKEN
TT_TOKEN += t/token/sentencepiece t/token/token
endif
# Programs of which each case is of one thread or tagged as what .ci/run leaves out with
# ThreadSanitizer: a build with it has none of them.
if !TSAN
TT_LONG += t/plan/place
TT_CORE += \
	t/backend/cuda_levels \
	t/backend/edges \
	t/base/dtype \
	t/base/param \
	t/base/tap \
	t/kernels/few_rows \
	t/kernels/host_kernels \
	t/kernels/schedule \
	t/kernels/simd \
	t/offload/crc32c \
	t/offload/model \
	t/plan/choose \
	t/quant/quant
TT_GRAPH += \
	t/graph/bits \
	t/graph/null \
	t/graph/sized
TT_COMM += \
	t/comm/model \
	t/comm/pass_user
if HAVE_VERBS
TT_COMM += t/comm/verbs_random
endif
TT_DAEMON += \
	t/daemon/ted \
	t/daemon/ted_fuse \
	t/daemon/ted_metrics \
	t/daemon/ted_spill \
	t/daemon/ted_stop \
	t/daemon/ted_user \
	t/daemon/ted_userns \
	t/daemon/ted_written
if HAVE_JANSSON
TT_TOOLS += \
	t/daemon/tectl \
	t/tools/freeze \
	t/tools/gpu \
	t/tools/hfconfig \
	t/tools/lora \
	t/tools/mem \
	t/tools/option \
	t/tools/perftest_stats \
	t/tools/program \
	t/tools/safetensors \
	t/tools/sample \
	t/tools/save_kill
endif
if HAVE_TOKEN
TT_TOKEN += t/token/gguf t/token/gguf_pieces
endif
endif
# Lists of scripts can be replaced on the command line of make check, for example by TT_META=. These
# look at sources, man pages and exports.
TT_META = \
	t/meta/t0001-exports.t \
	t/meta/t0002-needed.t \
	t/meta/t0003-headers.t \
	t/meta/t0004-manpages.t \
	t/meta/t0005-manlint.t \
	t/meta/t0006-examples.t \
	t/meta/t0007-layers.t \
	t/meta/t0008-sources.t \
	t/meta/t0009-kernels.t \
	t/meta/t0010-pages7.t \
	t/meta/t0011-words.t \
	t/meta/t0012-fortran.t \
	t/meta/t0014-columns.t \
	t/meta/t0015-quickstart.t \
	t/meta/t0016-places.t
TT_SH =
TT_TOOLS_SH = t/tools/t8017-te_run.t t/tools/t8021-te_run-hosts.t
if HAVE_TOKEN
TT_TOOLS_SH += t/token/t8040-te_token.t t/token/t8041-compare.t
else
EXTRA_DIST += t/token/t8040-te_token.t t/token/t8041-compare.t
endif
# a program that scripts start several times
check_PROGRAMS += t/comm/rank
t_comm_rank_SOURCES = t/comm/rank.c
t_comm_rank_LDADD = libtecomm/libtecomm.la libtecore/libtecore.la
check_PROGRAMS += t/comm/link_pair
t_comm_link_pair_SOURCES = t/comm/link_lib.c t/comm/link_lib.h t/comm/link_pair.c
t_comm_link_pair_LDADD = libtecomm/libtecomm_internal.la libtecore/libtecore_internal.la
TT_SH += t/comm/t3001-launchers.t
TT_SH += t/comm/t3002-slurm.t
TT_SH += t/daemon/t5001-units.t
check_DATA = $(UNITS)
TT_SH += t/gpu/t6001-pack.t
TT_SH += t/kernels/t0013-nvls.t
TT_SH += t/kernels/t0017-sm90.t
TT_SH += t/kernels/t0018-levels.t
TT_SH += t/kernels/t0019-mx.t
TT_SH += t/kernels/t0020-block.t
TT_SH += t/kernels/t0021-heads.t
TT_SH += t/kernels/t0022-registers.t

if HAVE_JANSSON
TT_TOOLS += \
	t/tools/chunks \
	t/tools/ckpt \
	t/tools/ckpt_crash \
	t/tools/data \
	t/tools/jsonl \
	t/tools/kept \
	t/tools/order \
	t/tools/perftest_call \
	t/tools/weights
TT_TOOLS_SH += \
	t/tools/t8001-te_plot.t \
	t/tools/t8002-te_train-usage.t \
	t/tools/t8003-te_train-resume.t \
	t/tools/t8004-te_train-checkpoints.t \
	t/tools/t8005-te_train-run.t \
	t/tools/t8006-te_train-golden.t \
	t/tools/t8007-te_info.t \
	t/tools/t8008-te_perftest.t \
	t/tools/t8009-te_train-graph.t \
	t/tools/t8010-completion.t \
	t/tools/t8011-tutorial.t \
	t/tools/t8012-te_train-exits.t \
	t/tools/t8013-te_train-trouble.t \
	t/tools/t8014-te_train-kill.t \
	t/tools/t8015-te_train-no-memory.t \
	t/tools/t8016-te_train-limits.t \
	t/tools/t8018-te_train-families.t \
	t/tools/t8019-te_train-ranks.t \
	t/tools/t8020-te_train-tensor.t \
	t/tools/t8022-te_train-recover.t \
	t/tools/t8023-te_train-folder.t \
	t/tools/t8024-te_train-tokenizer.t \
	t/tools/t8025-te_train-stacks.t \
	t/tools/t8026-te_train-epochs.t \
	t/tools/t8027-te_train-schedules.t \
	t/tools/t8028-te_train-jsonl.t \
	t/tools/t8029-te_train-text.t \
	t/tools/t8030-te_generate.t \
	t/tools/t8031-te_export.t \
	t/tools/t8032-te_generate-choices.t \
	t/tools/t8033-te_generate-chat.t \
	t/tools/t8036-te_train-head.t \
	t/tools/t8037-te_train-moments.t \
	t/tools/t8038-te_train-memory.t \
	t/tools/t8039-te_train-documents.t \
	t/tools/t8040-te_train-lora.t \
	t/tools/t8041-te_train-pipeline.t \
	t/tools/t8042-te_train-zero.t \
	t/tools/t8046-te_train-states.t \
	t/tools/t8047-te_export-folder.t \
	t/tools/t8048-te_train-token-cache.t \
	t/tools/t8050-te_train-choices.t \
	t/tools/t8051-te_train-gradients.t \
	t/tools/t8052-te_train-columns.t \
	t/tools/t8053-te_train-context.t \
	t/tools/t8054-te_train-states.t \
	t/tools/t8055-te_train-return.t \
	t/tools/t8056-te_train-copies.t \
	t/tools/t8057-te_train-sharded.t \
	t/tools/t8058-te_train-layers.t
# a shared library for LD_PRELOAD: -rpath makes it one although it is not installed
check_LTLIBRARIES += t/lib/failalloc.la
t_lib_failalloc_la_SOURCES = t/lib/failalloc.c
t_lib_failalloc_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere
endif

TEST_EXTENSIONS = .t
TAP = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
LOG_DRIVER = $(TAP)
T_LOG_DRIVER = $(TAP)
T_LOG_COMPILER = $(SHELL)
# Each test has a TMPDIR of its own, for all users as /tmp is; what it leaves there is removed, and a
# failure of check-report.
# TE_* of the caller would change what tests see. Threads of a BLAS take the cores of
# other tests, and ThreadSanitizer does not see how they wait for each other.
AM_TESTS_ENVIRONMENT = \
	for v in `env | sed -n 's/^\(TE_[A-Z0-9_]*\)=.*/\1/p'`; do unset $$v; done; \
	OPENBLAS_NUM_THREADS=1; export OPENBLAS_NUM_THREADS; \
	TMPDIR=`mktemp -d "$${TMPDIR:-/tmp}/te-check.XXXXXX"` && chmod 1777 "$$TMPDIR"; export TMPDIR; \
	trap 'ls -A "$$TMPDIR" >"$$b.left"; [ -s "$$b.left" ] || rm -f "$$b.left"; rm -rf "$$TMPDIR"' 0; \
	TT_TAP=1; export TT_TAP; \
	TT_EXAMPLES='$(EXAMPLES)'; export TT_EXAMPLES; \
	TT_HEADERS='$(TE_PUBLIC_H)'; export TT_HEADERS; \
	TT_MANS='$(te_mans)'; export TT_MANS; \
	TT_SANITIZE='$(TE_SANITIZE)'; export TT_SANITIZE; \
	abs_top_srcdir='$(abs_top_srcdir)'; export abs_top_srcdir; \
	abs_top_builddir='$(abs_top_builddir)'; export abs_top_builddir; \
	CC='$(CC)'; export CC; \
	AWK='$(AWK)'; export AWK; \
	CXX='$(CXX)'; export CXX; \
	FC='$(FC)'; export FC; \
	MANDOC='$(MANDOC)'; export MANDOC; \
	NM='$(NM)'; export NM; \
	READELF='$(READELF)'; export READELF;

if HAVE_CHECK
# programs of the lists above again, with other settings
TT_AGAIN = t/backend/t1001-shuffle.t t/plan/t1002-separate.t
AM_CPPFLAGS += -I$(top_srcdir)/t/lib
check_LTLIBRARIES += t/lib/libtt.la
t_lib_libtt_la_SOURCES = \
	t/comm/link_lib.c \
	t/comm/link_lib.h \
	t/comm/nodes_lib.c \
	t/comm/nodes_lib.h \
	t/comm/random_lib.c \
	t/comm/random_lib.h \
	t/comm/ranks.c \
	t/comm/ranks.h \
	t/comm/threads.c \
	t/comm/threads.h \
	t/comm/verbs_fake.c \
	t/comm/verbs_fake.h \
	t/daemon/ted_space.c \
	t/daemon/ted_space.h \
	t/graph/caster.c \
	t/graph/caster.h \
	t/graph/offload_lib.c \
	t/graph/offload_lib.h \
	t/graph/orders.c \
	t/graph/orders.h \
	t/kernels/comm_lib.c \
	t/kernels/comm_lib.h \
	t/kernels/kernel_check.c \
	t/kernels/kernel_check.h \
	t/lib/tt.c \
	t/lib/tt.h \
	t/lib/tt_ctx.c \
	t/lib/tt_ctx.h \
	t/lib/tt_fault.c \
	t/lib/tt_gate.c \
	t/lib/tt_gate.h \
	t/lib/tt_num.c \
	t/lib/tt_num.h \
	t/lib/tt_register.c \
	t/lib/tt_states.c \
	t/lib/tt_states.h \
	t/lib/tt_ted.c \
	t/lib/tt_ted.h \
	t/lib/tt_wire.c \
	t/lib/tt_wire.h \
	t/offload/spill_lib.c \
	t/offload/spill_lib.h \
	t/ops/op_cases.c \
	t/ops/op_cases.h \
	t/ops/op_run.c \
	t/ops/op_run.h \
	t/plan/plan_model.c \
	t/plan/plan_model.h
t_lib_libtt_la_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)

# the one program that may see the headers of CUDA
t_backend_cuda_abi_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)

t_backend_cublaslt_SOURCES = \
	t/backend/cublaslt.c \
	t/backend/cublaslt_mx.c \
	t/backend/cuda_fake.h \
	t/backend/gemm_lib.c \
	t/backend/gemm_lib.h
t_backend_cuda_driver_SOURCES = t/backend/cuda_driver.c t/backend/cuda_fake.h
t_backend_cuda_levels_SOURCES = t/backend/cuda_fake.h t/backend/cuda_levels.c
t_backend_cuda_multicast_SOURCES = t/backend/cuda_fake.h t/backend/cuda_multicast.c
t_backend_cuda_ptx_SOURCES = t/backend/cuda_fake.h t/backend/cuda_ptx.c
t_backend_cuda_share_SOURCES = t/backend/cuda_fake.h t/backend/cuda_share.c
t_backend_sm90_SOURCES = t/backend/cuda_fake.h t/backend/sm90.c
t_backend_cuda_exec_SOURCES = \
	t/backend/cuda_exec.c \
	t/backend/cuda_exec_batch.c \
	t/backend/cuda_exec_edges.c \
	t/backend/cuda_exec_lib.c \
	t/backend/cuda_exec_lib.h \
	t/backend/cuda_fake.h \
	t/backend/cuda_fake_graph.c \
	t/backend/cuda_fake_graph.h

t_kernels_host_kernels_SOURCES = \
	t/kernels/host_kernels.c \
	t/kernels/host_kernels_acts.c \
	t/kernels/host_kernels_block.c \
	t/kernels/host_kernels_elem.c \
	t/kernels/host_kernels_lib.c \
	t/kernels/host_kernels_lib.h \
	t/kernels/host_kernels_nvfp4.c \
	t/kernels/host_kernels_optim.c \
	t/kernels/host_kernels_rows.c \
	t/kernels/host_kernels_train.c

t_plan_custom_SOURCES = t/plan/custom.c t/plan/custom_block.c

t_plan_optim_host_SOURCES = t/plan/optim_file.c t/plan/optim_host.c t/plan/optim_runs.h

t_plan_plan_SOURCES = \
	t/plan/plan.c \
	t/plan/plan_cases.h \
	t/plan/plan_copies.c \
	t/plan/plan_hooks.c \
	t/plan/plan_recipe.c \
	t/plan/plan_use.c

t_plan_fusion_SOURCES = \
	t/plan/fusion.c \
	t/plan/fusion_apart.c \
	t/plan/fusion_few_rows.c \
	t/plan/fusion_loss.c \
	t/plan/fusion_side.c \
	t/plan/fusion_side.h

t_plan_weights_SOURCES = \
	t/plan/weights.c \
	t/plan/weights_bound.c \
	t/plan/weights_cases.h \
	t/plan/weights_columns.c \
	t/plan/weights_divided.c \
	t/plan/weights_frozen.c \
	t/plan/weights_grads.c \
	t/plan/weights_hosted.c \
	t/plan/weights_pair.c \
	t/plan/weights_pair.h \
	t/plan/weights_parts.c

t_tensor_caller_SOURCES = t/tensor/caller.c t/tensor/caller_cases.c t/tensor/caller_cases.h
t_tensor_caller_gpu_SOURCES = t/tensor/caller_cases.c t/tensor/caller_cases.h t/tensor/caller_gpu.c

t_daemon_tectl_LDADD = $(LDADD) $(JANSSON_LIBS)

t_comm_bootstrap_faults_SOURCES = \
	t/comm/bootstrap_faults.c \
	t/comm/bootstrap_lib.c \
	t/comm/bootstrap_lib.h \
	t/comm/bootstrap_strangers.c
t_comm_bootstrap_setup_SOURCES = \
	t/comm/bootstrap_lib.c \
	t/comm/bootstrap_lib.h \
	t/comm/bootstrap_setup.c
t_comm_pass_SOURCES = \
	t/comm/bootstrap_lib.c \
	t/comm/bootstrap_lib.h \
	t/comm/control.c \
	t/comm/pass.c
t_comm_pass_user_SOURCES = \
	t/comm/bootstrap_lib.c \
	t/comm/bootstrap_lib.h \
	t/comm/pass_user.c
check_PROGRAMS += t/comm/recover_rank
t_comm_verbs_SOURCES = \
	t/comm/verbs.c \
	t/comm/verbs_comm.c \
	t/comm/verbs_devices.c \
	t/comm/verbs_faults.c \
	t/comm/verbs_lib.c \
	t/comm/verbs_lib.h
check_LTLIBRARIES += t/comm/libnccl.la t/tools/libcuda.la
t_tools_libcuda_la_SOURCES = t/tools/cuda_fake.c
t_tools_libcuda_la_LDFLAGS = -version-info 1:0:0 -shared -rpath /nowhere
t_comm_libnccl_la_SOURCES = t/comm/nccl_fake.c t/comm/nccl_fake.h
t_comm_libnccl_la_LDFLAGS = -version-info 2:0:0 -shared -rpath /nowhere
t_comm_nccl_SOURCES = t/comm/nccl.c t/comm/nccl_fake.h
t_comm_nccl_LDADD = t/comm/libnccl.la $(LDADD)
check_LTLIBRARIES += t/comm/libpmix.la t/lib/failfork.la t/lib/libidle.la
t_lib_failfork_la_SOURCES = t/lib/failfork.c
t_lib_failfork_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere
t_lib_libidle_la_SOURCES = t/lib/idle.c
t_lib_libidle_la_LDFLAGS = -avoid-version -shared -rpath /nowhere
t_comm_libpmix_la_SOURCES = t/comm/pmix_fake.c t/comm/pmix_fake.h
t_comm_libpmix_la_LDFLAGS = -version-info 2:0:0 -shared -rpath /nowhere
t_comm_pmix_SOURCES = t/comm/pmix.c t/comm/pmix_fake.h
t_comm_pmix_LDADD = t/comm/libpmix.la $(LDADD)
t_comm_pool_SOURCES = t/comm/pool.c t/comm/pool_cases.c

t_token_gguf_LDADD = libtetoken/libtetoken_internal.la $(LDADD)
t_token_gguf_SOURCES = t/token/gguf.c t/token/token_lib.c t/token/token_lib.h
t_token_gguf_pieces_LDADD = libtetoken/libtetoken_internal.la $(LDADD)
t_token_gguf_pieces_SOURCES = t/token/gguf_pieces.c t/token/token_lib.c t/token/token_lib.h
t_token_sentencepiece_LDADD = libtetoken/libtetoken_internal.la $(LDADD)
t_token_token_LDADD = libtetoken/libtetoken_internal.la $(LDADD)
t_token_token_SOURCES = t/token/token.c t/token/token_lib.c t/token/token_lib.h

# units of te_train
TE_TRAIN_LDADD = tools/te_train/libte_train.la $(TOKEN_INTERNAL_LA) $(LDADD) \
	$(JANSSON_LIBS) $(ZLIB_LIBS)
t_tools_chunks_LDADD = $(TE_TRAIN_LDADD)
t_tools_ckpt_LDADD = $(TE_TRAIN_LDADD)
t_tools_ckpt_crash_LDADD = $(TE_TRAIN_LDADD)
t_tools_data_LDADD = $(TE_TRAIN_LDADD)
t_tools_freeze_LDADD = $(TE_TRAIN_LDADD)
t_tools_gpu_LDADD = $(TE_TRAIN_LDADD)
t_tools_gpu_LDFLAGS = -Wl,--wrap=te_backend_info,--wrap=te_device_info
t_tools_hfconfig_LDADD = $(TE_TRAIN_LDADD)
t_tools_jsonl_LDADD = $(TE_TRAIN_LDADD)
t_tools_kept_LDADD = $(TE_TRAIN_LDADD)
t_tools_lora_LDADD = $(TE_TRAIN_LDADD)
t_tools_mem_LDADD = $(TE_TRAIN_LDADD)
t_tools_option_LDADD = $(TE_TRAIN_LDADD)
t_tools_order_LDADD = $(TE_TRAIN_LDADD)
TE_PERFTEST_LDADD = tools/te_perftest/libte_perftest.la $(LDADD) $(JANSSON_LIBS)
t_tools_perftest_call_LDADD = $(TE_PERFTEST_LDADD)
t_tools_perftest_stats_LDADD = $(TE_PERFTEST_LDADD)
t_tools_program_LDADD = $(TE_TRAIN_LDADD)
t_tools_safetensors_LDADD = $(TE_TRAIN_LDADD)
t_tools_sample_LDADD = $(TE_TRAIN_LDADD)
t_tools_save_kill_LDADD = $(TE_TRAIN_LDADD)
t_tools_save_kill_LDFLAGS = \
	-Wl,--wrap=te_adamw_set_lr \
	-Wl,--wrap=te_ctx_backend \
	-Wl,--wrap=te_mem_alloc \
	-Wl,--wrap=te_pinned_alloc
t_tools_weights_LDADD = $(TE_TRAIN_LDADD)

t_backend_backend_SOURCES = \
	t/backend/backend.c \
	t/backend/backend_branches.c \
	t/backend/backend_captures.c \
	t/backend/backend_faults.c \
	t/backend/backend_lib.c \
	t/backend/backend_lib.h \
	t/backend/backend_memory.c \
	t/backend/backend_public.c \
	t/backend/backend_share.c \
	t/backend/backend_streams.c \
	t/backend/backend_work.c

t_ops_gemm_SOURCES = \
	t/ops/gemm.c \
	t/ops/gemm_cases.c \
	t/ops/gemm_grouped_cases.c

t_ops_kernel_calls_SOURCES = \
	t/ops/kernel_calls.c \
	t/ops/kernel_calls_attend.c \
	t/ops/kernel_calls_cached.c \
	t/ops/kernel_calls_cases.h \
	t/ops/kernel_calls_cross.c \
	t/ops/kernel_calls_elem.c \
	t/ops/kernel_calls_heads.c \
	t/ops/kernel_calls_rows.c \
	t/ops/kernel_calls_train.c

t_ops_gemm_exact_SOURCES = t/ops/gemm_exact.c t/ops/gemm_exact_cases.c t/ops/gemm_exact_cases.h
t_ops_gemm_exact_gpu_SOURCES = \
	t/ops/gemm_exact_cases.c \
	t/ops/gemm_exact_cases.h \
	t/ops/gemm_exact_gpu.c

t_graph_contract_SOURCES = \
	t/graph/contract.c \
	t/graph/contract_arguments.c \
	t/graph/contract_capture.c \
	t/graph/contract_lib.c \
	t/graph/contract_lib.h \
	t/graph/contract_replay.c

t_graph_graph_SOURCES = \
	t/graph/graph.c \
	t/graph/graph_capture.c \
	t/graph/graph_lib.c \
	t/graph/graph_lib.h \
	t/graph/graph_memory.c \
	t/graph/graph_models.c \
	t/graph/graph_replay.c

t_graph_offload_SOURCES = t/graph/offload.c t/graph/offload_faults.c t/graph/offload_memory.c

t_graph_recompute_SOURCES = \
	t/graph/recompute.c \
	t/graph/recompute_cases.h \
	t/graph/recompute_ops.c \
	t/graph/recompute_random.c

t_graph_step_SOURCES = \
	t/graph/step.c \
	t/graph/step_cases.h \
	t/graph/step_cuts.c \
	t/graph/step_drop.c \
	t/graph/step_scales.c \
	t/graph/step_use.c

t_kernels_attn_SOURCES = \
	t/kernels/attn.c \
	t/kernels/attn_cases.c \
	t/kernels/attn_model.c \
	t/kernels/attn_model.h \
	t/kernels/attn_run.c \
	t/kernels/attn_run.h

t_kernels_attn_cached_SOURCES = t/kernels/attn_cached.c t/kernels/kernel_lib.c

t_kernels_comm_SOURCES = t/kernels/comm.c t/kernels/comm_cases.c
t_kernels_comm_norm_SOURCES = \
	t/kernels/comm_norm.c \
	t/kernels/comm_norm_failures.c \
	t/kernels/comm_norm_launches.c \
	t/kernels/comm_norm_lib.c \
	t/kernels/comm_norm_lib.h

t_kernels_kernels_SOURCES = \
	t/kernels/kernel_acts.c \
	t/kernels/kernel_elem.c \
	t/kernels/kernel_few_rows.c \
	t/kernels/kernel_lib.c \
	t/kernels/kernel_lib.h \
	t/kernels/kernel_rows.c \
	t/kernels/kernel_train.c \
	t/kernels/kernel_weights.c \
	t/kernels/kernels.c

t_capture_recording_SOURCES = \
	t/capture/recording.c \
	t/capture/recording_access.c \
	t/capture/recording_bindings.c \
	t/capture/recording_events.c \
	t/capture/recording_faults.c \
	t/capture/recording_lib.c \
	t/capture/recording_lib.h \
	t/capture/recording_nodes.c \
	t/capture/recording_updates.c

t_ops_ops_SOURCES = t/ops/ops.c t/ops/ops_linear.c t/ops/ops_use.c

check_PROGRAMS += $(TT_LONG) $(TT_LONG_PAIRS) $(TT_PAIRS)
check_PROGRAMS += $(TT_CORE) $(TT_GRAPH) $(TT_COMM) $(TT_DAEMON) $(TT_TOKEN) $(TT_TOOLS)
# X_gpu is a hard link to X: TT_PAIR() looks at the name
TT_TWINS = $(TT_LONG_PAIRS:=_gpu) $(TT_PAIRS:=_gpu)
check_SCRIPTS = $(TT_TWINS)
MOSTLYCLEANFILES += $(TT_TWINS)
$(TT_TWINS): %_gpu: %
	$(AM_V_GEN)ln -f $< $@
# all of these, for a machine that has a GPU and no compiler: see CONTRIBUTING.md
TT_GPU = $(TT_TWINS) t/ops/gemm_exact_gpu t/ops/ops_gpu t/tensor/caller_gpu
gpu-tests.tar.xz: $(TT_GPU) $(bin_PROGRAMS)
	$(AM_V_GEN)$(SHELL) $(srcdir)/t/gpu/pack.sh $@ $(TT_GPU)
MOSTLYCLEANFILES += gpu-tests.tar.xz
# programs that compute for longer than they take to be compiled: .ci/run compiles the others without
# optimization, where each line of a sanitizer's checks costs a compiler most
check-optimized: t/lib/libtt.la
	@$(MAKE) $(AM_MAKEFLAGS) `printf '%s\n' $(check_PROGRAMS) | grep -E '^t/(graph/lifetimes|kernels/|ops/)'`
LDADD = \
	t/lib/libtt.la \
	daemon/libted.la \
	libtegraph/libtegraph_internal.la \
	libtecomm/libtecomm_internal.la \
	libtecore/libtecore_internal.la \
	$(CHECK_LIBS)
TESTS += $(TT_AGAIN) $(TT_LONG) $(TT_LONG_PAIRS)
dist_check_SCRIPTS += $(TT_AGAIN)
endif

dist_check_SCRIPTS += $(TT_META) $(TT_SH) $(TT_TOOLS_SH)
EXTRA_DIST += \
	t/gpu/pack.sh \
	t/gpu/run.sh \
	t/installcheck.sh \
	t/kernels/attn_bwd_sm90.cc \
	t/kernels/attn_sm90.cc \
	t/kernels/attn_sm90.h \
	t/kernels/attn_tile.cc \
	t/kernels/block.cc \
	t/kernels/emulate.sh \
	t/kernels/fibers.h \
	t/kernels/heads.cc \
	t/kernels/mx.cc \
	t/kernels/ref.h \
	t/kernels/sm90.cc \
	t/kernels/sm90.h \
	t/lib/commands.awk \
	t/lib/tap.sh \
	t/meta/common.sh \
	t/meta/fortran.f90 \
	t/token/compare.py \
	t/tools/te_export.sh \
	t/tools/te_run.sh \
	t/tools/te_train.sh \
	t/tools/tiny_numpy.py
# scripts take longer than most programs
TESTS += $(TT_TOOLS_SH) $(TT_META) $(TT_SH)
if HAVE_CHECK
TESTS += $(TT_PAIRS) $(TT_TWINS) $(TT_CORE) $(TT_GRAPH) $(TT_COMM) $(TT_DAEMON) $(TT_TOKEN) $(TT_TOOLS)
endif

# The reason of each failure and skip, then "N passed, N failed, N skipped". A
# program that fails a test also exits non-zero, which is no second failure.
check-report:
	@for f in $(TEST_LOGS); do \
		grep -h -E '^(FAIL|XPASS|ERROR|SKIP): ' $$f; \
		[ ! -e $${f%.log}.left ] || \
			echo "FAIL: $${f%.log} leaves in TMPDIR: "`cat $${f%.log}.left`; \
	done; \
	for f in $(TEST_LOGS); do \
		cat $${f%.log}.trs || echo ':test-result: ERROR'; \
		[ ! -e $${f%.log}.left ] || echo ':test-result: FAIL'; \
		echo end; \
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
MOSTLYCLEANFILES += t/*/*.left

installcheck-local:
	@env DESTDIR='$(DESTDIR)' bindir='$(bindir)' libdir='$(libdir)' \
		includedir='$(includedir)' mandir='$(mandir)' pkgconfigdir='$(pkgconfigdir)' \
		exampledir='$(exampledir)' srcdir='$(srcdir)' CC='$(CC)' CXX='$(CXX)' \
		FC='$(FC)' PKG_CONFIG='$(PKG_CONFIG)' \
		HEADERS='$(TE_PUBLIC_H)' FORTRAN='$(teinclude_DATA)' \
		MANS='$(te_mans)' PROGRAMS='$(bin_PROGRAMS)' \
		sbindir='$(sbindir)' SPROGRAMS='$(sbin_PROGRAMS)' \
		EXAMPLES='$(EXAMPLES)' SANITIZE='$(TE_SANITIZE)' \
		$(SHELL) $(srcdir)/t/installcheck.sh

# distcheck configures as this tree was
AM_DISTCHECK_CONFIGURE_FLAGS = --with-nvcc='$(TE_WITH_NVCC)'

# golden data and what made it
EXTRA_DIST += t/data
