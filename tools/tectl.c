/* tectl.c - shows the state of ted(8), and stops grants of files to a job; see tectl(1). */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <te/errno.h>

#include "libtecore/base/wire.h"
#include "tools/lib/clock.h"
#include "tools/lib/option.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"

#define LIMIT_NS 5000000000

static struct {
	char *socket;
	int64_t json;
} opt;
#define AT(field) offsetof(__typeof__(opt), field)

static const struct option_field fields[] = {
	{ "socket", OPTION_TEXT, AT(socket), NULL, 0, 0, 's', "PATH",
	  "its socket, by default the user's or else the system's" },
	{ "json", OPTION_FLAG, AT(json), NULL, 0, 1, 0, NULL, "print one JSON object" },
	{ 0 },
};

static const struct option_table options = {
	.usage = "usage: tectl [options] status | jobs | revoke JOB\n"
		 "Shows what the node service ted holds: see tectl(1).\n\n",
	.fields = (const struct option_field *const[]){ fields, NULL },
};

static const char *path;

/* the reply of ted to one request; an exit status */
static int ask(struct te__wire *m, struct te__wire_data *data)
{
	struct te__wire_call c = {
		.who = "ted", .what = "ted", .late = "it does not answer", .fd = -1,
		.ret_data = data,
	};
	int r;

	c.deadline_ns = now_ns() + LIMIT_NS;
	r = te__wire_dial(path, c.deadline_ns, &c.sock);
	if (r)
		return say_failed("%s", te_error_detail());
	r = te__wire_call(&c, m);
	close(c.sock);
	return r ? say_failed("%s", te_error_detail()) : STATUS_OK;
}

/* metrics without their descriptions: a name, a space and a value a line */
static int print_status(char *text)
{
	struct record rec;
	char *save = NULL, *space;

	if (opt.json)
		record_begin(&rec);
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (*line == '#')
			continue;
		if (!opt.json)
			puts(line);
		space = strrchr(line, ' ');
		if (!opt.json || !space)
			continue;
		*space = 0;
		record_real(&rec, line, strtod(space + 1, NULL));
	}
	return opt.json ? record_print(&rec, JSON_INDENT(2)) : STATUS_OK;
}

static int status(void)
{
	struct te__wire m = { .kind = TE__WIRE_STATUS };
	char *text = malloc(TE__WIRE_DATA_MAX + 1);
	struct te__wire_data data = { text, TE__WIRE_DATA_MAX, 0 };
	int r;

	if (!text)
		return say_failed("no memory");
	r = ask(&m, &data);
	if (!r) {
		text[data.nbytes] = 0;
		r = print_status(text);
	}
	free(text);
	return r;
}

static void print_job(struct record *rec, const struct te__wire_job *j)
{
	if (!opt.json) {
		printf("%8" PRIu32 " %8" PRIu32 " %7" PRIu32 " %7" PRIu32 " %14" PRIu64
		       " %14" PRIu64 "%s\n", j->id, j->uid, j->nclients, j->nfiles, j->spill_nbytes,
		       j->written_nbytes, j->revoked ? " revoked" : "");
		return;
	}
	record_open(rec, NULL);
	record_int(rec, "job", j->id);
	record_int(rec, "uid", j->uid);
	record_int(rec, "clients", j->nclients);
	record_int(rec, "files", j->nfiles);
	record_int(rec, "spill_bytes", (int64_t)j->spill_nbytes);
	record_int(rec, "written_today_bytes", (int64_t)j->written_nbytes);
	record_flag(rec, "revoked", (int)j->revoked);
	record_close(rec);
}

static int jobs(void)
{
	struct te__wire_job *list = malloc(TE__WIRE_DATA_MAX);
	struct te__wire_data data = { list, TE__WIRE_DATA_MAX, 0 };
	struct record rec;
	uint32_t below = 0;
	size_t n;
	int r;

	if (!list)
		return say_failed("no memory");
	if (opt.json) {
		record_begin(&rec);
		record_open_list(&rec, "jobs");
	}
	do {
		struct te__wire m = { .kind = TE__WIRE_JOBS, .item = below };

		r = ask(&m, &data);
		n = r ? 0 : data.nbytes / sizeof(*list);
		if (!r && !opt.json && !below)
			printf("%8s %8s %7s %7s %14s %14s\n", "job", "user", "clients", "files",
			       "file bytes", "written today");
		for (size_t i = 0; i < n; i++)
			print_job(&rec, &list[i]);
		if (n)
			below = list[n - 1].id;
	} while (n && below > 1);
	free(list);
	if (opt.json && r)
		record_drop(&rec);
	if (!opt.json || r)
		return r;
	record_close(&rec);
	return record_print(&rec, JSON_INDENT(2));
}

static int revoke_job(const char *text)
{
	struct te__wire m = { .kind = TE__WIRE_REVOKE };
	struct record rec;
	char *end;
	unsigned long id;
	int r;

	errno = 0;
	id = strtoul(text, &end, 10);
	if (errno || *end || *text < '0' || *text > '9' || id > UINT32_MAX)
		return say_bad("revoke %s: expected the number of a job, as tectl jobs prints it",
			       text);
	m.item = (uint32_t)id;
	r = ask(&m, NULL);
	if (r || !opt.json)
		return r;
	record_begin(&rec);
	record_int(&rec, "revoked_job", (int64_t)id);
	return record_print(&rec, JSON_INDENT(2));
}

/* the socket of the user's ted, or else of the system's ted */
static const char *default_path(void)
{
	static char text[256];
	const char *dir = getenv("XDG_RUNTIME_DIR");

	if (dir && *dir) {
		snprintf(text, sizeof(text), "%s/ted/sock", dir);
		if (!access(text, F_OK))
			return text;
	}
	return "/run/ted/sock";
}

int main(int argc, char **argv)
{
	const char *command;
	int r, nargs;

	say_as("tectl");
	if (option_parse(&options, &opt, argc, argv, &r))
		return r;
	path = opt.socket ? opt.socket : default_path();
	command = optind < argc ? argv[optind] : "";
	nargs = argc - optind - 1;
	if (!strcmp(command, "status") && !nargs)
		return status();
	if (!strcmp(command, "jobs") && !nargs)
		return jobs();
	if (!strcmp(command, "revoke") && nargs == 1)
		return revoke_job(argv[optind + 1]);
	return say_bad("expected status, jobs or revoke JOB; see tectl --help");
}
