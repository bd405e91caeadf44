"""Passes over AOTAutograd's graphs, one per file."""
