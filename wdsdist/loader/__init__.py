"""The data set, the loader, its workers, and how they resume."""
