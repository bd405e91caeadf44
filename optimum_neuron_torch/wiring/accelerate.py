"""Entries for accelerate."""

from .entries import Entry


ENTRIES: tuple[Entry, ...] = ()
