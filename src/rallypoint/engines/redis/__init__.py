"""Redis or Valkey as an engine (extra `redis`)."""
