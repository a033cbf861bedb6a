"""TorchRL: TensorDicts on disk, and its replay buffers and datasets.

`read` plans and reads TensorDicts: `stores` finds them, `lanes` orders their rows, `boundaries` finds episodes,
`described` reads those that rlds wrote, and `accounting` has the fate of all. `write` writes them; `dropin` gives
datasets as TorchRL's own; `names` has the names of files.
"""
