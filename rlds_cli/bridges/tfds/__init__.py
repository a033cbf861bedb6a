"""TensorFlow Datasets: RLDS datasets on disk."""
