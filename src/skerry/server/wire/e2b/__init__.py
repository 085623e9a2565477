"""The protocols of E2B's SDKs: the control plane, envd (processes and files inside a sandbox) and the code interpreter.

control plane     JSON over HTTP, with an API key: a token of this server
sandbox traffic   requests for a port of one sandbox, with an access token of that sandbox. The sandbox and the port
                  are in headers, or in the host name `PORT-SANDBOX.DOMAIN`. Port 49983 is envd, 49999 the
                  interpreter; the server answers both, and nothing of E2B runs inside.
"""
