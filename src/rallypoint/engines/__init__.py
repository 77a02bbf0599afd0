"""Databases underneath: one contract (`contract`), and etcd and Redis behind it."""
