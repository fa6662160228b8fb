/* version.c - which libtecore this is. */
#include "config.h"

#include <te/version.h>

const char *te_version(void)
{
	return TE_VERSION;
}

int te_version_number(void)
{
	return TE_VERSION_NUMBER;
}
