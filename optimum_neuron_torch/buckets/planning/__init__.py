"""Choosing sets of bucket sizes: for observed sizes the one of least padded work, for limits powers of two."""
