"""A page and a contact sheet to look at the samples of a data set in a browser."""
