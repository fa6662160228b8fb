/* main.c - the program ted(8). */
#include "config.h"

#include "daemon/ted.h"

int main(int argc, char **argv)
{
	return ted_main(argc, argv);
}
