/*
 * t/graph/null.c - objects that are NULL: functions that return a property return NULL, 0 or an
 * error, and functions that fill a struct name the argument.
 */
#include "config.h"

#include <te/te.h>

#include "tt_ctx.h"

CTX_CASE(null, "host serial");

TEST(null, pointers_are_null)
{
	const void *const got[] = {
		te_adamw_m(NULL),
		te_adamw_v(NULL),
		te_comm_peer_ptr(NULL, &backend, 0),
		te_comm_ref(NULL),
		te_ctx_backend(NULL),
		te_ctx_stream(NULL),
		te_graph_grad(NULL, 0, "x"),
		te_graph_tensor(NULL, 0, "x"),
		te_op_attrs(NULL),
		te_op_name(NULL),
		te_op_table(NULL),
		te_plan_input(NULL, "x"),
		te_plan_input_grad(NULL),
		te_plan_output(NULL),
		te_plan_output_grad(NULL),
		te_quant_amax_ptr(NULL, 0),
		te_quant_recipe(NULL),
		te_quant_scale_ptr(NULL, 0),
		te_seq_ctx(NULL),
		te_seq_grads(NULL),
		te_seq_masters(NULL),
		te_seq_op(NULL, 0),
		te_seq_quant(NULL),
		te_step_graph(NULL, 0),
		te_step_input(NULL, 0, 0, "x"),
		te_step_output(NULL, 0, 0),
		te_step_plan(NULL, 0, 0),
		te_stream_ctx(NULL),
		te_stream_native(NULL),
		te_tensor_base(NULL),
		te_tensor_col_scale_inv(NULL),
		te_tensor_coldata(NULL),
		te_tensor_ctx(NULL),
		te_tensor_data(NULL),
		te_tensor_scale_inv(NULL),
	};

	for (size_t i = 0; i < TT_LEN(got); i++)
		ck_assert_msg(!got[i], "pointer %zu", i);
	te_comm_abort(NULL, "no communicator");
}

TEST(null, numbers_are_none)
{
	ck_assert_uint_eq(te_adamw_nbytes(NULL, NULL), 0);
	ck_assert_uint_eq(te_adamw_host_nbytes(NULL, NULL), 0);
	ck_assert_uint_eq(te_adamw_file_nbytes(NULL, NULL), 0);
	ck_assert_int_eq(te_adamw_moments(NULL), TE_MOMENTS_FP32);
	ck_assert_uint_eq(te_ctx_workspace_nbytes(NULL), 0);
	ck_assert_uint_eq(te_plan_flags(NULL), 0);
	ck_assert_int_eq(te_quant_dtype(NULL, 0), TE_DTYPE_COUNT);
	ck_assert_uint_eq(te_quant_nbytes(NULL), 0);
	ck_assert_int_eq(te_quant_nslots(NULL), 0);
	ck_assert_int_eq(te_seq_nops(NULL), 0);
	ck_assert_int_eq(te_seq_nweights(NULL), 0);
	ck_assert_int_eq(te_seq_nelems(NULL), 0);
	ck_assert_int_eq(te_seq_grad_nelems(NULL), 0);
	ck_assert_int_eq(te_tensor_cols(NULL), 0);
	ck_assert_int_eq(te_tensor_dtype(NULL), TE_DTYPE_COUNT);
	ck_assert_int_eq(te_tensor_ndim(NULL), 0);
	ck_assert_int_eq(te_tensor_nelems(NULL), 0);
	ck_assert_uint_eq(te_tensor_nbytes(NULL), 0);
	ck_assert_int_eq(te_tensor_rows(NULL), 0);
	ck_assert_int_eq(te_tensor_scaling(NULL), TE_SCALING_TENSOR);
	ck_assert_str_eq(te_recipe_name(NULL), "?");
	fails(te_tensor_extent(NULL, -1), -EINVAL, "te_tensor_extent: dimension -1 of 0");
	fails(te_comm_rank(NULL), -EINVAL, "te_comm_rank: comm is NULL");
	fails(te_comm_nranks(NULL), -EINVAL, "te_comm_nranks: comm is NULL");
	fails(te_ctx_sync(NULL), -EINVAL, "te_ctx_sync: ctx is NULL");
}

/* never called */
static int visit(void *arg, const struct te_region *region)
{
	return region ? -EIO : 0;
}

TEST(null, filled_structs_name_the_argument)
{
	struct te_adamw_stats stats = TE_ADAMW_STATS_INIT;
	struct te_comm_info comm = TE_COMM_INFO_INIT;
	struct te_comm_memory memory = TE_COMM_MEMORY_INIT;
	struct te_device_info device = TE_DEVICE_INFO_INIT;
	struct te_graph_report graph = TE_GRAPH_REPORT_INIT;
	struct te_mem_info mem = TE_MEM_INFO_INIT;
	struct te_offload_report offload = TE_OFFLOAD_REPORT_INIT;
	struct te_plan_memory plan = TE_PLAN_MEMORY_INIT;
	struct te_plan_profile_step profiled = TE_PLAN_PROFILE_STEP_INIT;
	struct te_plan_saved_info saved = TE_PLAN_SAVED_INFO_INIT;
	struct te_recording_info rec = TE_RECORDING_INFO_INIT;
	struct te_schedule_info schedule = TE_SCHEDULE_INFO_INIT;
	struct te_step_memory step = TE_STEP_MEMORY_INIT;

	fails(te_adamw_regions(NULL, visit, NULL), -EINVAL, "te_adamw_regions: opt is NULL");
	fails(te_adamw_stats(NULL, &stats), -EINVAL, "te_adamw_stats: opt is NULL");
	fails(te_comm_info(NULL, &comm), -EINVAL, "comm is NULL");
	fails(te_comm_memory(NULL, &memory), -EINVAL, "te_comm_memory: comm is NULL");
	fails(te_ctx_device_info(NULL, &device), -EINVAL, "te_ctx_device_info: ctx is NULL");
	fails(te_ctx_mem_info(NULL, &mem), -EINVAL, "te_ctx_mem_info: ctx is NULL");
	fails(te_graph_report(NULL, &graph), -EINVAL, "te_graph_report: graph is NULL");
	fails(te_offload_report(NULL, &offload), -EINVAL, "te_offload_report: offload is NULL");
	fails(te_plan_memory(NULL, &plan), -EINVAL, "te_plan_memory: plan is NULL");
	fails(te_plan_profile_step(NULL, 0, &profiled), -EINVAL,
	      "te_plan_profile_step: plan is NULL");
	fails(te_plan_regions(NULL, visit, NULL), -EINVAL, "te_plan_regions: plan is NULL");
	fails(te_plan_saved(NULL, 0, &saved), -EINVAL, "te_plan_saved: plan is NULL");
	fails(te_recording_info(NULL, &rec), -EINVAL, "te_recording_info: rec is NULL");
	fails(te_schedule_info(NULL, &schedule), -EINVAL, "te_schedule_info: schedule is NULL");
	fails(te_step_memory(NULL, &step), -EINVAL, "te_step_memory: step is NULL");
}

/* a misspelt name is found in the error message, and what is done with NULL fails */
TEST(null, unknown_inputs_are_named)
{
	struct te_linear_attrs a = TE_ATTRS(linear, .in = 4, .out = 4);
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_step_opts so = TE_STEP_OPTS_INIT;
	struct te_cross_entropy_attrs ce = TE_ATTRS(cross_entropy, .nclasses = 4, .grad_scale = 1);
	const float x[4] = { 0 };
	struct te_plan *plan;
	struct te_step *step;
	struct te_seq *seq;
	struct te_op *op;

	DO(te_seq_create(ctx, &seq));
	DO(te_op_linear(&a, "head", &op));
	tt_append(seq, op);
	DO(te_op_cross_entropy(&ce, "loss", &op));
	DO(te_op_take(op, 0, "targets"));
	tt_append(seq, op);
	DO(te_seq_input(seq, "targets", TE_DTYPE_INT32, 0, NULL));
	DO(te_seq_init(seq, 1));
	so.x = o.x = (struct te_spec){ TE_DTYPE_BF16, 3, { 1, 3, 4 } };
	DO(te_plan_create(seq, &o, &plan));
	DO(te_step_create(seq, NULL, &so, &step));

	ck_assert_ptr_nonnull(te_plan_input(plan, "targets"));
	te_error_clear();
	ck_assert_ptr_null(te_plan_input(plan, "tragets"));
	tt_said("te_plan_input: the plan has no input tragets");
	ck_assert_ptr_nonnull(te_step_input(step, 0, 0, "targets"));
	te_error_clear();
	ck_assert_ptr_null(te_step_input(step, 0, 0, "tragets"));
	tt_said("te_step_input: there is no input tragets of shape 0, micro-batch 0");
	ck_assert_ptr_null(te_step_input(step, 0, 1, "x"));
	tt_said("no input x of shape 0, micro-batch 1");
	fails(te_tensor_write(te_step_input(step, 0, 0, "X"), x, sizeof(x)), -EINVAL,
	      "te_tensor_write: t is NULL");
	te_step_unref(step);
	tt_drop(plan, seq);
}

TT_MAIN("graph/null", TT_NEED_NOTHING)
