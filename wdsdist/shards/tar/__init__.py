"""Parse and write tar headers: what GNU tar, bsdtar, Python and webdataset write is read; USTAR is written."""
