"""The environment variables by which `run.py` tells the plugin in a child process what to do."""

RECORDS = "NKI_LIBRARY_RECORDS"  # the file for its records
DONE = "NKI_LIBRARY_DONE"  # a file with the ids of tests to leave out
LNC = "NKI_LIBRARY_LNC"  # only kernels on so many cores
