"""What type checkers make of the public names: checked by mypy, never run."""
