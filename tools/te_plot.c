/*
 * te_plot - draws the loss curves of te_train's JSON logs as SVG, through gnuplot.
 *
 * gnuplot reads its commands and data from a pipe and writes SVG to a temporary file,
 * which is renamed when gnuplot has succeeded.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <te/version.h>

extern char **environ;

struct point {
	double step, loss;
};

struct curve {
	struct point *point;
	size_t n, room;
};

struct run {
	const char *path;
	char *name; /* in the legend */
	struct curve train, val;
};

static int fail(int status, const char *fmt, ...) TE_PRINTF(2, 3);
static int fail(int status, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	for (char *p = text; *p; p++) {
		if ((unsigned char)*p < ' ' || *p == 127)
			*p = '?';
	}
	fprintf(stderr, "te_plot: %s\n", text);
	return status;
}

static int add(struct curve *c, double step, double loss)
{
	/* a resumed run repeats the steps that were logged after the last checkpoint */
	while (c->n && c->point[c->n - 1].step >= step)
		c->n--;
	if (c->n == c->room) {
		size_t room = c->room ? 2 * c->room : 256;
		struct point *p = realloc(c->point, room * sizeof(*p));

		if (!p)
			return fail(1, "out of memory");
		c->point = p;
		c->room = room;
	}
	c->point[c->n++] = (struct point){ step, loss };
	return 0;
}

static int take(struct run *run, const json_t *obj, const char *key, struct curve *c, int line)
{
	const json_t *step = json_object_get(obj, "step"), *loss = json_object_get(obj, key);

	if (!loss || json_is_null(loss))
		return 0;
	if (!json_is_number(step) || !json_is_number(loss))
		return fail(2, "%s: line %d: step or %s is not a number", run->path, line, key);
	return add(c, json_number_value(step), json_number_value(loss));
}

static int read_log(struct run *run)
{
	FILE *f = fopen(run->path, "r");
	char *text = NULL;
	size_t room = 0;
	int line = 0, r = 0;
	ssize_t n;

	if (!f)
		return fail(2, "%s: %s", run->path, strerror(errno));
	while (!r && (n = getline(&text, &room, f)) > 0) {
		json_error_t err;
		json_t *obj = json_loadb(text, (size_t)n, 0, &err);

		line++;
		if (!json_is_object(obj))
			r = fail(2, "%s: line %d: not a JSON object", run->path, line);
		else if (line == 1 && !json_object_get(obj, "te_train"))
			r = fail(2, "%s: line 1: not the first line of a te_train log", run->path);
		if (!r)
			r = take(run, obj, "train_loss_nats", &run->train, line);
		if (!r)
			r = take(run, obj, "val_loss_nats", &run->val, line);
		json_decref(obj);
	}
	if (!r && ferror(f))
		r = fail(2, "%s: %s", run->path, strerror(errno));
	if (!r && !run->train.n && !run->val.n)
		r = fail(2, "%s: no losses in this log", run->path);
	free(text);
	fclose(f);
	return r;
}

/* the file's name without folder and suffix, for gnuplot's noenhanced text in double quotes */
static int name_run(struct run *run)
{
	const char *base = strrchr(run->path, '/'), *dot;
	size_t n;

	base = base ? base + 1 : run->path;
	dot = strrchr(base, '.');
	n = dot && dot != base ? (size_t)(dot - base) : strlen(base);
	run->name = strndup(base, n);
	return run->name ? 0 : fail(1, "out of memory");
}

/* prints text in double quotes, as gnuplot reads it */
static void quote(FILE *out, const char *s)
{
	fputc('"', out);
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			fputc('\\', out);
		fputc((unsigned char)*s < ' ' ? ' ' : *s, out);
	}
	fputc('"', out);
}

static void put_data(FILE *out, int i, const char *kind, const struct curve *c)
{
	fprintf(out, "$%s%d << EOD\n", kind, i);
	for (size_t k = 0; k < c->n; k++)
		fprintf(out, "%.9g %.9g\n", c->point[k].step, c->point[k].loss);
	fputs("EOD\n", out);
}

static void put_commands(FILE *out, const struct run *run, int nruns, const char *title)
{
	/* colours that colour-blind people can distinguish (Okabe and Ito, 2008) */
	static const char *const colour[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7",
					      "#e69f00", "#56b4e9", "#000000" };
	const int ncolours = sizeof(colour) / sizeof(colour[0]);
	const char *sep = "plot ";

	fputs("set terminal svg size 900,540 noenhanced font 'sans,14' background '#ffffff'\n"
	      "set xlabel 'step'\nset ylabel 'loss, nats a token'\nset grid lc rgb '#dddddd'\n"
	      "set key top right\nset border 3\nset tics nomirror\n",
	      out);
	if (title) {
		fputs("set title ", out);
		quote(out, title);
		fputc('\n', out);
	}
	for (int i = 0; i < nruns; i++) {
		put_data(out, i, "train", &run[i].train);
		put_data(out, i, "val", &run[i].val);
	}
	for (int i = 0; i < nruns; i++) {
		const char *rgb = colour[i % ncolours];
		char label[300];

		if (run[i].train.n) {
			snprintf(label, sizeof(label), "%s, training", run[i].name);
			fprintf(out, "%s$train%d using 1:2 with lines lw 1 lc rgb '%s' dt 3 title ",
				sep, i, rgb);
			quote(out, label);
			sep = ", \\\n     ";
		}
		if (run[i].val.n) {
			snprintf(label, sizeof(label), "%s, validation", run[i].name);
			fprintf(out,
				"%s$val%d using 1:2 with linespoints lw 2 pt 7 ps 0.4 "
				"lc rgb '%s' title ",
				sep, i, rgb);
			quote(out, label);
			sep = ", \\\n     ";
		}
	}
	fputc('\n', out);
}

/* start gnuplot, which writes to fd and reads its commands from *ret_in */
static int start(const char *gnuplot, int fd, pid_t *ret_pid, FILE **ret_in)
{
	char *const argv[] = { (char *)gnuplot, (char *)"-", NULL };
	posix_spawn_file_actions_t fa;
	int p[2], err;

	if (pipe2(p, O_CLOEXEC))
		return fail(1, "pipe: %s", strerror(errno));
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, p[0], STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&fa, fd, STDOUT_FILENO);
	err = posix_spawnp(ret_pid, gnuplot, &fa, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&fa);
	close(p[0]);
	if (err) {
		close(p[1]);
		return fail(
			2,
			"%s: %s; install gnuplot-nox, or give --gnuplot",
			gnuplot, strerror(err));
	}
	*ret_in = fdopen(p[1], "w");
	if (*ret_in)
		return 0;
	close(p[1]);
	waitpid(*ret_pid, NULL, 0);
	return fail(1, "out of memory");
}

static int draw(const struct run *run, int nruns, const char *output, const char *title,
		const char *gnuplot)
{
	char fresh[4096];
	int fd, status, r, bad;
	FILE *in;
	pid_t pid;

	if ((size_t)snprintf(fresh, sizeof(fresh), "%s.new", output) >= sizeof(fresh))
		return fail(2, "%s: the name is too long", output);
	fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return fail(2, "%s: %s", fresh, strerror(errno));
	r = start(gnuplot, fd, &pid, &in);
	if (!r) {
		put_commands(in, run, nruns, title);
		bad = ferror(in);
		bad |= fclose(in);
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
		if (bad || !WIFEXITED(status) || WEXITSTATUS(status))
			r = fail(1, "%s failed to draw %s", gnuplot, output);
	}
	if (!r && lseek(fd, 0, SEEK_END) <= 0)
		r = fail(1, "%s wrote nothing to %s", gnuplot, output);
	if (!r && rename(fresh, output))
		r = fail(2, "%s: %s", output, strerror(errno));
	close(fd);
	if (r)
		unlink(fresh);
	return r;
}

enum { OPT_HELP = 'h', OPT_VERSION = 'V', OPT_OUTPUT = 'o', OPT_TITLE = 't', OPT_PROGRAM = 'g' };

static const struct {
	const char *name, *arg, *help;
	int value;
} rows[] = {
	{ "output", "FILE", "the SVG to write (also -o)", OPT_OUTPUT },
	{ "title", "TEXT", "title of the plot", OPT_TITLE },
	{ "gnuplot", "PROGRAM", "the gnuplot to run (" GNUPLOT ")", OPT_PROGRAM },
	{ "help", NULL, "print this", OPT_HELP },
	{ "version", NULL, "print the version", OPT_VERSION },
};
#define NROWS (sizeof(rows) / sizeof(rows[0]))

static void print_help(void)
{
	printf("usage: te_plot -o loss.svg run.jsonl...\n"
	       "Draws the training and validation losses that te_train --log wrote.\n\n");
	for (size_t i = 0; i < NROWS; i++)
		printf("  --%-8s %-8s  %s\n", rows[i].name, rows[i].arg ? rows[i].arg : "",
		       rows[i].help);
}

int main(int argc, char **argv)
{
	const char *output = NULL, *title = NULL, *gnuplot = GNUPLOT;
	struct option longopts[NROWS + 1];
	struct run *run;
	int c, nruns, r = 0;

	memset(longopts, 0, sizeof(longopts));
	for (size_t i = 0; i < NROWS; i++)
		longopts[i] =
			(struct option){ rows[i].name, rows[i].arg != NULL, NULL, rows[i].value };
	opterr = 0;
	while ((c = getopt_long(argc, argv, "o:h", longopts, NULL)) != -1) {
		switch (c) {
		case OPT_OUTPUT:
			output = optarg;
			break;
		case OPT_TITLE:
			title = optarg;
			break;
		case OPT_PROGRAM:
			gnuplot = optarg;
			break;
		case OPT_HELP:
			print_help();
			return 0;
		case OPT_VERSION:
			printf("te_plot %s\n", TE_VERSION);
			return 0;
		default:
			return fail(
				2,
				"%s: unknown option, or its value is missing; see te_plot --help",
				argv[optind - 1]);
		}
	}
	nruns = argc - optind;
	if (!output)
		return fail(2, "no output file: give -o FILE; see te_plot --help");
	if (nruns < 1)
		return fail(2, "no log given; see te_plot --help");
	run = calloc((size_t)nruns, sizeof(*run));
	if (!run)
		return fail(1, "out of memory");
	signal(SIGPIPE, SIG_IGN); /* the exit status shows whether gnuplot failed */
	for (int i = 0; i < nruns && !r; i++) {
		run[i].path = argv[optind + i];
		r = read_log(&run[i]);
		if (!r)
			r = name_run(&run[i]);
	}
	if (!r)
		r = draw(run, nruns, output, title, gnuplot);
	for (int i = 0; i < nruns; i++) {
		free(run[i].name);
		free(run[i].train.point);
		free(run[i].val.point);
	}
	free(run);
	return r;
}
