/* say.h - what a tool tells its user: one line a failure, and the progress line. */
#ifndef SAY_H
#define SAY_H

#include <te/export.h>

/* exit statuses; functions of the tools return them too */
enum status {
	STATUS_OK = 0,
	STATUS_FAILED = 1, /* something broke */
	STATUS_BAD = 2	   /* what the user gave cannot be used */
};

/* the name that failures begin with; te_train until told */
void say_as(const char *name);

/* prints "te_train: ..." as one line and returns STATUS_BAD or STATUS_FAILED */
int say_bad(const char *fmt, ...) TE_PRINTF(1, 2);
int say_failed(const char *fmt, ...) TE_PRINTF(1, 2);
/*
 * The same with the detail of a library call that returned r < 0. Codes that
 * come from what was asked for are STATUS_BAD, the others STATUS_FAILED.
 */
int say_te(int r, const char *fmt, ...) TE_PRINTF(2, 3);
/* while on, failures are returned and not printed */
void say_hush(int on);
/* a line that is no failure */
void say_note(const char *fmt, ...) TE_PRINTF(1, 2);

/* a line that replaces itself on a terminal (stderr); say_line_end leaves it standing */
int say_on_terminal(void);
void say_line(const char *text);
void say_line_end(void);

#endif
