/* model_path.h - what a user gave as a model, if it cannot be one. */
#ifndef MODEL_PATH_H
#define MODEL_PATH_H

/* STATUS_BAD, with a message, if there is no such file and the path is a name on a model hub */
int model_path_check_hub(const char *path);
/*
 * The same, and if the path is neither a folder nor a GGUF file, or is a folder that has GGUF files
 * but no config.json.
 */
int model_path_check(const char *path);

#endif
