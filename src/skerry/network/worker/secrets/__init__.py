"""Secrets in egress traffic: injection into requests and masking in responses."""
