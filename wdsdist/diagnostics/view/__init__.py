"""The page that shows the samples of a data set in a browser, and the listing of samples."""
