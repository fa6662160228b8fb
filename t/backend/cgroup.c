/* t/backend/cgroup.c - what control groups leave, from files as Linux writes them. */
#include "config.h"

#include <inttypes.h>
#include <sys/stat.h>

#include "libtecore/backend/host/host.h"

#include "tt.h"

static char root[64], membership[80];

static void put(const char *path, const char *text)
{
	char full[256];
	FILE *f;

	snprintf(full, sizeof(full), "%s/%s", root, path);
	for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
		*p = '\0';
		mkdir(full, 0777);
		*p = '/';
	}
	f = fopen(full, "w");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	fclose(f);
}

static void setup(void)
{
	snprintf(root, sizeof(root), "%s/te-cgroup.XXXXXX", tt_tmpdir());
	ck_assert_ptr_nonnull(mkdtemp(root));
	snprintf(membership, sizeof(membership), "%s/membership", root);
}

static void teardown(void)
{
	char cmd[96];

	snprintf(cmd, sizeof(cmd), "rm -r %s", root);
	ck_assert_int_eq(system(cmd), 0);
}

CASE(files, "host", .setup = setup, .teardown = teardown);

TEST(files, version_2_is_the_least_of_all_levels)
{
	put("membership", "0::/user/job\n");
	ck_assert_uint_eq(te__cgroup_free(root, membership), UINT64_MAX);
	put("user/job/memory.max", "max\n");
	put("user/job/memory.current", "5000\n");
	put("user/memory.max", "9000\n");
	put("user/memory.current", "6000\n");
	put("user/memory.stat", "anon 3000\ninactive_file 500\nactive_file 200\n");
	ck_assert_uint_eq(te__cgroup_free(root, membership), 9000 - 6000 + 700);
	put("user/job/memory.max", "6000\n");
	ck_assert_uint_eq(te__cgroup_free(root, membership), 1000);
	put("user/job/memory.max", "4000\n");
	ck_assert_uint_eq(te__cgroup_free(root, membership), 0);
}

TEST(files, a_container_sees_the_root_only)
{
	put("membership", "0::/not/visible/here\n");
	put("memory.max", "8000\n");
	put("memory.current", "1000\n");
	ck_assert_uint_eq(te__cgroup_free(root, membership), 7000);
	put("membership", "0::/\n");
	ck_assert_uint_eq(te__cgroup_free(root, membership), 7000);
}

TEST(files, version_1_has_a_memory_controller)
{
	put("membership", "5:cpu,cpuacct:/job\n4:hugetlb,memory:/job\n1:name=memory_of:/x\n0::/\n");
	put("memory/job/memory.limit_in_bytes", "7000\n");
	put("memory/job/memory.usage_in_bytes", "3000\n");
	put("memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 250\n");
	put("memory/memory.limit_in_bytes", "9223372036854771712\n");
	put("memory/memory.usage_in_bytes", "100000\n");
	ck_assert_uint_eq(te__cgroup_free(root, membership), 7000 - 3000 + 250);
}

static void leaves(uint64_t nprocs)
{
	ck_assert_uint_eq(te__cgroup_processors(root, membership), nprocs);
}

TEST(files, version_2_limits_time_of_processors)
{
	put("membership", "0::/user/job\n");
	leaves(UINT64_MAX);
	put("user/job/cpu.max", "max 100000\n");
	leaves(UINT64_MAX);
	put("user/cpu.max", "400000 100000\n");
	leaves(4);
	put("user/job/cpu.max", "150000 100000\n");
	leaves(2);
	put("user/job/cpu.max", "1000 100000\n");
	leaves(1);
	put("user/job/cpu.max", "1000\n");
	leaves(4);
}

TEST(files, version_1_has_a_cpu_controller)
{
	put("membership", "5:cpuset:/x\n4:cpu,cpuacct:/job\n3:memory:/job\n0::/\n");
	put("cpu/job/cpu.cfs_quota_us", "-1\n");
	put("cpu/job/cpu.cfs_period_us", "100000\n");
	leaves(UINT64_MAX);
	put("cpu/cpu.cfs_quota_us", "250000\n");
	put("cpu/cpu.cfs_period_us", "50000\n");
	leaves(5);
	put("cpu/job/cpu.cfs_quota_us", "100001\n");
	leaves(2);
	put("cpu/job/cpu.cfs_period_us", "0\n");
	leaves(5);
}

TEST(files, other_files_are_no_limit)
{
	put("membership", "nonsense\n0:\n::relative\n");
	put("memory.max", "");
	ck_assert_uint_eq(te__cgroup_free(root, membership), UINT64_MAX);
	ck_assert_uint_eq(te__cgroup_free(root, "/nonexistent"), UINT64_MAX);
	put("cpu.max", "nonsense\n");
	leaves(UINT64_MAX);
}

TT_MAIN("backend/cgroup", TT_NEED_NOTHING)
