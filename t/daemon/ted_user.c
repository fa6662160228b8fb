/* t/daemon/ted_user.c - ted(8) and clients of other users; needs root, to become them. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <te/errno.h>

#include "tt_ted.h"

/* a socket that all may connect to, so that the user id alone decides */
static void begin(const char *conf)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };

	run_init(&run, conf);
	strcpy(sa.sun_path, run.sock);
	run.pass[0] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(run.pass[0], (struct sockaddr *)&sa, sizeof(sa)), 0);
	ck_assert_int_eq(listen(run.pass[0], 5), 0);
	ck_assert_int_eq(chmod(run.dir, 0755), 0);
	ck_assert_int_eq(chmod(run.sock, 0666), 0);
	run.npass = 1;
	run_start(&run);
}

static void end(void)
{
	run_end(&run);
	close(run.pass[0]);
}

/* what hello() returns to a process of the user, minus its code */
static int hello_as(uid_t uid, const uint8_t *as_key)
{
	int status;
	const int pid = fork();

	if (!pid) {
		struct te__wire m;
		int s, code;

		if (setresuid(uid, uid, uid))
			_exit(99);
		s = dial(&run);
		memset(&m, 0, sizeof(m));
		m = message(TE__WIRE_HELLO);
		memcpy(m.key, as_key, sizeof(m.key));
		m.item = 2;
		/* it may be refused before it has sent this */
		(void)te__wire_send(s, &m, NULL, 0, -1);
		code = next(s, &m, NULL, NULL) ? -m.code : 98;
		_exit(code);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

START_TEST(other_users_are_refused)
{
	int s;

	begin("");
	ck_assert_int_eq(hello_as(4321, key), EACCES);
	ck_assert_ptr_nonnull(strstr(run_log(&run), "has user id 4321, expected 0"));
	s = join(&run, key, 0, 2);
	close(s);
	end();
}
END_TEST

/* the same key, and another number of ranks: nothing of it is seen by the other user */
START_TEST(a_job_belongs_to_one_user)
{
	int s;

	begin("allow = any\n");
	s = join(&run, key, 1, 3);
	ck_assert_int_eq(hello_as(4321, key), 0);
	/* that failed the job of the other user, which had one client, and not this one */
	ck_assert_int_eq(put(s, "x", "y", 1), 0);
	close(s);
	end();
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("daemon/ted_user");
	TCase *c = tt_case(s, "users", "host serial");

	tcase_add_test(c, other_users_are_refused);
	tcase_add_test(c, a_job_belongs_to_one_user);
	return s;
}

TT_MAIN("daemon/ted_user", TT_NEED_ROOT, suite)
