"""What changed inside, shown and decided: patches on a terminal, hunk by hunk.

A *span* is text with a style, a *row* the spans of one line of the screen: what is shown is made of these, without I/O
(`visible`, `patch`, `words`, `syntax`, `rows`). `going` is the review as a machine: a key in, a screen and a wish out.
All text comes from inside and is hostile: `visible` is the one way from there to a row, `style.paint` the one way from
a row to the terminal.
"""
