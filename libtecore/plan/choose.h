/* choose.h - a token from logits. */
#ifndef TE__CHOOSE_H
#define TE__CHOOSE_H

#include <te/decoder.h>

struct te__candidate {
	float logit;
	int32_t token;
};

int te__sampling_check(const char *fn, const struct te_sampling *how);
/*
 * The token at a position, by how. n logits; seen: nseen tokens of the sequence. room: n elements;
 * marks: n bytes of 0, which they are again afterwards. -TE_ENUMERIC: a logit is not finite.
 */
int te__choose(const char *fn, const struct te_sampling *how, const float *logits, int64_t n,
	       const int32_t *seen, int64_t nseen, struct te__candidate *room, uint8_t *marks,
	       int32_t *ret_token);

/* logits in BF16: as FP32 */
void te__decode_logits(const uint16_t *raw, int64_t n, float *ret_logits);
/* does how choose the most likely token? */
int te__is_greedy(const struct te_sampling *how);
/* te__choose() for logits in BF16 and how that is greedy */
int te__most_likely(const char *fn, const uint16_t *raw, int64_t n, int32_t *ret_token);

#endif
