/* say.h - messages of a tool: one line for each failure, and the progress line. */
#ifndef SAY_H
#define SAY_H

#include <te/export.h>

/* exit statuses; functions of the tools return them too */
enum status {
	STATUS_OK = 0,
	STATUS_FAILED = 1, /* failure */
	STATUS_BAD = 2	   /* bad usage or input */
};

/* set the name at the start of messages; te_train by default */
void say_as(const char *name);
const char *say_program(void); /* the name of say_as() */

/* messages go to put(), a line at a time and without its newline, or to stderr if NULL */
void say_by(void (*put)(const char *line));

/* prints "te_train: ..." as one line and returns STATUS_BAD or STATUS_FAILED */
int say_bad(const char *fmt, ...) TE_PRINTF(1, 2);
int say_failed(const char *fmt, ...) TE_PRINTF(1, 2);
/*
 * Prints a failure with the error message of a library call that returned r < 0. Codes that the
 * user's input causes give STATUS_BAD, others STATUS_FAILED.
 */
int say_te(int r, const char *fmt, ...) TE_PRINTF(2, 3);
/* r of the latest failure, 0 if it was not reported by say_te() */
int say_code(void);
/* while on, failures are not printed */
void say_hush(int on);
/* while on, only failures are printed; for ranks other than 0 */
void say_only_failures(int on);
/* prints a line that is not a failure */
void say_note(const char *fmt, ...) TE_PRINTF(1, 2);

/* 1: a message could not be written because stderr is a pipe or terminal that was closed */
int say_closed(void);
/* prints a line; for signal handlers */
void say_from_handler(const char *text);

/* a line that the next one overwrites on a terminal (stderr); say_line_end ends it */
int say_on_terminal(void);
int say_columns(void); /* present width; 0 if stderr is not a terminal, or the width is unknown */
void say_line(const char *text);
void say_line_end(void);
/* removes the line */
void say_line_clear(void);

/*
 * Check the TE_* variables of the environment: STATUS_BAD if a value cannot be used, with a message
 * for each; names that this version does not know are a warning.
 */
int say_params(void);

#endif
