"""The commands, a file for each: a thin layer over the library."""
