/* version.c - which libtecomm this is. */
#include "config.h"

#include <te/comm.h>

const char *te_comm_version(void)
{
	return PACKAGE_VERSION;
}
