/* main.c - gives files to a fuzz target, and each of them cut short at every length up to 512. */
#include "config.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

static int run_file(const char *path)
{
	FILE *f = fopen(path, "rb");
	uint8_t *data = NULL;
	long n = -1;

	if (f && !fseek(f, 0, SEEK_END))
		n = ftell(f);
	if (n >= 0 && !fseek(f, 0, SEEK_SET))
		data = malloc((size_t)n + 1);
	if (!data || fread(data, 1, (size_t)n, f) != (size_t)n) {
		perror(path);
		return 1;
	}
	fclose(f);
	LLVMFuzzerTestOneInput(data, (size_t)n);
	for (size_t cut = 0; cut < (size_t)n && cut <= 512; cut++) {
		/* a copy: reading past its end is seen */
		uint8_t *part = malloc(cut + !cut);

		memcpy(part, data, cut);
		LLVMFuzzerTestOneInput(part, cut);
		free(part);
	}
	free(data);
	return 0;
}

int main(int argc, char **argv)
{
	int n = 0, r = 0;

	for (int i = 1; i < argc && !r; i++) {
		DIR *d = opendir(argv[i]);
		const struct dirent *e;
		char path[4096];

		while (d && !r && (e = readdir(d))) {
			if (e->d_name[0] == '.')
				continue;
			snprintf(path, sizeof(path), "%s/%s", argv[i], e->d_name);
			r = run_file(path);
			n++;
		}
		if (!d) {
			r = run_file(argv[i]);
			n++;
		} else {
			closedir(d);
		}
	}
	printf("%d files\n", n);
	return r || !n;
}
