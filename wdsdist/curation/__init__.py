"""Curation of samples: columns, tables, joins, queries and views, on pyarrow and DuckDB."""
