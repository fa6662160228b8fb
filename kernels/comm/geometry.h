/* geometry.h - launch constants of device code and of launch.c. */
#ifndef TE_COMM_GEOMETRY_H
#define TE_COMM_GEOMETRY_H

#define COMM_THREADS 512

#endif
