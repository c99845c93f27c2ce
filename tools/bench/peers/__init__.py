"""What `compare.py` is made of: the data, one module for each system, trials in fresh processes, and the report."""
