"""Databases that hold runs and stores, such as etcd and Redis: one contract, `contract`."""
