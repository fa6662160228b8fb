# Whole programs a user can start from; built by make check, run by t/meta, installed as
# documentation.
EXAMPLES = \
	examples/custom_op.c \
	examples/cxx.cc \
	examples/fortran.f90 \
	examples/graph_callable.c \
	examples/llama.c \
	examples/mpi.c \
	examples/offload.c

exampledir = $(docdir)/examples
dist_example_DATA = $(EXAMPLES)
