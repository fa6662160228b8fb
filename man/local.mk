dist_man3_MANS += \
	man/te_adamw_create.3 \
	man/te_adamw_m.3 \
	man/te_adamw_ref.3 \
	man/te_adamw_set_lr.3 \
	man/te_adamw_state_get.3 \
	man/te_adamw_state_nbytes.3 \
	man/te_adamw_state_set.3 \
	man/te_adamw_stats.3 \
	man/te_adamw_step.3 \
	man/te_adamw_unref.3 \
	man/te_adamw_v.3 \
	man/te_bf16_decode.3 \
	man/te_bf16_encode.3 \
	man/te_comm_version.3 \
	man/te_dequantize.3 \
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
	man/te_gemm.3 \
	man/te_graph_version.3 \
	man/te_log_filter.3 \
	man/te_log_set.3 \
	man/te_op_activation.3 \
	man/te_op_add.3 \
	man/te_op_attention.3 \
	man/te_op_attrs.3 \
	man/te_op_bias.3 \
	man/te_op_create.3 \
	man/te_op_cross_entropy.3 \
	man/te_op_dropout.3 \
	man/te_op_embedding.3 \
	man/te_op_fork.3 \
	man/te_op_give.3 \
	man/te_op_layernorm.3 \
	man/te_op_linear.3 \
	man/te_op_name.3 \
	man/te_op_ref.3 \
	man/te_op_rmsnorm.3 \
	man/te_op_rope.3 \
	man/te_op_table.3 \
	man/te_op_take.3 \
	man/te_op_unref.3 \
	man/te_param_count.3 \
	man/te_param_info.3 \
	man/te_param_unknown.3 \
	man/te_plan_backward.3 \
	man/te_plan_backward_dw.3 \
	man/te_plan_create.3 \
	man/te_plan_forward.3 \
	man/te_plan_input.3 \
	man/te_plan_input_grad.3 \
	man/te_plan_memory.3 \
	man/te_plan_output.3 \
	man/te_plan_output_grad.3 \
	man/te_plan_print.3 \
	man/te_plan_ref.3 \
	man/te_plan_unref.3 \
	man/te_quant_amax_ptr.3 \
	man/te_quant_create.3 \
	man/te_quant_dtype.3 \
	man/te_quant_load.3 \
	man/te_quant_nbytes.3 \
	man/te_quant_nslots.3 \
	man/te_quant_peek.3 \
	man/te_quant_recipe.3 \
	man/te_quant_ref.3 \
	man/te_quant_save.3 \
	man/te_quant_scale_ptr.3 \
	man/te_quant_unref.3 \
	man/te_quant_update.3 \
	man/te_quantize.3 \
	man/te_recipe_from_name.3 \
	man/te_recipe_name.3 \
	man/te_seq_add_fusion.3 \
	man/te_seq_append.3 \
	man/te_seq_create.3 \
	man/te_seq_ctx.3 \
	man/te_seq_grads.3 \
	man/te_seq_init.3 \
	man/te_seq_input.3 \
	man/te_seq_masters.3 \
	man/te_seq_nops.3 \
	man/te_seq_nweights.3 \
	man/te_seq_op.3 \
	man/te_seq_quant.3 \
	man/te_seq_ref.3 \
	man/te_seq_rng_get.3 \
	man/te_seq_rng_set.3 \
	man/te_seq_unref.3 \
	man/te_seq_weight.3 \
	man/te_seq_zero_grads.3 \
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
