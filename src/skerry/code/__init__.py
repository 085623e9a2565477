"""Code that is run for its values.

language: a row of the table (`table`): how its version is found, how a file of it is compiled and run.
context: a code interpreter's memory for one language.
kernel: the program of ours that keeps a context's memory inside the sandbox (`kernels/`). It shares its process with
the code that it runs, so nothing it says is trusted: `wire` has what is said between the two, strict and bounded.
"""
