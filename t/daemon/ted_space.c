/* ted_space.c - a ted(8) with spill space, and a client of it. */
#include "config.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ted_space.h"

char space[96];
int space_in_memory;

void space_create(void)
{
	int fd;

	snprintf(space, sizeof(space), "%s/space", run.dir);
	ck_assert_int_eq(mkdir(space, 0700), 0);
	fd = open(space, O_TMPFILE | O_RDWR, 0600);
	if (fd < 0 || space_in_memory) {
		ck_assert_int_eq(rmdir(space), 0);
		snprintf(space, sizeof(space), "/dev/shm/te-ted-%d", (int)getpid());
		ck_assert_int_eq(mkdir(space, 0700), 0);
	}
	if (fd >= 0)
		close(fd);
}

void space_begin(const char *fmt, ...)
{
	va_list ap;
	char text[256];

	run_init(&run, "");
	space_create();
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	run_conf(&run, "spill = %s\n%s", space, text);
	run_start(&run);
}

void space_end(void)
{
	/* all files are gone by themselves */
	ck_assert_int_eq(rmdir(space), 0);
	run_end(&run);
}

struct te__spill_opts space_opts(uint64_t nbytes)
{
	return (struct te__spill_opts){ .dir = run.sock, .quota_nbytes = nbytes, .ngroups = 2,
					.block_nbytes = 65536, .verify = TE__SPILL_VERIFY_ALL };
}

int space_use(struct te__spill *spill, struct te__pinned *arena, uint32_t group)
{
	const size_t nbytes = 200001;
	static uint8_t want[200001];
	uint8_t *slot = te__pinned_base(arena);
	int r;

	tt_fill_bytes(want, nbytes);
	memcpy(slot, want, nbytes);
	r = te__spill_write(spill, group, slot, nbytes, NULL, 0);
	if (!r)
		r = te__spill_wait(spill, TE__SPILL_WRITE, group, -1);
	tt_poison(slot, nbytes);
	if (!r)
		r = te__spill_read(spill, group, slot, nbytes, NULL, 0);
	if (!r)
		r = te__spill_wait(spill, TE__SPILL_READ, group, -1);
	return r ? r : memcmp(slot, want, nbytes);
}
