"""Traces, which hold everything that a replay of a sandbox needs.

A *step* is a command, a code run, a call of the files API, or an event, in the order in which they began. A *content*
is the bytes of an input or output: short ones are in the step's line, others are *blobs*, files named by their hash.
The audit log proves effects and holds no contents; a trace proves nothing, and holds them.

traces/SANDBOX/steps.ndjson     one line per beginning and end of a step, appended only
traces/SANDBOX/blobs/SHA256     contents
"""
