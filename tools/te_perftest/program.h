/* program.h - other programs, with which tests compare the library. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stddef.h>
#include <sys/types.h>

struct program {
	pid_t pid;
	int out; /* its output */
};

/* argv[0] is looked for in PATH; both: standard error, too. 0 or an errno */
int program_start(struct program *p, char *const argv[], int both);
/* waits for its end, with room - 1 bytes at most of what it printed; a status of waitpid(2) */
int program_end(struct program *p, char *ret_text, size_t room);

#endif
