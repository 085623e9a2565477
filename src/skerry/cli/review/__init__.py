"""The review on a terminal: show patches and decide about them hunk by hunk.

A *span* is text with a style; a *row* is the spans of one line of the screen. `escape`, `patch`, `highlight` and `rows`
build rows without I/O. `model` is the review as a state machine: a key goes in, a screen and an *effect* (a request to
the server, the editor or the terminal) come out; `app` performs the effects. `watch_model` and `watch_app` do the same
for `skerry watch`. All text comes from a sandbox and is hostile: only `escape` turns it into rows, and only
`style.paint` turns rows into terminal output.
"""
