/* t/backend/backend_share.c - memory that other processes map, and pages that the device sees. */
#include "config.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <te/errno.h>

#include "backend_lib.h"
#include "libtecore/base/private.h"
#include "tt_ctx.h"

static size_t unit;

static void get_unit(void)
{
	DO(ops->share_unit(dev, &unit));
	ck_assert_uint_ge(unit, 4096);
	ck_assert_uint_eq(unit & (unit - 1), 0);
}

/* how many file descriptors the process has open */
static int nfds(void)
{
	int n = 0;

	for (int fd = 0; fd < 4096; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

BK_CASE(share);

/* the same memory at three addresses of one window: its own, and imported twice */
TEST(share, shared_memory_is_one_memory)
{
	const uint64_t held = bk_held().used_nbytes;
	unsigned char *want, *base;
	void *p, *own, *peer;
	const int before = nfds();
	int fd = -1;
	size_t n;

	get_unit();
	n = 2 * unit;
	want = malloc(n);
	DO(ops->share_create(dev, n, &own));
	ck_assert_uint_eq(bk_held().used_nbytes, held + n);
	DO(ops->share_reserve(dev, 3 * n, &p));
	base = p;
	DO(ops->share_map(own, base + n));
	DO(ops->share_export(own, &fd));
	ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
	DO(ops->share_import(dev, fd, n, &peer));
	DO(ops->share_map(peer, base));
	DO(ops->share_map(peer, base + 2 * n));
	close(fd);
	/* imported memory is counted where it was created */
	bk_check_held(held + n, "an import");
	tt_fill_bytes(want, n);
	bk_move(base + n, want, n);
	bk_check(base, want, n, "the first import");
	bk_check(base + 2 * n, want, n, "the second import");
	want[n - 1] ^= 0x55;
	bk_move(base + 3 * n - 1, want + n - 1, 1);
	bk_check(base + n, want, n, "the memory after a write through the import");
	/* mappings outlive the shares, and each other */
	ops->share_release(own);
	bk_check_held(held, "a release");
	ops->share_release(peer);
	ops->share_unmap(dev, base + n, n);
	bk_check(base, want, n, "an import without the creator's mapping");
	ops->share_unmap(dev, base, n);
	bk_check(base + 2 * n, want, n, "the last mapping");
	ops->share_unmap(dev, base + 2 * n, n);
	ops->share_unreserve(dev, base, 3 * n);
	ck_assert_int_eq(nfds(), before);
	free(want);
}

/* an address is usable again after its share was unmapped */
TEST(share, addresses_are_mapped_again)
{
	unsigned char *base;
	void *p, *s[2];

	get_unit();
	DO(ops->share_reserve(dev, unit, &p));
	base = p;
	for (int i = 0; i < 2; i++) {
		DO(ops->share_create(dev, unit, &s[i]));
		DO(ops->share_map(s[i], base));
		DO(ops->fill8(a, base, (uint8_t)(i + 7), unit));
		bk_check_filled(base, i + 7, unit, "memory of a share");
		ops->share_unmap(dev, base, unit);
	}
	DO(ops->share_map(s[0], base));
	bk_check_filled(base, 7, unit, "the first share, mapped again");
	ops->share_unmap(dev, base, unit);
	ops->share_unreserve(dev, base, unit);
	ops->share_release(s[0]);
	ops->share_release(s[1]);
}

static int tmp_fd(void)
{
	FILE *f = tmpfile();
	int fd = dup(fileno(f));

	fclose(f);
	return fd;
}

static int memfd(size_t nbytes, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)nbytes), 0);
	if (seals)
		ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

TEST(share, a_wrong_file_descriptor_is_refused)
{
	int fd[5], sock[2], before;
	void *p = &p;

	get_unit();
	ck_assert_int_eq(pipe(sock), 0);
	fd[0] = open("/dev/null", O_RDWR | O_CLOEXEC);
	fd[1] = tmp_fd();
	fd[2] = memfd(unit, 0);
	fd[3] = memfd(unit - 1, F_SEAL_SHRINK);
	fd[4] = sock[0];
	before = nfds();
	for (size_t i = 0; i < TT_LEN(fd); i++) {
		static const char *const says[] = { "is no memfd", "is no memfd",
						    "is sealed against shrinking",
						    "bytes, expected", "is no memfd" };

		te_error_clear();
		ck_assert_int_eq(ops->share_import(dev, fd[i], unit, &p),
				 is_host ? -EINVAL : -TE_ECUDA);
		tt_said(is_host ? says[i] : "import memory of another process");
		ck_assert_ptr_eq(p, &p);
	}
	ck_assert_int_eq(nfds(), before);
	for (size_t i = 0; i < TT_LEN(fd); i++)
		close(fd[i]);
	close(sock[1]);
	te_error_clear();
	ck_assert_int_lt(ops->share_import(dev, fd[0], unit, &p), 0);
	ck_assert_ptr_eq(p, &p);
}

/* a share that is larger than what it was imported as would let reads end in a signal */
TEST(share, a_larger_import_is_refused)
{
	void *own, *peer = NULL, *p = NULL;
	int fd, r;

	get_unit();
	DO(ops->share_create(dev, unit, &own));
	DO(ops->share_export(own, &fd));
	DO(ops->share_reserve(dev, 2 * unit, &p));
	te_error_clear();
	r = ops->share_import(dev, fd, 2 * unit, &peer);
	/* the driver compares sizes when it maps */
	if (!r && !is_host)
		r = ops->share_map(peer, p);
	ck_assert_int_lt(r, 0);
	ck_assert_str_ne(te_error_detail(), "");
	if (peer)
		ops->share_release(peer);
	ops->share_unreserve(dev, p, 2 * unit);
	ops->share_release(own);
	close(fd);
}

TEST(share, too_much_to_share_is_refused_with_the_sizes)
{
	uint64_t left, total, before = bk_held().used_nbytes;
	void *p = &p;
	char text[32];
	size_t n;

	get_unit();
	DO(ops->dev_mem(dev, &left, &total));
	n = ((size_t)total / unit + 1) * unit;
	te_error_clear();
	ck_assert_int_eq(ops->share_create(dev, n, &p), -ENOMEM);
	snprintf(text, sizeof(text), "%zu bytes", n);
	tt_said(text);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)total);
	tt_said(text);
	ck_assert_ptr_eq(p, &p);
	bk_check_held(before, "a refused share");
	te_error_clear();
	ck_assert_int_lt(ops->share_create(dev, unit + 1, &p), 0);
	ck_assert_str_ne(te_error_detail(), "");
	bk_check_held(before, "a share of a wrong size");
}

/* a process cannot make the pages of another vanish */
TEST(share, shared_memory_does_not_shrink)
{
	void *own;
	int fd;

	if (!is_host)
		return;
	get_unit();
	DO(ops->share_create(dev, unit, &own));
	DO(ops->share_export(own, &fd));
	ck_assert_int_ne(ftruncate(fd, 0), 0);
	ck_assert_int_eq(errno, EPERM);
	ck_assert_int_ne(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
	close(fd);
	ops->share_release(own);
}

/* words that the CPU and the device both see, in pages that two mappings share */
TEST(share, registered_pages_are_seen_by_both)
{
	const size_t n = (size_t)sysconf(_SC_PAGESIZE);
	const int fd = memfd(n, F_SEAL_SHRINK);
	uint32_t *page = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	volatile uint32_t *other = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	uint32_t *words = bk_get(PINNED, n);
	void *seen = NULL;

	ck_assert_ptr_ne(page, MAP_FAILED);
	ck_assert(other != MAP_FAILED);
	DO(ops->page_register(dev, page, n, &seen));
	ck_assert_int_eq(seen == page, is_host || seen == page);
	for (size_t i = 0; i < n / 4; i++)
		other[i] = (uint32_t)tt_rand_u64();
	DO(ops->copy(a, words, seen, n));
	DO(ops->stream_sync(a));
	for (size_t i = 0; i < n / 4; i++)
		ck_assert_uint_eq(words[i], other[i]);
	DO(ops->fill32(a, seen, 0x600d, n / 4));
	DO(ops->stream_sync(a));
	for (size_t i = 0; i < n / 4; i++)
		ck_assert_uint_eq(other[i], 0x600d);
	ops->page_unregister(dev, page);
	munmap(page, n);
	munmap((void *)(uintptr_t)other, n);
	close(fd);
}

/* off, as it is on all devices: the process has no TE_COMM_NVLS */
TEST(share, multicast_is_declined_unless_switched_on)
{
	void *p = &p;

	get_unit();
	te_error_clear();
	ck_assert_int_eq(te__multicast_check(), -EOPNOTSUPP);
	te_error_clear();
	ck_assert_int_eq(ops->multicast_unit(dev, 2, unit, &unit), -EOPNOTSUPP);
	tt_said("multicast is off: TE_COMM_NVLS=on switches it on");
	ck_assert_int_eq(ops->multicast_create(dev, 2, unit, &p), -EOPNOTSUPP);
	ck_assert_int_eq(ops->multicast_import(dev, 0, unit, &p), -EOPNOTSUPP);
	ck_assert_ptr_eq(p, &p);
}

TEST(share, fabric_handles_work_or_are_declined_with_a_reason)
{
	const uint64_t before = bk_held().used_nbytes;
	struct te__fabric_domain domain;
	int r;

	te_error_clear();
	r = ops->fabric_probe(dev, &domain);
	if (r) {
		ck_assert_int_eq(r, -EOPNOTSUPP);
		tt_said("no fabric handles");
	}
	ck_assert(!is_host || r);
	bk_check_held(before, "a probe");
}
