"""d3rlpy: its replay buffers."""
