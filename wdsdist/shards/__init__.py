"""The format of a data set on disk: tars, their indexes, and the manifest that lists them."""
