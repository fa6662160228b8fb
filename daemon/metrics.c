/*
 * metrics.c - the state of ted(8) in the text format of Prometheus, for connections to the second
 * socket; see ted.h. Nothing is read from such a connection.
 */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <te/version.h>

#include "daemon/ted.h"

#define TEXT_NBYTES (256 << 10)
#define MOST_JOBS 64 /* with a series of their own */

static void head(FILE *f, const char *name, const char *type, const char *help)
{
	fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void one(FILE *f, const char *name, const char *type, const char *help, uint64_t value)
{
	head(f, name, type, help);
	fprintf(f, "%s %" PRIu64 "\n", name, value);
}

/* the value of a label, in quotes */
static void label(FILE *f, const char *name, const char *value)
{
	fprintf(f, "%s=\"", name);
	for (; *value; value++)
		if (*value == '\n')
			fputs("\\n", f);
		else
			fprintf(f, *value == '"' || *value == '\\' ? "\\%c" : "%c", *value);
	fputc('"', f);
}

static void spill(FILE *f, const struct ted *t)
{
	static const char *const reason[TED_DENIED_END] = { "other", "quota", "space",
							    "unavailable" };
	struct statvfs s;
	int n = 0;

	head(f, "te_spill_info", "gauge", "The folder of spill space, and why it cannot be used");
	fputs("te_spill_info{", f);
	label(f, "folder", t->conf.spill);
	fputc(',', f);
	label(f, "reason", t->spill_why);
	fputs("} 1\n", f);
	one(f, "te_spill_files", "gauge", "Files that exist", (uint64_t)t->ngrants);
	head(f, "te_spill_granted_bytes", "gauge", "Bytes of the files of a job");
	for (const struct ted_job *j = t->jobs; j && n < MOST_JOBS; j = j->next)
		if (j->ngrants) {
			fprintf(f, "te_spill_granted_bytes{job=\"%u\",uid=\"%u\"} %" PRId64 "\n",
				j->id, (unsigned int)j->uid, ted_spill_granted(t, j, 0, 0));
			n++;
		}
	one(f, "te_spill_granted_all_bytes", "gauge", "Bytes of the files of all jobs",
	    (uint64_t)ted_spill_granted(t, NULL, 1, 0));
	if (!*t->spill_why && !fstatvfs(t->spill_dir, &s))
		one(f, "te_spill_free_bytes", "gauge", "Bytes that the file system has left",
		    (uint64_t)s.f_bavail * s.f_frsize);
	one(f, "te_spill_grants_total", "counter", "Files granted", t->n.granted);
	head(f, "te_spill_grant_failures_total", "counter", "Files refused");
	for (int i = 0; i < TED_DENIED_END; i++)
		fprintf(f, "te_spill_grant_failures_total{reason=\"%s\"} %" PRIu64 "\n", reason[i],
			t->n.denied[i]);
	one(f, "te_spill_held_total", "counter", "Files that clients had from before a restart",
	    t->n.held);
	one(f, "te_spill_reclaimed_total", "counter", "Files that are gone", t->n.reclaimed);
	one(f, "te_spill_written_bytes_total", "counter", "Bytes that clients wrote to files",
	    t->n.written);
}

static void write_all(FILE *f, const struct ted *t)
{
	uint64_t njobs = 0;

	for (const struct ted_job *j = t->jobs; j; j = j->next)
		njobs++;
	one(f, "te_up", "gauge", "1", 1);
	head(f, "te_build_info", "gauge", "The version");
	fputs("te_build_info{version=\"" TE_VERSION "\"} 1\n", f);
	one(f, "te_instance_start_seconds", "gauge", "When it started, since the epoch",
	    (uint64_t)t->started);
	one(f, "te_clients", "gauge", "Connections",
	    (uint64_t)ted_count(t, TED_CLIENTS, 1, 0));
	one(f, "te_jobs", "gauge", "Jobs with clients or files", njobs);
	one(f, "te_clients_accepted_total", "counter", "Connections so far", t->n.accepted);
	one(f, "te_clients_refused_total", "counter", "Connections refused", t->n.refused);
	one(f, "te_clients_slow_total", "counter", "Clients dropped: they did not read replies",
	    t->n.dropped_slow);
	one(f, "te_protocol_errors_total", "counter", "Messages that broke the protocol",
	    t->n.protocol_errors);
	one(f, "te_fd_transfers_total", "counter", "Descriptors sent to clients",
	    t->n.fd_transfers);
	spill(f, t);
}

char *ted_metrics_text(const struct ted *t, size_t *ret_nbytes)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, ret_nbytes);

	if (!f)
		return NULL;
	write_all(f, t);
	if (!fclose(f))
		return text;
	free(text);
	return NULL;
}

void ted_metrics_serve(struct ted *t, int fd)
{
	const int room = 2 * TEXT_NBYTES;
	size_t n = 0;
	char *text = ted_metrics_text(t, &n);

	(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	/* all into the socket's buffer, or nothing: ted does not wait for readers */
	if (!text || send(fd, text, n, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)n)
		ted_say_client("metrics: %zu bytes were not sent", n);
	free(text);
	close(fd);
}
