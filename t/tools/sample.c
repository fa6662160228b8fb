/* t/tools/sample.c - how te_train draws a token from logits. */
#include "config.h"

#include <math.h>

#include "tools/te_train/sample.h"
#include "tt.h"

/* probabilities 1/16, 8/16, 2/16, 4/16, 1/16 */
#define N 5
static const double sixteenths[N] = { 1, 8, 2, 4, 1 };

/* draws of each id, for u at the middles of 1600 intervals */
static void draw(const struct sampling *s, int ret_count[N])
{
	struct candidate room[N];
	float logits[N];

	for (int i = 0; i < N; i++) {
		logits[i] = (float)log(sixteenths[i]);
		ret_count[i] = 0;
	}
	for (int k = 0; k < 1600; k++)
		ret_count[sample_choose(s, logits, N, (k + 0.5) / 1600, room)]++;
}

static const struct {
	struct sampling s;
	int want[N];
} draws[] = {
	{ { 1, 0, 1 }, { 100, 800, 200, 400, 100 } },
	{ { 0, 0, 1 }, { 0, 1600, 0, 0, 0 } },
	{ { 1, 1, 1 }, { 0, 1600, 0, 0, 0 } },
	{ { 1, 2, 1 }, { 0, 1067, 0, 533, 0 } },
	{ { 1, 4, 1 }, { 107, 853, 213, 427, 0 } }, /* of equal ones the first */
	{ { 1, 99, 1 }, { 100, 800, 200, 400, 100 } },
	{ { 1, 0, 0 }, { 0, 1600, 0, 0, 0 } }, /* never none */
	{ { 1, 0, 0.4 }, { 0, 1600, 0, 0, 0 } },
	{ { 1, 0, 0.6 }, { 0, 1067, 0, 533, 0 } },
	{ { 1, 0, 0.8 }, { 0, 914, 229, 457, 0 } },
	{ { 1, 3, 0.7 }, { 0, 1067, 0, 533, 0 } },    /* 12 of 14 sixteenths are enough */
	{ { 0.5, 0, 1 }, { 19, 1191, 74, 298, 18 } }, /* squares: 1 + 64 + 4 + 16 + 1 of 86 */
};

CASE(sample, "host numeric");

TEST_EACH(sample, draws_as_often_as_asked, TT_LEN(draws))
{
	int got[N];

	draw(&draws[_i].s, got);
	for (int i = 0; i < N; i++)
		ck_assert_msg(abs(got[i] - draws[_i].want[i]) <= 1, "id %d: %d of 1600, not %d", i,
			      got[i], draws[_i].want[i]);
}

TT_MAIN("tools/sample", TT_NEED_NOTHING)
