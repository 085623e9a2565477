"""Images: pulling, building, importing, exporting and pruning.

job  one pull or build that callers can follow
"""
