/* weight_map.h - names and layouts of weights in the files of each family. */
#ifndef WEIGHT_MAP_H
#define WEIGHT_MAP_H

#include "hfconfig.h"

/* Name and layout of a weight in the files of a family. '#' is the layer's number. */
enum part {
	PART_ALL,
	PART_VOCAB,
	PART_Q,
	PART_K,
	PART_V,
	PART_QKV,   /* queries, then keys, then values */
	PART_HEADS, /* each head's query, key and value; as many heads of keys as of queries */
	PART_GATE,
	PART_UP
};
struct weight_map {
	const char *te; /* "<op>.<weight>" */
	const char *hf;
	enum part part;
	int transposed; /* [in,out] in the file */
};
/* ends with te NULL */
const struct weight_map *model_map(enum family family);
/* *ret_first, *ret_count: rows of a part in the sequence's weight */
void model_part_rows(const struct config *cfg, enum part part, int64_t rows, int64_t *ret_first,
		     int64_t *ret_count);
/* the row in the file that is row `row` of the part in the sequence's weight */
int64_t model_file_row(const struct config *cfg, enum part part, int64_t row);

/* returns the layer number if name matches the pattern, -1 if the pattern has no '#'; else -2 */
int weight_match(const char *pattern, const char *name);
/* the name of a pattern in a layer; 0: it has no room */
int weight_name(const char *pattern, int layer, char *ret_name, size_t room);

#endif
