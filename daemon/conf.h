/* conf.h - the configuration of ted(8), read from ted.conf(5). */
#ifndef TED_CONF_H
#define TED_CONF_H

#include <stddef.h>
#include <stdint.h>

struct ted_conf {
	char socket[100]; /* limited by the address of a socket; "": by user */
	char metrics[100]; /* "": none */
	int any;	  /* 1: any user that the socket's permissions allow; 0: ted's own user */
	char group[64];	  /* "": none */
	int64_t clients, clients_uid;
	int64_t hello_ms; /* time limit for a client's HELLO */
	int64_t queue; /* bytes of replies that a client has not read */
	char spill[256]; /* the folder of files; "": none */
	int64_t spill_files;
	int64_t spill_job, spill_uid; /* bytes */
	int64_t spill_daily_job, spill_daily_uid; /* bytes written a day */
	int64_t spill_keep; /* bytes that stay free; or, below 0, minus percent */
};

/* the defaults */
void ted_conf_init(struct ted_conf *conf);
/*
 * Reads a file, which overrides values in conf. Returns 0, or -1 with a message in text, which
 * names the file and the line.
 */
int ted_conf_read(const char *path, struct ted_conf *conf, char *text, size_t nbytes);

#endif
