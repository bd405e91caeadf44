"""The NKI kernels, one file each. They are imported when they are first launched: `nki` may be missing until then."""
