dist_man3_MANS += \
	man/te_bf16_decode.3 \
	man/te_bf16_encode.3 \
	man/te_comm_version.3 \
	man/te_dtype_from_name.3 \
	man/te_dtype_max.3 \
	man/te_dtype_name.3 \
	man/te_dtype_nbytes.3 \
	man/te_error_clear.3 \
	man/te_error_cuda.3 \
	man/te_error_detail.3 \
	man/te_error_verbs.3 \
	man/te_fp16_decode.3 \
	man/te_fp16_encode.3 \
	man/te_fp8_decode.3 \
	man/te_fp8_encode.3 \
	man/te_graph_version.3 \
	man/te_log_filter.3 \
	man/te_log_set.3 \
	man/te_param_count.3 \
	man/te_param_info.3 \
	man/te_param_unknown.3 \
	man/te_strerror.3 \
	man/te_version.3 \
	man/te_version_number.3

dist_man7_MANS += \
	man/te.7 \
	man/te_errors.7
nodist_man7_MANS = man/te_environment.7

man/te_environment.7: man/te_environment.7.in man/params.awk libtecore/params.def
	$(AM_V_GEN)$(MKDIR_P) man && \
	$(AWK) -f $(srcdir)/man/params.awk $(srcdir)/libtecore/params.def >$@.rows && \
	sed -e '/@PARAMS@/r $@.rows' -e '/@PARAMS@/d' $(srcdir)/man/te_environment.7.in >$@.tmp && \
	rm $@.rows && mv $@.tmp $@
EXTRA_DIST += \
	man/params.awk \
	man/te_environment.7.in
CLEANFILES += man/te_environment.7
