/* t/tools/safetensors.c - te_train's weight files: layout, digest, and all kinds of damage. */
#include "config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/lib/safetensors.h"
#include "tools/lib/say.h"
#include "tt.h"

static char dir[64], path[96], fresh[104];
static struct folder folder;

static void setup(void)
{
	snprintf(dir, sizeof(dir), "%s/te-safetensors.XXXXXX", tt_tmpdir());
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/m.safetensors", dir);
	snprintf(fresh, sizeof(fresh), "%s.new", path);
	ck_assert_int_eq(folder_open(dir, &folder), 0);
	say_hush(1);
}

static void teardown(void)
{
	say_hush(0);
	folder_close(&folder);
	unlink(path);
	unlink(fresh);
	rmdir(dir);
}

#define NA 1000003 /* more than a buffer, and no multiple of 8 bytes */
static float a[NA];
static const uint8_t b[5] = { 1, 2, 3, 4, 250 };

static void write_file(char ret_digest[17])
{
	int64_t shape_a[1] = { NA }, shape_b[2] = { 5, 1 };
	struct st_writer *w;

	tt_fill_normal(a, NA, 1);
	ck_assert_int_eq(st_create(&folder, "m.safetensors", &w), 0);
	st_declare(w, "a", "F32", 1, shape_a, sizeof(a));
	st_declare(w, "b", "U8", 2, shape_b, sizeof(b));
	ck_assert_int_eq(st_begin(w), 0);
	/* in chunks that do not divide the buffer */
	for (size_t at = 0; at < sizeof(a);) {
		size_t n = (size_t)tt_rand_int(1, 700001);

		n = n < sizeof(a) - at ? n : sizeof(a) - at;
		ck_assert_int_eq(st_write(w, (const char *)a + at, n), 0);
		at += n;
	}
	ck_assert_int_eq(st_write(w, b, sizeof(b)), 0);
	ck_assert_int_eq(st_end(w, ret_digest), 0);
	st_free(w);
	ck_assert_int_eq(rename(fresh, path), 0);
}

CASE(file, "host", .setup = setup, .teardown = teardown);

TEST(file, reads_what_it_wrote)
{
	char digest[17];
	struct st_file *f;
	struct st_tensor t;

	write_file(digest);
	ck_assert_int_eq(access(fresh, F_OK), -1);
	ck_assert_int_eq(st_open(path, &f), 0);
	ck_assert_str_eq(st_get_meta(f, "format"), "pt");
	ck_assert_str_eq(st_get_meta(f, "digest"), digest);
	ck_assert_int_eq(st_check_digest(f), 0);
	ck_assert(st_find(f, "a", &t));
	ck_assert_str_eq(t.dtype, "F32");
	ck_assert_int_eq(t.ndim, 1);
	ck_assert_int_eq(t.shape[0], NA);
	ck_assert_mem_eq(t.data, a, sizeof(a));
	ck_assert(st_find(f, "b", &t));
	ck_assert_int_eq(t.ndim, 2);
	ck_assert_int_eq(t.shape[0], 5);
	ck_assert_int_eq(t.shape[1], 1);
	ck_assert_uint_eq(t.nbytes, 5);
	ck_assert_mem_eq(t.data, b, 5);
	ck_assert(!st_find(f, "c", &t));
	ck_assert(!st_find(f, "__metadata__", &t));
	ck_assert_str_eq(st_next(f, NULL), "a");
	ck_assert_str_eq(st_next(f, "a"), "b");
	ck_assert_ptr_null(st_next(f, "b"));
	st_close(f);
}

TEST(file, header_is_as_the_format_says)
{
	uint64_t n;
	char digest[17], head[2];
	FILE *f;

	write_file(digest);
	f = fopen(path, "rb");
	ck_assert_uint_eq(fread(&n, 1, 8, f), 8);
	ck_assert_uint_eq(n % 8, 0); /* so data begins aligned */
	ck_assert_uint_eq(fread(head, 1, 2, f), 2);
	ck_assert_mem_eq(head, "{\"", 2);
	fseek(f, 0, SEEK_END);
	ck_assert_int_eq(ftell(f), (int64_t)(8 + n + sizeof(a) + sizeof(b)));
	fclose(f);
}

TEST(file, refuses_every_truncation)
{
	char digest[17];
	struct st_file *f = NULL;
	struct stat st;

	write_file(digest);
	stat(path, &st);
	for (int64_t n = st.st_size - 1; n >= 0; n = n > 400 ? n * 2 / 3 : n - 1) {
		ck_assert_int_eq(truncate(path, n), 0);
		ck_assert_int_eq(st_open(path, &f), STATUS_BAD);
		ck_assert_ptr_null(f);
	}
}

TEST(file, digest_finds_a_flipped_bit)
{
	char digest[17], byte;
	struct st_file *f;
	struct stat st;
	int fd;

	write_file(digest);
	stat(path, &st);
	for (int i = 0; i < 3; i++) {
		/* within a word, in the incomplete last word, in the last byte */
		int64_t at = st.st_size - (i == 0 ? 1000 : i == 1 ? 4 : 1);

		fd = open(path, O_RDWR);
		ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
		byte = (char)(byte ^ 1 << tt_rand_int(0, 7));
		ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
		close(fd);
		ck_assert_int_eq(st_open(path, &f), 0);
		ck_assert_int_eq(st_check_digest(f), STATUS_BAD);
		st_close(f);
		write_file(digest);
	}
}

/* wrong headers; four bytes of data follow each */
static const char *const lies[] = {
	"",
	"[]",
	"{\"a\":1}",
	"{\"a\":{}}",
	"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}", /* no end */
	"{\"a\":{\"dtype\":31,\"shape\":[1],\"data_offsets\":[0,4]}}",
	"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,5]}}", /* any type */
	"{\"a\":{\"dtype\":\"F8_E8M0\",\"shape\":[3],\"data_offsets\":[0,4]}}",
	"{\"a\":{\"dtype\":\"F4\",\"shape\":[9],\"data_offsets\":[0,4]}}", /* 36 bits */
	"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}",
	"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
	"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}",
	"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}",
	"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}",
	"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}",
	"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}",
	"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", /* a byte left over */
	"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}",
	"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}",
	"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}",
	/* an overlap, and a hole of the same size */
	"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
	"\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
	"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
	"\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
	"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
	"\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}",
	"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[1,4]}}",
};

static void write_raw(const char *header, uint64_t n)
{
	FILE *f = fopen(path, "wb");

	fwrite(&n, 1, 8, f);
	fputs(header, f);
	fwrite("\0\0\0\0", 1, 4, f);
	fclose(f);
}

TEST_EACH(file, refuses_headers_that_lie, TT_LEN(lies))
{
	struct st_file *f = NULL;

	write_raw(lies[_i], strlen(lies[_i]));
	ck_assert_int_eq(st_open(path, &f), STATUS_BAD);
	ck_assert_ptr_null(f);
}

TEST(file, takes_a_file_of_others)
{
	static const char header[] =
		"{\"x\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}} ";
	struct st_file *f = NULL;
	struct st_tensor t;

	write_raw(header, strlen(header));
	ck_assert_int_eq(st_open(path, &f), 0);
	ck_assert(st_find(f, "x", &t));
	ck_assert_str_eq(t.dtype, "BF16");
	ck_assert_ptr_null(st_get_meta(f, "format"));
	ck_assert_int_eq(st_check_digest(f), 0); /* none to check */
	st_close(f);
	write_raw(header, UINT64_MAX - 3);
	ck_assert_int_eq(st_open(path, &f), STATUS_BAD);
	ck_assert_int_eq(st_open("/nonexistent/x", &f), STATUS_BAD);
	ck_assert_int_eq(st_open(dir, &f), STATUS_BAD);
}

/* types of newer versions, and an unknown one: the header gives the offsets of their data */
static const char *const types[] = {
	"{\"a\":{\"dtype\":\"F8_E8M0\",\"shape\":[4],\"data_offsets\":[0,4]}}",
	"{\"a\":{\"dtype\":\"F4\",\"shape\":[2,4],\"data_offsets\":[0,4]}}",
	("{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]},"
	 "\"b\":{\"dtype\":\"F8_E5M2FNUZ\",\"shape\":[1],\"data_offsets\":[3,4]}}"),
	"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}",
};

TEST_EACH(file, takes_any_type, TT_LEN(types))
{
	struct st_file *f;
	struct st_tensor t;

	write_raw(types[_i], strlen(types[_i]));
	ck_assert_int_eq(st_open(path, &f), 0);
	ck_assert(st_find(f, "a", &t));
	st_close(f);
}

/* some writers fill up the header with NUL; one within it is none of theirs */
TEST(file, a_header_may_end_in_nul)
{
	static const char entry[] =
		"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
	struct st_file *f = NULL;

	/* the four bytes after the text are the padding, and no data are left */
	write_raw(entry, strlen(entry) + 4);
	ck_assert_int_eq(st_open(path, &f), STATUS_BAD);
	ck_assert_int_eq(truncate(path, 8 + (off_t)strlen(entry) + 8), 0); /* now they are */
	ck_assert_int_eq(st_open(path, &f), 0);
	st_close(f);
}

/* what people have under this name */
static const struct {
	const char *bytes, *word;
} mistaken[] = {
	{ "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull" },
	{ "PK\3\4 and the pickle of a model", "PyTorch" },
	{ "<!DOCTYPE html><html></html>", "download" },
	{ "GGUF\3\1\1\1\1\1\1\1", "GGUF" },
};
static char said[256];

static void keep_line(const char *line)
{
	snprintf(said, sizeof(said), "%s", line);
}

TEST_EACH(file, names_other_files, TT_LEN(mistaken))
{
	struct st_file *f = NULL;
	FILE *out = fopen(path, "wb");

	fputs(mistaken[_i].bytes, out);
	fclose(out);
	say_hush(0);
	say_by(keep_line);
	ck_assert_int_eq(st_open(path, &f), STATUS_BAD);
	say_by(NULL);
	ck_assert_msg(strstr(said, mistaken[_i].word) != NULL, "%s", said);
}

TEST(file, data_that_were_not_written_are_missed)
{
	int64_t shape = 8;
	struct st_writer *w;
	char digest[17];

	ck_assert_int_eq(st_create(&folder, "m.safetensors", &w), 0);
	st_declare(w, "a", "U8", 1, &shape, 8);
	ck_assert_int_eq(st_begin(w), 0);
	ck_assert_int_eq(st_write(w, "1234567", 7), 0);
	ck_assert_int_eq(st_end(w, digest), STATUS_FAILED);
	st_free(w);
	ck_assert_int_eq(access(fresh, F_OK), -1);
}

TEST(file, an_unfinished_file_goes_away)
{
	int64_t shape = 8;
	struct st_writer *w;

	ck_assert_int_eq(st_create(&folder, "m.safetensors", &w), 0);
	st_declare(w, "a", "U8", 1, &shape, 8);
	ck_assert_int_eq(st_begin(w), 0);
	ck_assert_int_eq(access(fresh, F_OK), 0);
	st_free(w);
	ck_assert_int_eq(access(fresh, F_OK), -1);
}

TT_MAIN("tools/safetensors", TT_NEED_NOTHING)
