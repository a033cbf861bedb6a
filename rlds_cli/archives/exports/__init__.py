"""Datasets in formats of libraries: the driver, and all that ``write.py`` of a library needs.

`exporting` plans an export, has its units written in processes, and moves it into place. A `format` says what it cannot
represent of the `content`, and writes units; `hdf5`, `recorded` and `instructions` are parts of several formats.
`proof` reads the files again.
"""
