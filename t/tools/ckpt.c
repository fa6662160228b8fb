/* t/tools/ckpt.c - what te_train accepts as the state of a checkpoint. */
#include "config.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tools/lib/record.h"
#include "tools/lib/safetensors.h"
#include "tools/lib/say.h"
#include "tools/te_train/ckpt.h"
#include "tools/te_train/opts.h"
#include "tt.h"

static char dir[64], path[96], fresh[104], said[96];

static void setup(void)
{
	snprintf(dir, sizeof(dir), "%s/te-ckpt.XXXXXX", tt_tmpdir());
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/state.safetensors", dir);
	snprintf(fresh, sizeof(fresh), "%s.new", path);
	snprintf(said, sizeof(said), "%s/said", dir);
}

static void teardown(void)
{
	unlink(path);
	unlink(said);
	rmdir(dir);
}

/* a state.safetensors with this text as its run, and the right digest */
static void write_state(const char *run)
{
	int64_t n = (int64_t)strlen(run);
	struct st_writer *w;
	struct folder f;
	char digest[17];

	ck_assert_int_eq(folder_open(dir, &f), 0);
	ck_assert_int_eq(st_create(&f, "state.safetensors", &w), 0);
	st_declare(w, "run", "U8", 1, &n, (size_t)n);
	ck_assert_int_eq(st_begin(w), 0);
	ck_assert_int_eq(st_write(w, run, (size_t)n), 0);
	ck_assert_int_eq(st_end(w, digest), 0);
	st_free(w);
	folder_close(&f);
	ck_assert_int_eq(rename(fresh, path), 0);
}

/* te_train --resume dir: its status, and what it writes to stderr */
static int resume(char *ret_text, size_t nbytes)
{
	char *argv[] = { "te_train", "--resume", dir, NULL };
	int keep = dup(STDERR_FILENO), done, r;
	struct opts o;
	size_t n;
	FILE *f;

	ck_assert_ptr_nonnull(freopen(said, "w", stderr));
	optind = 1;
	r = opts_parse(&o, 3, argv, &done);
	opts_free(&o);
	fflush(stderr);
	dup2(keep, STDERR_FILENO);
	close(keep);
	f = fopen(said, "r");
	n = fread(ret_text, 1, nbytes - 1, f);
	ret_text[n] = '\0';
	fclose(f);
	return r;
}

#define NUMBERS(step)                                                                 \
	"\"format\":1,\"model_digest\":\"0\",\"step\":" step ",\"best_val_nats\":1.5," \
	"\"best_step\":1,\"eval_step\":1,\"data_digest\":\"0\","       \
	"\"train_tokens\":9,\"val_tokens\":1,\"rng_seed\":1,\"rng_offset\":0"
#define OPTIONS(o) "\"options\":{" o "}"
#define STATE(o) "{" NUMBERS("3") "," OPTIONS(o) "}"

/* the state, and what the message names besides the file */
static const struct {
	const char *run, *names;
} refused[] = {
	{ "{}", "format" },
	{ "[]", "object" },
	{ "{", "line 1" },
	{ "{" NUMBERS("-3") "," OPTIONS("\"files\":[]") "}", "\"step\"" },
	{ "{" NUMBERS("1.5") "," OPTIONS("\"files\":[]") "}", "\"step\"" },
	{ "{" NUMBERS("null") "," OPTIONS("\"files\":[]") "}", "\"step\"" },
	{ "{" NUMBERS("9007199254740993000") "," OPTIONS("\"files\":[]") "}", "\"step\"" },
	{ "{" NUMBERS("3") "}", "\"options\"" },
	{ "{" NUMBERS("3") ",\"options\":[]}", "\"options\"" },
	{ STATE(""), "\"files\"" },
	{ STATE("\"files\":3"), "\"files\"" },
	{ STATE("\"files\":[1]"), "\"files\": entry 1" },
	{ STATE("\"files\":[\"a\",null]"), "\"files\": entry 2" },
	{ STATE("\"files\":[{\"hex\":\"\"}]"), "\"files\": entry 1" },
	{ STATE("\"files\":[{\"hex\":\"61f\"}]"), "\"files\": entry 1" },
	{ STATE("\"files\":[{\"hex\":\"6100\"}]"), "\"files\": entry 1" },
	{ STATE("\"files\":[{\"hex\":\"6g\"}]"), "\"files\": entry 1" },
	{ STATE("\"files\":[],\"val\":{\"hex\":1}"), "\"val\"" },
	{ STATE("\"files\":[],\"steps\":null"), "\"steps\"" },
	{ STATE("\"files\":[],\"steps\":\"9\""), "\"steps\"" },
	{ STATE("\"files\":[],\"steps\":-1"), "\"steps\"" },
	{ STATE("\"files\":[],\"lr\":{}"), "\"lr\"" },
	{ STATE("\"files\":[],\"lr\":11"), "\"lr\"" },
	{ STATE("\"files\":[],\"recipe\":null"), "\"recipe\"" },
	{ STATE("\"files\":[],\"recipe\":7"), "\"recipe\"" },
	{ STATE("\"files\":[],\"recipe\":\"fp4\""), "\"recipe\"" },
	{ STATE("\"files\":[],\"graph\":true"), "\"graph\"" },
	{ STATE("\"files\":[],\"save-best\":2"), "\"save-best\"" },
};

CASE(state, "host", .setup = setup, .teardown = teardown);

TEST_EACH(state, refuses_and_names_file_and_field, TT_LEN(refused))
{
	char text[512];

	write_state(refused[_i].run);
	ck_assert_int_eq(resume(text, sizeof(text)), STATUS_BAD);
	ck_assert_msg(strstr(text, path) && strstr(text, refused[_i].names), "%s", text);
	ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
}

static const char *const accepted[] = {
	STATE("\"files\":[]"),
	STATE("\"files\":[\"/a\",\"/b\"],\"steps\":12,\"lr\":1,\"recipe\":\"fp32\",\"graph\":1"),
	STATE("\"files\":[{\"hex\":\"2f61ff\"}],\"val\":{\"hex\":\"ff\"}"),
	STATE("\"files\":[],\"an-option-of-a-later-version\":null"),
};

TEST_EACH(state, accepts_what_it_writes, TT_LEN(accepted))
{
	char text[512];

	write_state(accepted[_i]);
	ck_assert_msg(!resume(text, sizeof(text)), "%s", text);
	ck_assert_str_eq(text, "");
}

TT_MAIN("tools/ckpt", TT_NEED_NOTHING)
