"""TensorFlow Datasets: RLDS datasets on disk, Open X-Embodiment above all.

`read` plans and reads a dataset: `directory` finds and describes its files, `undescribed` those without a description,
and `steps` makes episodes of records. `write` writes datasets; `names` has the names of files.
"""
