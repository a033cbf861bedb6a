"""The loader against its peers and against what memory allows, in runs that take turns.

``data`` makes the datasets, ``cases`` says what is timed, one module per group (``transitions``, ``slices``, ...) holds
what each library does and which rows of the table follow, ``serving`` times cases in a process of one library,
``session`` lets the libraries take turns, ``report`` prints.
"""

GROUPS = (
    "transitions",
    "shuffled",
    "slices",
    "derived",
    "prioritized",
    "billion",
    "cold",
    "images",
    "processes",
    "dataloader",
    "gpu",
)
