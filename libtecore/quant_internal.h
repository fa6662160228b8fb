/* quant_internal.h - what plans ask of quantizers. */
#ifndef TE__QUANT_INTERNAL_H
#define TE__QUANT_INTERNAL_H

#include <te/quant.h>

/* device memory held */
size_t te__quant_device_nbytes(const struct te_quant *q);

#endif
