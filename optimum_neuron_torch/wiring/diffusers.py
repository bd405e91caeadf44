"""Entries for diffusers."""

from .entries import Entry


ENTRIES: tuple[Entry, ...] = ()
