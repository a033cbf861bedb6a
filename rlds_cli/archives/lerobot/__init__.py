"""LeRobot: its datasets on disk, of versions 2.1 and 3.

`read` plans and reads a dataset: `description` has ``meta/``, `features` the fields of columns, `rows` the rows of the
files, `depth`, `language` and `subtasks` what is special in them, and `accounting` the fate of all. `write` writes
datasets, with `features`, `statistics` and `videos` of its own. `names` has the names of columns.
"""
