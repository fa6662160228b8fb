! fortran.f90 - trains an attention layer in FP8 on one sentence, as README.md's program does in C:
! each step has two micro-batches and is one graph.
!
!     gfortran -c $(pkg-config --variable=fortran libtecore)/te.f90
!     gfortran -o fortran fortran.f90 te.o $(pkg-config --libs libtegraph)
!
! Usage: fortran
! Prints an error message and the loss, and stops with status 0 if the loss fell.
program train
  use, intrinsic :: iso_c_binding
  use te
  implicit none

  integer, parameter :: ntokens = 32, nmicro = 2
  character(*), parameter :: text = &
      "What a program learns by heart it can say again, byte after byte."
  integer(c_size_t), parameter :: nbytes = ntokens * 4
  type(te_recipe), target :: recipe
  type(te_step_opts) :: opts
  type(c_ptr) :: ctx, stream, seq, op(5), adamw, step
  integer(c_int32_t), target :: tokens(0:nmicro*ntokens)
  real(c_double) :: loss, first
  integer :: i, k, m

  if (te_recipe_from_name("fp9"//c_null_char, recipe) < 0) &
    print '(2a)', "as expected: ", te_string(te_error_detail())

  call ok(te_ctx_create(ret_ctx=ctx)) ! a Hopper GPU, else this machine's threads
  call ok(te_seq_create(ctx, seq))
  call ok(te_op_embedding(te_embedding_attrs(vocab=256, width=64, max_pos=32, init_std=0.1), &
                          "embed"//c_null_char, op(1)))
  call ok(te_op_linear(te_linear_attrs(in=64, out=192, init_std=0.1), "qkv"//c_null_char, op(2)))
  call ok(te_op_attention(te_attention_attrs(nheads=4, nkv=4, head_dim=16), &
                          "attn"//c_null_char, op(3)))
  call ok(te_op_linear(te_linear_attrs(in=64, out=256, init_std=0.1), "head"//c_null_char, op(4)))
  call ok(te_op_cross_entropy(te_cross_entropy_attrs(nclasses=256), "loss"//c_null_char, op(5)))
  call ok(te_op_take(op(5), 0, "targets"//c_null_char))
  call ok(te_seq_input(seq, "targets"//c_null_char, TE_DTYPE_INT32, 0, [integer(c_int64_t) ::]))
  do i = 1, size(op)
    call ok(te_seq_append(seq, op(i)))
    op(i) = te_op_unref(op(i))
  end do
  call ok(te_seq_init(seq, 1_c_int64_t)) ! draws the weights from seed 1

  call ok(te_recipe_from_name("fp8-delayed"//c_null_char, recipe))
  stream = te_ctx_stream(ctx)
  call ok(te_adamw_create(seq, ret_opt=adamw))
  call ok(te_adamw_set_lr(adamw, stream, 1e-2))
  opts%recipe = c_loc(recipe)
  opts%flags = TE_STEP_GRAPH_CONST
  opts%micro_batches = nmicro
  opts%x%dtype = TE_DTYPE_INT32
  opts%x%ndim = 2
  opts%x%shape(1:2) = [1, ntokens]
  call ok(te_step_create(seq, adamw, opts, step))

  tokens = [(ichar(text(i:i)), i = 1, nmicro * ntokens + 1)]
  do k = 0, 100
    do m = 0, nmicro - 1
      call ok(te_tensor_write(te_step_input(step, 0, m, "x"//c_null_char), &
                              c_loc(tokens(m * ntokens)), nbytes))
      call ok(te_tensor_write(te_step_input(step, 0, m, "targets"//c_null_char), &
                              c_loc(tokens(m * ntokens + 1)), nbytes))
    end do
    call ok(te_step_run(step, 0, stream))
    call ok(te_step_loss(step, loss))
    if (k == 0) first = loss
    if (mod(k, 20) == 0) print '(a, i3, a, f6.3)', "step ", k, ", loss ", loss
  end do

  step = te_step_unref(step)
  adamw = te_adamw_unref(adamw)
  seq = te_seq_unref(seq)
  ctx = te_ctx_unref(ctx)
  if (.not. loss < 0.1 * first) error stop "the loss did not fall"

contains

  subroutine ok(r)
    integer(c_int), intent(in) :: r

    if (r >= 0) return
    print '(a)', te_string(te_error_detail())
    error stop 1
  end subroutine
end program
