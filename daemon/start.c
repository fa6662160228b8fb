/* start.c - options, limits and the state of ted(8). */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "daemon/ted.h"
#include "libtecore/base/userns.h"
#include "tools/lib/option.h"
#include "tools/lib/say.h"

#define OWN_FDS 32 /* descriptors of ted, and of messages that it reads */

/* an exit status */
static int limit_fds(const struct ted *t)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r)) {
		ted_say("RLIMIT_NOFILE: %s", strerror(errno));
		return TED_FAILED;
	}
	r.rlim_cur = r.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &r);
	if (r.rlim_cur > INT32_MAX)
		r.rlim_cur = INT32_MAX;
	if ((int64_t)r.rlim_cur >= t->conf.clients + OWN_FDS)
		return TED_OK;
	ted_say("clients = %lld: the process may open %lld files (RLIMIT_NOFILE), expected %lld",
		(long long)t->conf.clients, (long long)r.rlim_cur,
		(long long)t->conf.clients + OWN_FDS);
	return TED_BAD;
}

int ted_init(struct ted *t, const struct ted_conf *conf)
{
	uint8_t id[16];
	int r;

	memset(t, 0, sizeof(*t));
	t->conf = *conf;
	t->epoll = t->timer = t->signal = t->spare = t->inotify = t->spill_dir = -1;
	t->listen.fd = t->listen.lock = t->metrics.fd = t->metrics.lock = -1;
	t->overflow_uid = te__overflow_uid();
	t->started = (int64_t)time(NULL);
	t->timer_ns = INT64_MAX;
	r = limit_fds(t);
	if (r)
		return r;
	if (getrandom(id, sizeof(id), 0) != (ssize_t)sizeof(id)) {
		ted_say("getrandom: %s", strerror(errno));
		return TED_FAILED;
	}
	for (size_t i = 0; i < sizeof(id); i++)
		sprintf(t->instance + 2 * i, "%02x", id[i]);
	t->client = calloc((size_t)conf->clients, sizeof(*t->client));
	if (!t->client) {
		ted_say("no memory for %lld clients", (long long)conf->clients);
		ted_fini(t);
		return TED_FAILED;
	}
	for (int i = 0; i < conf->clients; i++)
		t->client[i].fd = -1;
	if (ted_spill_open(t)) {
		ted_fini(t);
		return TED_FAILED;
	}
	ted_written_open(t);
	return TED_OK;
}

void ted_fini(struct ted *t)
{
	const int fds[] = { t->epoll, t->timer, t->signal, t->spare };

	ted_client_reap(t);
	for (int i = 0; i < t->end; i++) {
		struct ted_client *c = &t->client[i];

		if (c->fd < 0)
			continue;
		if (c->job)
			ted_job_leave(t, c);
		close(c->fd);
	}
	ted_close_end(t);
	ted_written_close(t);
	ted_spill_close(t);
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	free(t->client);
}

static struct {
	char *config;
	int64_t check;
} opt;
#define AT(field) offsetof(__typeof__(opt), field)

static const struct option_field fields[] = {
	{ "config", OPTION_TEXT, AT(config), NULL, 0, 0, 'c', "FILE",
	  "the configuration, by default " TED_CONF },
	{ "check", OPTION_FLAG, AT(check), NULL, 0, 1, 0, NULL, "read the configuration and exit" },
	{ 0 },
};

static const struct option_table options = {
	.usage = "usage: ted [--config FILE] [--check]\n"
		 "The node service of te: see ted(8).\n\n",
	.fields = (const struct option_field *const[]){ fields, NULL },
};

static int run(const struct ted_conf *conf)
{
	struct ted t;
	int r = ted_init(&t, conf);

	if (r)
		return r;
	r = ted_socket_open(&t);
	if (!r)
		r = ted_loop(&t);
	if (!r)
		ted_notify("STOPPING=1");
	/* clients that connect from now on find no socket */
	ted_socket_close(&t);
	ted_fini(&t);
	return r;
}

int ted_main(int argc, char **argv)
{
	struct ted_conf conf;
	char text[512];
	int r;

	say_as("ted");
	if (option_parse(&options, &opt, argc, argv, &r))
		return r;
	if (optind < argc) {
		ted_say("%s: expected options only; see ted --help", argv[optind]);
		return TED_BAD;
	}
	ted_conf_init(&conf);
	if ((opt.config || !access(TED_CONF, F_OK)) &&
	    ted_conf_read(opt.config ? opt.config : TED_CONF, &conf, text, sizeof(text))) {
		ted_say("%s", text);
		return TED_BAD;
	}
	return opt.check ? TED_OK : run(&conf);
}
