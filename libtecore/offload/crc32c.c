/*
 * crc32c.c - CRC-32C by the processor's instruction, or by tables.
 *
 * The instruction takes 8 bytes and has a latency of three cycles, so three lanes of a chunk are
 * computed together. The CRC of lanes a, b is shift(crc of a) ^ (crc of b), where shift, which is
 * linear, appends as many zero bytes as b has.
 * Source: RFC 3720, appendix B.4, has the polynomial, which is reflected here, and test vectors.
 */
#include "config.h"

#include <pthread.h>
#include <string.h>

#ifdef __aarch64__
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

#include "libtecore/offload/crc32c.h"

#define POLYNOMIAL 0x82f63b78u
#define LANE 4096u /* bytes */

static uint32_t table[8][256]; /* table[k][b]: CRC of byte b followed by k zero bytes */
static uint32_t shift[4][256]; /* LANE zero bytes, by the bytes of the CRC before them */
static int hardware;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t load64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, 8);
	return v;
}

/* CRC without the inversions of the definition */
static uint32_t raw_soft(uint32_t crc, const uint8_t *p, size_t n)
{
	for (; n >= 8; p += 8, n -= 8) {
		/* bytes, so that it is right on processors of either byte order */
		crc = table[7][p[0] ^ (crc & 255)] ^ table[6][p[1] ^ (crc >> 8 & 255)] ^
		      table[5][p[2] ^ (crc >> 16 & 255)] ^ table[4][p[3] ^ crc >> 24] ^
		      table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
	}
	for (; n; p++, n--)
		crc = crc >> 8 ^ table[0][(crc ^ *p) & 255];
	return crc;
}

static void fill_tables(void)
{
	static const uint8_t zeros[LANE];
	uint32_t column[32];

	for (uint32_t b = 0; b < 256; b++) {
		uint32_t crc = b;

		for (int i = 0; i < 8; i++)
			crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
		table[0][b] = crc;
	}
	for (int k = 1; k < 8; k++)
		for (uint32_t b = 0; b < 256; b++)
			table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
	for (int i = 0; i < 32; i++)
		column[i] = raw_soft(1u << i, zeros, LANE);
	for (uint32_t b = 0; b < 256; b++)
		for (int i = 0; i < 32; i++)
			if (b >> (i & 7) & 1)
				shift[i >> 3][b] ^= column[i];
#if defined(__x86_64__)
	hardware = __builtin_cpu_supports("sse4.2");
#elif defined(__aarch64__)
	hardware = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
}

#if defined(__x86_64__)
#define TARGET __attribute__((target("sse4.2")))
#define STEP64(crc, v) ((uint32_t)__builtin_ia32_crc32di((crc), (v)))
#define STEP8(crc, v) __builtin_ia32_crc32qi((crc), (v))
#elif defined(__aarch64__)
#define TARGET __attribute__((target("+crc")))
#define STEP64(crc, v) __crc32cd((crc), (v))
#define STEP8(crc, v) __crc32cb((crc), (v))
#endif

#ifdef TARGET
static uint32_t after_lane(uint32_t crc)
{
	return shift[0][crc & 255] ^ shift[1][crc >> 8 & 255] ^ shift[2][crc >> 16 & 255] ^
	       shift[3][crc >> 24];
}

TARGET static uint32_t raw_hard(uint32_t crc, const uint8_t *p, size_t n)
{
	for (; n >= 3 * LANE; p += 3 * LANE, n -= 3 * LANE) {
		uint32_t b = 0, c = 0;

		for (uint32_t i = 0; i < LANE; i += 8) {
			crc = STEP64(crc, load64(p + i));
			b = STEP64(b, load64(p + LANE + i));
			c = STEP64(c, load64(p + 2 * LANE + i));
		}
		crc = after_lane(after_lane(crc) ^ b) ^ c;
	}
	for (; n >= 8; p += 8, n -= 8)
		crc = STEP64(crc, load64(p));
	for (; n; p++, n--)
		crc = STEP8(crc, *p);
	return crc;
}
#else
#define raw_hard raw_soft
#endif

uint32_t te__crc32c(uint32_t crc, const void *p, size_t nbytes)
{
	pthread_once(&once, fill_tables);
	return ~(hardware ? raw_hard(~crc, p, nbytes) : raw_soft(~crc, p, nbytes));
}

uint32_t te__crc32c_soft(uint32_t crc, const void *p, size_t nbytes)
{
	pthread_once(&once, fill_tables);
	return ~raw_soft(~crc, p, nbytes);
}
