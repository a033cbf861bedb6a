"""What batches and preprocessed episodes must hold, by loops over steps: slow, plain Python with none of rlds in it.

Episodes are dicts of arrays [T, ...], by name, in the form that `rlds_cli.create` takes: ``observation`` has T + 1 rows
where the final observation is recorded and T where it is not; what came of an action lies under ``next``.
"""
