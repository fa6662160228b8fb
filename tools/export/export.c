/* export.c - what the formats of te_export share. */
#include "config.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "tools/lib/say.h"
#include "tools/lib/stop.h"

static volatile sig_atomic_t stopped; /* by this signal; 0: by none */

static void on_signal(int sig)
{
	stopped = sig;
}

void export_on_signals(void)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
	/* a second one ends the process immediately */
	const struct sigaction sa = { .sa_handler = on_signal,
				      .sa_flags = (int)SA_RESETHAND | SA_RESTART };

	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		stop_action(signals[i], &sa);
}

int export_stopped(void)
{
	return stopped;
}

int export_parent(const char *path, struct folder *ret_dir, char ret_name[256])
{
	size_t n = strlen(path), at;
	char *parent;
	int r;

	while (n > 1 && path[n - 1] == '/')
		n--;
	for (at = n; at && path[at - 1] != '/'; at--)
		;
	/* with room for the end of a temporary name */
	snprintf(ret_name, 256, "%.*s", (int)(n - at), path + at);
	if (at == n || n - at > 250 || !strcmp(ret_name, ".") || !strcmp(ret_name, "..") ||
	    *ret_name == '/')
		return say_bad("%s: expected the name of a file or of a folder", path);
	parent = at ? strndup(path, at > 1 ? at - 1 : 1) : strdup(".");
	if (!parent)
		return say_failed("out of memory");
	r = folder_open(parent, ret_dir);
	free(parent);
	return r;
}

int export_adds_one(const struct export *x, const struct weights_tensor *t)
{
	return t->gain && x->model.cfg.zero_centered;
}

float export_element(const struct weights_tensor *t, int64_t row, int64_t col)
{
	const int64_t cols = t->ndim < 2 ? 1 : t->shape[1];

	return weights_element(t->st, t->transposed ? col * t->shape[0] + row : row * cols + col);
}
