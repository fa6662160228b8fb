/*
 * te_plot - draws the loss curves of te_train's JSON logs, or the values of --numerics, as SVG, PNG
 * or PDF, through gnuplot.
 *
 * gnuplot reads its commands and data from a pipe and writes the picture to a temporary file, which
 * becomes the output when gnuplot has succeeded.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
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

/* r: the result of reading a file, and why; torn: as in struct plot_log */
static int judge(const char *path, int r, const char *why, uint64_t torn)
{
	if (r)
		return (r == STATUS_BAD ? say_bad : say_failed)("%s: %s", path, why);
	if (torn)
		fprintf(stderr, "te_plot: %s: line %" PRIu64 ", the last, is incomplete: ignored\n",
			path, torn);
	return 0;
}

static int read_log(struct run *run)
{
	char why[PLOT_LOG_WHY];
	const int r = plot_log_read(run->path, &run->log, why);

	return judge(run->path, r, why, run->log.torn);
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

/* colours that colour-blind people can distinguish (Okabe and Ito, 2008) */
static const char *const colour[] = { "0072b2", "d55e00", "009e73", "cc79a7",
				      "e69f00", "56b4e9", "000000" };
#define NCOLOURS ((int)(sizeof(colour) / sizeof(colour[0])))

static void put_data(FILE *out, int i, const char *kind, const struct curve *c)
{
	fprintf(out, "$%s%d << EOD\n", kind, i);
	for (size_t k = 0; k < c->n; k++)
		fprintf(out, "%.9g %.9g\n", c->point[k].step, c->point[k].y);
	fputs("EOD\n", out);
}

static void put_curve(FILE *out, const char *sep, const struct run *run, int i, int val)
{
	const char *rgb = colour[i % NCOLOURS];
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

/* what is drawn: runs, or if there are none numerics */
struct picture {
	const char *terminal, *title;
	const struct run *run;
	int nruns;
	const struct plot_numerics *numerics;
	const struct plot_value **value; /* the values of numerics that are drawn */
	int nvalues;
};

static void put_title(FILE *out, const char *command, const char *title)
{
	if (!title)
		return;
	fputs(command, out);
	quote(out, title);
	fputc('\n', out);
}

static void put_runs(FILE *out, const struct run *run, int nruns, const char *title)
{
	const char *sep = "plot ";

	fputs("set ylabel 'loss, nats a token'\n", out);
	put_title(out, "set title ", title);
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

static const struct {
	const char *name, *axis;
} panel[PLOT_NNUMERICS] = {
	[PLOT_AMAX] = { "amax",
			"set ylabel 'largest magnitude'; set logscale y; set yrange [*:*]" },
	[PLOT_SCALE] = { "scale", "set ylabel 'scale of codes'; set logscale y; set yrange [*:*]" },
	[PLOT_SATURATED] = { "saturated",
			     "set ylabel 'saturated'; unset logscale; set yrange [0:*]" },
	[PLOT_UNDERFLOW] = { "underflow",
			     "set ylabel 'became 0'; unset logscale; set yrange [0:*]" },
};

/* can a panel draw the value: magnitudes and scales are logarithms */
static int has_points(const struct plot_value *v, int k)
{
	for (size_t i = 0; i < v->curve[k].n; i++)
		if (v->curve[k].point[i].y > 0 || k >= PLOT_SATURATED)
			return 1;
	return 0;
}

static int has_panel(const struct picture *p, int k)
{
	for (int i = 0; i < p->nvalues; i++)
		if (has_points(p->value[i], k))
			return 1;
	return 0;
}

static int count_panels(const struct picture *p)
{
	int n = 0;

	for (int k = 0; k < PLOT_NNUMERICS; k++)
		n += has_panel(p, k);
	return n;
}

static int is_zero(const struct picture *p, int k)
{
	for (int i = 0; i < p->nvalues; i++)
		for (size_t j = 0; j < p->value[i]->curve[k].n; j++)
			if (p->value[i]->curve[k].point[j].y > 0)
				return 0;
	return 1;
}

static void put_panel(FILE *out, const struct picture *p, int k)
{
	const char *sep = "plot ";

	fprintf(out, "%s\n", panel[k].axis);
	if (is_zero(p, k)) /* gnuplot would warn of an empty range */
		fputs("set yrange [0:1]\n", out);
	for (int i = 0; i < p->nvalues; i++) {
		if (!has_points(p->value[i], k))
			continue;
		fprintf(out, "%s$%s%d using 1:2 with linespoints lw 2 pt 7 ps 0.3 lc rgb '#%s'",
			sep, panel[k].name, i, colour[i % NCOLOURS]);
		sep = ", \\\n     ";
	}
	fputc('\n', out);
}

/* names of all values, in the last row: a panel lacks the values that have no points in it. A
 * vertical line is at the step of the first value that is not finite. */
static void put_legend(FILE *out, const struct picture *p)
{
	char bad[400];

	fputs("unset arrow\nunset border\nunset tics\nunset xlabel\nunset ylabel\n"
	      "unset logscale\nset yrange [0:1]\nset key center center horizontal\n", out);
	for (int i = 0; i < p->nvalues; i++) {
		fprintf(out, "%sNaN with lines lw 2 lc rgb '#%s' title ",
			i ? ", \\\n     " : "plot ", colour[i % NCOLOURS]);
		quote(out, p->value[i]->name);
	}
	if (p->numerics->bad) {
		fputs(", \\\n     NaN with lines dashtype 2 lc rgb '#d55e00' title ", out);
		snprintf(bad, sizeof(bad), "step %.9g: not finite first: %s", p->numerics->bad_step,
			 p->numerics->bad);
		quote(out, bad);
	}
	fputc('\n', out);
}

static void put_numerics(FILE *out, const struct picture *p)
{
	for (int i = 0; i < p->nvalues; i++)
		for (int k = 0; k < PLOT_NNUMERICS; k++)
			if (has_points(p->value[i], k))
				put_data(out, i, panel[k].name, &p->value[i]->curve[k]);
	fprintf(out, "set multiplot layout %d,1", count_panels(p) + 1);
	put_title(out, " title ", p->title);
	fputs("\nunset key\nset format y '%g'\nset lmargin 12\n", out);
	if (p->numerics->bad)
		fprintf(out, "set arrow 1 from %.9g, graph 0 to %.9g, graph 1 nohead dashtype 2 lc "
			"rgb '#d55e00'\n", p->numerics->bad_step, p->numerics->bad_step);
	for (int k = 0; k < PLOT_NNUMERICS; k++)
		if (has_panel(p, k))
			put_panel(out, p, k);
	put_legend(out, p);
	fputs("unset multiplot\n", out);
}

static void put_commands(FILE *out, const struct picture *p)
{
	const int is_pdf = !strncmp(p->terminal, "pdf", 3);
	/* an inch has 120 points of the others */
	const double unit = is_pdf ? 120 : 1, height = p->nruns ? 540 : 210 * (count_panels(p) + 1);
	const char *in = is_pdf ? "in" : "";

	fprintf(out,
		"set terminal %s size %g%s,%g%s noenhanced font 'sans,%s' background '#ffffff'\n"
		"set xlabel 'step'\nset grid lc rgb '#dddddd'\n"
		"set key outside bottom center horizontal\nset border 3\nset tics nomirror\n",
		p->terminal, 900 / unit, in, height / unit, in, is_pdf || !p->nruns ? "11" : "14");
	if (p->nruns)
		put_runs(out, p->run, p->nruns, p->title);
	else
		put_numerics(out, p);
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
		{ ".svg", "svg" },
		{ ".png", "pngcairo" },
		{ ".pdf", "pdfcairo" },
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

static int draw(const struct picture *p, const struct target *t, const char *gnuplot)
{
	int status, bad, r;
	FILE *in;
	pid_t pid;

	r = start(gnuplot, t->fd, &pid, &in);
	if (r)
		return r;
	put_commands(in, p);
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

/* ---- values that are drawn ---- */

static int by_worst(const void *a, const void *b)
{
	const struct plot_value *x = *(const struct plot_value *const *)a;
	const struct plot_value *y = *(const struct plot_value *const *)b;

	if (x->worst != y->worst)
		return x->worst < y->worst ? 1 : -1;
	return x < y ? -1 : x > y;
}

/* all that match; or the worst ones, as many as there are colours */
static int choose(struct picture *p, const char *pattern)
{
	const struct plot_numerics *n = p->numerics;

	p->value = calloc(n->n, sizeof(*p->value));
	if (!p->value)
		return say_failed("out of memory");
	for (size_t i = 0; i < n->n; i++)
		if (!pattern || !fnmatch(pattern, n->value[i].name, 0))
			p->value[p->nvalues++] = &n->value[i];
	if (!p->nvalues)
		return say_bad("--values %s: matches none of %zu values, such as \"%s\"", pattern,
			       n->n, n->value[0].name);
	if (pattern || p->nvalues <= NCOLOURS)
		return 0;
	qsort(p->value, (size_t)p->nvalues, sizeof(*p->value), by_worst);
	say_note("%d of %zu values are drawn: those that are not finite, or saturate or become 0 "
		 "most; --values chooses others", NCOLOURS, n->n);
	p->nvalues = NCOLOURS;
	return 0;
}

static struct {
	char *output, *title, *gnuplot, *values;
	int64_t numerics;
} opt;
#define AT(field) offsetof(__typeof__(opt), field)

static const struct option_field fields[] = {
	{ "output", OPTION_TEXT, AT(output), NULL, 0, 0, 'o', "FILE",
	  "the .svg, .png or .pdf to write, - for SVG to stdout" },
	{ "title", OPTION_TEXT, AT(title), NULL, 0, 0, 0, "TEXT", "title of the plot" },
	{ "numerics", OPTION_FLAG, AT(numerics), NULL, 0, 1, 0, NULL,
	  "draw the values of a file of te_train --numerics" },
	{ "values", OPTION_TEXT, AT(values), NULL, 0, 0, 0, "PATTERN",
	  "with --numerics: the values to draw, such as '*.act.y forward *'" },
	{ "gnuplot", OPTION_TEXT, AT(gnuplot), GNUPLOT, 0, 0, 0, "PROGRAM", "the gnuplot to run" },
	{ 0 },
};

static const struct option_table options = {
	.usage = "usage: te_plot -o loss.svg run.jsonl...\n"
		 "       te_plot --numerics -o values.svg values.jsonl\n"
		 "Draws the training and validation losses that te_train --log wrote, or the\n"
		 "values of te_train --numerics.\n\n",
	.fields = (const struct option_field *const[]){ fields, NULL },
};

static int save(const struct picture *p)
{
	struct target target = { .fd = -1 };
	int r = target_open(&target, opt.output);

	if (!r)
		r = draw(p, &target, opt.gnuplot);
	if (!r)
		r = target_commit(&target);
	target_close(&target);
	return r;
}

static int draw_runs(char *const *path, int n)
{
	struct run *run = calloc((size_t)n, sizeof(*run));
	const struct picture p = { terminal_of(opt.output), opt.title, run, n, NULL, NULL, 0 };
	int r = run ? 0 : say_failed("out of memory");

	for (int i = 0; i < n && !r; i++) {
		run[i].path = path[i];
		r = read_log(&run[i]);
		if (!r)
			r = name_run(&run[i]);
	}
	if (!r)
		r = save(&p);
	for (int i = 0; i < n && run; i++) {
		free(run[i].name);
		plot_log_free(&run[i].log);
	}
	free(run);
	return r;
}

static int draw_numerics(const char *path)
{
	struct plot_numerics n = { .torn = 0 };
	struct picture p = { terminal_of(opt.output), opt.title, NULL, 0, &n, NULL, 0 };
	char why[PLOT_LOG_WHY];
	int r = plot_numerics_read(path, &n, why);

	r = judge(path, r, why, n.torn);
	if (!r)
		r = choose(&p, opt.values);
	if (!r && !count_panels(&p))
		r = say_bad("%s: all of these values are 0", path);
	if (!r)
		r = save(&p);
	free(p.value);
	plot_numerics_free(&n);
	return r;
}

int main(int argc, char **argv)
{
	int n, r;

	say_as("te_plot");
	if (option_parse(&options, &opt, argc, argv, &r))
		return r;
	n = argc - optind;
	if (!opt.output)
		return say_bad("no output file: give -o FILE; see te_plot --help");
	if (!terminal_of(opt.output))
		return say_bad("%s: the name must end in .svg, .png or .pdf", opt.output);
	if (opt.values && !opt.numerics)
		return say_bad("--values needs --numerics");
	if (n < 1)
		return say_bad("no log given; see te_plot --help");
	if (opt.numerics && n > 1)
		return say_bad("--numerics: %d files given, expected one", n);
	signal(SIGXFSZ, SIG_IGN); /* exceeding a file size limit is an error, like a full disk */
	signal(SIGPIPE, SIG_IGN); /* the exit status shows whether gnuplot failed */
	return opt.numerics ? draw_numerics(argv[optind]) : draw_runs(argv + optind, n);
}
