/* option.h - the values and errors of options, for the tools. */
#ifndef OPTION_H
#define OPTION_H

#include <stddef.h>

/* index of the word of len bytes in the choices "a|b|c"; -1: none */
int option_choice(const char *choices, const char *word, size_t len);

/* the factor of a unit at *at, which is passed: k or K for 2^10, M, G or T; 1: there is none */
double option_unit(char **at);

/* a time in seconds: "90", "1.5h" or "1h30m", with s, m, h or d for days; negative: text is none */
double option_seconds(const char *text);

/*
 * After getopt_long() with a list that begins with ":" returned c, ':' or '?', for the argument
 * word: says what is wrong with it. STATUS_BAD
 */
int option_wrong(int c, const char *word);

#endif
