"""StableHLO: its operations have no classes of their own here, they are read as operations of any dialect."""
