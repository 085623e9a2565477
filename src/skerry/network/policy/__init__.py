"""Egress policy: rules, compiled policies, and policies suggested from recorded attempts. Pure."""
