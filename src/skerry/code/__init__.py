"""Code that is run for its values.

language: a row of the table (`languages`): how to find its version, and how to compile and run a file.
context: the variables of a code interpreter for one language.
kernel: Skerry's program that keeps a context's variables inside the sandbox (`kernels/`). It shares its process with
the code that it runs, so its messages are not trusted: `kernel_protocol` decodes them, strict and bounded.
"""
