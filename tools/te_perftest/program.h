/* program.h - other programs, with which tests compare the library. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stddef.h>
#include <sys/types.h>

struct program {
	pid_t pid;
	int out; /* its output */
};

/* starts argv[0], found in PATH; both: 1: also reads standard error. Returns 0 or an errno */
int program_start(struct program *p, char *const argv[], int both);
/* waits for its end and copies at most room - 1 bytes of its output; a status of waitpid(2) */
int program_end(struct program *p, char *ret_text, size_t room);

#endif
