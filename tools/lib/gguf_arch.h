/*
 * gguf_arch.h - the families of models as GGUF files have them: architectures, names and rows of
 * tensors.
 */
#ifndef GGUF_ARCH_H
#define GGUF_ARCH_H

#include "weight_map.h"

enum {
	GGUF_PAIRED = 1,       /* rows of queries and keys pair channel 2i of a head with 2i + 1 */
	GGUF_QKV_BIAS = 2,     /* queries, keys and values may have biases */
	GGUF_OTHER_BIASES = 4, /* other projections may have biases */
	GGUF_BIASED = 8,       /* all projections must have biases */
	GGUF_PARTIAL = 16,     /* heads may turn in part */
	GGUF_WINDOWS = 32,     /* layers alternate between a window and none */
	GGUF_DIVIDED = 64,     /* the tensor GGUF_DIVISORS */
	GGUF_LONGROPE = 128,   /* the tensors GGUF_SHORT and GGUF_LONG */
	GGUF_HEAD = 256,       /* a tied head is in the file once more */
	GGUF_AFTER = 512       /* norms have the names for NORMS_AFTER */
};

struct gguf_arch {
	const char *name; /* general.architecture */
	const char *type; /* model_type in config.json */
	enum family family;
	uint32_t flags; /* GGUF_* */
};

/* NULL: files have no name for it */
const struct gguf_arch *gguf_arch_of(enum family family);
/* the family that is read for an architecture; NULL: none */
const struct gguf_arch *gguf_arch_named(const char *name);

/* the name in GGUF files of a tensor of transformers; 0: there is none */
int gguf_name(enum family family, const char *hf, char *ret_name, size_t room);
/* the opposite */
int gguf_hf_name(enum family family, const char *gguf, char *ret_name, size_t room);

/* the row of a part of a weight in a GGUF file that is row `row` of the tensor of transformers */
int64_t gguf_row(const struct gguf_arch *arch, const struct config *cfg, enum part part,
		 int64_t row);
/* the opposite */
int64_t gguf_hf_row(const struct gguf_arch *arch, const struct config *cfg, enum part part,
		    int64_t row);

/* FP32 [n]: divisors of the frequencies of n pairs of channels */
#define GGUF_DIVISORS "rope_freqs.weight"
#define GGUF_SHORT "rope_factors_short.weight" /* up to the original context */
#define GGUF_LONG "rope_factors_long.weight"

/* keys of the metadata after the architecture and a dot, and fields of config.json with their
 * values, for a set of families; ends with NULL */
struct gguf_field {
	uint32_t families; /* 1 << enum family */
	const char *gguf, *hf;
};
extern const struct gguf_field gguf_fields[];
/*
 * Programs that run the files divide scores by the square root of the width of a head or, in
 * models of this many layers, of the width of the model by the number of heads; 0: in none.
 */
int64_t gguf_scaled_by_width(enum family family);

/* fields that are true if a tensor of that name exists, or if it does not */
struct gguf_sign {
	uint32_t families;
	const char *tensor, *hf;
	int missing;
};
extern const struct gguf_sign gguf_signs[];

#endif
