/* perftest.h - what a test is: a row of the table in tests.c and a file of its own. */
#ifndef PERFTEST_H
#define PERFTEST_H

struct bench;

/*
 * A column of the table that is printed, where some row has its key; the JSON
 * object has every key of a row.
 */
struct column {
	const char *key;  /* of the row, with its unit */
	const char *head; /* upper line and, after a newline, the lower one */
	double scale;	  /* what is printed is the value times this; 0: 1 */
	int spread;	  /* of statistics: print it beside the median */
};

struct test {
	const char *name;
	const char *text;
	const struct column *columns; /* the last has no key */
	/* measures, and adds a row at a time to the report; an exit status */
	int (*run)(struct bench *b);
};

/* the last is NULL */
extern const struct test *const tests[];
/* NULL when there is none of that name */
const struct test *test_find(const char *name);

#endif
