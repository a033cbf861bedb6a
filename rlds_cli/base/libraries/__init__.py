"""Names that other libraries give to files and columns: those who read them and those who write them use the same.

`EXPORTED` is the file that an export adds to a directory of any of them, see `archives.exported`.
"""

EXPORTED = "rlds.json"
