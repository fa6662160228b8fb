/* te/te.h - all headers of libtecore, libtegraph and libtecomm. */
#ifndef TE_TE_H
#define TE_TE_H

#include <te/capture.h>
#include <te/checkpoint.h>
#include <te/collective.h>
#include <te/comm.h>
#include <te/comm_op.h>
#include <te/ctx.h>
#include <te/decoder.h>
#include <te/dtype.h>
#include <te/errno.h>
#include <te/export.h>
#include <te/gemm.h>
#include <te/graph.h>
#include <te/kernel.h>
#include <te/log.h>
#include <te/offload.h>
#include <te/op.h>
#include <te/optim.h>
#include <te/param.h>
#include <te/plan.h>
#include <te/quant.h>
#include <te/reducer.h>
#include <te/region.h>
#include <te/schedule.h>
#include <te/seq.h>
#include <te/spill.h>
#include <te/step.h>
#include <te/stream.h>
#include <te/tensor.h>
#include <te/version.h>

#endif
