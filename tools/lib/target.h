/*
 * target.h - a file that a tool writes: all of it, or nothing.
 *
 * A temporary file in the same folder becomes the file when it is complete. If the name is of
 * anything but a regular file, such as a pipe or a device, the temporary file is in TMPDIR and is
 * copied to it. SIGINT, SIGTERM and SIGHUP remove the temporary file and end the program, unless
 * they are ignored.
 */
#ifndef TARGET_H
#define TARGET_H

struct target {
	const char *output; /* as given; "-" and "/dev/stdout" are standard output */
	char *path;  /* path to replace, links followed; NULL: the file is copied to output */
	char *fresh; /* the temporary file */
	int fd;	     /* the temporary file, open; -1: none */
};

int target_open(struct target *t, const char *output);
/* the file is complete */
int target_commit(struct target *t);
void target_close(struct target *t);

#endif
