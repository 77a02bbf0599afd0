"""Several servers on one state: one leads, the others stand by and take over."""
