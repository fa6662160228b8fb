/*
 * t/comm/control.c - cases of t/comm/pass: the control page, which the lowest rank of a node
 * creates and all map.
 */
#include "config.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libtecomm/pool/control.h"
#include "libtecore/base/private.h"
#include "tt_ctx.h"

static int map(int fd, void **ret)
{
	return te__sealed_map("the control page", fd, TE__CONTROL_NBYTES, ret);
}

static struct te__control *make(void)
{
	void *p;
	int fd;

	DO(te__sealed_create("the control page", TE__CONTROL_NBYTES, &fd));
	DO(map(fd, &p));
	close(fd);
	return p;
}

CASE(control, "host");

TEST(control, a_wrong_control_page_is_refused)
{
	struct te__control *c;
	void *p = NULL;
	int fd;

	fd = memfd_create("test", MFD_CLOEXEC);
	ck_assert_int_eq(ftruncate(fd, TE__CONTROL_NBYTES), 0);
	fails(map(fd, &p), -EINVAL, "the control page: the file descriptor is no memfd that is");
	close(fd);
	fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	ck_assert_int_eq(ftruncate(fd, TE__CONTROL_NBYTES - 1), 0);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	fails(map(fd, &p), -EINVAL, "has 65535 bytes, expected 65536");
	close(fd);
	ck_assert_ptr_null(p);
	c = make();
	DO(te__control_check(c, "fn"));
	te__control_abort(c, -TE_EPEER, "rank 9 has ended");
	te__control_abort(c, -TE_EABORT, "something else");
	fails(te__control_check(c, "fn"), -TE_EPEER, "fn: rank 9 has ended");
	munmap(c, TE__CONTROL_NBYTES);
}

static void *checks(void *control)
{
	static char text[300];

	snprintf(text, sizeof(text), "%d: ", te__control_check(control, "fn"));
	strncat(text, te_error_detail(), sizeof(text) - strlen(text) - 1);
	return text;
}

/* a rank that sees an abort before its reason is written */
TEST(control, the_reason_of_an_abort_is_waited_for)
{
	struct te__control *c = make();
	pthread_t thread;
	void *text;
	char want[80];

	atomic_store(&c->abort, 1);
	ck_assert_int_eq(pthread_create(&thread, NULL, checks, c), 0);
	usleep((useconds_t)tt_rand_int(0, 5000));
	c->code = -TE_EPEER;
	snprintf(c->reason, sizeof(c->reason), "rank 9 has ended");
	atomic_store(&c->told, 1);
	pthread_join(thread, &text);
	snprintf(want, sizeof(want), "%d: fn: rank 9 has ended", -TE_EPEER);
	ck_assert_str_eq(text, want);
	/* not forever */
	atomic_store(&c->told, 0);
	fails(te__control_check(c, "fn"), -TE_EABORT, "fn: a rank has aborted the communicator");
	munmap(c, TE__CONTROL_NBYTES);
}

/* a rank writes all of the page, after which there is no memory */
TEST(control, a_reason_without_an_end_is_bounded)
{
	const int prot = PROT_READ | PROT_WRITE;
	char why[TE__CONTROL_REASON];
	struct te__control *c;
	char *p;

	p = mmap(NULL, 2 * TE__CONTROL_NBYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	ck_assert_int_eq(mprotect(p, TE__CONTROL_NBYTES, prot), 0);
	c = (struct te__control *)(void *)p;
	memset(p, 'x', TE__CONTROL_NBYTES);
	c->code = 1;
	ck_assert_int_eq(te__control_why(c, why), -TE_EABORT);
	ck_assert_uint_eq(strlen(why), TE__CONTROL_REASON - 1);
	fails(te__control_check(c, "fn"), -TE_EABORT, "fn: xxxx");
	munmap(p, 2 * TE__CONTROL_NBYTES);
}
