/* tt_states.h - a set of the states that a model checker has reached, in the order found. */
#ifndef TT_STATES_H
#define TT_STATES_H

#include <stddef.h>
#include <stdint.h>

struct tt_states {
	size_t nbytes; /* size of a state, without padding; set before the first one is added */
	size_t n;
	/* the rest is tt_states.c's */
	size_t room, mask;
	unsigned char *state;
	uint32_t *table;
};

/* copies the state, unless an equal one is in the set */
void tt_states_add(struct tt_states *s, const void *state);
/* copies state i, which may move when another one is added */
void tt_states_get(const struct tt_states *s, size_t i, void *ret_state);
void tt_states_free(struct tt_states *s);

#endif
