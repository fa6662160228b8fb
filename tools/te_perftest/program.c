/* program.c - see program.h. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

extern char **environ;

int program_start(struct program *p, char *const argv[], int both)
{
	posix_spawn_file_actions_t fa;
	int fd[2], r;

	if (pipe2(fd, O_CLOEXEC))
		return errno;
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, fd[1], STDOUT_FILENO);
	if (both)
		posix_spawn_file_actions_adddup2(&fa, fd[1], STDERR_FILENO);
	posix_spawn_file_actions_addopen(&fa, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	r = posix_spawnp(&p->pid, argv[0], &fa, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&fa);
	close(fd[1]);
	p->out = fd[0];
	if (r)
		close(fd[0]);
	return r;
}

int program_end(struct program *p, char *ret_text, size_t room)
{
	size_t n = 0;
	ssize_t got;
	int status = -1;

	while (n + 1 < room && (got = read(p->out, ret_text + n, room - 1 - n)) != 0) {
		if (got < 0 && errno != EINTR)
			break;
		n += got > 0 ? (size_t)got : 0;
	}
	ret_text[n] = '\0';
	close(p->out);
	while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}
