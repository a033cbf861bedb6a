"""TensorFlow Datasets: RLDS datasets on disk."""

FORMATS = {"tfds": "Tfds"}
