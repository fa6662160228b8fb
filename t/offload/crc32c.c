/* t/offload/crc32c.c - CRC-32C: known values, and the processor's instruction against tables. */
#include "config.h"

#include "libtecore/offload/crc32c.h"
#include "tt.h"

CASE(crc32c, "host numeric");

/* RFC 3720, appendix B.4, and the check value of the polynomial */
TEST(crc32c, has_the_published_values)
{
	uint8_t b[32];

	ck_assert_uint_eq(te__crc32c(0, "123456789", 9), 0xe3069283);
	memset(b, 0, sizeof(b));
	ck_assert_uint_eq(te__crc32c(0, b, 32), 0x8a9136aa);
	memset(b, 0xff, sizeof(b));
	ck_assert_uint_eq(te__crc32c(0, b, 32), 0x62a8ab43);
	for (int i = 0; i < 32; i++)
		b[i] = (uint8_t)i;
	ck_assert_uint_eq(te__crc32c(0, b, 32), 0x46dd794e);
	for (int i = 0; i < 32; i++)
		b[i] = (uint8_t)(31 - i);
	ck_assert_uint_eq(te__crc32c(0, b, 32), 0x113fdb5c);
	ck_assert_uint_eq(te__crc32c(0, b, 0), 0);
}

/* one bit at a time, from the polynomial */
static uint32_t slow(uint32_t crc, const uint8_t *p, size_t n)
{
	crc = ~crc;
	for (size_t i = 0; i < n; i++) {
		crc ^= p[i];
		for (int k = 0; k < 8; k++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
	}
	return ~crc;
}

TEST(crc32c, all_versions_agree)
{
	enum { N = 40000 };
	uint8_t *p = malloc(N);

	tt_fill_bytes(p, N);
	for (int i = 0; i < TT_FEWER(64); i++) {
		/* short ones, and those with several chunks of three lanes */
		const size_t n = (size_t)tt_rand_int(0, i & 1 ? N - 8 : 100);
		const size_t at = (size_t)tt_rand_int(0, 7);
		const size_t cut = (size_t)tt_rand_int(0, (int64_t)n);
		const uint32_t before = (uint32_t)tt_rand_u64();
		const uint32_t want = slow(before, p + at, n);

		ck_assert_uint_eq(te__crc32c_soft(before, p + at, n), want);
		ck_assert_uint_eq(te__crc32c(before, p + at, n), want);
		ck_assert_uint_eq(te__crc32c(te__crc32c(before, p + at, cut), p + at + cut,
					     n - cut), want);
	}
	free(p);
}

TT_MAIN("offload/crc32c", TT_NEED_NOTHING)
