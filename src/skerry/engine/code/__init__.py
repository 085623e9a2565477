"""Execution of code in many languages, with and without state between runs.

context  an interpreter that keeps its variables between runs
kernel   the process of a context
"""
