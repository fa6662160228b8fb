dist_man3_MANS += \
	man/te_adamw_create.3 \
	man/te_backend_info.3 \
	man/te_capture_access.3 \
	man/te_capture_begin.3 \
	man/te_capture_edges.3 \
	man/te_capture_update.3 \
	man/te_checkpoint_save.3 \
	man/te_comm_alloc.3 \
	man/te_comm_allreduce.3 \
	man/te_comm_allreduce_norm.3 \
	man/te_comm_create.3 \
	man/te_comm_id_create.3 \
	man/te_comm_op_allreduce.3 \
	man/te_comm_op_to_heads.3 \
	man/te_comm_recover.3 \
	man/te_comm_reduce_scatter.3 \
	man/te_comm_reducer_create.3 \
	man/te_comm_send.3 \
	man/te_ctx_create.3 \
	man/te_decoder_create.3 \
	man/te_dtype_name.3 \
	man/te_event_create.3 \
	man/te_event_record_external.3 \
	man/te_fp8_encode.3 \
	man/te_gemm.3 \
	man/te_graph_bind.3 \
	man/te_graph_create.3 \
	man/te_graph_forward.3 \
	man/te_graph_report.3 \
	man/te_host_call.3 \
	man/te_kernel_act_forward.3 \
	man/te_kernel_adamw_step.3 \
	man/te_kernel_attend_forward.3 \
	man/te_kernel_attention_cached.3 \
	man/te_kernel_attention_forward.3 \
	man/te_kernel_bias_forward.3 \
	man/te_kernel_cross_entropy_forward.3 \
	man/te_kernel_dropout_forward.3 \
	man/te_kernel_embedding_forward.3 \
	man/te_kernel_norm_forward.3 \
	man/te_kernel_rope_forward.3 \
	man/te_kernel_transpose.3 \
	man/te_log_set.3 \
	man/te_mem_alloc.3 \
	man/te_offload_create.3 \
	man/te_op_attention.3 \
	man/te_op_create.3 \
	man/te_op_linear.3 \
	man/te_op_recompute.3 \
	man/te_param_info.3 \
	man/te_plan_bind.3 \
	man/te_plan_create.3 \
	man/te_plan_forward.3 \
	man/te_plan_print.3 \
	man/te_plan_profile.3 \
	man/te_plan_saved.3 \
	man/te_plan_watch.3 \
	man/te_quant_create.3 \
	man/te_quant_save.3 \
	man/te_quant_update.3 \
	man/te_quantize.3 \
	man/te_recipe_from_name.3 \
	man/te_recording_node.3 \
	man/te_recording_rebind.3 \
	man/te_scaling_nfloats.3 \
	man/te_schedule_create.3 \
	man/te_seq_add_fusion.3 \
	man/te_seq_bind_weight.3 \
	man/te_seq_create.3 \
	man/te_seq_freeze.3 \
	man/te_seq_init.3 \
	man/te_seq_regions.3 \
	man/te_seq_store_codes.3 \
	man/te_spill_measure.3 \
	man/te_step_create.3 \
	man/te_stream_create.3 \
	man/te_stream_wrap.3 \
	man/te_strerror.3 \
	man/te_tensor_create.3 \
	man/te_tensor_data.3 \
	man/te_tensor_write.3 \
	man/te_transport_info.3 \
	man/te_version.3

dist_man7_MANS += \
	man/te.7 \
	man/te_errors.7 \
	man/te_fortran.7 \
	man/te_launch.7 \
	man/te_transports.7 \
	man/te_tutorial.7
nodist_man7_MANS = man/te_environment.7

man/te_environment.7: man/te_environment.7.in man/params.awk libtecore/base/params.def
	$(AM_V_GEN)$(MKDIR_P) man && \
	$(AWK) -f $(srcdir)/man/params.awk $(srcdir)/libtecore/base/params.def >$@.rows && \
	sed -e '/@PARAMS@/r $@.rows' -e '/@PARAMS@/d' $(srcdir)/man/te_environment.7.in >$@.tmp && \
	rm $@.rows && mv $@.tmp $@

# other functions of a page of section 3 find it by their names
te_aliases = (cd $(srcdir) && $(AWK) -f man/aliases.awk $(dist_man3_MANS))
install-data-hook:
	@echo " aliases of man pages in '$(DESTDIR)$(man3dir)'"; \
	umask 022; $(te_aliases) | while read -r name page; do \
		echo ".so man3/$$page" >"$(DESTDIR)$(man3dir)/$$name" || exit 1; \
	done
uninstall-hook:
	@$(te_aliases) | while read -r name page; do \
		rm -f "$(DESTDIR)$(man3dir)/$$name"; \
	done

EXTRA_DIST += \
	man/aliases.awk \
	man/params.awk \
	man/te_environment.7.in
CLEANFILES += man/te_environment.7
