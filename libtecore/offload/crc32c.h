/* crc32c.h - CRC-32C (Castagnoli) of bytes in memory. */
#ifndef TE__CRC32C_H
#define TE__CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* returns the CRC of nbytes that follow bytes with CRC crc; crc 0: no bytes before. Any thread. */
uint32_t te__crc32c(uint32_t crc, const void *p, size_t nbytes);
/* te__crc32c() without the processor's instruction: the definition, for tests */
uint32_t te__crc32c_soft(uint32_t crc, const void *p, size_t nbytes);

#endif
