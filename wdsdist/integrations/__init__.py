"""Helpers for frameworks that need one, a module for each; a framework is imported only by its own."""
