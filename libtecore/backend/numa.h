/* numa.h - NUMA nodes: the one of a PCI device, and memory bound to one. */
#ifndef TE__NUMA_H
#define TE__NUMA_H

#include <stddef.h>

#define TE__PCI_ROOT "/sys/bus/pci/devices"

/* address as in struct te_device_info; -1: unknown, as where the machine has one node */
int te__pci_node(const char *root, const char *address);

/*
 * Pages of the range are allocated on the node when they are touched; page aligned. 0, or -1 where
 * hwloc is not linked or the kernel refuses; *ret_why then has the reason.
 */
int te__numa_bind(void *p, size_t nbytes, int node, const char **ret_why);

#endif
