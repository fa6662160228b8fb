/* ib_write.c - see ib_write.h. Rank 1 runs the server, which ends after one client. */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <te/param.h>

#include "ib_write.h"
#include "program.h"
#include "tools/lib/say.h"

#define ROOM ((size_t)1 << 16) /* bytes of a program's output */
#define BYTES_MOST (8 << 20)   /* maximum message of the programs */
#define ITERS_LEAST 5
#define TRIES 100 /* tries of a client while the server starts: 0.1 s each */

static const char *const program_name[] = { "ib_write_lat", "ib_write_bw" };

/* maximum over all ranks */
static int agree(struct ib_write *w, int x, int *ret)
{
	const float mine = (float)x;
	float most;
	const int r = comm_exchange(w->c, &mine, 1, &most);

	if (r < 0)
		return say_te(r, "--perftest");
	*ret = (int)most;
	return STATUS_OK;
}

/* ---- programs ---- */

static const char *param(const char *name)
{
	struct te_param_info p = TE_PARAM_INFO_INIT;

	for (size_t i = 0; i < te_param_count(); i++)
		if (!te_param_info(i, &p) && !strcmp(p.name, name))
			return p.value;
	return "";
}

/* the first port of TE_COMM_IB_DEVICE, as in mlx5_0:2,mlx5_1 */
static int find_device(struct ib_write *w)
{
	const char *s = param("TE_COMM_IB_DEVICE");
	const int len = (int)strcspn(s, ":,");
	const char *port = s[len] == ':' ? s + len + 1 : "1";

	if (!len)
		return say_bad("--perftest: TE_COMM_IB_DEVICE must name the device, on each host");
	snprintf(w->device, sizeof(w->device), "%.*s", len, s);
	snprintf(w->port, sizeof(w->port), "%.*s", (int)strcspn(port, ","), port);
	snprintf(w->gid, sizeof(w->gid), "%s", param("TE_COMM_IB_GID"));
	return STATUS_OK;
}

static int is_there(struct ib_write *w, const char *name)
{
	char *argv[] = { (char *)(uintptr_t)name, "--version", NULL };
	struct program p;

	if (program_start(&p, argv, 1))
		return 0;
	program_end(&p, w->text, ROOM); /* its status is 1 */
	return 1;
}

int ib_write_open(struct ib_write *w, struct comm *c, const struct verbs_opts *o)
{
	int missing = 0, worst = 0, r;

	*w = (struct ib_write){ .o = o, .c = c };
	if (!o->perftest)
		return STATUS_OK;
	r = find_device(w);
	if (r)
		return r;
	w->text = malloc(ROOM);
	if (!w->text)
		return say_failed("no memory for the output of a program");
	for (int i = 0; i < 2 && c->rank < 2; i++)
		if (!is_there(w, program_name[i]))
			missing = 1 + 2 * i + c->rank;
	r = agree(w, missing, &worst);
	if (r)
		return r;
	w->can = !worst;
	if (worst && !c->rank)
		say_note("te_perftest: verbs: no rows of perftest: rank %d has no program %s in "
			 "PATH", (worst - 1) % 2, program_name[(worst - 1) / 2]);
	return STATUS_OK;
}

void ib_write_close(struct ib_write *w)
{
	free(w->text);
}

int ib_write_takes(const struct ib_write *w, int64_t nbytes)
{
	return w->can && nbytes > 0 && nbytes <= BYTES_MOST;
}

/* ---- a run ---- */

/* tries until there is a server; a status of waitpid(2), or -1 */
static int run_client(struct ib_write *w, char *const argv[])
{
	struct program p;
	int status = -1;

	for (int tries = 0; tries < TRIES; tries++) {
		if (program_start(&p, argv, 1))
			return -1;
		status = program_end(&p, w->text, ROOM);
		/* Couldn't connect to HOST:PORT */
		if (!status || !strstr(w->text, "onnect"))
			break;
		usleep(100000);
	}
	return status;
}

/* sends n messages; w->text is the output of this rank's program */
static int run(struct ib_write *w, const char *name, int64_t nbytes, int64_t n)
{
	const int rank = w->c->rank;
	char bytes[24], iters[24], depth[24];
	char *argv[20] = { (char *)(uintptr_t)name, "-F", "-d", w->device, "-i", w->port, "-s",
			   bytes, "-n", iters };
	struct program server;
	int failed = 0, worst = 0, k = 10, r;

	snprintf(bytes, sizeof(bytes), "%lld", (long long)nbytes);
	snprintf(iters, sizeof(iters), "%lld", (long long)(n < ITERS_LEAST ? ITERS_LEAST : n));
	snprintf(depth, sizeof(depth), "%lld", (long long)w->o->depth);
	if (*w->gid != '-') {
		argv[k++] = "-x";
		argv[k++] = w->gid;
	}
	if (name == program_name[1]) {
		argv[k++] = "-t";
		argv[k++] = depth;
	}
	if (!rank)
		argv[k++] = (char *)(uintptr_t)w->o->perftest;
	*w->text = '\0';
	if (rank == 1)
		failed = program_start(&server, argv, 1) != 0;
	r = agree(w, failed, &worst);
	if (!r && !worst && !rank)
		failed = run_client(w, argv) != 0;
	if (!r && !worst)
		r = agree(w, failed, &worst);
	if (rank == 1 && !failed) {
		if (r || worst) /* it would block forever */
			kill(server.pid, SIGKILL);
		program_end(&server, w->text, ROOM);
	}
	if (!r && worst && rank < 2)
		return say_failed("verbs: %s by rank %d failed: %.400s", name, rank, w->text);
	return r ? r : worst ? STATUS_FAILED : STATUS_OK;
}

/* reads n numbers of the line that begins with the bytes of a message; on rank 0 */
static int numbers(struct ib_write *w, const char *name, int64_t nbytes, int n, double *ret)
{
	const char *line = w->text;

	if (w->c->rank)
		return STATUS_OK;
	while (line) {
		char *end;
		int k = 0;

		for (const char *at = line; k < n; k++, at = end) {
			ret[k] = strtod(at, &end);
			if (end == at || (!k && ret[k] != (double)nbytes))
				break;
		}
		if (k == n)
			return STATUS_OK;
		line = strchr(line, '\n');
		line += line != NULL;
	}
	return say_failed("verbs: %s: unexpected output: %.400s", name, w->text);
}

int ib_write_lat(struct ib_write *w, int64_t nbytes, struct ib_write_lat *ret)
{
	/* bytes, iterations, least, most, typical, average, deviation, 99 % */
	double x[8] = { 0 };
	int r = run(w, program_name[0], nbytes, w->c->b->o->iters);

	if (!r)
		r = numbers(w, program_name[0], nbytes, 8, x);
	if (!r)
		*ret = (struct ib_write_lat){ .least_us = x[2], .median_us = x[4],
					      .p99_us = x[7] };
	return r;
}

int ib_write_bw(struct ib_write *w, int64_t nbytes, double *ret_bytes_per_s)
{
	/* bytes, iterations, most and average MiB/s, messages of 1e6/s */
	double x[5] = { 0 };
	int r = run(w, program_name[1], nbytes, w->c->b->o->iters * w->o->depth);

	if (!r)
		r = numbers(w, program_name[1], nbytes, 5, x);
	/* MiB/s have two digits after the point, messages six */
	if (!r)
		*ret_bytes_per_s = x[3] >= 10 ? x[3] * 0x1p20 : x[4] * 1e6 * (double)nbytes;
	return r;
}
