"""Sampling order, which sample comes at which step: permutation, epoch plan, mixes, as pure arithmetic."""
