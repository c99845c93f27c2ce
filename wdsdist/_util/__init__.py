"""What every package needs: checks of arguments, files, process pools, shared memory, this host."""
