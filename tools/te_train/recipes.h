/* recipes.h - recipes of the head and of GEMMs in layers (--head-recipe, --layer-recipe). */
#ifndef RECIPES_H
#define RECIPES_H

#include "loop.h"

/* with the trainer's two recipes: reads --layer-recipe; returns an exit status */
int recipes_open(struct trainer *t);
/* sets the recipes of t->cfg, which is complete; returns an exit status */
int recipes_apply(struct trainer *t);
void recipes_close(struct trainer *t);

#endif
