"""Snapshots of a sandbox's upper, and the operations that start from one.

snapshot  a frozen copy of an upper, stored as layers
fork      a new sandbox that starts from another sandbox's current state
rollback  the replacement of a sandbox's upper by one of its snapshots
"""
