# Whole programs a user can start from; built by make check, run by t/meta.
EXAMPLES = \
	examples/custom_op.c \
	examples/graph_callable.c

EXTRA_DIST += $(EXAMPLES)
