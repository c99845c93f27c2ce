"""Decode audio and video, and the clips that training takes of them."""
