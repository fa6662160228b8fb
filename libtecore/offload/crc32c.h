/* crc32c.h - CRC-32C (Castagnoli) of bytes in memory. */
#ifndef TE__CRC32C_H
#define TE__CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* of nbytes after bytes whose CRC is crc; 0 for none. Any thread. */
uint32_t te__crc32c(uint32_t crc, const void *p, size_t nbytes);
/* the same without the instruction of the processor: the definition, for tests */
uint32_t te__crc32c_soft(uint32_t crc, const void *p, size_t nbytes);

#endif
