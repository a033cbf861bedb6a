"""Samplers: which windows make the samples, in what order. `protocol` says what a sampler implements."""
