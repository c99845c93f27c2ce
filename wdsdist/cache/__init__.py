"""The shard cache: one sparse copy of each remote shard a node, bounded, fetched by chunks, shared by all processes."""
