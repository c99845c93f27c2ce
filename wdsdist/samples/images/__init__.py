"""Decode images, resize them, and the transforms that training uses most."""
