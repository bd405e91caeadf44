"""Entries for trainer."""

from .entries import Entry


ENTRIES: tuple[Entry, ...] = ()
