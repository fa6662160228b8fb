/* weights_slice.h - the tensors of files that a weight of a sequence is. */
#ifndef WEIGHTS_SLICE_H
#define WEIGHTS_SLICE_H

#include "model.h"

/* offset of a part of a weight in the flat buffer or in the weight, and its shape in the file */
struct slice {
	char name[128];
	int64_t offset, rows, cols; /* in the sequence: elements, [rows, cols] */
	int weight; /* its number in the sequence */
	int64_t ncodes; /* 0, or elements of a weight of codes, in which offset counts from 0 */
	const struct config *cfg;
	enum part part;
	int transposed;
	int gain; /* the gains of an RMSNorm */
	int head; /* the head's weight */
	int tied; /* the embedding, whose weight the head has */
	int adapter; /* in a file of PEFT */
	int again; /* A of an earlier tensor, again */
	int ndim;
	int64_t shape[2];
};

typedef int (*slice_fn)(void *arg, const struct slice *s);

/* from the name of a weight to the name of its A or B */
void slice_name_factor(struct slice *s, char which);
/*
 * Call fn for each tensor of the files, in the order of the sequence's weights; or for each tensor
 * of its adapters.
 */
int slices_each(const struct model *divided, int adapters, slice_fn fn, void *arg);

#endif
