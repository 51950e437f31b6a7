"""Models with a memory of what they saw before."""
