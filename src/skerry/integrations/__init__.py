"""Adapters: sandboxes in the terms of other frameworks, one module per framework.

An *adapter* implements a framework's interface for sandboxes with the public SDK, and holds no state beyond it. Only
the module of a framework imports that framework, and nothing else in Skerry imports these modules, so
`pip install skerry` works without any of them. docs/integrations has a page for each.
"""
