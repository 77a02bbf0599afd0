"""Key/value stores: one contract (`api`), one semantics (`keyspace`), several implementations."""
