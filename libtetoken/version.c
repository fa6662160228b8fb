/* version.c - which libtetoken this is. */
#include "config.h"

#include <te/token.h>

const char *te_token_version(void)
{
	return PACKAGE_VERSION;
}
