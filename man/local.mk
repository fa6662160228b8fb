dist_man3_MANS +=

dist_man7_MANS +=
