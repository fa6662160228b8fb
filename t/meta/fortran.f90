! fortran.f90 - what examples/fortran.f90 does not use of the Fortran module: callbacks, functions
! with the name of a type, arrays of structures, and texts to release. Run by t0012-fortran.t.
module callbacks
  use, intrinsic :: iso_c_binding
  use te
  implicit none

contains

  subroutine store(arg) bind(C)
    type(c_ptr), value :: arg
    integer(c_int), pointer :: n

    call c_f_pointer(arg, n)
    n = 7
  end subroutine

  function add_nbytes(arg, region) bind(C) result(r)
    type(c_ptr), value :: arg
    type(te_region), intent(in) :: region
    integer(c_int) :: r
    integer(c_size_t), pointer :: n

    call c_f_pointer(arg, n)
    n = n + region%nbytes
    r = 0
  end function
end module

program test
  use callbacks
  implicit none
  character(kind=c_char, len=5), target :: host = "host"//c_null_char
  type(te_ctx_opts) :: opts
  type(te_plan_opts) :: plan_opts
  type(te_plan_memory) :: memory
  type(te_callable) :: callable(2)
  type(te_graph_report) :: report
  type(c_ptr) :: ctx, stream, seq, op, plan, graph, text
  integer(c_int), target :: n = 0
  integer(c_size_t), target :: nbytes = 0
  integer :: i

  opts%backend = c_loc(host)
  call ok(te_ctx_create(opts, ctx))
  stream = te_ctx_stream(ctx)
  call ok(te_host_call(stream, c_funloc(store), c_loc(n), 0_c_size_t))
  call ok(te_stream_sync(stream))
  call check(n == 7, "te_host_call")

  call ok(te_seq_create(ctx, seq))
  call ok(te_op_linear(te_linear_attrs(in=16, out=16), "l"//c_null_char, op))
  call ok(te_seq_append(seq, op))
  op = te_op_unref(op)
  call ok(te_seq_init(seq, 1_c_int64_t))
  plan_opts%flags = ior(TE_PLAN_TRAIN, TE_PLAN_EXTERNAL)
  plan_opts%x%ndim = 2
  plan_opts%x%shape(1:2) = 16
  plan_opts%x%dtype = TE_DTYPE_BF16
  do i = 1, 2
    call ok(te_plan_create(seq, plan_opts, plan))
    call ok(te_callable_from_plan(plan, "l"//c_null_char, callable(i)))
    if (i == 1) call ok(te_plan_memory(plan, memory))
    if (i == 1) call ok(te_plan_regions(plan, c_funloc(add_nbytes), c_loc(nbytes)))
    if (i == 1) call ok(te_plan_print(plan, TE_PLAN_TEXT, text))
    plan = te_plan_unref(plan)
  end do
  ! FP32 weights and gradients of 16 x 16; the regions are gradients and more
  call check(memory%weights_nbytes == 2048, "te_plan_memory")
  call check(nbytes >= 1024, "te_plan_regions")
  call check(index(te_string(text), "linear") > 0, "te_plan_print")
  call te_free(text)

  call ok(te_graph_create(ctx, 2, callable, ret_graph=graph))
  call ok(te_graph_report(graph, report))
  call check(report%ncallables == 2 .and. report%nsteps == 4, "te_graph_report")
  call check(c_associated(te_graph_tensor(graph, 1, "x"//c_null_char)), "te_graph_tensor")
  call check(.not. c_associated(te_graph_tensor(graph, 1, "z"//c_null_char)), "te_graph_tensor")

  call check(te_ctx_create(te_ctx_opts(device=9, backend=c_loc(host)), op) < 0, "te_ctx_create")
  call check(len(te_string(te_error_detail())) > 0, "te_error_detail")
  call check(te_string(c_null_ptr) == "", "te_string")
  call check(te_string(te_version()) == TE_VERSION_CONST, "te_version")
  graph = te_graph_unref(graph)
  seq = te_seq_unref(seq)
  ctx = te_ctx_unref(ctx)

contains

  subroutine ok(r)
    integer(c_int), intent(in) :: r

    call check(r >= 0, te_string(te_error_detail()))
  end subroutine

  subroutine check(holds, what)
    logical, intent(in) :: holds
    character(*), intent(in) :: what

    if (holds) return
    print '(2a)', "failed: ", what
    error stop 1
  end subroutine
end program
