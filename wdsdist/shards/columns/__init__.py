"""Columns: one typed value for each sample, known without reading it."""
