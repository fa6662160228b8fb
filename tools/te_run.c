/* te_run - starts the ranks of a parallel program, and ends all if one fails. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/lib/option.h"
#include "tools/run/run.h"

#define GRACE_S 5    /* from SIGTERM to SIGKILL */
#define SILENCE_S 30 /* time limit for messages of another host */

/* ---- ranks of this host, which meet in a folder (TE_COMM_DIR) while te_run runs ---- */

static char dir[4096];

static int make_dir(void)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(dir, sizeof(dir), "%s/te_run.XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (mkdtemp(dir))
		return STATUS_OK;
	dir[0] = 0;
	return say_failed("cannot create a folder in %s: %s", tmp && *tmp ? tmp : "/tmp",
			  strerror(errno));
}

/* 0, or -1 with errno */
static int remove_dir(void)
{
	DIR *d = dir[0] ? opendir(dir) : NULL;
	struct dirent *e;

	while (d && (e = readdir(d)))
		unlinkat(dirfd(d), e->d_name, 0); /* fails for . and .. */
	if (d)
		closedir(d);
	return dir[0] ? rmdir(dir) : 0;
}

/* ranks that were killed may be in the middle of a call that makes a file */
static void remove_left_dir(void)
{
	for (int i = 0; i < 100 && remove_dir() && errno == ENOTEMPTY; i++)
		nanosleep(&(struct timespec){ 0, 10000000 }, NULL);
}

static int run_here(const struct run_opts *o)
{
	const struct ranks_opts r = {
		.n = o->nranks,
		.input = 1,
		.put = o->prefix ? out_lines : NULL,
		.ended = job_ended,
		.orphaned = remove_left_dir,
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

static const struct option_table options = {
	.usage = "usage: te_run -n N [options] COMMAND [ARGUMENT...]\n"
		 "       te_run --hosts HOST[:SLOTS],... [options] COMMAND [ARGUMENT...]\n"
		 "Starts N ranks of a parallel program on this host, or on others.\n",
	.command = 1,
	.rows = (const struct option_row[]){
		{ "ranks", 'n', "N", "how many, 1 to " NUMBER(RANKS_MAX) },
		{ "prefix", 'p', NULL, "begin each line of output with the rank, as in [3]" },
		{ "timeout", 't', "S", "end all ranks after S seconds, with status 124" },
		{ "grace", 'g', "S", "seconds from SIGTERM to SIGKILL, default " NUMBER(GRACE_S) },
		{ "no-kill", 'k', NULL, "ranks that fail do not end the others" },
		{ "per-node", 'N', "N", "let the ranks believe that N of them share a node" },
		{ "hosts", 'H', "LIST",
		  "where, by ssh: up to SLOTS ranks on each host, 1 by default" },
		{ "export", 'x', "NAME",
		  "variable of the environment for other hosts, or NAME=VALUE;\n"
		  "those that begin with TE_ are always exported" },
		{ "ssh", 'S', "COMMAND", "how to run a command there, \"ssh -o BatchMode=yes\"" },
		{ "te-run", 'T', "PATH", "te_run of the other hosts, \"te_run\"" },
		{ "silence", 'L', "S",
		  "a host that sends nothing for S seconds is lost, default " NUMBER(SILENCE_S) },
		{ "agent", 'A', NULL, NULL }, /* started by --hosts on other hosts */
		{ NULL, 0, NULL, NULL },
	},
};

static int parse_int(const char *name, const char *text, int lo, int hi, int *ret)
{
	char *end;
	long v;

	errno = 0;
	v = strtol(text, &end, 10);
	if (errno || end == text || *end || v < lo || v > hi)
		return say_bad("%s: \"%s\" is not a number from %d to %d", name, text, lo, hi);
	*ret = (int)v;
	return STATUS_OK;
}

static int parse_seconds(const char *name, const char *text, double *ret)
{
	double v = option_seconds(text);

	if (!(v > 0 && v < 1e6))
		return say_bad("%s: \"%s\" is not a time above 0, such as 90, 10m or 1h30m", name,
			       text);
	*ret = v;
	return STATUS_OK;
}

static int parse_whole_seconds(const char *name, const char *text, int lo, int hi, int *ret)
{
	double v = option_seconds(text);

	if (!(v >= lo && v <= hi) || v != (int)v)
		return say_bad("%s: \"%s\" is not a whole number of seconds from %d to %d", name,
			       text, lo, hi);
	*ret = (int)v;
	return STATUS_OK;
}

int main(int argc, char **argv)
{
	struct run_opts o = {
		.grace_s = GRACE_S,
		.silence_s = SILENCE_S,
		.ssh = "ssh -o BatchMode=yes",
		.te_run = "te_run",
		.export = calloc((size_t)argc, sizeof(*o.export)),
	};
	int c, r = STATUS_OK;

	say_as("te_run");
	if (!o.export)
		return say_failed("not enough memory");
	while (!r && (c = option_next(&options, argc, argv)) != OPTION_END) {
		switch (c) {
		case 'n':
			r = parse_int("--ranks", optarg, 1, RANKS_MAX, &o.nranks);
			break;
		case 'p':
			o.prefix = 1;
			break;
		case 't':
			r = parse_seconds("--timeout", optarg, &o.timeout_s);
			break;
		case 'g':
			r = parse_whole_seconds("--grace", optarg, 0, 3600, &o.grace_s);
			break;
		case 'k':
			o.no_kill = 1;
			break;
		case 'N':
			r = parse_int("--per-node", optarg, 1, RANKS_MAX, &o.per_node);
			break;
		case 'H':
			o.hosts = optarg;
			break;
		case 'x':
			o.export[o.nexport++] = optarg;
			break;
		case 'S':
			o.ssh = optarg;
			break;
		case 'T':
			o.te_run = optarg;
			break;
		case 'L':
			r = parse_whole_seconds("--silence", optarg, 1, 3600, &o.silence_s);
			break;
		case 'A':
			free(o.export);
			return agent_run();
		case OPTION_DONE:
			free(o.export);
			return 0;
		default:
			r = STATUS_BAD; /* option_next() has reported it */
		}
	}
	if (!r && optind == argc)
		r = o.nranks || o.hosts ? say_bad("a command is needed") :
					  say_bad("-n N, the number of ranks, is needed");
	o.cmd = argv + optind;
	if (!r && o.hosts) {
		r = hosts_parse(&o);
		if (!r)
			r = hosts_run(&o);
	} else if (!r && !o.nranks) {
		r = say_bad("-n N, the number of ranks, is needed");
	} else if (!r) {
		r = make_dir();
		if (!r)
			r = run_here(&o);
		remove_dir();
	}
	free(o.export);
	return r;
}
