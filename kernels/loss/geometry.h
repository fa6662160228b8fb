/* geometry.h - launch constants of loss.cu and of launch.c. */
#ifndef TE_LOSS_GEOMETRY_H
#define TE_LOSS_GEOMETRY_H

#define CE_THREADS 512 /* maximum threads of ce_fwd and ce_bwd */
#define CE_REDUCE_THREADS 1024 /* at most */
#define CE_JOIN_THREADS 128
#define CE_REDUCE_ROWS 4 /* rows that a thread of ce_reduce reads at once */

/* ce_grad: most bytes of a row in shared memory, and vectors in a thread's registers */
#define CE_HELD_NBYTES(arch) ((arch) >= 90 ? 221184 : 98304)
#define CE_HELD_VECTORS 11

#endif
