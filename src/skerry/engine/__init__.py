"""The engine: every effect on a sandbox goes through one of its services.

Engine                 owns one state directory and constructs every service
sandboxes              creation, start, stop, deletion, recovery
pool                   sandboxes started in advance
processes, files       programs and files inside a sandbox
images, snapshots      file systems that sandboxes start from
volumes                directories that outlive sandboxes
network                gateways, policies, approvals, secrets, previews
review                 the ledger of changes and decisions about them
code                   code execution in many languages
records                the audit log, traces, usage
webhooks               events posted to the operator's URLs
fault point            a named step at which tests can kill the server
"""
