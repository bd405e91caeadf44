"""Entries for transformers."""

from .entries import Entry


ENTRIES: tuple[Entry, ...] = ()
