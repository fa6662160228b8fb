/* opts.h - the options that every test of te_perftest has. */
#ifndef OPTS_H
#define OPTS_H

#include <stdint.h>

#include "perftest.h"

struct opts {
	const struct test *test; /* NULL with --list, --help and --version only */
	char *backend;		 /* NULL: from the environment */
	int64_t device, iters, warmup, seed;
	double seconds;
	int64_t verify, json, list;
};

/*
 * Sets o and o->test's options to their defaults, then from the command line. --help and --version
 * print and set *ret_done. Returns an exit status; the caller calls opts_free() in any case.
 */
int opts_parse(struct opts *o, int argc, char **argv, int *ret_done);
void opts_free(struct opts *o);

#endif
