/* tt.c - main function, hardware checks and random inputs of the Check programs. */
#include "config.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libtecore/base/splitmix64.h"

#include "tt_ctx.h"

#define POISON 0xa5
#define LIMIT_S 120 /* a test */

static uint64_t seed;
static uint64_t state;
static float second_normal = NAN; /* drawn with the latest one, or NaN: it was returned */

const char *tt_tmpdir(void)
{
	const char *tmp = getenv("TMPDIR");

	return tmp && *tmp ? tmp : "/tmp";
}

void tt_pause(int ms)
{
	usleep((useconds_t)TT_SLOWER(ms) * 1000);
}

void tt_remove(const char *dir)
{
	const struct dirent *e;
	char path[512];
	DIR *d = opendir(dir);

	while (d && (e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) {
			snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
			if (unlink(path))
				tt_remove(path);
		}
	if (d)
		closedir(d);
	(void)rmdir(dir);
}

/* sets an installed one; if there is none, localedef(1) creates a temporary one */
static int comma_locale(void)
{
	static const char *const name[] = { "de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8",
					    "es_ES.UTF-8" };
	char dir[96], cmd[192];
	int found = 0, made;

	snprintf(dir, sizeof(dir), "%s/te-test.XXXXXX", tt_tmpdir());
	for (size_t k = 0; k < TT_LEN(name) && !found; k++)
		found = setlocale(LC_ALL, name[k]) != NULL;
	if (!found && mkdtemp(dir)) {
		snprintf(cmd, sizeof(cmd), "localedef -i de_DE -f UTF-8 %s/de_DE >/dev/null 2>&1",
			 dir);
		made = !system(cmd) && !setenv("LOCPATH", dir, 1);
		found = made && setlocale(LC_ALL, "de_DE") != NULL;
		unsetenv("LOCPATH");
		snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
		found = !system(cmd) && found;
	}
	return found && !strcmp(localeconv()->decimal_point, ",");
}

static int can_unshare(int flags)
{
	int status;
	pid_t pid = fork();

	if (!pid)
		_exit(unshare(flags) != 0);
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status;
}

int tt_enter_userns(const char *map)
{
	int fd, r;

	/* after a change of the user, its files in /proc are root's otherwise */
	if (prctl(PR_SET_DUMPABLE, 1) || unshare(CLONE_NEWUSER))
		return -1;
	if (!*map)
		return 0;
	fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
	r = fd < 0 || write(fd, map, strlen(map)) != (ssize_t)strlen(map) ? -1 : 0;
	if (fd >= 0)
		close(fd);
	return r;
}

/* in a child: a parent that has called cuInit() must not fork tests */
static const char *probe_gpus(int want)
{
	static char why[96];
	void *h = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned int);
	int (*count)(int *);
	int (*attribute)(int *, int, int);
	int r, n, major, fit = 0;

	if (!h)
		return "libcuda.so.1 is not found";
	init = (int (*)(unsigned int))dlsym(h, "cuInit");
	count = (int (*)(int *))dlsym(h, "cuDeviceGetCount");
	attribute = (int (*)(int *, int, int))dlsym(h, "cuDeviceGetAttribute");
	if (!init || !count || !attribute)
		return "libcuda.so.1 lacks cuInit";
	r = init(0);
	if (r || count(&n)) {
		snprintf(why, sizeof(why), "cuInit: no device (CUresult %d)", r);
		return why;
	}
	for (int i = 0; i < n; i++)
		/* 75: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR */
		fit += !attribute(&major, 75, i) && major == 9;
	if (fit >= want)
		return NULL;
	snprintf(why, sizeof(why), "%d of %d GPUs of compute capability 9.0",
		 fit, want);
	return why;
}

/* NULL if the needs are met; else the reason, and *ret_need names the need */
static const char *missing(uint32_t needs, const char **ret_need)
{
	static char why[96];
	int fd[2], status;
	ssize_t n;
	pid_t pid;

	if ((needs & TT_NEED_ROOT) && geteuid() != 0) {
		*ret_need = "root";
		return "needs root";
	}
	if ((needs & TT_NEED_NETNS) && !can_unshare(CLONE_NEWNET)) {
		*ret_need = "netns";
		return "network namespaces cannot be created";
	}
	if ((needs & TT_NEED_USERNS) && !can_unshare(CLONE_NEWUSER)) {
		*ret_need = "userns";
		return "user namespaces cannot be created";
	}
	if ((needs & TT_NEED_FUSE) &&
	    (access("/dev/fuse", R_OK | W_OK) || !can_unshare(CLONE_NEWNS))) {
		*ret_need = "fuse";
		return "no file system can be mounted by /dev/fuse";
	}
	if ((needs & TT_NEED_COMMA) && !comma_locale()) {
		*ret_need = "locale";
		return "no locale has a decimal comma";
	}
	if (!(needs & 15u))
		return NULL;
	*ret_need = "gpu";
	if (pipe(fd) || (pid = fork()) < 0)
		return "cannot start the probe";
	if (!pid) {
		const char *s = probe_gpus((int)(needs & 15u));

		_exit(s && write(fd[1], s, strlen(s)) >= 0);
	}
	close(fd[1]);
	n = read(fd[0], why, sizeof(why) - 1);
	close(fd[0]);
	waitpid(pid, &status, 0);
	if (n > 0) {
		why[n] = '\0';
		return why;
	}
	return WIFEXITED(status) && !WEXITSTATUS(status) ? NULL :
							   "the probe died";
}

static int required(const char *need)
{
	const char *s = getenv("TT_REQUIRE");

	return s && strstr(s, need);
}

static void seed_init(void)
{
	const char *s = getenv("TT_SEED");
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	seed = s ? strtoull(s, NULL, 0) :
		   (uint64_t)now.tv_sec * 1000003u ^ (uint64_t)now.tv_nsec ^
			   (uint64_t)getpid() << 32;
}

int tt_one_process;
static int limited;

/* a test that hangs ends the program where no other process can end the test */
static void begin_test(void)
{
	const char *s = getenv("CK_TIMEOUT_MULTIPLIER");

	state = seed;
	second_normal = NAN;
	if (limited)
		alarm((unsigned int)(LIMIT_S * (s ? fmax(1, atof(s)) : 1)));
}

/* a TMPDIR of the program's own, as make check gives one: tests that fail leave files */
static int own_tmpdir(char *dir, size_t nbytes)
{
	return snprintf(dir, nbytes, "%s/te-check.XXXXXX", tt_tmpdir()) < (int)nbytes &&
	       mkdtemp(dir) && !setenv("TMPDIR", dir, 1);
}

/*
 * ---- tests that a level of kernels refuses ----
 *
 * With TE_CUDA_ARCH=8.0 or 8.6 a GPU has no FP8 GEMMs; with 8.6 or 8.9, no FP32 attention of heads
 * wider than 64, for which a block has too little shared memory. Below 9.0 no norm is fused with an
 * all-reduce if rows are too long for it, and no kernel rotates queries and attends to a cache. A
 * test whose first failure is the error message of that is skipped; other failures count, and on
 * other levels it does.
 */

/* what the level lacks, or NULL */
static const char *lacking(const char *line)
{
	static const struct {
		const char *level[3], *said[2], *lacks;
	} row[] = {
		{ { "8.0", "8.6", "" }, { "has no FP8 tensor cores", "" }, "FP8 GEMM" },
		{ { "8.6", "8.9", "" },
		  { "_fp32_d128", " bytes of shared memory for these shapes" },
		  "FP32 attention of wide heads" },
		{ { "8.0", "8.6", "8.9" },
		  { "te_k_comm_norm_", " bytes of shared memory for these shapes" },
		  "norm of long rows in an all-reduce" },
		{ { "8.0", "8.6", "8.9" },
		  { "attention to a cache with rope needs clusters", "" },
		  "attention of one token with rope" },
	};
	const char *level = getenv("TE_CUDA_ARCH");

	for (size_t i = 0; level && i < 3 * sizeof(row) / sizeof(row[0]); i++)
		if (level[0] && !strcmp(level, row[i / 3].level[i % 3]) &&
		    strstr(line, row[i / 3].said[0]) && strstr(line, row[i / 3].said[1]))
			return row[i / 3].lacks;
	return NULL;
}

void tt_tap_put(const char *line, FILE *to)
{
	static const char not_ok[] = "not ok ";
	const char *lacks = strncmp(line, not_ok, strlen(not_ok)) ? NULL : lacking(line);

	if (lacks)
		fprintf(to, "ok %.*s # SKIP no %s at TE_CUDA_ARCH=%s\n",
			(int)strspn(line + strlen(not_ok), "0123456789"), line + strlen(not_ok),
			lacks, getenv("TE_CUDA_ARCH"));
	else
		fputs(line, to);
}

static void tap_copy(const char *path)
{
	FILE *f = fopen(path, "r");
	char *line = NULL;
	size_t cap = 0;

	while (f && getline(&line, &cap, f) >= 0)
		tt_tap_put(line, stdout);
	free(line);
	if (f)
		fclose(f);
	(void)unlink(path);
}

/* failed tests, less those that were refused */
static int count_failed(SRunner *sr)
{
	const int n = srunner_ntests_failed(sr);
	TestResult **tr = n ? srunner_failures(sr) : NULL;
	int nrefused = 0;

	for (int i = 0; i < n; i++)
		nrefused += lacking(tr_msg(tr[i])) != NULL;
	free(tr);
	if (nrefused)
		printf("# %d tests skipped: not at TE_CUDA_ARCH=%s\n", nrefused,
		       getenv("TE_CUDA_ARCH"));
	return n - nrefused;
}

int tt_main(const char *name, uint32_t needs, void (*cases)(Suite *s))
{
	/* make check reads TAP; TT_TAP is set there */
	int tap = getenv("TT_TAP") != NULL;
	const char *need = NULL, *forks = getenv("CK_FORK"), *why;
	Suite *s;
	SRunner *sr;
	char dir[200], lines[300];
	int failed, own, level;

	if (!tt_ntests) {
		printf("Bail out! %s: no source of the program has a TEST()\n", name);
		return 99;
	}
	/*
	 * Ranks on one GPU wait for each other, so their streams must not share a queue of it, of
	 * which there are eight by default. Before anything initializes the driver.
	 */
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
	why = missing(needs, &need);

	if (why && required(need)) {
		printf("Bail out! %s: %s, and TT_REQUIRE asks for it\n", name,
		       why);
		return 99;
	}
	if (why) {
		/* under automake's TAP driver exit 77 would add an error */
		if (tap)
			printf("1..0 # SKIP %s\n", why);
		else
			printf("SKIP: %s: %s\n", name, why);
		return tap ? 0 : 77;
	}
	seed_init();
	own = !tap && own_tmpdir(dir, sizeof(dir));
	s = suite_create(name);
	if (cases)
		cases(s);
	tt_add_all(s);
	sr = srunner_create(s);
	tt_one_process = (needs & 15u) || (forks ? !strcmp(forks, "no") : needs & TT_ONE_PROCESS);
	if (tt_one_process)
		srunner_set_fork_status(sr, CK_NOFORK);
	/* a level: the lines are changed after the run */
	level = tap && tt_one_process && getenv("TE_CUDA_ARCH");
	if (level)
		snprintf(lines, sizeof(lines), "%s/tap", tt_tmpdir());
	if (tap)
		srunner_set_tap(sr, level ? lines : "-");
	limited = tt_one_process && !(needs & 15u);
	srunner_run_all(sr, tap ? CK_SILENT : CK_ENV);
	alarm(0);
	failed = tt_one_process ? count_failed(sr) : srunner_ntests_failed(sr);
	srunner_free(sr);
	if (level)
		tap_copy(lines);
	if (own)
		tt_remove(dir);
	if (failed)
		printf("# %s: TT_SEED=%llu repeats the random inputs\n", name,
		       (unsigned long long)seed);
	return failed ? 1 : 0;
}

static void (*pair_cases)(Suite *s, const char *on);

static void cases_of_pair(Suite *s)
{
	if (pair_cases)
		pair_cases(s, backend);
}

int tt_pair(const char *name, const char *program, uint32_t needs,
	    void (*cases)(Suite *s, const char *on))
{
	static const char gpu[] = "_gpu";
	const size_t n = strlen(program);
	const int on_gpu = n >= strlen(gpu) && !strcmp(program + n - strlen(gpu), gpu);
	char full[64];

	pair_cases = cases;
	backend = on_gpu ? "cuda" : "host";
	snprintf(full, sizeof(full), "%s%s", name, on_gpu ? gpu : "");
	return tt_main(full, on_gpu ? TT_NEED_GPU : needs, cases_of_pair);
}

TCase *tt_case(Suite *s, const char *name, const char *tags)
{
	TCase *c = tcase_create(name);

	tcase_set_tags(c, tags);
	tcase_set_timeout(c, LIMIT_S);
	tcase_add_checked_fixture(c, begin_test, NULL);
	suite_add_tcase(s, c);
	return c;
}

int tt_part(int n, int nparts)
{
	return TT_FEWER(8) == 8 ? 0 : (int)(seed % (uint64_t)nparts) * n / nparts;
}

int tt_part_end(int n, int nparts)
{
	return TT_FEWER(8) == 8 ? n : ((int)(seed % (uint64_t)nparts) + 1) * n / nparts;
}

uint64_t tt_seed(void)
{
	return seed;
}

uint64_t tt_rand_u64(void)
{
	return te__splitmix64(&state);
}

int64_t tt_rand_int(int64_t lo, int64_t hi)
{
	return lo + (int64_t)(tt_rand_u64() % ((uint64_t)(hi - lo) + 1));
}

double tt_rand_unit(void)
{
	return (double)(tt_rand_u64() >> 11) * 0x1p-53;
}

float tt_rand_float(float lo, float hi)
{
	return (float)(lo + ((double)hi - lo) * tt_rand_unit());
}

/* Box and Muller 1958: two numbers of two draws */
float tt_rand_normal(void)
{
	double r, angle;

	if (isnan(second_normal)) {
		r = sqrt(-2.0 * log(1.0 - tt_rand_unit()));
		angle = 2.0 * 3.14159265358979323846 * tt_rand_unit();
		second_normal = (float)(r * sin(angle));
		return (float)(r * cos(angle));
	}
	r = second_normal;
	second_normal = NAN;
	return (float)r;
}

float tt_rand_bits_f32(void)
{
	uint32_t u = (uint32_t)tt_rand_u64();
	float x;

	memcpy(&x, &u, sizeof(x));
	return x;
}

void tt_fill_normal(float *x, size_t n, float scale)
{
	for (size_t i = 0; i < n; i++)
		x[i] = scale * tt_rand_normal();
}

void tt_fill_uniform(float *x, size_t n, float lo, float hi)
{
	for (size_t i = 0; i < n; i++)
		x[i] = tt_rand_float(lo, hi);
}

void tt_fill_bytes(void *p, size_t nbytes)
{
	for (size_t i = 0; i < nbytes; i++)
		((unsigned char *)p)[i] = (unsigned char)tt_rand_u64();
}

void tt_poison(void *p, size_t nbytes)
{
	memset(p, POISON, nbytes);
}

int tt_is_poison(const void *p, size_t nbytes)
{
	const unsigned char *b = p;

	for (size_t i = 0; i < nbytes; i++)
		if (b[i] != POISON)
			return 0;
	return 1;
}

/* maps floats to integers of the same order; -0 and +0 are both 0 */
static int64_t ordinal(float x)
{
	int32_t i;

	memcpy(&i, &x, sizeof(i));
	return i < 0 ? -(int64_t)(i & 0x7fffffff) : i;
}

int64_t tt_ulps_f32(float a, float b)
{
	int64_t d;

	if (isnan(a) || isnan(b))
		return INT64_MAX;
	d = ordinal(a) - ordinal(b);
	return d < 0 ? -d : d;
}
