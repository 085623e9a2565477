"""Network access of sandboxes: outgoing through gateways, incoming through previews.

gateway   the only way out of a sandbox's network namespace; the network worker serves it
policy    the rules that permit or deny destinations
attempt   one recorded use of the network, permitted or denied
approval  an answer to the question whether a destination that no rule names is permitted
secret    a credential that the worker adds to requests; the sandbox never sees its value
preview   a port of a sandbox published on the preview listener
"""
