/* target.c - a file that a tool writes: all of it, or nothing. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "say.h"
#include "stop.h"
#include "target.h"

static char *volatile doomed; /* the temporary file that a signal removes */

static void on_signal(int sig)
{
	if (doomed)
		unlink(doomed);
	raise(sig); /* the default action, after this handler */
}

static void remove_on_signals(char *fresh)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
	const struct sigaction sa = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND };

	doomed = fresh;
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		stop_action(signals[i], &sa);
}

void target_close(struct target *t)
{
	if (t->fd >= 0) {
		close(t->fd);
		unlink(t->fresh);
	}
	doomed = NULL;
	free(t->path);
	free(t->fresh);
}

static int is_stdout(const char *output)
{
	return !strcmp(output, "-") || !strcmp(output, "/dev/stdout");
}

int target_open(struct target *t, const char *output)
{
	const mode_t mask = umask(0);
	const char *tmp = getenv("TMPDIR");
	struct stat st;

	umask(mask);
	*t = (struct target){ .output = output, .fd = -1 };
	if (is_stdout(output) || (!stat(output, &st) && !S_ISREG(st.st_mode))) {
		if (asprintf(&t->fresh, "%s/te.XXXXXX", tmp && *tmp ? tmp : "/tmp") < 0)
			t->fresh = NULL;
	} else {
		/* a link stays one: the file that it names is replaced */
		t->path = realpath(output, NULL);
		if (!t->path)
			t->path = strdup(output);
		if (!t->path || asprintf(&t->fresh, "%s.XXXXXX", t->path) < 0)
			t->fresh = NULL;
	}
	if (!t->fresh)
		return say_failed("out of memory");
	t->fd = mkostemp(t->fresh, O_CLOEXEC);
	if (t->fd < 0)
		return say_bad("%s: %s", output, strerror(errno));
	remove_on_signals(t->fresh);
	return fchmod(t->fd, 0666 & ~mask) ? say_bad("%s: %s", output, strerror(errno)) : 0;
}

static int copy_to_output(const struct target *t)
{
	int out = is_stdout(t->output) ? dup(STDOUT_FILENO) : open(t->output, O_WRONLY | O_CLOEXEC);
	static char part[65536];
	ssize_t n = 0;
	int r = out < 0 ? -1 : 0;

	lseek(t->fd, 0, SEEK_SET);
	while (!r && (n = read(t->fd, part, sizeof(part))) > 0)
		for (ssize_t done = 0, k; !r && done < n; done += k) {
			k = write(out, part + done, (size_t)(n - done));
			r = k < 0 ? -1 : 0;
		}
	if (r || n < 0)
		r = say_bad("%s: %s", t->output, strerror(errno));
	if (out >= 0)
		close(out);
	return r;
}

int target_commit(struct target *t)
{
	if (!t->path)
		return copy_to_output(t);
	if (rename(t->fresh, t->path))
		return say_bad("%s: %s", t->output, strerror(errno));
	close(t->fd);
	t->fd = -1;
	return 0;
}
