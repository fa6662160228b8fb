/* te_run - starts the ranks of a parallel program, and ends all if one fails. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "tools/lib/option.h"
#include "tools/run/run.h"

#define GRACE_S 5    /* from SIGTERM to SIGKILL */
#define SILENCE_S 30 /* time limit for messages of another host */

/* ---- the folder of the ranks (TE_COMM_DIR), which exists while te_run runs ---- */

static char dir[4096];

static int make_dir(const char *in, const char *name)
{
	snprintf(dir, sizeof(dir), "%s/%s.XXXXXX", in, name);
	if (mkdtemp(dir))
		return STATUS_OK;
	dir[0] = 0;
	return say_failed("cannot create a folder in %s: %s", in, strerror(errno));
}

/*
 * 0, or -1 with errno. No link is followed: in /tmp another user may have put one there, after the
 * first of two processes has removed the folder.
 */
static int remove_dir(void)
{
	const int fd = dir[0] ? open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
	DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
	struct dirent *e;

	while (d && (e = readdir(d)))
		unlinkat(fd, e->d_name, 0); /* fails for . and .. */
	if (d)
		closedir(d);
	else if (fd >= 0)
		close(fd);
	return dir[0] ? rmdir(dir) : 0;
}

/* ranks that were killed may be in the middle of a call that makes a file */
static void remove_left_dir(void)
{
	for (int i = 0; i < 100 && remove_dir() && errno == ENOTEMPTY; i++)
		nanosleep(&(struct timespec){ 0, 10000000 }, NULL);
}

/*
 * A process, which no signal for te_run or for its ranks reaches, removes the folder if te_run is
 * killed. The leader of the ranks has the pipe open, too, so that they have ended then.
 */
static int watch_dir(void)
{
	sigset_t all, old;
	int fd[2];
	pid_t pid;
	char c;

	if (pipe2(fd, O_CLOEXEC))
		return say_failed("cannot open a pipe: %s", strerror(errno));
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &old);
	pid = fork();
	if (!pid) {
		setpgid(0, 0);
		prctl(PR_SET_NAME, "te_folder"); /* so that killall(1) of te_run does not match */
		for (int i = 0; i < 3; i++)
			close(i);
		close(fd[1]);
		while (read(fd[0], &c, 1) < 0 && errno == EINTR)
			;
		remove_left_dir();
		_exit(STATUS_OK);
	}
	setpgid(pid, pid);
	sigprocmask(SIG_SETMASK, &old, NULL);
	close(fd[0]);
	return pid < 0 ? say_failed("cannot start a process: %s", strerror(errno)) : STATUS_OK;
}

/* ---- ranks of this host, which meet in the folder, and of others ---- */

/* ranks of several hosts find those that were started again in the current folder */
static int share_dir(struct run_opts *o)
{
	char here[PATH_MAX];
	int r = getcwd(here, sizeof(here)) ? make_dir(here, ".te_run") :
					     say_failed("getcwd: %s", strerror(errno));

	o->shared = dir;
	return r ? r : watch_dir();
}

static int run_here(const struct run_opts *o)
{
	const struct ranks_opts r = {
		.n = o->nranks,
		.input = 1,
		.put = o->prefix ? out_lines : NULL,
		.ended = job_ended,
	};
	struct crew crew = ranks_crew;
	char job[64];
	int e, status;

	crew.npoll = ranks_npoll(r.n);
	snprintf(job, sizeof(job), "te_run.%d", (int)getpid());
	unsetenv("TE_COMM_ID");
	setenv("TE_COMM_DIR", dir, 1);
	setenv("TE_COMM_JOB", job, 1);
	setenv("TE_COMM_BOOTSTRAP", "dir", 1);
	e = job_begin(o, &crew);
	if (e)
		return e;
	e = ranks_start(o, &r);
	if (e)
		job_end(e);
	status = job_wait();
	ranks_free();
	out_free();
	return status;
}

/* ---- options ---- */

#define STRING(x) #x
#define NUMBER(x) STRING(x)

static struct {
	int64_t nranks, prefix, grace_s, no_kill, respawn, per_node, silence_s, agent;
	double timeout_s;
	char *hosts, *ssh, *te_run;
} opt = { .grace_s = GRACE_S, .silence_s = SILENCE_S };
#define AT(field) offsetof(__typeof__(opt), field)

static const struct option_field fields[] = {
	{ "ranks", OPTION_INT, AT(nranks), NULL, 1, RANKS_MAX, 'n', "N",
	  "number of ranks, 1 to " NUMBER(RANKS_MAX) },
	{ "prefix", OPTION_FLAG, AT(prefix), NULL, 0, 1, 'p', NULL,
	  "begin each line of output with the rank, as in [3]" },
	{ "timeout", OPTION_TIME, AT(timeout_s), NULL, 1e-6, 1e6, 't', "S",
	  "end all ranks after S seconds, or a time such as 1h30m, with status 124" },
	{ "grace", OPTION_SECONDS, AT(grace_s), NULL, 0, 3600, 'g', "S",
	  "seconds from SIGTERM to SIGKILL, default " NUMBER(GRACE_S) },
	{ "no-kill", OPTION_FLAG, AT(no_kill), NULL, 0, 1, 'k', NULL,
	  "ranks that fail do not end the others" },
	{ "respawn", OPTION_INT, AT(respawn), NULL, 1, 1000000, 'r', "N",
	  "as --no-kill, but start failed ranks again, N times in all" },
	{ "per-node", OPTION_INT, AT(per_node), NULL, 1, RANKS_MAX, 0, "N",
	  "for tests: ranks behave as if each N of them were on a separate node" },
	{ "hosts", OPTION_TEXT, AT(hosts), NULL, 0, 0, 0, "LIST",
	  "start up to SLOTS ranks, by default 1, on each of these hosts, by ssh" },
	{ "export", OPTION_TEXT, 0, NULL, 0, 0, 'x', "NAME",
	  "set this environment variable, or NAME=VALUE, on other hosts; variables that "
	  "begin with TE_ are always set" },
	{ "ssh", OPTION_TEXT, AT(ssh), NULL, 0, 0, 0, "COMMAND",
	  "command that runs a program on another host, default \"ssh -o BatchMode=yes\"" },
	{ "te-run", OPTION_TEXT, AT(te_run), NULL, 0, 0, 0, "PATH",
	  "path of te_run on the other hosts, default \"te_run\"" },
	{ "silence", OPTION_SECONDS, AT(silence_s), NULL, 1, 3600, 0, "S",
	  "a host that sends nothing for S seconds is lost, default " NUMBER(SILENCE_S) },
	{ "agent", OPTION_FLAG, AT(agent), NULL, 0, 1, 0, NULL,
	  NULL }, /* --hosts starts it there */
	{ 0 },
};

static const struct option_table options = {
	.usage = "usage: te_run -n N [options] COMMAND [ARGUMENT...]\n"
		 "       te_run --hosts HOST[:SLOTS],... [options] COMMAND [ARGUMENT...]\n"
		 "Starts N ranks of a parallel program on this host, or on others.\n",
	.command = 1,
	.fields = (const struct option_field *const[]){ fields, NULL },
};

/* --export may be repeated; given has room for argc values */
static int parse(int argc, char **argv, struct option_given *given, struct run_opts *o)
{
	const int n = option_given(&options, argc, argv, given, argc);
	char where[64];
	int r = n < 0 ? n : 0;

	for (int i = 0; i < n && !r; i++) {
		snprintf(where, sizeof(where), "--%s", given[i].field->name);
		if (given[i].field->key == 'x')
			o->export[o->nexport++] = given[i].text;
		else if (option_set(given[i].field, &opt, given[i].text, where))
			r = OPTION_BAD;
	}
	o->nranks = (int)opt.nranks;
	o->prefix = (int)opt.prefix;
	o->per_node = (int)opt.per_node;
	o->grace_s = (int)opt.grace_s;
	o->silence_s = (int)opt.silence_s;
	o->respawn = (int)opt.respawn;
	o->no_kill = opt.no_kill || opt.respawn;
	o->timeout_s = opt.timeout_s;
	o->hosts = opt.hosts;
	o->ssh = opt.ssh ? opt.ssh : "ssh -o BatchMode=yes";
	o->te_run = opt.te_run ? opt.te_run : "te_run";
	return r;
}

int main(int argc, char **argv)
{
	struct option_given *given = calloc((size_t)argc, sizeof(*given));
	const char *tmp = getenv("TMPDIR");
	struct run_opts o = { .export = calloc((size_t)argc, sizeof(*o.export)) };
	int r;

	say_as("te_run");
	if (!o.export || !given)
		return say_failed("not enough memory");
	r = parse(argc, argv, given, &o);
	free(given);
	if (r || opt.agent) {
		free(o.export);
		return r == OPTION_DONE ? STATUS_OK : r ? STATUS_BAD : agent_run();
	}
	if (!r && optind == argc)
		r = o.nranks || o.hosts ? say_bad("a command is needed") :
					  say_bad("no number of ranks: give -n N; see --help");
	o.cmd = argv + optind;
	if (!r && o.hosts) {
		r = hosts_parse(&o);
		if (!r && o.respawn)
			r = share_dir(&o);
		if (!r)
			r = hosts_run(&o);
	} else if (!r && !o.nranks) {
		r = say_bad("no number of ranks: give -n N; see --help");
	} else if (!r) {
		r = make_dir(tmp && *tmp ? tmp : "/tmp", "te_run");
		if (!r)
			r = watch_dir();
		if (!r)
			r = run_here(&o);
	}
	remove_dir();
	free(o.export);
	return r;
}
