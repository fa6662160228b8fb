/* numa.c - NUMA nodes: from sysfs, and binding by hwloc. */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#ifdef HAVE_HWLOC
#include <hwloc.h>
#endif

#include "libtecore/backend/numa.h"

int te__pci_node(const char *root, const char *address)
{
	char path[4096];
	int n = snprintf(path, sizeof(path), "%s/", root), node = -1;
	FILE *f;

	if (!*address || (size_t)n + strlen(address) + sizeof("/numa_node") > sizeof(path))
		return -1;
	/* sysfs has lower case, the driver upper case */
	for (; *address; address++)
		path[n++] = (char)tolower((unsigned char)*address);
	snprintf(path + n, sizeof(path) - (size_t)n, "/numa_node");
	f = fopen(path, "re");
	if (!f)
		return -1;
	if (fscanf(f, "%d", &node) != 1 || node < 0)
		node = -1;
	fclose(f);
	return node;
}

#ifdef HAVE_HWLOC
static const char *bind_range(hwloc_topology_t topology, void *p, size_t nbytes, int node)
{
	hwloc_obj_t obj;

	if (hwloc_topology_load(topology))
		return "hwloc cannot load the topology";
	obj = hwloc_get_numanode_obj_by_os_index(topology, (unsigned int)node);
	if (!obj)
		return "there is no such node";
	if (hwloc_set_area_membind(topology, p, nbytes, obj->nodeset, HWLOC_MEMBIND_BIND,
				   HWLOC_MEMBIND_BYNODESET))
		return strerror(errno);
	return NULL;
}
#endif

int te__numa_bind(void *p, size_t nbytes, int node, const char **ret_why)
{
#ifdef HAVE_HWLOC
	hwloc_topology_t topology;

	if (hwloc_topology_init(&topology)) {
		*ret_why = "hwloc cannot allocate a topology";
		return -1;
	}
	/* as in host/topology.c: that component binds this thread to each processor in turn */
	hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
	hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
	*ret_why = bind_range(topology, p, nbytes, node);
	hwloc_topology_destroy(topology);
	return *ret_why ? -1 : 0;
#else
	(void)p;
	(void)nbytes;
	(void)node;
	*ret_why = "built without hwloc";
	return -1;
#endif
}
