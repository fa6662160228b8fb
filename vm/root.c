/*
 * vm/root.c - where ranks of several guests meet: prints N ids of communicators, a line each, and
 * serves them until it is killed.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <te/comm.h>
#include <te/errno.h>

int main(int argc, char **argv)
{
	const int n = argc > 1 ? atoi(argv[1]) : 1;

	for (int i = 0; i < n; i++) {
		char text[TE_COMM_ID_TEXT];
		struct te_comm_root *root;
		struct te_comm_id id;

		if (te_comm_id_create(&id, &root) < 0 ||
		    te_comm_id_format(&id, text, sizeof(text)) < 0) {
			fprintf(stderr, "%s\n", te_error_detail());
			return 1;
		}
		puts(text);
	}
	if (fflush(stdout))
		return 1;
	for (;;)
		pause();
}
