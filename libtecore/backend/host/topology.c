/* topology.c - choice and number of the cores that threads of a device use. */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#ifdef HAVE_HWLOC
#include <hwloc.h>
#endif

#include "libtecore/backend/host/host.h"

/*
 * 1 and up: the core that a processor belongs to, in the order of the machine; 0: not known. Read
 * once in a process: loading a topology takes milliseconds and many allocations.
 */
static uint16_t core_of[CPU_SETSIZE];
static pthread_once_t core_of_once = PTHREAD_ONCE_INIT;

static void core_of_fill(void)
{
#ifdef HAVE_HWLOC
	hwloc_topology_t topology;
	hwloc_obj_t core = NULL;
	unsigned int i;
	uint16_t n = 0;

	if (hwloc_topology_init(&topology))
		return;
	/* this component would bind the thread to each processor in turn */
	hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
	hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
	hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
	if (!hwloc_topology_load(topology)) {
		while (n < CPU_SETSIZE && (core = hwloc_get_next_obj_by_type(
						   topology, HWLOC_OBJ_CORE, core))) {
			n++;
			hwloc_bitmap_foreach_begin(i, core->cpuset)
				if (i < CPU_SETSIZE)
					core_of[i] = n;
			hwloc_bitmap_foreach_end();
		}
	}
	hwloc_topology_destroy(topology);
#endif
}

/* 0: no processor of the mask has a known core */
static uint32_t known_cores(const cpu_set_t *mask, cpu_set_t *ret_core)
{
	uint32_t nth[CPU_SETSIZE + 1] = { 0 }; /* by core in the mask, counted from 1 */
	uint32_t n = 0;

	pthread_once(&core_of_once, core_of_fill);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, mask))
			nth[core_of[i]] = 1;
	for (int c = 1; c <= CPU_SETSIZE; c++)
		if (nth[c] && (!ret_core || n < HOST_THREADS_MAX))
			nth[c] = ++n;
		else
			nth[c] = 0;
	nth[0] = 0;
	for (uint32_t k = 0; ret_core && k < n; k++)
		CPU_ZERO(&ret_core[k]);
	for (int i = 0; ret_core && i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, mask) && nth[core_of[i]])
			CPU_SET(i, &ret_core[nth[core_of[i]] - 1]);
	return n;
}

uint32_t te__host_cores(const cpu_set_t *mask, cpu_set_t *ret_core)
{
	const uint32_t ncores = known_cores(mask, ret_core);
	uint32_t n = 0;

	if (ncores)
		return ncores;
	if (!ret_core)
		return (uint32_t)CPU_COUNT(mask);
	for (int i = 0; i < CPU_SETSIZE && n < HOST_THREADS_MAX; i++)
		if (CPU_ISSET(i, mask)) {
			CPU_ZERO(&ret_core[n]);
			CPU_SET(i, &ret_core[n++]);
		}
	return n;
}

static uint32_t limited(uint32_t n)
{
	const uint64_t most = te__cgroup_processors(CGROUP_ROOT, CGROUP_MEMBERSHIP);

	return most < n ? (uint32_t)most : n;
}

uint32_t host_ncores(void)
{
	const int64_t given = te__param_int(TE_PARAM_HOST_THREADS);
	cpu_set_t mask;

	if (given > 0) /* above the maximum, host_open() fails */
		return given > HOST_THREADS_MAX ? HOST_THREADS_MAX : (uint32_t)given;
	/* fails if the machine has more processors than the set */
	if (sched_getaffinity(0, sizeof(mask), &mask))
		return limited((uint32_t)sysconf(_SC_NPROCESSORS_ONLN));
	return limited(te__host_cores(&mask, NULL));
}

void host_pool_place(struct host_dev *dev)
{
	const int64_t n = te__param_int(TE_PARAM_HOST_THREADS); /* 0 to HOST_THREADS_MAX */
	const int bind = te__param_enum(TE_PARAM_HOST_BIND) == 1;
	struct host_pool *pool = &dev->pool;
	uint32_t ncores = HOST_THREADS_MAX;
	cpu_set_t mask;

	if ((!n || bind) && !sched_getaffinity(0, sizeof(mask), &mask)) {
		ncores = te__host_cores(&mask, pool->core);
		pool->ncores = bind ? ncores : 0;
	}
	dev->nthreads = n ? (uint32_t)n : limited(ncores);
}

void host_pool_bind(struct host_pool *pool, uint32_t i)
{
	cpu_set_t set;

	/* the first core is left to the streams' workers and the program */
	if (i + 1 >= pool->ncores || pthread_getaffinity_np(pool->helper[i], sizeof(set), &set))
		return;
	CPU_AND(&set, &set, &pool->core[i + 1]);
	if (CPU_COUNT(&set))
		pthread_setaffinity_np(pool->helper[i], sizeof(set), &set);
}
