/* t/fuzz/comm_table.c - the file of TE_COMM_TABLE, of any bytes. */
#include "config.h"

#include <stdlib.h>

#include "fuzz.h"
#include "kernels/te_k.h"
#include "libtecomm/collective/table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	static const int64_t sizes[] = { 1, 4096, 1 << 20, TE__TABLE_REST };
	static struct te__table t;

	if (te__table_read(fuzz_file(data, nbytes), &t))
		return 0;
	/* whatever it has, there is an algorithm for everything */
	for (int32_t n = 2; n <= TE_K_COMM_HOST_RANKS; n++)
		for (int k = 0; k < 32; k++) {
			const int64_t nbytes = sizes[k >> 2 & 3];
			const struct te__table_row *row =
				te__table_find(&t, k >> 4, n, k & 1, k >> 1 & 1, nbytes);

			if (!row || row->nbytes < nbytes || row->algorithm == TE_COMM_AUTO)
				abort();
			if (row->algorithm == TE_COMM_ZERO_COPY && !(k >> 1 & 1))
				abort();
		}
	return 0;
}
