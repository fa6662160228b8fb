/*
 * fuzz.h - a fuzz target: one parser, given any bytes. It may refuse them, but neither crash, nor
 * read outside of them, nor leak, nor hang.
 *
 * With clang and --enable-fuzz the programs are fuzzers of libFuzzer, and `make fuzz` runs them.
 * Otherwise they read the files or folders that are their arguments: make check gives them the
 * corpus.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* the name of a file that holds these bytes, until the next call; ends the process if it cannot */
const char *fuzz_file(const uint8_t *data, size_t nbytes);

#endif
