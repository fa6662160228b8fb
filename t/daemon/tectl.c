/* t/daemon/tectl.c - tectl(1): what it prints, its exit statuses, and what it changes. */
#include "config.h"

#include <jansson.h>
#include <sys/wait.h>
#include <unistd.h>

#include <te/errno.h>

#include "tt_ted.h"

static char out[65536];

/* the exit status; what it prints is in out */
static int tectl(const char *args)
{
	const char *dir = getenv("abs_top_builddir");
	char line[512];
	FILE *f;
	size_t n;
	int r;

	snprintf(line, sizeof(line), "%s/tools/tectl -s %s %s 2>&1", dir ? dir : ".", run.sock,
		 args);
	f = popen(line, "r");
	ck_assert_ptr_nonnull(f);
	n = fread(out, 1, sizeof(out) - 1, f);
	out[n] = 0;
	r = pclose(f);
	ck_assert(WIFEXITED(r));
	return WEXITSTATUS(r);
}

static json_t *parsed(void)
{
	json_error_t e;
	json_t *obj = json_loads(out, JSON_REJECT_DUPLICATES, &e);

	ck_assert_msg(json_is_object(obj), "%s: %s", e.text, out);
	return obj;
}

static double number(const json_t *obj, const char *name)
{
	const json_t *v = json_object_get(obj, name);

	ck_assert_msg(json_is_number(v), "%s: %s", name, out);
	return json_number_value(v);
}

CASE(tectl, "host serial");

TEST(tectl, jobs_are_listed_and_revoked)
{
	struct te__wire m;
	uint8_t other[TE__WIRE_KEY_NBYTES];
	char args[64];
	json_t *obj, *list;
	int a, b, file;
	double id;

	make_key(key);
	make_key(other);
	run_begin("spill = @\nspill_keep = 0\n");
	ck_assert_int_eq(tectl("--json jobs"), 0);
	obj = parsed();
	ck_assert_uint_eq(json_array_size(json_object_get(obj, "jobs")), 0);
	json_decref(obj);
	a = join(&run, key);
	b = join(&run, other);
	ck_assert_int_eq(grant(a, 123456, &file), 0);
	m = message(TE__WIRE_WROTE);
	m.nbytes = 777;
	ck_assert_int_eq(call(a, &m, -1, NULL, NULL), 0);
	ck_assert_int_eq(tectl("--json jobs"), 0);
	obj = parsed();
	list = json_object_get(obj, "jobs");
	ck_assert_uint_eq(json_array_size(list), 2);
	/* the newest first */
	ck_assert_double_eq(number(json_array_get(list, 0), "files"), 0);
	list = json_array_get(list, 1);
	ck_assert_double_eq(number(list, "clients"), 1);
	ck_assert_double_eq(number(list, "uid"), geteuid());
	ck_assert_double_eq(number(list, "files"), 1);
	ck_assert_double_eq(number(list, "spill_bytes"), 123456);
	ck_assert_double_eq(number(list, "written_today_bytes"), 777);
	ck_assert(json_is_false(json_object_get(list, "revoked")));
	id = number(list, "job");
	json_decref(obj);
	snprintf(args, sizeof(args), "revoke %.0f", id);
	ck_assert_int_eq(tectl(args), 0);
	ck_assert_str_eq(out, "");
	ck_assert_int_eq(grant(a, 1, NULL), -EACCES);
	ck_reply("spill space was revoked");
	/* the other job and the file are as they were */
	ck_assert_int_eq(grant(b, 1, NULL), 0);
	ck_assert_int_eq((int)lseek(file, 0, SEEK_END), 123456);
	ck_assert_int_eq(tectl("jobs"), 0);
	ck_assert_ptr_nonnull(strstr(out, " 123456            777 revoked\n"));
	ck_assert_int_eq(tectl("revoke 4000000000"), 1);
	ck_assert_str_eq(out, "tectl: ted: REVOKE: there is no job 4000000000\n");
	close(file);
	close(a);
	close(b);
	run_end(&run);
}

TEST(tectl, status_has_the_metrics)
{
	json_t *obj;
	int a;

	run_begin("");
	a = join(&run, key);
	ck_assert_int_eq(tectl("status"), 0);
	ck_assert_ptr_nonnull(strstr(out, "te_up 1\n"));
	ck_assert_ptr_null(strchr(out, '#'));
	ck_assert_int_eq(tectl("--json status"), 0);
	obj = parsed();
	ck_assert_double_eq(number(obj, "te_up"), 1);
	/* this client and tectl */
	ck_assert_double_eq(number(obj, "te_clients"), 2);
	ck_assert_double_eq(number(obj, "te_spill_grant_failures_total{reason=\"quota\"}"), 0);
	json_decref(obj);
	close(a);
	run_end(&run);
	/* no process answers */
	ck_assert_int_eq(tectl("status"), 1);
	ck_assert_ptr_nonnull(strstr(out, "cannot connect to ted at"));
}

static const char *const wrong[] = {
	"", "stat", "status now", "revoke", "revoke x", "revoke -1", "revoke 4294967296",
	"--joson jobs",
};

TEST_EACH(tectl, bad_usage_is_one_line, TT_LEN(wrong))
{
	run_init(&run, "");
	ck_assert_int_eq(tectl(wrong[_i]), 2);
	ck_assert_int_eq(strncmp(out, "tectl: ", 7), 0);
	ck_assert_ptr_eq(strchr(out, '\n'), out + strlen(out) - 1);
	run_end(&run);
}

TEST(tectl, a_service_that_is_absent_is_one_line)
{
	run_init(&run, "");
	ck_assert_int_eq(tectl("jobs"), 1);
	ck_assert_int_eq(strncmp(out, "tectl: cannot connect", 21), 0);
	ck_assert_ptr_eq(strchr(out, '\n'), out + strlen(out) - 1);
	run_end(&run);
}

TT_MAIN("daemon/tectl", TT_NEED_NOTHING)
