/* geometry.h - launch constants of device code and of launch.c. */
#ifndef TE_COMM_GEOMETRY_H
#define TE_COMM_GEOMETRY_H

#define COMM_THREADS 512
/* additional threads of ll, oneshot and messages: a warp without data */
#define COMM_HEADER_THREADS 32

/* norm.cu: threads of a row at most, and vectors of a row that each has */
#define COMM_NORM_THREADS 512
#define COMM_NORM_NV 4
#define COMM_NORM_SHARED (9 << 10) /* bytes of struct norm_shared, at most */

/* fold.cu: a thread has 16 bytes of each input; blocks at most */
#define COMM_FOLD_THREADS 256
#define COMM_FOLD_BLOCKS 1024

#endif
