"""Answers about data, never on the training path: verify, repair, export, report, profile."""
