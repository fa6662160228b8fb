/* t/fuzz/config.c - te_train's reader of config.json, of any bytes. */
#include "config.h"

#include "fuzz.h"
#include "tools/lib/hfconfig.h"
#include "tools/lib/say.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	struct config cfg;

	say_hush(1);
	if (config_read(fuzz_file(data, nbytes), &cfg))
		return 0;
	json_decref(config_to_json(&cfg));
	config_free(&cfg);
	return 0;
}
