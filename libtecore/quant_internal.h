/* quant_internal.h - what plans ask of quantizers. */
#ifndef TE__QUANT_INTERNAL_H
#define TE__QUANT_INTERNAL_H

#include <te/quant.h>
#include <te/region.h>

/* device memory held */
size_t te__quant_device_nbytes(const struct te_quant *q);
/* what casts and updates change: scales, amaxes, histories */
int te__quant_regions(const struct te_quant *q, te_region_fn fn, void *arg);

#endif
