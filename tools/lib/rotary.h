/* rotary.h - the rotations of positions that a config.json describes. */
#ifndef ROTARY_H
#define ROTARY_H

#include <jansson.h>
#include <stdint.h>

#define ROTARY_MOST_PAIRS 128

enum rotary_kind {
	ROTARY_DEFAULT,
	ROTARY_LINEAR,
	ROTARY_LLAMA3,
	ROTARY_LONGROPE,
	ROTARY_YARN,
	ROTARY_DYNAMIC, /* the default for at most `original` tokens */
	ROTARY_NKINDS
};

/* Members that a file does not give are 0. */
struct rotary {
	int64_t kind; /* enum rotary_kind */
	double theta;
	double part; /* share of a head's channels that turn */
	double factor;
	double original; /* number of positions before scaling */
	double low, high; /* llama3: factors of the frequencies between which it interpolates */
	double fast, slow; /* yarn: numbers of turns between which it interpolates */
	double mscale, mscale_all, truncate;
	double attention; /* factor on sine and cosine */
	double shorts[ROTARY_MOST_PAIRS]; /* longrope: divisors for at most `original` positions */
	int64_t nshorts;
};

/* Read an object of a config.json: a member name of where, such as "rope_scaling". */
int rotary_read(const json_t *v, const char *where, const char *name, struct rotary *rot);
/* Check what is known after all fields have been read, and fill in what follows from them. */
int rotary_check(struct rotary *rot, const char *where, int64_t head_dim, int64_t max_pos);
/* number of channels of a head that turn */
int64_t rotary_channels(const struct rotary *rot, int64_t head_dim);
/*
 * Radians that pair i of a head turns from one position to the next, for the order of channels of
 * te_op_rope(3): pairs that do not turn follow those that do.
 */
void rotary_frequencies(const struct rotary *rot, int64_t head_dim,
			float ret_freq[ROTARY_MOST_PAIRS]);
/*
 * The channel in files of channel j here. Files have the channels that turn first, in two halves,
 * and then the others; here each half of a head has one half of both.
 */
int64_t rotary_file_channel(const struct rotary *rot, int64_t head_dim, int64_t j);

#endif
