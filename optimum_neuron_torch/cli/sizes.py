"""Sizes of memory and files as people read them."""


def format_bytes(size: int) -> str:
    """`size` in the largest binary unit of which there is one: 1536 is 1.5 KiB."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
