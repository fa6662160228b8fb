/* option.h - the options of the tools, their values and errors. */
#ifndef OPTION_H
#define OPTION_H

#include <stddef.h>
#include <stdint.h>

/* index of the word of len bytes in the choices "a|b|c"; -1: none */
int option_choice(const char *choices, const char *word, size_t len);

/* returns a time in seconds: "90", "1.5h", "1h30m", with s, m, h or d (days); negative: no time */
double option_seconds(const char *text);

enum option_kind {
	OPTION_HEADING, /* heading of the lines of --help that follow */
	OPTION_FLAG,	/* int64_t: 0 or 1 */
	OPTION_INT,	/* int64_t; -1 without a default, as the next two */
	OPTION_COUNT,	/* int64_t, with a unit, k or K for 2^10, M, G or T, or without */
	OPTION_SIZE,	/* int64_t: bytes, with a unit or without; 0 without a value */
	OPTION_REAL,	/* double; NaN without a default */
	OPTION_TIME,	/* double: option_seconds() */
	OPTION_SECONDS, /* int64_t: option_seconds(), a whole number */
	OPTION_TEXT,	/* char *, allocated; NULL without a default */
	OPTION_WORD,	/* char *, as OPTION_TEXT: one of the choices in arg, "a|b|c" */
	OPTION_MODE,	/* OPTION_WORD; without a value the second choice */
	OPTION_WORDS,	/* uint32_t: some of the choices, "a,c": bit i is the i-th */
	OPTION_LIST	/* struct option_list */
};

#define OPTION_LIST_MAX 32

/* "1,10,64K" */
struct option_list {
	int64_t v[OPTION_LIST_MAX];
	int n;
};

/* an option, whose value is a field of a struct; parser and --help are made from its row */
struct option_field {
	const char *name; /* NULL after the last */
	enum option_kind kind;
	size_t offset;
	const char *dflt; /* or NULL */
	double lo, hi;
	uint32_t key;	  /* a lower-case letter: the short name; other keys are the tool's */
	const char *arg;  /* NULL: it has no value */
	const char *help; /* lines; NULL: --help does not list it */
};

struct option_table {
	const char *usage; /* first lines of --help */
	void (*help)(void); /* prints all lines of --help; or NULL */
	const struct option_field *const *fields; /* tables; ends with NULL */
	int command; /* 1: options end at the first other argument */
};

struct option_given {
	const struct option_field *field;
	const char *text; /* for option_set() */
};

#define OPTION_ROWS_MAX 128

enum { OPTION_DONE = -2, OPTION_BAD = -3 };

/*
 * The options of a command line: their number; the other arguments begin at optind. OPTION_DONE:
 * --help or --version was printed; OPTION_BAD: a failure was reported. One of several fields with a
 * name is given for all of them.
 */
int option_given(const struct option_table *t, int argc, char **argv,
		 struct option_given *ret_given, int room);
/*
 * Sets all fields of the struct at base, by their defaults and by a command line. Returns 1 if the
 * program ends, with the exit status *ret_status, else 0, and the status is STATUS_OK.
 */
int option_parse(const struct option_table *t, void *base, int argc, char **argv,
		 int *ret_status);
/* NULL if no field of the table has the name */
const struct option_field *option_find(const struct option_field *table, const char *name);
/* sets all fields of the struct at base, which need not be initialised; returns an exit status */
int option_defaults(const struct option_field *table, void *base);
/* sets a field from text; where: start of messages. Returns an exit status */
int option_set(const struct option_field *f, void *base, const char *text, const char *where);
/* *ret: a number of bytes within the bounds of the field; returns an exit status */
int option_size(const struct option_field *f, const char *text, const char *where, int64_t *ret);
/* prints the lines of --help */
void option_print(const struct option_field *table);
/* returns 1 if the field is a char *, which option_free() frees */
int option_is_text(const struct option_field *f);
void option_free(const struct option_field *table, void *base);

#endif
