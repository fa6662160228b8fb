/* te/checkpoint.h - all state of a training run in one file. */
#ifndef TE_CHECKPOINT_H
#define TE_CHECKPOINT_H

#include <stdint.h>
#include <te/export.h>
#include <te/optim.h>
#include <te/seq.h>

TE_BEGIN_DECLS

/**
 * te_checkpoint_save - write weights, optimizer, quantizers and random state to a file
 * @seq:   the initialised sequence
 * @adamw: the sequence's optimizer; NULL: no moments are saved, for inference
 * @path:  a safetensors file with tensor names as in te_checkpoint_save(3); replaced if it exists
 *
 * The file is written and synced as path.new, then renamed: after a crash or a full disk, path is
 * the previous file or the new one, complete. Waits for all work that is queued on the context.
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -TE_ESTATE (not initialised), -EOPNOTSUPP (a bound weight has no master;
 * the optimizer has several parts), -ENOMEM, -EBUSY (this thread captures; another process saves to
 * path), -TE_ECUDA, and the errno values of open, write, fsync and rename.
 */
TE_EXPORT int te_checkpoint_save(struct te_seq *seq, struct te_adamw *adamw, const char *path);

#define TE_CHECKPOINT_SKIP_QUANT 1u /* do not load quantizers: the recipe is another one */

/**
 * te_checkpoint_load - restore what te_checkpoint_save wrote
 * @seq:        the initialised sequence
 * @adamw:      the sequence's optimizer; NULL: moments in the file are skipped
 * @path:       a file that te_checkpoint_save wrote
 * @flags:      TE_CHECKPOINT_*
 * @ret_nsteps: optimizer steps so far, applied and skipped; NULL if not wanted
 *
 * The sequence must have the same weights, in the same order, and the same frozen weights. Load
 * after creating the plan or step, which creates the quantizers of an FP8 recipe. Training then
 * continues with the same bits. The whole file is read into memory and checked before anything is
 * changed.
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -TE_EFORMAT (not a checkpoint, or another version), -TE_ECORRUPT (damaged or cut
 * short), -TE_ESHAPE (a checkpoint of another model), -TE_ESTATE (not initialised; no quantizers
 * yet), -ENOMEM, -EBUSY, -TE_ECUDA, and the errno values of open and read. The state is undefined
 * after -TE_ECUDA.
 */
TE_EXPORT int te_checkpoint_load(struct te_seq *seq, struct te_adamw *adamw, const char *path,
				 uint32_t flags, int64_t *ret_nsteps);

TE_END_DECLS

#endif
