/* kept.h - the tokens of a text in a file, which later runs and other ranks map. */
#ifndef KEPT_H
#define KEPT_H

#include <stdint.h>

#include "jsonl.h"
#include "tools/lib/digest.h"

#define KEPT_NAME 48
#define KEPT_WAIT_S 600
#define KEPT_NBYTES (16 << 20) /* text of which is tokenized in less than a second */

/* Zeroed, with the members up to what set. */
struct kept {
	const char *dir;       /* folder of such files; is made if it does not exist */
	char name[KEPT_NAME]; /* name that kept_name() has given */
	int64_t vocab;	       /* each token is below it */
	double wait_s;	       /* limit of the wait for a process, which may have stopped */
	const char *what;      /* the text, for messages */
	char *path, *part;     /* the file, and what it is called while it is written */
	int fd;		       /* locked part, or -1 */
};

/* the folder for the word of --token-cache, or the default if NULL, for free(3); NULL: none */
char *kept_folder(const char *word);
/* a name for the tokens of a text by its digest, and by a digest of all that they depend on */
void kept_name(struct kept *k, const char *text, struct digest *rest);
/*
 * 1: *docs has the tokens of the file, which is mapped until docs_free(), and all is as after
 * docs_digest(). 0: there is no such file, or it is damaged; then other processes that look for it
 * wait until kept_end(). All failures mean 0, with a note.
 */
int kept_find(struct kept *k, struct digest *all, struct docs *ret_docs);
/*
 * After kept_find(): write the documents, unless it found them or docs is NULL, and map them
 * instead of their memory. all: before and after docs_digest(). A failure is a note, and leaves no
 * file.
 */
void kept_end(struct kept *k, const struct digest all[2], struct docs *docs);

#endif
