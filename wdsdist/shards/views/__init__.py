"""Views: choices of samples, which leave the shards as they are."""
