/*
 * te_plot - draws the loss curves of te_train's JSON logs as SVG, PNG or PDF, through gnuplot.
 *
 * gnuplot reads its commands and data from a pipe and writes the picture to a temporary file, which
 * becomes the output when gnuplot has succeeded.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/lib/option.h"
#include "tools/lib/say.h"
#include "tools/lib/target.h"
#include "tools/plot_log.h"

extern char **environ;

struct run {
	const char *path;
	char *name; /* in the legend */
	struct plot_log log;
};

static int read_log(struct run *run)
{
	char why[PLOT_LOG_WHY];
	const int r = plot_log_read(run->path, &run->log, why);

	if (r)
		return (r == STATUS_BAD ? say_bad : say_failed)("%s: %s", run->path, why);
	if (run->log.torn)
		fprintf(stderr, "te_plot: %s: line %" PRIu64 ", the last, is incomplete: ignored\n",
			run->path, run->log.torn);
	return 0;
}

/* the file's name without folder and suffix */
static int name_run(struct run *run)
{
	const char *base = strrchr(run->path, '/'), *dot;
	size_t n;

	base = base ? base + 1 : run->path;
	dot = strrchr(base, '.');
	n = dot && dot != base ? (size_t)(dot - base) : strlen(base);
	run->name = strndup(base, n);
	return run->name ? 0 : say_failed("out of memory");
}

/*
 * Print text as a string of gnuplot. In single quotes only the quote itself is special; in
 * double quotes gnuplot would run text in backquotes as a shell command.
 */
static void quote(FILE *out, const char *s)
{
	fputc('\'', out);
	for (; *s; s++) {
		if (*s == '\'')
			fputc('\'', out);
		fputc((unsigned char)*s < ' ' || *s == 127 ? ' ' : *s, out);
	}
	fputc('\'', out);
}

static void put_data(FILE *out, int i, const char *kind, const struct curve *c)
{
	fprintf(out, "$%s%d << EOD\n", kind, i);
	for (size_t k = 0; k < c->n; k++)
		fprintf(out, "%.9g %.9g\n", c->point[k].step, c->point[k].loss);
	fputs("EOD\n", out);
}

static void put_curve(FILE *out, const char *sep, const struct run *run, int i, int val)
{
	/* colours that colour-blind people can distinguish (Okabe and Ito, 2008) */
	static const char *const colour[] = { "0072b2", "d55e00", "009e73", "cc79a7",
					      "e69f00", "56b4e9", "000000" };
	const char *rgb = colour[i % (int)(sizeof(colour) / sizeof(colour[0]))];
	char label[300];

	snprintf(label, sizeof(label), "%s, %s", run->name, val ? "validation" : "training");
	if (val)
		fprintf(out, "%s$val%d using 1:2 with linespoints lw 3 pt 7 ps 0.6 lc rgb '#%s'",
			sep, i, rgb);
	else /* half transparent */
		fprintf(out, "%s$train%d using 1:2 with lines lw 1 lc rgb '#80%s'", sep, i, rgb);
	fputs(" title ", out);
	quote(out, label);
}

static void put_commands(FILE *out, const struct run *run, int nruns, const char *terminal,
			 const char *title)
{
	const char *sep = "plot ";

	fprintf(out,
		"set terminal %s noenhanced font 'sans,%s' background '#ffffff'\n"
		"set xlabel 'step'\nset ylabel 'loss, nats a token'\nset grid lc rgb '#dddddd'\n"
		"set key outside bottom center horizontal\nset border 3\nset tics nomirror\n",
		terminal, strstr(terminal, "in,") ? "11" : "14");
	if (title) {
		fputs("set title ", out);
		quote(out, title);
		fputc('\n', out);
	}
	for (int i = 0; i < nruns; i++) {
		put_data(out, i, "train", &run[i].log.train);
		put_data(out, i, "val", &run[i].log.val);
	}
	/* training, which is noisy, is drawn first, thin and light; validation is on top */
	for (int val = 0; val < 2; val++) {
		for (int i = 0; i < nruns; i++) {
			if (val ? run[i].log.val.n : run[i].log.train.n) {
				put_curve(out, sep, &run[i], i, val);
				sep = ", \\\n     ";
			}
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
		return say_failed("pipe: %s", strerror(errno));
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, p[0], STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&fa, fd, STDOUT_FILENO);
	err = posix_spawnp(ret_pid, gnuplot, &fa, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&fa);
	close(p[0]);
	if (err) {
		close(p[1]);
		return say_bad("%s: %s; install gnuplot-nox, or give --gnuplot", gnuplot,
			       strerror(err));
	}
	*ret_in = fdopen(p[1], "w");
	if (*ret_in)
		return 0;
	close(p[1]);
	waitpid(*ret_pid, NULL, 0);
	return say_failed("out of memory");
}

/* gnuplot's terminal for the suffix of a file name; NULL: unknown suffix */
static const char *terminal_of(const char *output)
{
	static const struct {
		const char *suffix, *terminal;
	} kind[] = {
		{ ".svg", "svg size 900,540" },
		{ ".png", "pngcairo size 900,540" },
		{ ".pdf", "pdfcairo size 7.5in,4.5in" },
	};
	const char *dot = strrchr(output, '.');

	for (size_t i = 0; dot && i < sizeof(kind) / sizeof(kind[0]); i++)
		if (!strcmp(dot, kind[i].suffix))
			return kind[i].terminal;
	return dot && !strchr(dot, '/') ? NULL : kind[0].terminal;
}

/* gnuplot does not report a write that fails. It was at the end of the file: another write
 * fails there, too, with errno */
static int is_full(int fd)
{
	const off_t end = lseek(fd, 0, SEEK_END);

	return end < 0 || pwrite(fd, "", 1, end) != 1 || ftruncate(fd, end);
}

static int draw(const struct run *run, int nruns, const struct target *t, const char *title,
		const char *gnuplot)
{
	int status, bad, r;
	FILE *in;
	pid_t pid;

	r = start(gnuplot, t->fd, &pid, &in);
	if (r)
		return r;
	put_commands(in, run, nruns, terminal_of(t->output), title);
	bad = ferror(in);
	bad |= fclose(in);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (is_full(t->fd))
		return say_bad("%s: %s", t->output, strerror(errno));
	if (bad || !WIFEXITED(status) || WEXITSTATUS(status))
		return say_failed("%s failed to draw %s", gnuplot, t->output);
	if (lseek(t->fd, 0, SEEK_END) <= 0)
		return say_failed("%s wrote nothing to %s", gnuplot, t->output);
	return 0;
}

static struct {
	char *output, *title, *gnuplot;
} opt;
#define AT(field) offsetof(__typeof__(opt), field)

static const struct option_field fields[] = {
	{ "output", OPTION_TEXT, AT(output), NULL, 0, 0, 'o', "FILE",
	  "the .svg, .png or .pdf to write, - for SVG to stdout" },
	{ "title", OPTION_TEXT, AT(title), NULL, 0, 0, 0, "TEXT", "title of the plot" },
	{ "gnuplot", OPTION_TEXT, AT(gnuplot), GNUPLOT, 0, 0, 0, "PROGRAM", "the gnuplot to run" },
	{ 0 },
};

static const struct option_table options = {
	.usage = "usage: te_plot -o loss.svg run.jsonl...\n"
		 "Draws the training and validation losses that te_train --log wrote.\n\n",
	.fields = (const struct option_field *const[]){ fields, NULL },
};

int main(int argc, char **argv)
{
	struct target target = { .fd = -1 };
	struct run *run;
	int nruns, r;

	say_as("te_plot");
	if (option_parse(&options, &opt, argc, argv, &r))
		return r;
	nruns = argc - optind;
	if (!opt.output)
		return say_bad("no output file: give -o FILE; see te_plot --help");
	if (!terminal_of(opt.output))
		return say_bad("%s: the name must end in .svg, .png or .pdf", opt.output);
	if (nruns < 1)
		return say_bad("no log given; see te_plot --help");
	run = calloc((size_t)nruns, sizeof(*run));
	if (!run)
		return say_failed("out of memory");
	signal(SIGXFSZ, SIG_IGN); /* exceeding a file size limit is an error, like a full disk */
	signal(SIGPIPE, SIG_IGN); /* the exit status shows whether gnuplot failed */
	for (int i = 0; i < nruns && !r; i++) {
		run[i].path = argv[optind + i];
		r = read_log(&run[i]);
		if (!r)
			r = name_run(&run[i]);
	}
	if (!r)
		r = target_open(&target, opt.output);
	if (!r)
		r = draw(run, nruns, &target, opt.title, opt.gnuplot);
	if (!r)
		r = target_commit(&target);
	target_close(&target);
	for (int i = 0; i < nruns; i++) {
		free(run[i].name);
		plot_log_free(&run[i].log);
	}
	free(run);
	return r;
}
