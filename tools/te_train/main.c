/*
 * te_train - trains GPT-2, Llama and Qwen2 style transformers on text.
 *
 * Uses the API of the installed libraries only.
 */
#include "config.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <te/errno.h>

#include "loop.h"
#include "mem.h"
#include "mix.h"
#include "opts.h"
#include "profile.h"
#include "progress.h"
#include "sample.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"

/* the plans of all parts; dot(1) reads several graphs from one file */
static int print_plan(const struct trainer *t)
{
	enum te_plan_format format = *t->o->print_plan == 'd' ? TE_PLAN_DOT : TE_PLAN_TEXT;
	const struct step_graph *g = &t->now.graph;
	struct te_step *step = NULL;
	int r = step_graph_make(g, t->now.model.seq, NULL, g->B, TE_STEP_NO_ALLOC, &step);

	for (int32_t p = 0; p <= g->ncuts && r >= 0; p++) {
		char *text = NULL;

		r = te_plan_print(te_step_plan(step, 0, p), format, &text);
		if (r >= 0)
			fputs(text, stdout);
		free(text);
	}
	te_step_unref(step);
	return r < 0 ? say_te(r, "the plan cannot be printed") : STATUS_OK;
}

/* with the ranks that there are, from the checkpoint or the weights to begin with */
static int attempt(struct trainer *t, struct record *samples)
{
	const struct opts *o = t->o;
	int r = trainer_open(t);

	if (r)
		return r;
	if (o->print_plan)
		return t->ranks.rank ? STATUS_OK : print_plan(t);
	if (o->estimate >= 0)
		return t->ranks.rank ? STATUS_OK :
				       mem_print(&(struct mem_run){ o, &t->now.model, &t->now.graph,
								    !o->sample_only, NULL,
								    &t->choices });
	if (o->profile)
		return profile_print(t);
	if ((o->sample_first && !t->nrecovered) || o->sample_only)
		r = sample(t, samples);
	if (r || o->sample_only)
		return r;
	t->made_out = 0;
	return trainer_run(t);
}

/* does another attempt follow, with fewer ranks or more? */
static int again(struct trainer *t, int *status)
{
	if (!*status && t->now.grows && trainer_grow(t, status))
		return 1;
	return *status && trainer_recover(t, status);
}

static int run(struct trainer *t)
{
	const struct opts *o = t->o;
	const int only_plans = o->print_plan || o->estimate >= 0 || o->profile;
	struct record list, *samples = o->json ? &list : NULL;
	int r;

	record_begin(&list);
	record_open_list(&list, "samples");
	do
		r = attempt(t, samples);
	while (again(t, &r));
	if (!r && !o->sample_only && !only_plans && !t->now.interrupted && !t->now.closed)
		r = sample(t, samples);
	if (!r && o->sample_only && samples && !t->ranks.rank)
		r = record_print(&list, JSON_INDENT(2));
	else if (!r && !o->sample_only && !only_plans)
		r = progress_end(t, &list);
	else
		record_drop(&list);
	if (!r && (fflush(stdout) || ferror(stdout)))
		r = say_failed("writing to standard output failed");
	if (!r && t->now.closed)
		r = STATUS_FAILED;
	return !r && t->now.interrupted ? 130 : r;
}

/* a file that is opened must not take the number of a closed standard output */
static int open_standard_files(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR);
	} while (fd >= 0 && fd <= STDERR_FILENO);
	return fd < 0 ? STATUS_FAILED : (close(fd), STATUS_OK);
}

/* every file of a data set stays open */
static void allow_files(void)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

int main(int argc, char **argv)
{
	struct trainer t = { 0 };
	struct opts o = { 0 };
	sigset_t none;
	int done, r;

	/* a launcher may block the signals that save and end a run */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	/* exceeding a file size limit is an error to report, like a full disk */
	signal(SIGXFSZ, SIG_IGN);
	/* so is writing to a pipe that has no reader */
	signal(SIGPIPE, SIG_IGN);
	if (open_standard_files())
		return STATUS_FAILED;
	/* in a pipe or a file, too, what was chosen is read while the run goes on */
	setvbuf(stdout, NULL, _IOLBF, 0);
	allow_files();
	r = opts_parse(&o, argc, argv, &done);
	if (!r && !done)
		r = say_params();
	if (!r && !done)
		r = trainer_create(&o, &t);
	if (!r && !done && o.memory > 0)
		r = mix_choose(&o, &t);
	if (!r && !done)
		r = run(&t);
	if (!done)
		trainer_free(&t);
	opts_free(&o);
	return r;
}
