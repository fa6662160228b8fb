/* tt_states.c - see tt_states.h. */
#include "config.h"

#include "tt.h"
#include "tt_states.h"

/* 1 + the index of an equal state, or the free place for it: open addressing */
static uint32_t *entry(const struct tt_states *s, const unsigned char *state)
{
	uint64_t h = 0;
	size_t i;

	for (size_t k = 0; k < s->nbytes; k += 8) {
		uint64_t word = 0;

		memcpy(&word, state + k, s->nbytes - k < 8 ? s->nbytes - k : 8);
		h = (h ^ word) * 0x9e3779b97f4a7c15u;
		h ^= h >> 29;
	}
	i = (size_t)h & s->mask;
	while (s->table[i] && memcmp(s->state + (s->table[i] - 1) * s->nbytes, state, s->nbytes))
		i = (i + 1) & s->mask;
	return &s->table[i];
}

static void grow(struct tt_states *s)
{
	s->room = s->room ? 2 * s->room : 4096;
	s->mask = 4 * s->room - 1;
	s->state = realloc(s->state, s->room * s->nbytes);
	free(s->table);
	s->table = calloc(s->mask + 1, sizeof(*s->table));
	ck_assert(s->state && s->table);
	for (size_t i = 0; i < s->n; i++)
		*entry(s, s->state + i * s->nbytes) = (uint32_t)i + 1;
}

void tt_states_add(struct tt_states *s, const void *state)
{
	uint32_t *e;

	if (s->n == s->room)
		grow(s);
	e = entry(s, state);
	if (*e)
		return;
	memcpy(s->state + s->n * s->nbytes, state, s->nbytes);
	*e = (uint32_t)++s->n;
}

void tt_states_get(const struct tt_states *s, size_t i, void *ret_state)
{
	memcpy(ret_state, s->state + i * s->nbytes, s->nbytes);
}

void tt_states_free(struct tt_states *s)
{
	free(s->state);
	free(s->table);
}
