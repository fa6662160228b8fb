/* t/tools/kept.c - files of tokens of te_train: found again, damaged, used by many processes. */
#include "config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/lib/say.h"
#include "tools/te_train/kept.h"
#include "tt.h"

#define N 50
#define VOCAB 1000
#define NPROCESSES 6

static char dir[64], path[192];
static const int32_t token[N] = { 7, 0, VOCAB - 1, 3 };

static void setup(void)
{
	snprintf(dir, sizeof(dir), "%s/te-kept.XXXXXX", tt_tmpdir());
	ck_assert_ptr_nonnull(mkdtemp(dir));
	say_hush(1);
}

static void teardown(void)
{
	say_hush(0);
	tt_remove(dir);
}

static struct kept of_text(const char *text)
{
	struct kept k = { .dir = dir, .vocab = VOCAB, .wait_s = 60, .what = "text" };
	struct digest rest = { .h = 5 };

	kept_name(&k, text, &rest);
	snprintf(path, sizeof(path), "%s/%s", dir, k.name);
	return k;
}

/* pipe on which others wait until this process computes the tokens; or -1 */
static int go = -1;

/* find the tokens, or else write them. 1: found */
static int find(struct kept k, struct docs *ret_docs)
{
	struct digest all[2] = { { .h = 9 }, { .h = 9 } }, want = all[0];
	struct docs docs = { 0 };
	const int found = kept_find(&k, &all[1], &docs);

	if (!found && go >= 0) {
		ck_assert_int_eq(write(go, "123456", NPROCESSES), NPROCESSES);
		tt_pause(20);
	}
	if (!found) {
		ck_assert_int_eq(docs_add(&docs, token, N, DOCS_TARGET), 0);
		docs.ignored[0] = DOCS_FIRST;
		docs_digest(&docs, &all[1]);
	}
	kept_end(&k, all, found ? NULL : &docs);
	ck_assert_int_eq(docs.n, N);
	ck_assert_int_eq(docs.largest, VOCAB - 1);
	ck_assert_mem_eq(docs.token, token, sizeof(token));
	ck_assert_int_eq(docs.ignored[0], DOCS_FIRST);
	ck_assert_int_eq(docs.ignored[N - 1], DOCS_TARGET);
	docs_digest(&docs, &want);
	ck_assert_uint_eq(want.h, all[1].h);
	if (ret_docs)
		*ret_docs = docs;
	else
		docs_free(&docs);
	return found;
}

CASE(kept, "host", .setup = setup, .teardown = teardown);

TEST(kept, are_found_again)
{
	struct kept k = of_text("a");
	struct docs docs;
	struct stat st;

	ck_assert_int_eq(find(k, NULL), 0);
	ck_assert_int_eq(find(k, &docs), 1);
	ck_assert_int_eq(find(of_text("b"), NULL), 0);
	/* while a run has them */
	of_text("a");
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0600);
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(find(k, NULL), 0);
	ck_assert_mem_eq(docs.token, token, sizeof(token));
	docs_free(&docs);
	strcat(path, ".part");
	ck_assert_int_ne(stat(path, &st), 0);
}

TEST(kept, digests_go_on_after_any_files)
{
	struct kept k = of_text("a");
	struct digest all = { .h = 77 }, want = all;
	struct docs docs;

	find(k, NULL);
	ck_assert_int_eq(kept_find(&k, &all, &docs), 1);
	kept_end(&k, NULL, NULL);
	docs_digest(&docs, &want);
	ck_assert_uint_eq(want.h, all.h);
	docs_free(&docs);
}

TEST(kept, damage_is_found)
{
	struct kept k = of_text("a");
	struct stat st;

	find(k, NULL);
	ck_assert_int_eq(stat(path, &st), 0);
	for (off_t at = 0; at < st.st_size; at++) {
		const int fd = open(path, O_RDWR);
		uint8_t byte;

		ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
		byte ^= 1 << tt_rand_int(0, 7);
		ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
		close(fd);
		ck_assert_msg(!find(k, NULL), "byte %lld", (long long)at);
	}
	for (off_t n = 0; n < st.st_size; n += 7) {
		ck_assert_int_eq(truncate(path, n), 0);
		ck_assert_int_eq(find(k, NULL), 0);
	}
	k.vocab = VOCAB - 1;
	ck_assert_int_eq(find(k, NULL), 0);
}

TEST(kept, files_of_another_user_or_name_are_not_read)
{
	struct kept k = of_text("a");
	char other[200];
	struct stat st;

	snprintf(other, sizeof(other), "%s/other", dir);
	find(k, NULL);
	ck_assert_int_eq(link(path, other), 0);
	ck_assert_int_eq(find(k, NULL), 0);
	ck_assert_int_eq(find(k, NULL), 1);
	if (!chown(path, 1, (gid_t)-1)) /* it is root's test */
		ck_assert_int_eq(find(k, NULL), 0);
	/* nor is one that has another name written to */
	k = of_text("b");
	strcat(path, ".part");
	ck_assert_int_eq(link(other, path), 0);
	ck_assert_int_eq(find(k, NULL), 0);
	ck_assert_int_eq(stat(other, &st), 0);
	ck_assert_int_gt(st.st_size, N);
}

TEST(kept, one_of_several_processes_writes)
{
	struct kept k = of_text("a");
	int fd[2], status;
	char byte;

	ck_assert_int_eq(pipe(fd), 0);
	for (int i = 0; i < NPROCESSES; i++) {
		const pid_t pid = fork();

		ck_assert_int_ge(pid, 0);
		if (!pid)
			_exit(read(fd[0], &byte, 1) == 1 && find(k, NULL) ? 0 : 1);
	}
	go = fd[1];
	ck_assert_int_eq(find(k, NULL), 0);
	for (int i = 0; i < NPROCESSES; i++) {
		ck_assert_int_gt(wait(&status), 0);
		ck_assert_int_eq(status, 0);
	}
	go = -1;
	close(fd[0]);
	close(fd[1]);
}

TEST(kept, a_killed_one_is_followed)
{
	struct kept k = of_text("a");
	struct digest all = { 0 };
	struct docs docs;
	const pid_t pid = fork();
	int status;

	ck_assert_int_ge(pid, 0);
	if (!pid) {
		kept_find(&k, &all, &docs);
		_exit(k.fd >= 0 && write(k.fd, "half", 4) == 4 ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(find(k, NULL), 0);
	ck_assert_int_eq(find(k, NULL), 1);
}

TEST(kept, one_that_has_stopped_is_not_waited_for)
{
	struct kept k = of_text("a"), other = k;
	struct digest all = { 0 };
	struct docs docs;

	ck_assert_int_eq(kept_find(&other, &all, &docs), 0);
	k.wait_s = 0.1;
	ck_assert_int_eq(find(k, NULL), 0);
	kept_end(&other, NULL, NULL);
	/* nothing was kept */
	ck_assert_int_eq(find(k, NULL), 0);
	ck_assert_int_eq(find(k, NULL), 1);
}

TEST(kept, folders_that_cannot_be_used_are_no_failure)
{
	struct kept k = of_text("a");
	char file[128];
	struct stat st;

	snprintf(file, sizeof(file), "%s/file", dir);
	close(open(file, O_CREAT | O_WRONLY, 0600));
	k.dir = file;
	ck_assert_int_eq(find(k, NULL), 0);
	/* nor is a link that another user may have planted followed */
	k.dir = dir;
	strcat(path, ".part");
	ck_assert_int_eq(symlink(file, path), 0);
	ck_assert_int_eq(find(k, NULL), 0);
	ck_assert_int_eq(stat(file, &st), 0);
	ck_assert_int_eq(st.st_size, 0);
}

TEST(kept, a_folder_is_chosen_and_made)
{
	struct kept k = of_text("a");
	char cache[128], want[160], *got;

	snprintf(cache, sizeof(cache), "%s/not/yet", dir);
	setenv("HOME", cache, 1);
	unsetenv("XDG_CACHE_HOME");
	snprintf(want, sizeof(want), "%s/.cache/te_train", cache);
	got = kept_folder(NULL);
	ck_assert_str_eq(got, want);
	k.dir = got;
	ck_assert_int_eq(find(k, NULL), 0);
	ck_assert_int_eq(find(k, NULL), 1);
	free(got);
	setenv("XDG_CACHE_HOME", "relative", 1);
	got = kept_folder(NULL);
	ck_assert_str_eq(got, want);
	free(got);
	setenv("XDG_CACHE_HOME", "/x", 1);
	got = kept_folder(NULL);
	ck_assert_str_eq(got, "/x/te_train");
	free(got);
	got = kept_folder("y");
	ck_assert_str_eq(got, "y");
	free(got);
	ck_assert_ptr_null(kept_folder("off"));
}

TT_MAIN("tools/kept", TT_NEED_NOTHING)
