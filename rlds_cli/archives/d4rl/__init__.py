"""D4RL: its HDF5 files, and its functions.

`read` and `write` are of the files, `dropin` has the functions. `ends` finds columns and ends of episodes, also for
other files of rows.
"""
