/* perftest.h - a test: a name in PERFTESTS of tools/local.mk, and its own source file. */
#ifndef PERFTEST_H
#define PERFTEST_H

#include <stddef.h>

#include "tools/lib/option.h"

struct bench;

/*
 * A column of the printed table; it is left out if no row has its key. The JSON
 * object has every key of a row.
 */
struct column {
	const char *key;  /* key in the row, with its unit */
	const char *head; /* upper line and, after a newline, the lower one */
	double scale;	  /* factor for printing; 0: 1 */
	int spread;	  /* 1: statistics: print the spread after the median */
};

struct test {
	const char *name;
	const char *text;
	const struct option_field *options; /* options of this test */
	void *values;			    /* the struct of their fields */
	const struct column *columns;	    /* ends with one without key */
	/* runs before the libraries read their parameters; returns an exit status; or NULL */
	int (*begin)(void);
	/* measures and adds rows to the report; returns an exit status */
	int (*run)(struct bench *b);
};

/* a field of the options of a test, which are its static struct opt */
#define AT(field) offsetof(__typeof__(opt), field)

/* all tests; ends with NULL */
extern const struct test *const tests[];

#endif
