/* t/daemon/ted_metrics.c - the metrics of ted(8): their format, and what they count. */
#include "config.h"

#include <ctype.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <te/errno.h>

#include "tt_ted.h"

static char path[96], text[65536];

static int dial_metrics(void)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	const int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strcpy(sa.sun_path, path);
	ck_assert_int_eq(connect(s, (struct sockaddr *)&sa, sizeof(sa)), 0);
	return s;
}

/* ---- a checker of the format ---- */

static struct sample {
	char series[200]; /* name and labels */
	double value;
	int counter;
} sample[200], before[200];
static int nsamples, nbefore;

static const char *name_end(const char *s)
{
	ck_assert(isalpha((unsigned char)*s) || *s == '_');
	while (isalnum((unsigned char)*s) || *s == '_')
		s++;
	return s;
}

/* name="value",... in braces; the end */
static const char *check_labels(const char *s)
{
	ck_assert_int_eq(*s, '{');
	do {
		s = name_end(s + 1);
		ck_assert_int_eq(s[0], '=');
		ck_assert_int_eq(s[1], '"');
		for (s += 2; *s != '"'; s++) {
			ck_assert_int_ne(*s, 0);
			if (*s == '\\') {
				s++;
				ck_assert(*s == '\\' || *s == '"' || *s == 'n');
			}
		}
		s++;
	} while (*s == ',');
	ck_assert_int_eq(*s, '}');
	return s + 1;
}

/* reads and checks all; every sample has a type, every name its prefix, no series comes twice */
static void scrape(void)
{
	char help[100] = "", type_name[100] = "", type[20] = "", *line, *rest;
	const int s = dial_metrics();
	size_t n = 0;
	ssize_t got;

	while ((got = read(s, text + n, sizeof(text) - 1 - n)) > 0)
		n += (size_t)got;
	ck_assert_int_eq((int)got, 0);
	close(s);
	text[n] = 0;
	ck_assert_uint_gt(n, 0);
	ck_assert_int_eq(text[n - 1], '\n');
	nsamples = 0;
	for (line = text; *line; line = rest + 1) {
		struct sample *p = &sample[nsamples];
		const char *end;
		char *value_end;
		size_t len;

		rest = strchr(line, '\n');
		*rest = 0;
		if (sscanf(line, "# HELP %99s", help) == 1)
			continue;
		if (sscanf(line, "# TYPE %99s %19s", type_name, type) == 2) {
			ck_assert_str_eq(type_name, help);
			ck_assert(!strcmp(type, "gauge") || !strcmp(type, "counter") ||
				  !strcmp(type, "histogram"));
			continue;
		}
		ck_assert_msg(!strncmp(line, "te_", 3), "%s", line);
		end = name_end(line);
		len = strlen(type_name);
		ck_assert_msg(!strncmp(line, type_name, len), "%s has no type", line);
		p->counter = !strcmp(type, "counter");
		if (strcmp(type, "histogram")) {
			ck_assert_msg(line + len == end, "%s has no type", line);
			ck_assert_int_eq(p->counter, !strncmp(end - 6, "_total", 6));
		} else {
			ck_assert(!strncmp(line + len, "_bucket{le=", 11) ||
				  !strncmp(line + len, "_sum ", 5) ||
				  !strncmp(line + len, "_count ", 7));
			p->counter = 1;
		}
		if (*end == '{')
			end = check_labels(end);
		ck_assert_int_eq(*end, ' ');
		ck_assert_uint_lt((size_t)(end - line), sizeof(p->series));
		snprintf(p->series, sizeof(p->series), "%.*s", (int)(end - line), line);
		p->value = strtod(end + 1, &value_end);
		ck_assert_msg(value_end > end + 1 && !*value_end, "%s", line);
		for (int i = 0; i < nsamples; i++)
			ck_assert_str_ne(sample[i].series, p->series);
		ck_assert_int_lt(++nsamples, (int)TT_LEN(sample));
	}
}

static double value(const char *series)
{
	for (int i = 0; i < nsamples; i++)
		if (!strcmp(sample[i].series, series))
			return sample[i].value;
	ck_abort_msg("there is no %s", series);
	return 0;
}

#define ck_value(series, want) ck_assert_double_eq(value(series), (want))

static void keep(void)
{
	memcpy(before, sample, sizeof(sample));
	nbefore = nsamples;
}

static void check_monotone(void)
{
	for (int i = 0; i < nbefore; i++)
		if (before[i].counter)
			ck_assert_msg(value(before[i].series) >= before[i].value, "%s",
				      before[i].series);
}

/* ---- tests ---- */

static void begin(const char *conf)
{
	run_init(&run, "");
	snprintf(path, sizeof(path), "%s/metrics", run.dir);
	run_conf(&run, "metrics = %s\n%s", path, conf);
	run_start(&run);
}

CASE(metrics, "host serial");

TEST(metrics, metrics_count_what_happens)
{
	struct te__wire m;
	struct stat st;
	int a, b, late;

	begin("clients = 2\n");
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_int_eq((int)st.st_mode & 0777, 0600);
	scrape();
	ck_value("te_up", 1);
	ck_value("te_clients", 0);
	ck_value("te_clients_accepted_total", 0);
	ck_value("te_fd_transfers_total", 0);
	keep();
	a = join(&run, key);
	b = join(&run, key);
	late = dial(&run);
	while (next(late, &m, NULL, NULL))
		;
	close(late);
	m = message(TE__WIRE_JOBS);
	m.magic++;
	send_only(b, m);
	while (next(b, &m, NULL, NULL))
		;
	scrape();
	check_monotone();
	ck_value("te_clients", 1);
	ck_value("te_jobs", 1);
	ck_value("te_clients_accepted_total", 3);
	ck_value("te_clients_refused_total", 1);
	ck_value("te_protocol_errors_total", 1);
	ck_value("te_spill_grant_failures_total{reason=\"unavailable\"}", 0);
	ck_value("te_spill_info{folder=\"\",reason=\"none is configured (spill)\"}", 1);
	ck_assert_int_ne(grant(a, 1, NULL), 0);
	scrape();
	ck_value("te_spill_grant_failures_total{reason=\"unavailable\"}", 1);
	close(a);
	close(b);
	run_end(&run);
}

TEST(metrics, metrics_count_files)
{
	struct te__wire m = message(TE__WIRE_GRANT);
	char series[160];
	int a, got = -1;

	begin("spill = @\nspill_job = 2M\nspill_keep = 0\n");
	a = join(&run, key);
	m.nbytes = 1234567;
	ck_assert_int_eq(call(a, &m, -1, NULL, &got), 0);
	m = message(TE__WIRE_GRANT);
	m.nbytes = 1 << 20;
	ck_assert_int_eq(call(a, &m, -1, NULL, NULL), -EDQUOT);
	scrape();
	keep();
	ck_value("te_spill_files", 1);
	snprintf(series, sizeof(series), "te_spill_granted_bytes{job=\"1\",uid=\"%u\"}",
		 (unsigned int)geteuid());
	ck_value(series, 1234567);
	ck_value("te_spill_granted_all_bytes", 1234567);
	ck_value("te_spill_grants_total", 1);
	ck_value("te_fd_transfers_total", 1);
	ck_value("te_spill_reclaimed_total", 0);
	ck_value("te_spill_held_total", 0);
	ck_value("te_spill_written_bytes_total", 0);
	m = message(TE__WIRE_HOLD);
	ck_assert_int_eq(call(a, &m, got, NULL, NULL), 0);
	m = message(TE__WIRE_WROTE);
	m.nbytes = 4321;
	ck_assert_int_eq(call(a, &m, -1, NULL, NULL), 0);
	ck_value("te_spill_grant_failures_total{reason=\"quota\"}", 1);
	ck_assert_double_gt(value("te_spill_free_bytes"), 0);
	close(got);
	for (int i = 0; i < TT_SLOWER(2000) && value("te_spill_files") > 0; i++) {
		usleep(1000);
		scrape();
	}
	check_monotone();
	ck_value("te_spill_files", 0);
	ck_value("te_spill_held_total", 0);
	ck_value("te_spill_written_bytes_total", 4321);
	ck_value("te_spill_reclaimed_total", 1);
	close(a);
	run_end(&run);
}

TEST(metrics, labels_are_escaped_and_keys_are_secret)
{
	char hex[2 * TE__WIRE_KEY_NBYTES + 1];
	int a;

	/* no such folder: its name is in the reason too */
	begin("spill = /no\\such\"folder\n");
	a = join(&run, key);
	ck_assert_int_ne(grant(a, 1, NULL), 0);
	scrape();
	ck_value("te_spill_info{folder=\"/no\\\\such\\\"folder\",reason=\"/no\\\\such\\\"folder: "
		 "No such file or directory\"}", 1);
	for (int i = 0; i < TE__WIRE_KEY_NBYTES; i++)
		sprintf(hex + 2 * i, "%02x", key[i]);
	for (int i = 0; i < nsamples; i++)
		ck_assert_ptr_null(strstr(sample[i].series, hex));
	ck_assert_ptr_null(strstr(run_log(&run), hex));
	close(a);
	run_end(&run);
}

/* neither those who do not read, nor the clients' limit */
TEST(metrics, readers_do_not_delay_ted)
{
	int s[50], a;

	begin("clients = 1\n");
	for (int i = 0; i < 50; i++)
		s[i] = dial_metrics();
	a = join(&run, key);
	ck_assert_int_eq(ping(a), 0);
	scrape();
	ck_value("te_clients", 1);
	for (int i = 0; i < 50; i++)
		close(s[i]);
	close(a);
	run_end(&run);
}

TEST_EACH(metrics, both_sockets_may_be_given, 2)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };

	run_init(&run, "");
	snprintf(path, sizeof(path), "%s/metrics", run.dir);
	/* in any order */
	for (int i = 0; i < 2; i++) {
		const int stream = i == _i;

		run.pass[i] = socket(AF_UNIX, (stream ? SOCK_STREAM : SOCK_SEQPACKET) |
				     SOCK_CLOEXEC, 0);
		strcpy(sa.sun_path, stream ? path : run.sock);
		ck_assert_int_eq(bind(run.pass[i], (struct sockaddr *)&sa, sizeof(sa)), 0);
		ck_assert_int_eq(listen(run.pass[i], 5), 0);
	}
	run.npass = 2;
	run_start(&run);
	scrape();
	ck_value("te_up", 1);
	close(join(&run, key));
	run_end(&run);
	close(run.pass[0]);
	close(run.pass[1]);
}

TT_MAIN("daemon/ted_metrics", TT_NEED_NOTHING)
