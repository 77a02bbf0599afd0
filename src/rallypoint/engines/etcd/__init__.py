"""etcd as an engine (extra `etcd`)."""
