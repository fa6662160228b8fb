# Whole programs a user can start from; built by make check, run by t/meta.
EXAMPLES =

EXTRA_DIST += $(EXAMPLES)
