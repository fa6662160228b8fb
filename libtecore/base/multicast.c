/* multicast.c - check that the environment allows multicast, which NVLS uses. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libtecore/base/base.h"

int te__multicast_check(void)
{
	/* allowed: numbers that do not refuse it; text that is not a number refuses it */
	static const struct {
		const char *name;
		int allowed_if_0;
	} env[] = {
		{ "NCCL_NVLS_ENABLE", 0 },
		{ "TORCH_SYMM_MEM_DISABLE_MULTICAST", 1 },
		{ "NVSHMEM_DISABLE_NVLS", 1 },
	};

	if (!te__param_bool(TE_PARAM_COMM_NVLS))
		return te__fail(-EOPNOTSUPP, "multicast is off: TE_COMM_NVLS=on switches it on");
	for (size_t i = 0; i < sizeof(env) / sizeof(env[0]); i++) {
		const char *text = te__env(env[i].name);

		if (text && *text &&
		    (env[i].allowed_if_0 ? strcmp(text, "0") != 0 : !strtol(text, NULL, 10)))
			return te__fail(-EOPNOTSUPP, "multicast is refused: %s=%s is in the "
					"environment", env[i].name, text);
	}
	return 0;
}
