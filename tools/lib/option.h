/* option.h - the options of the tools, their values and errors. */
#ifndef OPTION_H
#define OPTION_H

#include <stddef.h>

/* index of the word of len bytes in the choices "a|b|c"; -1: none */
int option_choice(const char *choices, const char *word, size_t len);

/* the factor of a unit at *at, which is passed: k or K for 2^10, M, G or T; 1: there is none */
double option_unit(char **at);

/* a time in seconds: "90", "1.5h" or "1h30m", with s, m, h or d for days; negative: text is none */
double option_seconds(const char *text);

/* an option: a row makes both its parser and its lines of --help */
struct option_row {
	const char *name;
	int key; /* what option_next() returns; a lower-case letter is its short name too */
	const char *arg;  /* NULL: it has no value; begins with "[": it may have one */
	const char *help; /* lines; NULL: --help does not list it */
};

struct option_table {
	const char *usage; /* the first lines of --help */
	void (*help)(void); /* or all of them */
	const struct option_row *rows; /* the last has no name; -h, --help and --version follow */
	int command; /* no options of the tool follow its first other argument */
};

#define OPTION_ROWS_MAX 128

enum { OPTION_END = -1, OPTION_DONE = -2, OPTION_BAD = -3 };

/*
 * The key of the next option, whose value is optarg; OPTION_END: the other arguments begin at
 * optind; OPTION_DONE: --help or --version has been printed; OPTION_BAD: a failure has been said.
 */
int option_next(const struct option_table *t, int argc, char **argv);

#endif
