/* fuzz.c - see fuzz.h. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

const char *fuzz_file(const uint8_t *data, size_t nbytes)
{
	static char name[64];
	static int fd = -1;

	if (fd >= 0)
		close(fd);
	fd = memfd_create("fuzz", 0);
	if (fd < 0 || write(fd, data, nbytes) != (ssize_t)nbytes || lseek(fd, 0, SEEK_SET)) {
		perror("fuzz: memfd_create");
		exit(99);
	}
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	return name;
}
