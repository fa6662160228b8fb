/*
 * folder.h - a folder for checkpoints and the files in it, which another user may be able to
 * replace by links.
 */
#ifndef FOLDER_H
#define FOLDER_H

struct folder {
	char *path; /* the given path, for messages; NULL: not open */
	int fd;	    /* open folder; names are relative to it */
};

int folder_open(const char *path, struct folder *ret_f);
/* opens the folder name in parent; creates it if it does not exist; refuses links */
int folder_open_in(const struct folder *parent, const char *name, struct folder *ret_f);
void folder_close(struct folder *f);

/* f->path/name, for free(3); NULL after a failure, which was reported */
char *folder_path(const struct folder *f, const char *name);
/* returns 1 if the name exists, even as a dangling link */
int folder_has(const struct folder *f, const char *name);
/* STATUS_BAD, with a message, if it is a link that neither the user nor root created */
int folder_check_link(const struct folder *f, const char *name);
int folder_sync(const struct folder *f);

/* STATUS_BAD, with a message, if the name exists and is not a regular file */
int folder_check_regular(const struct folder *f, const char *name);
/*
 * A new file, open for reading and writing. A regular file of that name is removed before;
 * anything else, such as a link, is refused.
 */
int folder_create(const struct folder *f, const char *name, int *ret_fd);

/*
 * Open a file to read it. A link is followed only if its owner is the user, root, or the owner of
 * its folder. STATUS_BAD, too, if it is not a regular file: opening a pipe would block.
 */
int file_open(const char *path, int *ret_fd);

#endif
