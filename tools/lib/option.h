/* option.h - the options of the tools, their values and errors. */
#ifndef OPTION_H
#define OPTION_H

#include <stddef.h>
#include <stdint.h>

/* index of the word of len bytes in the choices "a|b|c"; -1: none */
int option_choice(const char *choices, const char *word, size_t len);

/* the factor of a unit at *at, which is passed: k or K for 2^10, M, G or T; 1: there is none */
double option_unit(char **at);

/* a time in seconds: "90", "1.5h" or "1h30m", with s, m, h or d for days; negative: text is none */
double option_seconds(const char *text);

/* an option: a row makes both its parser and its lines of --help */
struct option_row {
	const char *name;
	int key; /* result of option_next(); a lower-case letter is also its short name */
	const char *arg;  /* NULL: it has no value; begins with "[": it may have one */
	const char *help; /* lines; NULL: --help does not list it */
};

struct option_table {
	const char *usage; /* the first lines of --help */
	void (*help)(void); /* prints all lines of --help; or NULL */
	const struct option_row *rows; /* the last has no name; -h, --help and --version follow */
	int command; /* 1: options end at the first other argument */
};

#define OPTION_ROWS_MAX 128

enum { OPTION_END = -1, OPTION_DONE = -2, OPTION_BAD = -3 };

/*
 * Returns the key of the next option, whose value is optarg; OPTION_END: the other arguments begin
 * at optind; OPTION_DONE: --help or --version was printed; OPTION_BAD: a failure was reported.
 */
int option_next(const struct option_table *t, int argc, char **argv);

/* ---- options that are fields of a struct ---- */

enum option_kind {
	OPTION_HEADING, /* heading of the lines of --help that follow */
	OPTION_FLAG,	/* int64_t: 0 or 1 */
	OPTION_INT,	/* int64_t; -1 without a default, as the next two */
	OPTION_COUNT,	/* int64_t, with a unit of option_unit() or without */
	OPTION_SIZE,	/* int64_t: bytes, with a unit or without; 0 if the option has no value */
	OPTION_REAL,	/* double; NaN without a default */
	OPTION_TIME,	/* double: option_seconds() */
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

struct option_field {
	const char *name; /* NULL after the last */
	enum option_kind kind;
	size_t offset;
	const char *dflt; /* or NULL */
	double lo, hi;
	uint32_t flags; /* defined by the tool */
	const char *arg, *help;
};

struct option_given {
	const struct option_field *field;
	const char *text; /* for option_set() */
};

/*
 * Finds the options of a command line in the tables, which end with NULL. Returns their number, or
 * OPTION_DONE or OPTION_BAD as option_next(). Of several fields with one name only one is reported.
 */
int option_given(void (*help)(void), const struct option_field *const *tables, int argc,
		 char **argv, struct option_given *ret_given, int room);
/* NULL if no field of the table has the name */
const struct option_field *option_find(const struct option_field *table, const char *name);
/* set every field of the struct at base, which need not be initialised; an exit status */
int option_defaults(const struct option_field *table, void *base);
/* set a field from text; where: messages begin with it. An exit status */
int option_set(const struct option_field *f, void *base, const char *text, const char *where);
/* a number of bytes within the bounds of the field; an exit status */
int option_size(const struct option_field *f, const char *text, const char *where, int64_t *ret);
/* the lines of --help */
void option_print(const struct option_field *table);
/* free the texts in the struct */
void option_free(const struct option_field *table, void *base);

#endif
