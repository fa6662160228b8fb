/* version.c - which libtegraph this is. */
#include "config.h"

#include <te/graph.h>

const char *te_graph_version(void)
{
	return PACKAGE_VERSION;
}
