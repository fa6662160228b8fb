/*
 * record.h - the JSON objects that the tools write and read.
 *
 * Errors are sticky: the first one is kept, later calls do nothing, and the caller checks once at
 * the end.
 */
#ifndef RECORD_H
#define RECORD_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "folder.h"

/* ---- writing ---- */

#define RECORD_DEPTH 8

/* Values go into the innermost object or list that is open. In a list, key is NULL. */
struct record {
	json_t *at[RECORD_DEPTH]; /* open objects, outermost first; the others are borrowed */
	int depth;
	const char *wrong; /* NULL, or the first failure */
};

/* opens the outermost object */
void record_begin(struct record *r);
void record_open(struct record *r, const char *key);
void record_open_list(struct record *r, const char *key);
void record_close(struct record *r);
void record_int(struct record *r, const char *key, int64_t value);
void record_real(struct record *r, const char *key, double value); /* not finite: null */
void record_flag(struct record *r, const char *key, int value);	   /* true or false */
/* adds text that is read again; fails if it is not UTF-8. NULL: null */
void record_text(struct record *r, const char *key, const char *value);
/* adds a file name of any bytes; {"hex": ...} if they are not UTF-8. NULL: null */
void record_name(struct record *r, const char *key, const char *value);
/* adds text for people, with '?' instead of bytes that are not UTF-8 */
void record_shown(struct record *r, const char *key, const char *text, size_t nbytes);
/* takes the reference; NULL records the failure of the function that returned it */
void record_put(struct record *r, const char *key, json_t *value);

/* ends and releases the object */
void record_drop(struct record *r);
/* ends and returns the object; NULL after a failure, which was reported; what: for the message */
json_t *record_end(struct record *r, const char *what);
/* obj as text, for free(3), or NULL if there is no memory, which was reported */
char *record_to_text(const json_t *obj, size_t flags, const char *what);
/* ends the object and prints it on stdout; returns an exit status */
int record_print(struct record *r, size_t flags);

/* ---- reading ---- */

/* where: messages begin with it. *ret_obj: an object; an exit status */
int record_parse(const char *text, size_t nbytes, const char *where, json_t **ret_obj);
int record_load(const char *path, json_t **ret_obj);
/* from an open file, which it closes; path: for messages */
int record_read(int fd, const char *path, json_t **ret_obj);

/*
 * Call fn for the object on each line of a file, blank lines left out. where: the file and the
 * line, for messages. A status of fn other than STATUS_OK ends it, and is returned.
 */
typedef int (*record_fn)(void *arg, const json_t *obj, const char *where);
int record_lines(const char *path, record_fn fn, void *arg);

/* the bytes that record_name() wrote, for free(3); NULL: not such a value, or no memory */
char *record_name_of(const json_t *value);

/* Fields of an object. The first bad one is reported with its name, and sets status. */
struct record_reader {
	const json_t *obj;
	const char *where; /* the file */
	int status;
};

int64_t record_get_int(struct record_reader *r, const char *key, int64_t lo, int64_t hi);
/* 0 or more; null: value_of_null */
double record_get_real(struct record_reader *r, const char *key, double value_of_null);
/* borrowed; "" after a failure */
const char *record_get_text(struct record_reader *r, const char *key);
/* borrowed; NULL after a failure */
const json_t *record_get_object(struct record_reader *r, const char *key);

/* ---- saving ---- */

/* write, sync and read back a new file; the caller removes it after a failure; an exit status */
int record_save(const struct folder *dir, const char *name, const json_t *obj);

#endif
