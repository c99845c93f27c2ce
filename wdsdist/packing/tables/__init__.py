"""Tables of rows on Arrow, for packing and for columns: Parquet, Arrow, CSV, TSV, JSON Lines and ``Dataset``."""
