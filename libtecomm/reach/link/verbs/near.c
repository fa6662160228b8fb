/*
 * near.c - distance of an RDMA device, by sysfs: to a GPU, by the number of common bridges above
 * the two; to a thread, by the NUMA nodes of its memory and of the device.
 */
#include "config.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "libtecomm/reach/link/verbs/verbs.h"

int te__verbs_common(const char *a, const char *b)
{
	int n = 0;

	for (; *a && *a == *b; a++, b++)
		n += *a == '/';
	return n + ((!*a || *a == '/') && (!*b || *b == '/'));
}

static int read_node(const char *device)
{
	char path[PATH_MAX + 16];
	int node = -1;
	FILE *f;

	snprintf(path, sizeof(path), "%s/numa_node", device);
	f = fopen(path, "re");
	if (f && fscanf(f, "%d", &node) != 1)
		node = -1;
	if (f)
		fclose(f);
	return node;
}

int te__verbs_nearness(struct ibv_device *dev, const char *pci)
{
	char path[PATH_MAX], device[PATH_MAX], gpu[PATH_MAX];
	unsigned int cpu, node;
	int n;

	snprintf(path, sizeof(path), "%s/device", dev->ibdev_path);
	if (!realpath(path, device))
		return 0;
	n = snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s", pci);
	for (int i = 0; i < n; i++)
		path[i] = (char)tolower((unsigned char)path[i]);
	if (*pci && realpath(path, gpu))
		return te__verbs_common(device, gpu);
	return !getcpu(&cpu, &node) && read_node(device) == (int)node;
}
