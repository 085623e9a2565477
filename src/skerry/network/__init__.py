"""The only way out of a sandbox, and the way in to what it shows.

On the server's side: `netns`, `netlink` and `door` put listeners and rules into a sandbox's network namespace, and
`supervisor` runs the worker and talks to it. `worker` is that process: unprivileged, it parses what comes from inside.
`hosts`, `ranges`, `rules` and `policy` are pure and used by both.
"""
